"""A run that has lost ranks, kept in memory from its last group to its next one.

It stands where a checkpoint would: what open_run restores in the next group is what the rank that
is furthest has kept, of the same form as a checkpoint file's contents, and no disk is read. A rank
that was in the middle of a step has its weights and optimizer state from before it, since only the
optimizer's step changes them; the buffers, which forward moves, are a copy.

Ranks whose own state is as far keep it; the others, and newcomers, get it from the furthest.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from common.cluster.elastic import goes_on_after, has_lost, in_background
from common.cluster.node import Node
from common.core.collectives import gather_rows, hand_over
from common.run import checkpoint_file
from common.run.run import Run

_kept: dict[str, dict[str, Any]] = {}
"""By the name of the run."""


@contextmanager
def kept_in_memory(run: Run) -> Iterator[None]:
    """Around a run: keeps its state for the next group if this one loses a rank."""
    try:
        yield
    except Exception as error:
        if goes_on_after(error):
            _kept[run.name] = _contents(run)
        raise
    _kept.pop(run.name, None)


def _contents(run: Run) -> dict[str, Any]:
    """The run at the last boundary that this rank has passed, as a checkpoint has it."""
    state = run.state
    buffers = dict(zip((name for name, _ in run.model.named_buffers()), run.buffers, strict=False))
    contents = checkpoint_file.pack(
        run.model, run.optimizer, state.position, 0.0, totals=state.totals.as_json(),
        validation_losses=state.validation_losses, rank_state=[],
        loss_scale=state.loss_scale.state(), closed=list(state.closed),
        **run.checkpoints.constants)
    contents["model_state_dict"] |= {name: each for name, each in buffers.items()
                                     if name in contents["model_state_dict"]}
    return contents


def find(name: str, node: Node) -> tuple[dict[str, Any] | None, str]:
    """The contents of the furthest rank's memory, and who that is; None where no rank has any.

    Every rank must call it.
    """
    if not has_lost():
        return None, ""
    mine = _kept.get(name)
    row = torch.tensor([*mine["position"], *mine["closed"]] if mine else [-1] * 6)
    places = [tuple(each) for each in gather_rows(row).tolist()]
    if max(places)[0] < 0:
        return None, ""
    source, behind = furthest(places)
    if behind and node.world.rank in [source, *behind]:
        data = _packed(mine) if mine and node.world.rank == source else b""
        data = in_background(hand_over, data, source, behind, node.device)
        mine = _unpacked(data) if node.world.rank in behind else mine
    return mine, str(node.ranks[source])


def furthest(places: Sequence[tuple[int, ...]]) -> tuple[int, list[int]]:
    """The rank to go on from, and those that need its state; the greater place is further."""
    most = max(places)
    return places.index(most), [rank for rank, place in enumerate(places) if place != most]


def _packed(contents: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(contents, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(data), weights_only=True)


def copies(buffers: Iterator[Tensor]) -> list[Tensor]:
    """Copies of a model's buffers."""
    return [each.clone() for each in buffers]
