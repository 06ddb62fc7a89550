"""Averaging behind the next step's forward: the bits of the overlapped all-reduce, only later.

Mutations that turn this red: update all weights at the first layer, or none before `settle`; drop
`newer` (fresh gradients are applied); drop `settle` from Run.finish_step, or a condition there;
drop it from Checkpoints.save (see test_resume); do not set `waiting` in Run; set the rate
before the waiting weights are updated; look for the bucket instead of the parameter in
CrossStepAllReduce._take; keep gradients in `_aside`; let everything travel on one lane.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from common.arithmetic.fused_layers import fuse
from common.core.failures import UsageError
from common.core.progress import PHASES, Progress
from common.step import phase_timer
from common.step.phase_timer import PhaseTimer
from PartTwo.strategies import SyncOptions, create_strategy
from tests.facts import says
from tests.multiprocess.test_parity import SMALL_BUCKETS, trained
from tests.ranks import run_ranks
from tests.runs import Case, end_of, launch, same_bits
from tests.unit.test_first_block import block
from tests.workload import plant

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


def learned_fused(name: str) -> list[Tensor]:
    """The weights after three steps of layers of which some are one."""
    features = nn.Sequential(*block(3, 16), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32),
                             nn.ReLU())
    fuse(features)
    for relu in (features[2], features[5]):
        relu.forward = lambda input: pytest.fail("a layer is on its own")
    model = nn.Sequential(features, nn.Flatten(), nn.Linear(32 * 4 * 4, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    sync = create_strategy(name, A_PARAMETER_EACH)
    sync.prepare(model, optimizer)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 3, 8, 8)).square().mean().backward()
        sync.average([p.grad for p in model.parameters()])
        optimizer.step()
    sync.settle()
    return [p.detach() for p in model.parameters()]


def test_layers_that_are_one_learn_the_same_bits_and_stay_one() -> None:
    """Their hooks are BeforeUse: any other would make them layers that round otherwise."""
    late, early = (run_ranks(2, learned_fused, name) for name in (CROSS_STEP, OVERLAPPED))
    assert all(torch.equal(*pair) for ours, theirs in zip(late, early, strict=True)
               for pair in zip(ours, theirs, strict=True))


def plant_watchful() -> None:
    """Whoever looks at the weights must find them settled."""
    from common.run import save_clock, sentinel
    from PartTwo.cross_step import CrossStepAllReduce

    plant()
    prepare, seams = CrossStepAllReduce.prepare, []

    def noted(seam, *arguments) -> None:
        seams.append(seam)
        prepare(seam, *arguments)
    CrossStepAllReduce.prepare = noted  # type: ignore[method-assign]

    def watch(kind, name: str, looks) -> None:
        wrapped = getattr(kind, name)

        def watched(self, *arguments):
            assert not (looks(self, arguments) and any(seam._travelling for seam in seams)), name
            return wrapped(self, *arguments)
        setattr(kind, name, watched)
    watch(sentinel.Sentinel, "check", lambda it, arguments: True)
    watch(save_clock.SaveClock, "is_due", lambda it, arguments: it.is_look(arguments[0]))


FLAGS = {
    "weights are looked at": ["--check-every", "2"],
    "the clock is asked": [],
    "rates change": ["--schedule", "one-cycle:1"],
    "two passes": ["--accumulate", "2"],
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_whole_runs_have_the_same_bits_too(flags, tmp_path):
    ends = []
    for name in (CROSS_STEP, OVERLAPPED):
        case = Case(name, 2, "memory", 4, 0)
        launch(case, tmp_path, "no", before=plant_watchful,
               more=[*flags, "--bucket-mb", str(SMALL_BUCKETS)])
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
    optimizer.step()


def wired(name: str):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sync = create_strategy(name, A_PARAMETER_EACH)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)
    sync.prepare(net, optimizer)
    return net, sync, optimizer


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
    assert not any(bucket._aside for bucket in sync._buckets)
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
    """Uses a layer's weight without calling the layer; then calls another."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, found: Tensor) -> Tensor:
        return self.head(functional.linear(found, self.lent.weight))


def borrowed_weight(options: SyncOptions) -> str:
    net, sync = Borrowing(), create_strategy(CROSS_STEP, options)
    optimizer = torch.optim.SGD(net.parameters())
    sync.prepare(net, optimizer)
    step(net, [net], sync, optimizer)
    try:
        step(net, [net], sync, optimizer)
    except UsageError as error:
        sync.settle()
        return str(error)
    return ""


@pytest.mark.parametrize("options", [A_PARAMETER_EACH, SyncOptions()], ids=["two", "one"])
def test_a_weight_that_is_used_before_its_update_is_an_error_in_any_bucket(options):
    for said in run_ranks(2, borrowed_weight, options):
        assert says(said, "lent.weight", "--sync overlapped-all-reduce")


def lanes_and_waiting() -> tuple[list[int], list[str]]:
    net, sync, optimizer = wired(CROSS_STEP)
    lanes, seen = [sync._lanes.index(lane) for lane in sync._lanes], []

    @contextmanager
    def waiting():
        seen.append("waits")
        yield
        seen.append("goes on")
    sync.waiting = waiting
    step(net, list(net), sync, optimizer)
    seen.append("calls")
    net(torch.ones(1, 4))
    return lanes, seen


def test_the_first_layer_has_a_lane_of_its_own_and_forward_says_when_it_waits():
    for lanes, seen in run_ranks(2, lanes_and_waiting):
        assert lanes == [0, 0, 0, 3]  # the last bucket is the first weight: 16 of 40 numbers
        assert seen == ["calls", "waits", "goes on", "waits", "goes on"]


def test_a_block_within_a_phase_counts_as_its_own(monkeypatch):
    clock, progress = iter([0.0, 1.0, 2.0, 5.0, 9.0, 10.0, 12.0, 20.0]), Progress()
    monkeypatch.setattr(phase_timer, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    timer = PhaseTimer(progress)
    with timer("forward"):
        with timer("sync"):
            assert progress.phase == "sync"
        assert progress.phase == "forward"
    with timer("sync"):
        pass
    assert timer.take() == (20.0, {**dict.fromkeys(PHASES, 0.0), "forward": 5.0, "sync": 5.0})


def phases_waited_in() -> list[str]:
    seen: list[str] = []
    call = PhaseTimer.__call__

    def noted(timer: PhaseTimer, phase: str):
        if timer._running:
            seen.append(f"{phase} in {timer._running}")
        return call(timer, phase)
    PhaseTimer.__call__ = noted  # type: ignore[method-assign]
    trained(CROSS_STEP, SyncOptions(SMALL_BUCKETS))
    return seen


def test_the_loop_counts_it_as_averaging():
    for seen in run_ranks(2, phases_waited_in):
        assert set(seen) == {"sync in forward", "sync in sync"}  # the latter ends an epoch
        assert seen.count("sync in sync") == 2
