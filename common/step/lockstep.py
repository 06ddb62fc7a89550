"""The shards of a batch in lockstep, for layers that need numbers of all shards at once.

    python3 PartOne/main.py --virtual-nodes 4 --batch-norm synchronised

Synchronised batch norm normalises by statistics of the global batch: no shard can go on before all
have come as far. So a rank with several shards computes each in a thread of its own, and these take
turns: one runs until such a layer needs the others' numbers, forward or backward, and then the
next. Everything that belongs to a shard changes with the turn. All else is as where shards are
computed one after the other: each has an autograd graph and gradients of its own, which are added
in the same tree. It costs the memory of all maps of the rank's batch at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from common.core.collectives import gather_rows, world_size
from common.core.failures import UsageError
from common.core.progress import Position
from common.data.epoch_plan import shard_range
from common.model.batch_norm import over_shards
from common.step.accumulation import Part
from common.step.gradient_sync import GradientSync
from common.step.shard_scope import ShardScope

Places = dict[tuple[nn.Module, str], Tensor]
"""Tensors by the module and the name of the attribute that holds them."""


class _Shard:
    """One shard, and what belongs to it alone while the shards take turns.

    `own` are its copies of the trained parameters: of the same memory, with other gradients.
    """

    def __init__(self, model: nn.Module, scope: ShardScope, at: Position, part: Part) -> None:
        self.part, self._begin = part, partial(scope.begin, at, part)
        self.own = {each: nn.Parameter(each.detach()) for each in model.parameters()
                    if each.requires_grad}
        self._tensors: Places = {
            (module, name): self.own[each] for module in model.modules()
            for name, each in module.named_parameters(recurse=False, remove_duplicate=False)
            if each in self.own}
        if part.shard:  # of all shards the first alone moves the model's buffers
            copies = {each: each.clone() for each in model.buffers()}
            self._tensors |= {
                (module, name): copies[each] for module in model.modules()
                for name, each in module.named_buffers(recurse=False, remove_duplicate=False)}
        self._random: Tensor | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While it lasts, the model and torch's random numbers are this shard's."""
        self._begin()
        if self._random is not None:
            torch.set_rng_state(self._random)
        others = _put(self._tensors)
        try:
            yield
        finally:
            self._tensors = _put(others)
            self._random = torch.get_rng_state()


def _put(tensors: Places) -> Places:
    """Puts tensors in their places; returns those that were there."""
    before = {(module, name): getattr(module, name) for module, name in tensors}
    for (module, name), tensor in tensors.items():
        setattr(module, name, tensor)
    return before


class _Ended(BaseException):
    """Ends a task whose results nobody wants any more."""


class _Task:
    """A computation in a thread of its own, which runs only while `go_on` waits for it."""

    def __init__(self, computation: Callable[[], Any]) -> None:
        self._computation = computation
        self._tables: SimpleQueue[Tensor | None] = SimpleQueue()
        self._wanted: SimpleQueue[Tensor | None] = SimpleQueue()
        self.result: Future[Any] = Future()
        self._thread = threading.Thread(target=self._compute, name="a shard", daemon=True)
        self._thread.start()

    def go_on(self, table: Tensor) -> Tensor | None:
        """Goes on with `table`, until it gathers the next one of the tensor returned.

        At the first call `table` is not looked at. Returns None at its end, when there is a result.
        """
        self._tables.put(table)
        return self._wanted.get()

    def gather(self, mine: Tensor) -> Tensor:
        """Called in the thread: waits for all shards' tensors, stacked, this one's among them."""
        self._wanted.put(mine)
        return self._next_table()

    def end(self) -> None:
        """Returns when the thread has ended, which it does where it waits."""
        self._tables.put(None)
        self._thread.join()

    def _next_table(self) -> Tensor:
        table = self._tables.get()
        if table is None:
            raise _Ended
        return table

    def _compute(self) -> None:
        try:
            self._next_table()
            self.result.set_result(self._computation())
        except BaseException as error:  # raised where the result is asked for
            self.result.set_exception(error)
        self._wanted.put(None)


class JointPart:
    """All of a rank's shards, as one part of the batch that one pass computes."""

    weight = 1.0  # the shards' own weights are in the loss

    def __init__(self, shards: Sequence[_Shard], gather: Callable[[Sequence[Tensor]], Tensor],
                 deliver: Callable[[Sequence[_Shard]], None]) -> None:
        self._shards, self._gather, self._deliver = shards, gather, deliver

    def computed_by(self, forward: Callable[[Part], Tensor]) -> Tensor:
        """The weighted losses' sum, whose backward pass is that of each shard's own loss."""
        losses = self._in_turns([partial(_weighted, forward, shard.part)
                                 for shard in self._shards])

        def backward(gradient: Tensor) -> None:
            self._in_turns([partial(loss.backward, gradient) for loss in losses])
            self._deliver(self._shards)

        total = torch.stack([loss.detach() for loss in losses]).sum().requires_grad_()
        total.register_hook(backward)
        return total

    def _in_turns(self, computations: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of one computation for each shard. Raises what one of them raises."""
        tasks, table = [_Task(each) for each in computations], torch.empty(0)
        try:
            while True:
                wanted = [self._turn(*each, table)
                          for each in zip(self._shards, tasks, strict=True)]
                tensors = [each for each in wanted if each is not None]
                if not tensors:
                    return [task.result.result() for task in tasks]
                if len(tensors) < len(tasks):
                    raise UsageError("--batch-norm synchronised requires that every shard takes "
                                     "the same layers, and one has taken fewer than another")
                table = self._gather(tensors)
        finally:
            for task in tasks:
                task.end()

    def _turn(self, shard: _Shard, task: _Task, table: Tensor) -> Tensor | None:
        with shard.turn(), over_shards(task.gather):
            wanted = task.go_on(table)
        if wanted is None:
            task.result.result()
        return wanted


def _weighted(forward: Callable[[Part], Tensor], part: Part) -> Tensor:
    return forward(part) * part.weight


class Lockstep:
    """Yields a rank's part of each batch for a `model` with synchronised batch norm.

    `shards` are those of all ranks together. Raises UsageError for several of them on a GPU.
    """

    def __init__(self, model: nn.Module, scope: ShardScope, gradient_sync: GradientSync,
                 device: torch.device, shards: int) -> None:
        self._model, self._scope, self._gradient_sync = model, scope, gradient_sync
        self._sizes = [shard_range(rank, world_size(), shards).size
                       for rank in range(world_size())]
        if max(self._sizes) > 1 and device.type != "cpu":  # one thread does all backward passes
            raise UsageError(f"--batch-norm synchronised with --virtual-nodes {shards} requires "
                             f"{shards} ranks on a GPU: use as many, or --device cpu")

    def passes(self, at: Position, parts: Sequence[Part]) -> Iterator[Part | JointPart]:
        """Yields one part of the batch at `at`: the only one of `parts`, or all of them joined."""
        if len(parts) > 1:
            shards = [_Shard(self._model, self._scope, at, part) for part in parts]
            yield JointPart(shards, self._gather, self._deliver)
            return
        with over_shards(lambda mine: self._gather([mine])), self._scope.of(at, parts[0]):
            yield parts[0]

    def _gather(self, mine: Sequence[Tensor]) -> Tensor:
        """The tensors of all shards, stacked in their order, from those of this rank's."""
        rows = torch.stack(list(mine))
        missing = rows.new_zeros(max(self._sizes) - len(rows), *rows.shape[1:])
        table = gather_rows(torch.cat([rows, missing]))
        return torch.cat([row[:size] for row, size in zip(table, self._sizes, strict=True)])

    def _deliver(self, shards: Sequence[_Shard]) -> None:
        """Hands the strategy each shard's gradients, as backward passes of their own would."""
        if any(each.grad is not None for each in shards[0].own):
            raise UsageError("--batch-norm synchronised with several virtual nodes on a rank "
                             "requires that each parameter is used as an attribute of its module: "
                             "use as many ranks as virtual nodes")
        *others, last = (shard.own for shard in shards)
        for own in others:
            with self._gradient_sync.no_sync():
                for parameter, copy in own.items():
                    parameter.grad, copy.grad = copy.grad, None
        used = {parameter: copy.grad for parameter, copy in last.items() if copy.grad is not None}
        torch.autograd.backward(list(used), list(used.values()))  # calls the strategy's hooks
