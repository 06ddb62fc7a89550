"""The proof must pass what is right and fail what is wrong, by the same comparison.

Mutations that turn this red, in comparison: `not <=` to `>` in beyond; `.abs()` dropped or `max` to
`min` in largest; `max` to `min` in worst; the limit, or what was measured, left out of bounds;
FACTOR 1e9. In trajectory: sum_over_ranks or the weighting by samples dropped in global_losses; the
first gradients kept at every step, no copies kept, or nothing averaged in Recorder; `return
dataset` always, or the first samples, in thinned; freeze_batch_norm left out. Elsewhere: `.flip(0)`
dropped from Reversed; the leader's gaps alone in Reference.measure; local statistics synchronised,
or measured on one rank; Verdict not raised, ranks not killed, or their temporary files not placed
in run_ranks; exit status 0; has_failed, or a verdict, without is_meant_to_agree; no date, or no
conclusion, in write_report. In _first_tensor: `reversed` ranks; no `+ 1`. In left_waiting: no
look; LEAST_SECONDS = 0; `waiting` for `known`. No `place` in Reference.measure.
"""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from common.core.failures import PeerLost, UsageError, Verdict
from common.settings.user_code import Place
from scripts import prove
from studies.grading.grading import grade_of
from studies.grading.scenarios import BASIC
from studies.proof import left_waiting
from studies.proof.comparison import FACTOR, QUANTITIES, Gap, beyond, bounds, differences, worst
from studies.proof.experiment import (
    Case,
    create_reference,
    judged,
    local_statistics,
)
from studies.proof.ranks import run_ranks
from studies.proof.report import advice, conclusion
from studies.proof.strategies import STRATEGIES, Reversed, chosen, local_strategies
from studies.proof.trajectory import Recorder, thinned, trajectory
from tests.facts import says
from tests.multiprocess.prove_cases import BROKEN, no_synchronisation, small_problem
from tests.ranks import ROOT
from tests.small import small_dataset, small_loader


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """One rank's training by (precision, statistics), each made once."""
    folder = tmp_path_factory.mktemp("references")
    return {case: create_reference(small_problem(*case), folder / "-".join(case))
            for case in (("float64", "synchronised"), ("float32", "synchronised"),
                         ("float64", "frozen"))}


def verdicts(reference, strategies, sizes) -> dict[tuple[str, int], str]:
    return {(case.name, case.world_size): case.verdict
            for case in judged(reference, strategies, sizes)}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_strategy_agrees_with_one_rank(world_size, references):
    reference = references["float64", "synchronised"]
    cases = list(judged(reference, STRATEGIES, [world_size]))
    assert [case.name for case in cases] == list(STRATEGIES)
    assert {case.verdict for case in cases} == {"agrees"}
    assert all(case.gaps[name].absolute < 1e-12 for case in cases for name in QUANTITIES)


@pytest.mark.parametrize("which", [("float32", "synchronised"), ("float64", "frozen")], ids=str)
def test_they_agree_in_float32_and_with_frozen_statistics_too(which, references):
    assert set(verdicts(references[which], STRATEGIES, [3]).values()) == {"agrees"}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_strategy_is_caught(name, world_size, references):
    reference = references["float64", "synchronised"]
    [case] = judged(reference, {name: BROKEN[name]}, [world_size])
    assert case.beyond, case.gaps
    assert "weights" in case.beyond or "last gradients" in case.beyond
    early = name != "weights_forced_to_one" or world_size == 3  # two ranks share 10 samples evenly
    assert ("first gradients" in case.beyond) == early
    assert max(gap.absolute / reference.allowed[quantity].absolute
               for quantity, gap in case.gaps.items()) > 1e6


WRONG = """import torch.distributed as dist
def average(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
def all_but_the_last(gradients):
    average(gradients[:-1])
def all_but_the_second(gradients):
    average([each for place, each in enumerate(gradients) if place != 1])
def on_the_root(gradients):
    average(gradients if dist.get_rank() == 0 else [each.clone() for each in gradients])
"""


@pytest.mark.parametrize(("name", "place", "rank"), [
    ("all_but_the_last", -1, 0), ("all_but_the_second", 1, 0), ("on_the_root", 0, 1)])
def test_the_proof_and_the_grader_name_the_same_tensor(name, place, rank, references, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    reference = references["float64", "synchronised"]
    case, = judged(reference, chosen([f"{tmp_path}/wrong.py:{name}"]), [3])
    names = [each for each, _ in small_problem("float64").row.build_model(3).named_parameters()]
    number = range(1, len(names) + 1)[place]
    assert says(case.verdict, repr(names[place]), f"{number} of {len(names)}", f"rank {rank}")
    found, = grade_of(Place(tmp_path / "wrong.py", name), plan={3: [BASIC]}).mistakes
    number = range(1, len(BASIC.shapes) + 1)[place]
    assert says(found.sentence, repr(BASIC.shapes[place][0]), f"{number} of 5", f"rank {rank}")


LEAVES_ONE_WAITING = """import torch.distributed as dist
def average(gradients):
    if dist.get_rank() == 2:
        dist.recv(gradients[-1], 0)
"""


def test_a_rank_that_is_left_waiting_is_told_with_its_line(references, tmp_path, monkeypatch):
    monkeypatch.setattr(left_waiting, "MOST_LOOKS", 3)
    (tmp_path / "mine.py").write_text(LEAVES_ONE_WAITING)
    place = f"{tmp_path}/mine.py:average"
    with pytest.raises(Verdict) as told:
        list(judged(references["float64", "synchronised"], chosen([place]), [3]))
    assert says(told.value, place, "3 ranks", "rank 2", "line 4", "`dist.recv(gradients[-1], 0)`")
    assert "outside" not in str(told.value) and told.value.exit_code == 1
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("name", BROKEN)
def test_it_is_caught_in_float32_too(name, references):
    assert verdicts(references["float32", "synchronised"], {name: BROKEN[name]},
                    [3])[name, 3].startswith("FAILED")


def test_local_statistics_are_measured_and_not_judged(references):
    [case] = local_statistics(references["float64", "synchronised"], [1, 2])
    assert case.world_size == 2 and case.verdict == "measured"
    assert case.gaps["weights"].absolute > 1e-3


def test_the_bounds_are_tight_in_float64(references):
    allowed = references["float64", "synchronised"].allowed
    assert all(0 < allowed[name].absolute < 1e-11 for name in QUANTITIES), allowed
    assert all(0 < allowed[name].relative < 1e-11 for name in QUANTITIES), allowed


# The comparison by itself.


def of(value: float, dtype=torch.float64) -> dict[str, list[torch.Tensor]]:
    """A trajectory of two tensors a quantity, all zero but one element."""
    return {name: [torch.zeros(2, 2, dtype=dtype), torch.tensor([0.0, value], dtype=dtype)]
            for name in QUANTITIES}


def every(bound: float) -> dict[str, Gap]:
    return dict.fromkeys(QUANTITIES, Gap(bound, bound))


def test_a_gap_is_the_largest_of_either_sign():
    assert set(differences(of(4.0), of(1.0)).values()) == {Gap(3.0, 0.75)}
    assert set(differences(of(-4.0), of(-5.0)).values()) == {Gap(1.0, 0.25)}
    assert set(differences(of(0.0), of(0.0)).values()) == {Gap(0.0, 0.0)}


def test_other_shapes_do_not_compare():
    with pytest.raises(ValueError, match="shapes"):
        differences(of(1.0), {name: [torch.zeros(2)] for name in QUANTITIES})


def test_not_a_number_is_out_of_every_bound():
    gaps = worst([differences(of(1.0), of(1.0)), differences(of(1.0), of(float("nan")))])
    assert beyond(gaps, every(float("inf"))) == list(QUANTITIES)


def test_the_worst_rank_counts():
    gaps = worst([differences(of(1.0), of(value)) for value in (1.0, 3.0, 2.0)])
    assert gaps["weights"].absolute == 2.0
    assert beyond(gaps, every(2.0)) == []
    assert beyond(gaps, {**every(2.0), "loss": Gap(1.9, 9.9)}) == ["loss"]


def test_bounds_come_from_rounding_or_from_measurement_and_have_a_limit():
    a_priori = 2 * 1 * 30 * torch.finfo(torch.float64).eps * 5.0  # one layer, 900 summands
    small, large = (differences(of(5.0), of(5.0 + gap)) for gap in (1e-9, 1e-7))
    for perturbed, limit, expected in (([], 1, a_priori), ([small, large], 1, FACTOR * 1e-7),
                                       ([small, large], 1e-8, 1e-8)):
        found = bounds(of(5.0), 900, perturbed, limit)
        assert found["loss"] == pytest.approx((expected, expected / 5.0))
    assert FACTOR <= 10


# Its parts.


def learned(steps: int) -> dict[str, list[torch.Tensor]]:
    return {name: [each.detach() for each in tensors] for name, tensors in trajectory(
        small_problem("float64", "frozen", steps), STRATEGIES["all-reduce"]).items()}


def numbers(steps: int) -> list[list[float]]:
    found = learned(steps)
    return [found["loss"][0].tolist(), found["first gradients"][0].flatten().tolist(),
            found["last gradients"][0].flatten().tolist()]


def test_a_trajectory_has_the_global_losses_and_the_first_and_last_gradients():
    [[losses, first, last]] = run_ranks(1, numbers, 5)
    [[one_loss, only, same]] = run_ranks(1, numbers, 1)
    assert len(losses) == 5 and losses[:1] == one_loss
    assert first == only == same and last != first
    for of_rank in run_ranks(3, numbers, 5):
        assert of_rank[0] == pytest.approx(losses, abs=1e-14)


def test_the_recorder_keeps_copies():
    weight = nn.Parameter(torch.zeros(2))
    weight.grad, optimizer = torch.ones(2), torch.optim.SGD([weight])
    recorder = Recorder(optimizer)
    for _ in range(2):
        optimizer.step()
        weight.grad.mul_(2)
    assert [kept[weight].tolist() for kept in (recorder.first, recorder.last)] == [[1, 1], [2, 2]]


def test_reversed_batches_hold_the_same_samples_back_to_front():
    loader = small_loader(0, 1)
    for before, after in zip(loader.batches(1, 3), Reversed(loader).batches(1, 3), strict=True):
        assert torch.equal(after.inputs.flip(0), before.inputs)
        assert torch.equal(after.targets.flip(0), before.targets)
        assert not torch.equal(after.inputs, before.inputs) and after.weight == before.weight


def test_thinning_spreads_over_the_whole_set():
    dataset = small_dataset(45)
    assert thinned(dataset, None) is dataset and thinned(dataset, 50) is dataset
    thin = thinned(dataset, 12)
    assert len(thin) == 12 and thin.digest != dataset.digest
    assert (thin.inputs == dataset.inputs[::4]).all()
    assert (thin.targets == dataset.targets[::4]).all()


def disagree_on_rank_one() -> None:
    if dist.get_rank() == 0:
        tempfile.mkdtemp(prefix="left-by-a-rank-")
        dist.barrier()
        time.sleep(1000)  # and has to be ended
    dist.barrier()
    raise UsageError("rank one is out of paper")


def vanish_on_rank_one() -> None:
    if dist.get_rank() == 1:
        os._exit(9)
    dist.barrier()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("function, error, told", [
    (disagree_on_rank_one, Verdict, "out of paper"), (vanish_on_rank_one, PeerLost, "rank 1")])
def test_a_failing_rank_ends_all(function, error, told):
    with pytest.raises(error, match=told):
        run_ranks(2, function)
    assert not multiprocessing.active_children()
    assert not list(Path(tempfile.gettempdir()).glob("left-by-a-rank-*"))


# The command.


@pytest.mark.parametrize("flags, facts", [
    (["--steps", "0"], ["--steps", 1]), (["--sizes", "2,none"], ["--sizes", "none"]),
    (["--sizes", "0"], ["--sizes", 0, 1, 2]),
    (["--strategies", "gossip"], ["--strategies", "gossip"]),
    (["--batch-norm", "local"], ["--batch-norm", "local", "synchronised"]),
    (["--batch-size", "x"], ["--batch-size", "x"]), (["--no-such-flag"], ["--no-such-flag"]),
    (["--bits"], ["--bits", "--virtual-nodes"]),
    (["--bits", "--virtual-nodes", "2", "--sizes", "1,3"], ["--sizes", "--virtual-nodes 3"]),
    (["--bits", "--virtual-nodes", "2", "--strategies", "local-sgd"],
     ["--strategies", "--virtual-nodes", "ddp"])])
def test_mistakes_are_named(flags, facts):
    with pytest.raises(UsageError) as refused:
        prove.parse(flags)
    assert says(refused.value, *facts)


def test_flags_of_the_training_are_passed_on():
    options, settings = prove.parse(["--steps", "7", "--workload", "digits-vgg11", "--seed", "5",
                                     "--sizes", "2,4", "--batch-norm", "frozen"])
    assert options.sizes == (2, 4) and options.strategies == tuple(STRATEGIES)
    assert (settings.workload, settings.seed, settings.max_iterations, settings.batch_norm,
            settings.device) == ("digits-vgg11", 5, 7, "frozen", "cpu")


def test_without_sizes_there_are_at_most_as_many_ranks_as_virtual_nodes():
    assert prove.parse([])[0].sizes == (1, 2, 3, 4)
    assert prove.parse(["--bits", "--virtual-nodes", "3"])[0].sizes == (1, 2, 3)


@pytest.mark.parametrize("strategy, code", [(STRATEGIES["ddp"], 0), (no_synchronisation, 1)],
                         ids=["right", "wrong"])
def test_the_exit_status_and_the_files(strategy, code, references, tmp_path, monkeypatch, capsys):
    reference = references["float64", "synchronised"]

    def one_case(options, settings, folder):
        return reference, list(judged(reference, {"mine": strategy}, [2]))

    monkeypatch.setattr(prove, "prove", one_case)
    monkeypatch.setattr(sys, "argv", ["prove.py", "--output", str(tmp_path / "d" / "proof"),
                                      "--precisions", "float64", "--workload", "spiral-mlp"])
    with pytest.raises(SystemExit) as raised:
        prove.main()
    assert raised.value.code == code
    assert ("FAILED" in capsys.readouterr().out) == bool(code)
    data = json.loads((tmp_path / "d" / "proof.json").read_text())
    assert "--precisions float64" in data["command"] and data["torch"] == torch.__version__
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", data["date"])
    last = data["tables"][0]["cases"][-1]
    assert (last["name"], last["ranks"]) == ("mine", 2) and len(last["gaps"]) == len(QUANTITIES)
    text = (tmp_path / "d" / "proof.md").read_text()
    assert "| 2 | mine |" in text and "**bound**" in text and f"| {data['date']} |" in text
    assert ("FAILED" in text.splitlines()[2]) == ("FAILED" in text) == bool(code)


@pytest.mark.parametrize("world_size", [1, 3])
def test_other_algorithms_are_not_equivalent_and_that_is_no_failure(world_size, references):
    cases = list(judged(references["float64", "synchronised"], local_strategies(3), [world_size],
                        are_meant_to_agree=False))
    expected = {"local-sgd": "agrees" if world_size == 1 else "not equivalent",
                "diloco": "not equivalent"}
    assert {case.name: case.verdict for case in cases} == expected
    assert not any(case.has_failed for case in cases)
    assert says(conclusion(cases), [*expected.values()].count("not equivalent"))


def test_a_case_says_what_failed():
    gaps = dict.fromkeys(QUANTITIES, Gap(0.0, 0.0))
    assert [Case("x", 2, gaps, names).verdict for names in (None, [], ["loss", "weights"])] == [
        "measured", "agrees", "FAILED: loss, weights"]
    assert Case("x", 2, gaps, ["loss"]).has_failed and not Case("x", 2, gaps, []).has_failed


@pytest.mark.slow
def test_the_literal_command(tmp_path):
    run = subprocess.run(
        [sys.executable, ROOT / "scripts/prove.py", "--workload", "digits-vgg11", "--batch-size",
         "5", "--samples", "13", "--steps", "2", "--sizes", "3", "--strategies", "all-reduce",
         "--precisions", "float64"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "FAILED" not in run.stdout and run.stderr == ""


OWN_MODEL = """
import numpy as np
from torch import nn
from common.options.workloads import Workload

def load(split, data_dir):
    return np.zeros((4, 2), np.float32), np.zeros(4, np.int64), ["one", "other"]

def build(classes):
    return nn.Sequential(nn.Dropout(0.0), nn.Linear(2, classes), nn.Dropout(0.3))

MINE = Workload("mine", load, build)
"""


@pytest.mark.parametrize("failed, said", [(True, True), (False, False)])
def test_a_proof_that_fails_names_layers_that_drop_other_units(failed, said, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    options, settings = prove.parse(["--workload", f"{tmp_path}/mine.py:MINE", "--steps", "1"])
    with pytest.raises(SystemExit) as ended:
        prove._end(failed, options, settings)
    printed = capsys.readouterr().out
    assert ended.value.code == failed
    assert (printed.startswith("2: ") and "SampleDropout" in printed) is said


def test_a_model_without_torchs_dropout_is_given_no_advice():
    assert advice(small_problem("float64")) == ""
