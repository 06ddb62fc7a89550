"""A proof's first sentence: what the JSON says, failures too.

Mutations that turn this red: `max` to `min` in claim; measured cases counted as judged; a failure
passed over; the first table instead of the one in float64; the reference for its problem.
"""

import copy

import pytest

from common.reporting.proof_findings import best_table, claim
from studies.proof.experiment import Reference
from tests.facts import says
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
    assert says(claim(TABLE), "Gather-scatter", "all-reduce", "ddp", "one", "four", 3,
                "digits-vgg11", "float64", "2e-14")
    assert "FAILED" not in claim(TABLE)


def test_a_failed_proof_says_so_first():
    said = claim(changed(verdict="FAILED: weights, first in tensor 'a' on rank 1"))
    assert says(said, "FAILED", "ddp", "four", "float64", "weights", "rank 1", 1, 8)
    assert "all-reduce" not in said and "2e-14" not in said


def test_where_bounds_have_grown_large_it_claims_less():
    table = changed()
    table["bounds"]["weights"] = {"absolute": 0.1, "relative": 0.2}
    assert says(claim(table), "rounding", "1e-01")


@pytest.mark.parametrize("cases, facts", [
    (TABLE["cases"][:1], ["strategy"]),
    (TABLE["cases"][1:2], ["Gather-scatter", "one", 3, "digits-vgg11", "float64", "bit"]),
    ([case(name, 2, "agrees", 1e-15) for name in "abcde"], ["Five", "two", 3, "1e-15"])])
def test_other_proofs(cases, facts):
    assert says(claim({**TABLE, "cases": cases}), *facts)


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
    assert says(capsys.readouterr().out, "| verdict |")
