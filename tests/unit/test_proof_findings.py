"""A proof's first sentence: what the JSON says, failures too.

Mutations that turn this red: `max` to `min` in claim; measured cases counted as judged; a failure
passed over; the first table instead of the one in float64; the reference for its problem.
"""

import copy

import pytest

from common.reporting.proof_findings import best_table, claim
from studies.proof.experiment import Reference
from tests.multiprocess import show_mistakes


def case(name, ranks, verdict, *gaps):
    return {"name": name, "ranks": ranks, "verdict": verdict,
            "gaps": {quantity: {"absolute": gaps[-1], "relative": gaps[-1]}
                     for quantity in ("loss", "weights")}}


TABLE = {"settings": {"workload": "digits-vgg11", "precision": "float64"}, "steps": 3,
         "bounds": {name: {"absolute": 7e-13, "relative": 7e-13} for name in ("loss", "weights")},
         "cases": [case("one rank, batches reversed", 1, "measured", 0.0, 1e-16, 9e-15),
                   case("gather-scatter", 1, "agrees", 0.0, 0.0, 0.0),
                   case("gather-scatter", 4, "agrees", 1e-16, 1e-15, 1.6e-14),
                   case("all-reduce", 4, "agrees", 1e-16, 1e-15, 1e-14),
                   case("ddp", 4, "agrees", 1e-16, 1e-15, 1e-14),
                   case("all-reduce, local statistics", 4, "measured", 0.1, 0.2, 0.3),
                   case("one rank, in float32", 1, "measured", 1e-8, 1e-7, 1e-6),
                   case("all-reduce, in float32", 4, "measured", 2e-8, 2e-7, 2e-6)]}


def changed(**of_ddp):
    table = copy.deepcopy(TABLE)
    table["cases"][4].update(of_ddp)
    return table


def test_the_claim_has_its_number():
    assert claim(TABLE) == (
        "Gather/scatter, all-reduce and DDP on one and four ranks learn what one rank learns: "
        "after 3 steps of digits-vgg11 in float64 no weight differs by more than 2e-14.")


def test_a_failed_proof_says_so_first():
    said = claim(changed(verdict="FAILED: weights", gaps={"weights": {"absolute": 0.03}}))
    assert said.startswith("The proof FAILED: DDP on four ranks does not learn what one rank")
    assert "the weights differ by 0.03, where the bound is 7e-13" in said
    assert "what one rank learns:" not in said and "rounding" not in said


def test_where_bounds_have_grown_large_it_claims_less():
    table = changed()
    table["bounds"]["weights"] = {"absolute": 0.1, "relative": 0.2}
    assert "within what rounding does to one rank" in claim(table)


@pytest.mark.parametrize("cases, words", [
    (TABLE["cases"][:1], "has compared no strategy"),
    (TABLE["cases"][1:2], "Gather/scatter on one rank learns what one rank learns: after 3 steps "
                          "of digits-vgg11 in float64 all weights are equal, bit for bit."),
    ([case(name, 2, "agrees", 1e-15) for name in "abcde"], "All five strategies on two ranks")])
def test_other_proofs(cases, words):
    assert words in claim({**TABLE, "cases": cases})


def test_float64_is_shown_first():
    single = changed()
    single["settings"] = {**TABLE["settings"], "precision": "float32"}
    assert best_table([single, TABLE]) is TABLE and best_table([single]) is single


def test_the_table_of_planted_mistakes_is_printed(monkeypatch, capsys):
    """The whole of it is among the slow commands of docs/mistakes.md."""
    monkeypatch.setattr(show_mistakes, "create_reference",
                        lambda problem, path: Reference(problem, path, [], {}))
    monkeypatch.setattr(show_mistakes, "judged", lambda *asked: [])
    show_mistakes.main()
    assert "| verdict |" in capsys.readouterr().out
