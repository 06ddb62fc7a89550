"""The special paths for a GPU, on pretended ones: clocks, resident images, shared GPUs.

Mutations that turn this red: wait for the device at the end of each phase; read the first event of
a phase as its last; take from the host in ResidentDataset.take; hand an image to the device for
each batch; give rank 1 a GPU that is not there; look at the numbers of GPUs alone; let no rank pass
its GPU on in own_gpus; ask for GPUs with --device cpu; say nothing of ranks that share one; leave
LateCheck.finish out of OverlappedAllReduce; read the loss of a GPU in Readings.add, or leave out
whether it is finite; the metric before the loss; count LocalSGD's steps on the CPU; keep arrays
alone on a device, or rows on disk of any size; copy their first piece only.
"""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from common import banner
from common.cluster import devices, process_group
from common.cluster.board import Board
from common.cluster.node import Node
from common.cluster.process_group import form_group
from common.cluster.rank_info import RankInfo
from common.cluster.rendezvous import exchange
from common.core.failures import UsageError
from common.core.metrics import ACCURACY, Metric, Totals
from common.core.world import World
from common.data import resident
from common.data.dataset import PIECE, ArrayDataset
from common.data.loaders import InMemoryLoader
from common.data.resident import on_device
from common.data.rows_on_disk import RowsOnDisk, state_of
from common.settings.settings import Settings
from common.settings.strategies import LOCAL_SYNC_NAMES
from common.setup import create_loader
from common.step import gradient_check, readings
from common.step.accumulation import Part
from common.step.gradient_check import LateCheck, NotFinite
from common.step.phase_timer import GpuMoment, HostMoment, PhaseTimer, moments_of
from PartTwo.strategies import SyncOptions, create_strategy
from tests.facts import says
from tests.ranks import run_ranks
from tests.small import small_dataset, small_loader

GPU = torch.device("cuda", 0)


class Event:
    """torch.cuda.Event of a GPU that comes to each event a second after the one before."""

    waits = recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.recorded += 1
        self.at = Event.recorded

    def synchronize(self) -> None:
        Event.waits += 1

    def elapsed_time(self, end: "Event") -> float:
        return 1000.0 * (end.at - self.at)


def test_phases_on_a_gpu_are_read_when_the_step_is_over(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    timer = PhaseTimer(moment=moments_of(GPU))
    with timer("forward"), timer("sync"):
        pass
    with timer("update"):
        pass
    assert Event.waits == 0
    seconds = timer.take()[1]
    assert (seconds["forward"], seconds["sync"], seconds["update"]) == (2.0, 1.0, 1.0)
    assert Event.waits > 0 and moments_of(GPU) is GpuMoment
    assert moments_of(torch.device("cpu")) is HostMoment


def test_images_are_kept_on_a_device_and_taken_there():
    kept = on_device(small_dataset(), torch.device("meta"))
    assert kept.take([0, 3])[0].device.type == "meta" and kept.digest == "small"
    assert kept.take(np.array([5]))[0].shape == (1, 8, 8, 3)
    host = small_dataset()
    assert on_device(host, torch.device("cpu")) is host


def on_disk(folder: Path) -> ArrayDataset:
    """The small data set as CIFAR-10, image folders and MNIST have theirs: rows in a file."""
    small, file = small_dataset(2 * PIECE + 3), folder / "images.npy"
    np.save(file, small.inputs)
    return replace(small, inputs=RowsOnDisk(file, state_of(file), lambda rows: True))


def test_rows_on_disk_are_kept_on_a_device_where_there_is_room(tmp_path, monkeypatch):
    whole = on_disk(tmp_path)
    assert whole.inputs.nbytes == small_dataset(len(whole)).inputs.nbytes
    assert on_device(whole, torch.device("meta")).take([0, 3])[0].device.type == "meta"
    copied = resident._copy(whole.inputs, torch.device("cpu"))
    assert torch.equal(copied, torch.from_numpy(small_dataset(len(whole)).inputs))
    monkeypatch.setattr(resident, "MOST_BYTES", whole.inputs.nbytes - 1)
    assert on_device(whole, torch.device("meta")) is whole


def test_what_is_kept_on_a_device_gives_the_same_batches(monkeypatch):
    """On the CPU, pretended to be a device: all of the loader's work is done on the copy."""
    loader = small_loader(rank=1, world_size=3)
    kept = on_device(loader.dataset, torch.device("meta"))
    copy = tuple(torch.tensor(each) for each in (kept.inputs, kept.targets))
    there = replace(kept, there=copy)
    monkeypatch.setattr(ArrayDataset, "take", None)
    batches = list(replace(loader, dataset=there).batches(1))
    monkeypatch.undo()
    for ours, theirs in zip(batches, loader.batches(1), strict=True):
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)


@pytest.mark.parametrize("bytes_allowed, device", [(2**31, "meta"), (100, "cpu")])
def test_the_memory_loader_keeps_them_where_there_is_room(bytes_allowed, device, monkeypatch):
    monkeypatch.setattr("common.data.resident.MOST_BYTES", bytes_allowed)
    settings = Settings(workload="digits-vgg11", batch_size=5)
    loader = create_loader(settings, small_dataset(), Node(World(), torch.device("meta"), 1))
    assert isinstance(loader, InMemoryLoader)
    assert loader.dataset.take([0])[0].device.type == device


def test_ranks_share_gpus_where_there_are_fewer_and_are_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    assert [devices.choose_device("cuda", rank, False).index for rank in range(4)] == [0, 1, 0, 1]
    assert devices.choose_device("auto", 1, False).type == "cpu"
    node = Node(World(), GPU, threads=1, ranks=seeing("ab", "ab", "ab"))
    assert says(banner._shared_gpus(node)[0], "3 ranks", "2 GPUs")
    for enough in (seeing("ab", "ab"), seeing("a", "b"), ()):
        assert not banner._shared_gpus(replace(node, ranks=enough))
    assert not banner._shared_gpus(replace(node, device=torch.device("cpu")))
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    with pytest.raises(UsageError) as raised:
        devices.choose_device("cuda", 0, False)
    assert says(raised.value, "--device cuda", socket.gethostname())


def seeing(*gpus: str) -> list[RankInfo]:
    """Ranks on one machine that see these GPUs, a letter each."""
    return [RankInfo(rank, "node", rank, "127.0.0.1", "lo", gpus=list(seen))
            for rank, seen in enumerate(gpus)]


def places(monkeypatch, *gpus: str) -> list[tuple[str, str]]:
    """The device and backend of ranks on one machine that see these GPUs."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    for name in ("keep_freed_memory", "exchange_greetings"):
        monkeypatch.setattr(process_group, name, lambda *_: None)
    monkeypatch.setattr(process_group, "use_threads", lambda *_: 1)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "lo")  # form_group sets them where they are not set
    store, infos, found = HashStore(), seeing(*gpus), []
    boards = [Board(store, World(rank, len(gpus))) for rank in range(len(gpus))]
    with ThreadPoolExecutor(len(gpus)) as pool:
        list(pool.map(lambda each, me: exchange(each, me, time.monotonic() + 60), boards, infos))
    for each, seen in zip(boards, gpus, strict=True):
        monkeypatch.setattr(devices, "count_gpus", partial(len, seen))
        node = form_group(each, infos, Settings(), 60.0)
        found.append((str(node.device), node.backend))
    return found


@pytest.mark.parametrize("gpus, indices", [
    (("abc", "abc"), (0, 1)), (("a", "b"), (0, 0)), (("ab", "cd"), (0, 0)), (("ab", "a"), (1, 0)),
    (("ab", "ba"), (0, 0)), (("abc", "ab", "a"), (2, 1, 0))])
def test_every_rank_has_a_gpu_of_its_own_among_those_it_sees(gpus, indices, monkeypatch):
    assert places(monkeypatch, *gpus) == [(f"cuda:{index}", "nccl") for index in indices]


@pytest.mark.parametrize("gpus", [("ab", "ab", "ab"), ("a", "a"), ("a", ""), ("ab", "c", "c")])
def test_ranks_compute_on_their_cpus_where_one_has_no_gpu_of_its_own(gpus, monkeypatch):
    assert places(monkeypatch, *gpus) == [("cpu", "gloo")] * len(gpus)


def gpus_told(device: str) -> list[str]:
    return RankInfo.of_this_process(World(), Settings(device=device), "lo", "127.0.0.1").gpus


def test_a_rank_tells_the_gpus_that_it_sees_and_asks_for_none_with_a_cpu(monkeypatch):
    asked = Mock(side_effect=lambda index: Mock(uuid=("one", "two", "one")[index]))
    monkeypatch.setattr(torch.cuda, "get_device_properties", asked)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus_told("cpu") == [] and not asked.called
    assert gpus_told("auto") == ["one/0", "two/0", "one/1"]
    asked.side_effect = RuntimeError("the driver is too old")
    assert gpus_told("cuda") == ["/0", "/1", "/2"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    asked.reset_mock()
    assert gpus_told("auto") == [] and not asked.called


def test_gradients_of_a_gpu_are_looked_at_without_waiting(monkeypatch):
    monkeypatch.setattr(gradient_check, "is_queued", lambda tensor: True)
    check, good, bad = LateCheck(), torch.ones(3), torch.tensor([1.0, float("nan")])
    check.look([good])
    check.look([good, bad])
    with pytest.raises(NotFinite) as raised:
        check.finish()
    assert raised.value.tensor is bad
    check.look([good])
    check.finish()


def found_in_the_seam(name: str) -> list[str]:
    """Where a bad gradient is found by a strategy that sends during backward, on a GPU."""
    gradient_check.is_queued = lambda tensor: True
    model, seen = torch.nn.Linear(2, 2), []
    seam = create_strategy(name)
    seam.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    (model(torch.ones(1, 2)) * float("nan")).sum().backward()
    seen.append("backward has ended")
    try:
        seam.average([parameter.grad for parameter in model.parameters()])
    except NotFinite:
        seen.append("found")
    return seen


@pytest.mark.parametrize("name", ["overlapped-all-reduce", "cross-step-all-reduce"])
def test_a_bad_gradient_of_a_gpu_is_found_before_the_update(name):
    assert run_ranks(1, found_in_the_seam, name) == [["backward has ended", "found"]]


@pytest.mark.parametrize("name", LOCAL_SYNC_NAMES)
@pytest.mark.parametrize("wire", ["float32", "bf16", "int8"])
def test_what_a_save_gathers_lies_where_the_weights_do(name, wire):
    """NCCL gathers from GPUs alone."""
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    seam = create_strategy(name, SyncOptions(wire=wire))
    seam.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    assert {each.device.type for each in seam.state()} == {"meta"}


def part(targets: list[int], inputs: Sequence[float] = (), indices: object = None) -> Part:
    inputs = torch.tensor(inputs) if inputs else torch.zeros(len(targets))
    return Part(inputs, torch.tensor(targets), 1.0, indices, 0)


def test_a_metric_never_sees_what_gave_a_bad_loss():
    metric = Metric("mine", Mock(side_effect=AssertionError("cannot be of these")))
    with pytest.raises(NotFinite) as raised:
        readings.Readings(metric).add(torch.tensor(float("nan")), torch.eye(3), part([0, 0, 0]))
    assert says(raised.value.what, "loss")


def test_a_sample_that_is_not_finite_is_named_with_the_loss():
    taken = part([0, 1, 1], [1.0, float("nan"), float("inf")], np.array([4, 37, 6]))
    with pytest.raises(NotFinite) as raised:
        readings.Readings(ACCURACY).add(torch.tensor(float("nan")), torch.eye(3), taken)
    assert says(raised.value.advice, "sample 37", 1)
    with pytest.raises(NotFinite) as raised:
        readings.Readings(ACCURACY).add(torch.tensor(float("nan")), torch.eye(3), part([0, 1, 1]))
    assert "--learning-rate" in raised.value.advice


def test_the_loss_on_a_gpu_is_read_after_backward(monkeypatch):
    monkeypatch.setattr(readings, "is_queued", lambda tensor: True)
    for reads in ("item", "tolist", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, reads, Mock(side_effect=AssertionError("waits")))
    looks = readings.Readings(ACCURACY)
    outputs, taken = torch.eye(3), part([0, 1, 1])
    looks.add(torch.tensor(0.5), outputs, taken)
    looks.add(torch.tensor(float("inf")), outputs, taken)
    monkeypatch.undo()
    with pytest.raises(NotFinite) as raised:
        looks.totals()
    assert says(raised.value.what, "loss")
    looks = readings.Readings(ACCURACY)
    looks.add(torch.tensor(0.5), outputs, taken)
    assert looks.totals() == looks.totals() == Totals(Fraction(3, 2), Fraction(2), 3)
