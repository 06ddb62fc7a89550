"""Set-up of DistributedDataParallel: rules for buffers and buckets, and its GradientSync."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.collectives import world_size
from common.core.failures import UsageError
from common.core.precision import one_tensor
from common.settings.settings import Settings
from common.step.gradient_sync import GradientSync
from common.step.virtual_nodes import VirtualNodes
from PartThree.comm_hooks import HOOKS, in_tree
from PartThree.data_parallel import DataParallel
from PartTwo.on_virtual_nodes import Lane
from PartTwo.sync_options import SyncOptions

# Every rank keeps its own running statistics while training; see share_leaders_buffers. torch 2.15
# gave the flag another name.
_FLAGS = inspect.signature(nn.parallel.DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _FLAGS else "broadcast_buffers": False}


def buckets(megabytes: float) -> dict[str, Any]:
    """DDP's flags for gradients that live in buckets of about `megabytes` and leave early.

    DDP's own default of 25 MB holds VGG-11's large gradients back until most of backward is over.
    """
    return {"bucket_cap_mb": megabytes, "gradient_as_bucket_view": True}


def replicate(settings: Settings, model: nn.Module) -> nn.Module:
    """The model in what --parallel names. Every rank must call it."""
    if settings.parallel == "data-parallel":
        return DataParallel(model)
    return nn.parallel.DistributedDataParallel(
        model, **OWN_BUFFERS, **buckets(settings.bucket_mb))


class Arrivals:
    """Checks that every parameter gets a gradient in the pass in which DDP averages.

    DDP sends a bucket when it has all of its gradients. Without one it goes on by itself, with
    gradients that are not averaged, and the other ranks wait for its bucket.
    """

    def __init__(self) -> None:
        self._names: dict[Tensor, str] = {}
        self._missing: set[Tensor] = set()

    def expect(self, model: nn.Module) -> None:
        """Call once, before the first step."""
        self._names = {each: name for name, each in model.named_parameters() if each.requires_grad}
        self._missing = set(self._names)
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._missing.discard)

    @contextmanager
    def disregarded(self) -> Iterator[None]:
        """Around a pass in which DDP averages nothing."""
        yield
        self._missing.update(self._names)

    def require_all(self) -> None:
        """Call after the step's last pass. Raises UsageError naming a parameter without one."""
        missing = [name for each, name in self._names.items() if each in self._missing]
        self._missing.update(self._names)
        if missing:
            raise UsageError(
                f"{missing[0]} got no gradient on rank {dist.get_rank()} in this step, and "
                "DistributedDataParallel waits for one of every parameter: use it in every step, "
                "give it requires_grad=False, or take Part Two with --sync overlapped-all-reduce")


class AveragedInBackward(GradientSync):
    """The seam where `replica` has averaged the gradients during backward: nothing is left to do.

    `wire` is a name in comm_hooks.HOOKS; the hook counts the bytes and checks what it sends.
    `example` are two samples or more, for rebuild_buckets.
    """

    def __init__(self, replica: nn.Module, wire: str, example: Tensor | None = None) -> None:
        self._replica: Any = replica
        self._hook, self._example = HOOKS[wire], example
        self._arrivals = Arrivals()

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Registers the hook, and rebuilds the buckets. Every rank must call it."""
        self._replica.register_comm_hook(self, self._hook)
        if isinstance(self._replica, nn.parallel.DistributedDataParallel):
            self._arrivals.expect(model)
        if self._example is not None:
            rebuild_buckets(self._replica, self._example, self._arrivals.require_all)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """DDP's own."""
        with self._replica.no_sync(), self._arrivals.disregarded():
            yield

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Raises UsageError where DDP has not averaged all gradients, NotFinite for a mean."""
        self._arrivals.require_all()
        super().average(gradients)


class AveragedOnVirtualNodes(AveragedInBackward):
    """The same on virtual nodes: DDP sees the last of a rank's shards, and the hook adds them all.

    Its sums do not depend on buckets, so these need not be rebuilt. Every rank must make one.
    """

    def __init__(self, replica: nn.Module, options: SyncOptions) -> None:
        super().__init__(replica, options.wire)
        assert options.virtual_nodes is not None
        self._nodes = VirtualNodes(options.virtual_nodes, dist.get_rank(), world_size())
        self._hook = in_tree(self._nodes, Lane(options.timeout))

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._nodes.prepare(model, optimizer)
        super().prepare(model, optimizer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        with super().no_sync(), self._nodes.no_sync():
            yield


def create_sync(settings: Settings, replica: nn.Module, example: Tensor) -> GradientSync:
    """Returns the GradientSync for `replica`; `example` holds two samples or more."""
    if settings.virtual_nodes:
        return AveragedOnVirtualNodes(replica, SyncOptions.of(settings, settings.sync[0], 1))
    return AveragedInBackward(replica, settings.wire, example)


def rebuild_buckets(replica: nn.Module, example: Tensor,
                    check: Callable[[], None] = lambda: None) -> None:
    """Lets DDP rearrange its buckets now, so that every start of a run sums in the same order.

    DDP rebuilds its buckets after the first backward pass, by the order in which gradients came. So
    the first step after any start sums in another order than the same step in mid-run, and with
    three or more ranks a resumed run would drift off by a rounding. Two passes on `example`, a
    batch of any values, are forgotten but for the buckets; `check` is called after each. Every
    rank must call it.
    """
    buffers = [buffer.clone() for buffer in replica.buffers()]
    for _ in range(2):
        one_tensor(replica(example)).sum().backward()
        check()
    replica.zero_grad()
    for buffer, before in zip(replica.buffers(), buffers, strict=True):
        buffer.copy_(before)
