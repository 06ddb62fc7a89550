"""Averaging behind the next step's forward: the bits of the overlapped all-reduce, only later.

Mutations that turn this red: update all weights at the first layer, or none before `settle`; drop
`newer` (fresh gradients are applied); drop `settle` from Run.finish_step, `save` or `meet`; drop
`move` from the loop; set the rate before the waiting weights are updated; drop the check in
CrossStepAllReduce._take; let everything travel on one lane.
"""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from common.failures import UsageError
from common.gradient_sync import KeepLocal
from common.phase_timer import PhaseTimer
from PartTwo.cross_step import first_of_express
from PartTwo.overlapped import fill_buckets
from PartTwo.synchronizers import SyncOptions, create_synchronizer
from scripts.prediction.model import first_of_express as predicted_first
from tests.multiprocess import test_parity
from tests.multiprocess.test_parity import SMALL_BUCKETS, trained
from tests.ranks import run_ranks
from tests.runs import Case, end_of, launch, same_bits

CROSS_STEP, OVERLAPPED = "cross-step-all-reduce", "overlapped-all-reduce"
A_PARAMETER_EACH = SyncOptions(bucket_mb=1e-6)


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_gradients_and_weights_have_the_bits_of_overlapping_with_backward_alone(wire):
    options = SyncOptions(SMALL_BUCKETS, wire)
    late, early = (run_ranks(3, trained, name, options) for name in (CROSS_STEP, OVERLAPPED))
    for (gradients, weights), (their_gradients, their_weights) in zip(late, early, strict=True):
        assert len(gradients) == 10
        for step, their_step in zip(gradients, their_gradients, strict=True):
            assert all(map(torch.equal, step, their_step))
        assert all(map(torch.equal, weights, their_weights))


FLAGS = {
    "weights are looked at": ["--weight-average", "0.9", "--check-every", "2"],
    "rates change": ["--schedule", "one-cycle", "--warmup-epochs", "1"],
    "two passes": ["--accumulate", "2"],
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_whole_runs_have_the_same_bits_too(flags, tmp_path):
    ends = []
    for name in (CROSS_STEP, OVERLAPPED):
        case = Case(name, 2, "memory", 4, 0)
        launch(case, tmp_path, "no", more=[*flags, "--bucket-mb", str(SMALL_BUCKETS)])
        ends.append(end_of(case, tmp_path))
    assert same_bits(*ends)


def step(net: nn.Module, used: list[nn.Module], sync, optimizer) -> None:
    """Forward through the layers `used`, backward from this rank's own loss, and the seam."""
    optimizer.zero_grad()
    found = torch.ones(3, 4)
    for layer in used:
        found = layer(found)
    (found.sum() * (dist.get_rank() + 1)).backward()
    sync.average([p.grad for p in net.parameters() if p.grad is not None])
    sync.update(optimizer)


def wired(name: str):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sync = create_synchronizer(name, A_PARAMETER_EACH)
    sync.prepare(net)
    return net, sync, torch.optim.SGD(net.parameters(), 0.1, 0.9)


def weights(net: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def one_step_layer_by_layer() -> list[list[Tensor]]:
    net, sync, optimizer = wired(CROSS_STEP)
    seen = [weights(net)]
    step(net, list(net), sync, optimizer)
    seen.append(weights(net))
    with torch.no_grad():
        net[0](torch.ones(1, 4))
        seen.append(weights(net))
        sync.settle()
    assert all(parameter.grad is None for parameter in net.parameters())
    return [*seen, weights(net)]


def one_overlapped_step() -> list[Tensor]:
    net, sync, optimizer = wired(OVERLAPPED)
    step(net, list(net), sync, optimizer)
    return weights(net)


def test_a_layer_has_its_new_weights_when_it_is_called_and_not_before():
    expected = run_ranks(2, one_overlapped_step)[0]
    for before, after, when_called, settled in run_ranks(2, one_step_layer_by_layer):
        assert all(map(torch.equal, before, after))
        assert all(map(torch.equal, when_called, [*expected[:2], *before[2:]]))
        assert all(map(torch.equal, settled, expected))
        assert not any(map(torch.equal, settled, before))


def steps_without_a_layer(name: str) -> list[Tensor]:
    """The second step leaves out a layer, whose update from the first is still on its way."""
    net, sync, optimizer = wired(name)
    for used in (list(net), [net[0]], list(net)):
        step(net, used, sync, optimizer)
    sync.settle()
    return weights(net)


def test_a_layer_that_is_not_called_gets_its_update_all_the_same():
    expected = run_ranks(2, steps_without_a_layer, OVERLAPPED)
    for found, wanted in zip(run_ranks(2, steps_without_a_layer, CROSS_STEP), expected,
                             strict=True):
        assert all(map(torch.equal, found, wanted))


class Borrowing(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = nn.Linear(4, 4, bias=False)

    def forward(self, found: Tensor) -> Tensor:
        return functional.linear(found, self.lent.weight)


def borrowed_weight() -> str:
    net, sync = Borrowing(), create_synchronizer(CROSS_STEP)
    sync.prepare(net)
    optimizer = torch.optim.SGD(net.parameters())
    step(net, [net], sync, optimizer)
    try:
        step(net, [net], sync, optimizer)
    except UsageError as error:
        sync.settle()
        return str(error)
    return ""


def test_a_weight_that_is_used_before_its_update_is_an_error():
    for said in run_ranks(2, borrowed_weight):
        assert said == ("lent.weight was used before its update, without its layer being called: "
                        "choose --sync overlapped-all-reduce for this model")


def averaged_only() -> str:
    net, sync, _ = wired(CROSS_STEP)
    net(torch.ones(1, 4)).sum().backward()
    sync.average([p.grad for p in net.parameters()])
    with pytest.raises(RuntimeError) as raised:
        net(torch.ones(1, 4))
    return str(raised.value)


def test_a_loop_that_forgets_the_update_is_told_so():
    assert run_ranks(1, averaged_only) == ["average() came without update(optimizer) after it"]


def lanes_and_waiting() -> tuple[list[int], float]:
    net, sync, optimizer = wired(CROSS_STEP)
    lanes = [sync._lanes.index(lane) for lane in sync._lanes]
    step(net, list(net), sync, optimizer)
    before = sync.seconds_waited
    net(torch.ones(1, 4))
    return lanes, sync.seconds_waited - before


def test_the_first_layer_has_a_lane_of_its_own_and_waiting_is_counted():
    for lanes, waited in run_ranks(2, lanes_and_waiting):
        assert lanes == [0, 0, 0, 3]  # the last bucket is the first weight: 16 of 40 numbers
        assert waited > 0


@pytest.mark.parametrize("sizes, first", [
    ([80, 10, 5, 5], 2), ([70, 10, 10, 10], 3), ([50, 50], 1), ([1], 0), ([90, 4, 3, 3], 1)])
def test_an_eighth_of_the_bytes_overtakes(sizes, first):
    buckets = fill_buckets([nn.Parameter(torch.zeros(size)) for size in sizes], 1)
    assert first_of_express(buckets) == first == predicted_first(sizes)


class Waiting(KeepLocal):
    """Claims to have kept forward waiting for 1000 seconds whenever it is asked again."""

    def __init__(self) -> None:
        self.bytes_sent, self._asked = 0, 0

    @property
    def seconds_waited(self) -> float:  # type: ignore[override]
        self._asked += 1
        return 1000.0 * self._asked


def phases_of_ten_steps() -> list[dict[str, float]]:
    taken: list[dict[str, float]] = []
    take = PhaseTimer.take
    test_parity.KeepLocal = Waiting  # type: ignore[misc]
    PhaseTimer.take = lambda timer: taken.append(take(timer)) or taken[-1]  # type: ignore
    trained("none")
    return taken


def test_waiting_in_forward_counts_as_averaging():
    [taken] = run_ranks(1, phases_of_ten_steps)
    assert len(taken) == 10
    for seconds in taken:
        assert round(seconds["sync"] / 1000) == 1 and round(seconds["forward"] / 1000) == -1
