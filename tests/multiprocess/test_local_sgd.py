"""Ranks that train by themselves, with a synchronisation round now and then: other algorithms.

Mutations that turn this red, in local_sgd: drop `_mean.average` in _round; `>=` for `>`; `-(-n //
H)` for `n // H` rounds; drop `require_finite`; drop the second add to `progress`, or the copy back,
in DiLoCo; take `_begun_at` in prepare; leave the weights, the optimizer's state, or `_begun_at`,
out of `state`. In Run.finish_step: True for `agree` (false alarms, ranks save apart), or False (no
alarm); drop `settle`, or `or self._is_over(done)`. In report: the last step's bytes for all.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from common.core.collectives import total_bytes
from common.core.events import read_events
from common.core.failures import NonFiniteLoss
from common.run import checkpoint_file, checkpoint_folder
from common.settings.strategies import LOCAL_SYNC_NAMES
from common.step.gradient_check import located
from PartTwo.strategies import SyncOptions, create_strategy
from tests.facts import says
from tests.faults.disturbed import joined, running
from tests.faults.test_bad_numbers import plant_bad_number
from tests.multiprocess.test_parity import largest_gap, one_rank, trained  # noqa: F401
from tests.ranks import Outcome, cluster, error_lines, run_programs, run_ranks
from tests.runs import FOLDERS, Case, end_of, launch, same_bits
from tests.small import small_loader, small_model
from tests.workload import SMALL, plant

TOLERANCE = 1e-12
EPOCHS = 2


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_round_after_every_step_is_averaging_gradients(world_size, one_rank):  # noqa: F811
    """Also with momentum, as SGD's is linear; shards are uneven on three and four ranks."""
    for _, weights in run_ranks(world_size, trained, "local-sgd",
                                SyncOptions(every=1, iterations=5)):
        assert largest_gap(weights, one_rank[1]) < TOLERANCE


@pytest.mark.parametrize("every, rounds_after", [(2, (2, 4)), (3, (4,)), (50, (4,))])
@pytest.mark.parametrize("strategy", LOCAL_SYNC_NAMES)
def test_does_what_the_paper_says(strategy, every, rounds_after):
    """In epochs of five iterations, one of them short."""
    expected = as_in_the_paper(3, rounds_after, 1.0 if strategy == "local-sgd" else 0.7,
                               0.0 if strategy == "local-sgd" else 0.9)
    found = run_ranks(3, trained, strategy, SyncOptions(every=every, iterations=5))
    for _, weights in found:
        assert largest_gap(weights, expected) < TOLERANCE
        assert all(torch.equal(a, b) for a, b in zip(weights, found[0][1], strict=True))


def as_in_the_paper(world_size: int, rounds_after: tuple[int, ...], rate: float,
                    momentum: float) -> list[Tensor]:
    """Two epochs of all ranks in one process, with torch's own optimizer for the outer steps."""
    outer_model = small_model()
    outer = SGD(outer_model.parameters(), rate, momentum, nesterov=momentum > 0)
    models = [small_model() for _ in range(world_size)]
    inner = [SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4) for model in models]
    for iteration, batches in all_batches(world_size):
        for model, optimizer, batch in zip(models, inner, batches, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model.train()(batch.inputs), batch.targets)
            (loss * float(batch.weight)).backward()
            optimizer.step()
        if iteration in rounds_after:
            for common, *own in zip(outer_model.parameters(),
                                    *(model.parameters() for model in models), strict=True):
                common.grad = common.detach() - torch.stack([p.detach() for p in own]).mean(dim=0)
            outer.step()
            for model in models:
                model.load_state_dict(outer_model.state_dict())
    return [parameter.detach() for parameter in outer_model.parameters()]


def all_batches(world_size: int) -> Iterator[tuple[int, tuple]]:
    """Each iteration of the epochs, and the batches of all ranks."""
    for epoch in range(1, EPOCHS + 1):
        loaders = [small_loader(rank, world_size) for rank in range(world_size)]
        yield from enumerate(zip(*(each.batches(epoch) for each in loaders), strict=True))


def bytes_of(strategy: str, iterations: int) -> int:
    model = nn.ParameterList([torch.ones(600), torch.ones(20, 20)])
    sync = create_strategy(strategy, SyncOptions(every=50, iterations=iterations))
    optimizer = SGD(model.parameters())
    sync.prepare(model, optimizer)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(iterations):
        sync.average([parameter.grad for parameter in model])
        optimizer.step()
    assert sync.replicas_agree
    return sync.bytes_sent


@pytest.mark.parametrize("iterations, rounds", [(196, 3), (200, 4)])
def test_sends_a_fiftieth_at_most(iterations, rounds):
    counted = [run_ranks(4, bytes_of, name, iterations)[1]
               for name in ("all-reduce", *LOCAL_SYNC_NAMES)]
    once, used = 4 * 1000 * 3 // 2, 2 * 3 // 2  # a byte of each parameter, of gradients alone
    assert counted == [iterations * (once + used), rounds * once, rounds * once]
    assert 50 * counted[1] <= counted[0]


def step_to_a_bad_weight(bad: float) -> str:
    model = nn.Linear(3, 2)
    sync = create_strategy("local-sgd")
    optimizer = SGD(model.parameters())
    sync.prepare(model, optimizer)
    model.weight.data[1, 1] = bad
    with pytest.raises(NonFiniteLoss) as raised, located(model, lambda: "rank 0 at epoch 1"):
        optimizer.step()
    return str(raised.value)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_bad_weight_is_named_before_a_round_averages_it(bad):
    [said] = run_ranks(1, step_to_a_bad_weight, bad)
    assert says(said, "weight weight", "rank 0", "epoch 1")


def state_sizes(strategy: str) -> tuple[int, int]:
    model = small_model()
    sync = create_strategy(strategy, SyncOptions(iterations=5))
    optimizer = SGD(model.parameters(), 0.1, 0.9)
    sync.prepare(model, optimizer)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return total_bytes(sync.state()), total_bytes(model.parameters())


def test_remembers_weights_and_momentum_and_the_outer_ones():
    for strategy, copies in (("local-sgd", 2), ("diloco", 4)):
        [(state, weights)] = run_ranks(1, state_sizes, strategy)
        assert state == copies * weights + 8  # and the steps of the epoch


# Whole runs of the literal main.


@pytest.mark.parametrize("kill_at", [6, 13])
@pytest.mark.parametrize("strategy, wire", [
    ("local-sgd", "float32"), ("diloco", "float32"), ("local-sgd", "int4"), ("diloco", "bf16")])
def test_a_killed_run_resumes_bit_for_bit_from_between_rounds(strategy, wire, kill_at, tmp_path):
    """Rounds after iterations 3, 6 and 9 of an epoch; saved after steps 4, 8, 9, 12, ..."""
    case = Case(strategy, 3, "memory", 4, kill_at)
    flags = ["--sync", f"{strategy}:3", "--wire", wire]
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    launch(case, folders[0], "no", more=flags)
    launch(case, folders[1], "no", before=partial(plant, kill_at=kill_at), code=-9, more=flags)
    launch(case, folders[1], "auto", more=flags)
    assert same_bits(*(end_of(case, folder) for folder in folders))
    text = (folders[1] / FOLDERS[strategy] / "logs_rank0.txt").read_text()
    assert says(text, "bit-exact: yes")


def test_goes_on_from_another_strategys_checkpoint(tmp_path):
    """Post-local SGD does so (Lin et al., arXiv:1808.07217); DiLoCo must not go back to step 0."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first = Case("all-reduce", 2, "memory", 9, 0)
    launch(first, tmp_path / "first", "no", more=["--epochs", "1"])
    start = tmp_path / "first" / FOLDERS["all-reduce"] / "checkpoints" / "Epoch_1.pt"
    case = Case("diloco", 2, "memory", 9, 0)
    launch(case, tmp_path / "second", f"{start}:changed", more=[
        "--learning-rate", "1e-9", "--sync", "diloco:3"])
    before = checkpoint_file.read(start)["model_state_dict"]
    after = end_of(case, tmp_path / "second").weights
    assert all(torch.allclose(before[name], after[name], atol=1e-4)
               for name in before if name.endswith(("weight", "bias")))


def run(folder: Path, *flags: str, ranks: int = 3, plants=None) -> list[Outcome]:
    """Local SGD in the literal main; `plants` replaces what is called first in a rank."""
    before = dict.fromkeys(range(ranks), plant) | (plants or {})
    return run_programs(cluster("PartTwo", ranks, [*SMALL, "--sync", "local-sgd", "--output-dir",
                                                   str(folder), *flags], folder, before=before))


def test_a_sound_run_is_left_alone_by_the_sentinel_and_labelled(tmp_path):
    outcomes = run(tmp_path, "--check-every", "1", "--sync", "all-reduce,local-sgd:4")
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    assert re.search(r"\blocal-sgd:4\b.*\balgorithm\b", outcomes[0].output)
    assert re.search(r"\blocal-sgd\b.*\balgorithm\b.*\ball-reduce\b", outcomes[0].output)


def plant_a_nudge(at: int) -> None:
    """From iteration `at` on, this rank leaves a round with a weight that is off by a little."""
    from PartTwo import local_sgd

    plant()
    after_step = local_sgd.LocalSGD._after_step

    def nudge(self) -> None:
        iteration = int(self._steps)
        after_step(self)
        self._weights[0][0, 0, 0, 0] += 1e-6 * (iteration >= at)
    local_sgd.LocalSGD._after_step = nudge


def test_a_rank_that_leaves_a_round_with_other_weights_is_named_there(tmp_path):
    outcomes = run(tmp_path, "--sync", "local-sgd:3", "--check-every", "2",
                   plants={2: partial(plant_a_nudge, 5)})
    for outcome in outcomes:
        assert outcome.code == 3, outcome.output
        error, = error_lines(outcome.output)
        assert says(error, "rank 2", "epoch 1", "iteration 6", "1 of 10", "layers.0.weight")


def plant_a_slow_start() -> None:
    import time

    from common.run import run

    plant()
    begin = run.Run.iterations

    def slowly(self) -> Iterator[int]:
        for iteration in begin(self):
            time.sleep(0.5 if iteration == 0 else 0)
            yield iteration
    run.Run.iterations = slowly


def test_ranks_save_together_though_the_leader_is_far_behind(tmp_path):
    """45 iterations an epoch, rounds after 15, 30 and 45: the clock is looked at there."""
    outcomes = run(tmp_path, "--batch-size", "2", "--sync", "local-sgd:15",
                   "--checkpoint-every", "1e-6min", "--epochs", "1", ranks=2,
                   plants={0: plant_a_slow_start})
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    for rank in range(2):
        log = tmp_path / FOLDERS["local-sgd"] / f"metrics_rank{rank}.jsonl"
        assert [event["file"] for event in read_events(log, "checkpoint")] == [
            "Epoch_1_Iteration_30.pt", "Epoch_1.pt"]


def test_the_run_ends_with_a_round_wherever_it_ends(tmp_path):
    """The last check compares all weights; no round came before."""
    outcomes = run(tmp_path, "--max-iterations", "7")
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    log = tmp_path / FOLDERS["local-sgd"] / "metrics_rank0.jsonl"
    sent = [step["bytes_sent"] for step in read_events(log, "step")]
    assert sent[:-1] == [0] * 6 and sent[-1] == 4 * 825 * 4 // 3
    summary = json.loads((tmp_path / FOLDERS["local-sgd"] / "summary.json").read_text())
    assert summary["bytes_per_iteration"] == round(sum(sent) / 7)


@pytest.mark.parametrize("what, value", [("loss", float("nan")), ("gradient", float("inf"))])
def test_a_bad_number_of_one_rank_stops_all(what, value, tmp_path):
    case = Case("local-sgd", 3, "memory", 3, 0)
    plants = {2: partial(plant_bad_number, tmp_path, what, value)}
    with running(case, tmp_path, plants=plants, more=("--sync", "local-sgd:2")) as programs:
        codes, _ = joined(programs, 60)
    assert codes == [5] * 3, [each.output() for each in programs]
    for each in programs:
        line, = error_lines(each.output())
        assert says(line, "rank 2", "epoch 1", "iteration 7")
    for path in checkpoint_folder.newest(tmp_path / FOLDERS[case.run] / "checkpoints"):
        contents = checkpoint_file.read(path)
        assert all(bool(tensor.isfinite().all()) for tensor in (
            *contents["model_state_dict"].values(), *sum(contents["rank_state"], [])))
