"""Candidates for the seam: one rank alone, the strategies, and perturbations that only round.

A strategy wires a model and this rank's loader as one of the three mains does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from common.data.loaders import Batch, Loader
from common.settings.settings import Settings
from common.settings.strategies import LOCAL_SYNC_NAMES, SYNC_NAMES, VIRTUAL_SYNC_NAMES
from common.settings.user_code import Place, require_distinct
from common.step.gradient_sync import GradientSync
from common.step.virtual_nodes import sync_of_one_rank
from PartTwo.sync_options import DEFAULTS, SyncOptions
from studies import wiring
from studies.wiring import WireUp


class Wiring(NamedTuple):
    """The arguments of the training loop: model, this rank's batches, and the seam."""

    model: nn.Module
    loader: Loader
    gradient_sync: GradientSync


Strategy = Callable[[nn.Module, Loader], Wiring]


def with_loader(wire: WireUp, model: nn.Module, loader: Loader) -> Wiring:
    """The wiring of a model whose batches are the loader's own."""
    replica, gradient_sync = wire(model, None)
    return Wiring(replica, loader, gradient_sync)


def by_name(name: str, options: SyncOptions = DEFAULTS) -> Strategy:
    """The strategy of Part Two called `name`, or at that place in a user's file; "ddp" is Part
    Three."""
    return partial(with_loader, partial(wiring.by_ddp, options=options) if name == "ddp"
                   else partial(wiring.by_hand, name=name, options=options))


# Part One. On several ranks nothing is averaged, which the proof must catch.
alone: Strategy = partial(with_loader, wiring.alone)
STRATEGIES: Mapping[str, Strategy] = {name: by_name(name) for name in (*SYNC_NAMES, "ddp")}


def chosen(names: Sequence[str]) -> Mapping[str, Strategy]:
    """The wirings of those `names` that STRATEGIES has, or that are places in a user's file.

    Raises UsageError where two would have one label.
    """
    require_distinct(names)
    return {name: by_name(name) for name in names
            if name in STRATEGIES or Place.parse(name)}


def alone_on_virtual_nodes(settings: Settings) -> Strategy:
    """Part One on all of --virtual-nodes."""
    return partial(_alone_on, settings.virtual_nodes)


def _alone_on(shards: int | None, model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, loader, sync_of_one_rank(shards))


def on_virtual_nodes(settings: Settings) -> Mapping[str, Strategy]:
    """The strategies of Parts Two and Three that can add in the order of --virtual-nodes."""
    options = SyncOptions(settings.bucket_mb, virtual_nodes=settings.virtual_nodes)
    return {name: by_name(name, options) for name in (*VIRTUAL_SYNC_NAMES, "ddp")}


def local_strategies(every: int) -> Mapping[str, Strategy]:
    """The strategies that are other algorithms, with a round after every `every` steps."""
    return {name: by_name(name, SyncOptions(every=every)) for name in LOCAL_SYNC_NAMES}


@dataclass(frozen=True)
class Reversed:
    """A loader's batches, the samples of each in reverse order: the same sums, added otherwise."""

    loader: Loader

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        """The loader's batches of `epoch`."""
        for batch in self.loader.batches(epoch, first_iteration):
            indices = None if batch.indices is None else batch.indices[::-1]
            yield Batch(batch.inputs.flip(0), batch.targets.flip(0), batch.weight, indices,
                        batch.shards)


def batches_reversed(model: nn.Module, loader: Loader) -> Wiring:
    """One rank that takes each batch in reverse order: mathematically the same training."""
    return Wiring(model, Reversed(loader), GradientSync())


def weights_nudged(model: nn.Module, loader: Loader) -> Wiring:
    """One rank whose initial weights are each off by the last bit, up or down."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
        parameter.data.mul_(1 + sign.to(parameter.dtype) * torch.finfo(parameter.dtype).eps)
    return Wiring(model, loader, GradientSync())


PERTURBATIONS: Mapping[str, tuple[Strategy, dict[str, str]]] = {
    "batches reversed": (batches_reversed, {}),
    "weights nudged": (weights_nudged, {}),
    "in float64": (alone, {"precision": "float64"}),
}
"""Ways to train, and settings changed, that differ from one rank's by rounding alone."""
