"""Observes training on one rank, through torch's hooks, and compares it with all ranks.

Before some of the optimizer's steps every rank posts a row, and the leader answers. Nobody waits
long for a row that does not come: ranks need not be in step, and then are compared at the end.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Store
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from common.cluster.pace import poll_seconds
from common.core.failures import RanksDisagree
from common.core.progress import FINISHED
from common.core.world import World
from common.run.checksums import checksums
from common.run.waits import Whereabouts, noted
from common.witnessing.rows import Answer, Comparison, RankRow
from common.witnessing.seen_samples import SeenSamples

ANSWER_SECONDS = 5.0
FIRST_LOOK = 0.0005  # seconds until a rank looks for an answer again, doubled at each look
MOST_IN_VAIN = 2


class Found(RanksDisagree):
    """Raised for a fault, on every rank in the same words."""


class Observer:
    """A context in which `model` and `optimizer` have the witness's hooks.

    A comparison, before the first two steps and every `every` steps, costs two passes over the
    parameters; each batch, a hash of some of its numbers.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, loader: Any, store: Store,
                 world: World, every: int, strict: bool, say: Callable[[str], None]) -> None:
        self.here = Whereabouts()
        self.seen = SeenSamples(loader)
        self.is_over = False
        self._model, self._optimizer = model, optimizer
        self._store, self._world, self._every, self._say = store, world, every, say
        names = [name for name, _ in model.named_parameters()]
        self._comparison = Comparison(names, every, strict)
        self._steps, self._in_vain, self._closely, self._told_epoch = 0, 0, False, False
        self._hooks: list[Any] = []
        self._noted = noted(self.here)

    def __enter__(self) -> "Observer":
        self._noted.__enter__()
        self._hooks = [
            self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            self._model.register_forward_hook(self._after_forward),
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step)]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._noted.__exit__(None, None, None)

    def _before_forward(self, model: nn.Module, inputs: Any, names: Any) -> None:
        here = self.here
        if not (model.training and torch.is_grad_enabled()):
            here.phase, here.iteration = "evaluation", here.iteration + 1
            return
        epoch, here.iteration = divmod(here.batches, self.seen.length or 2**62)
        here.epoch, here.phase = epoch + 1, "forward"
        if self._in_vain >= MOST_IN_VAIN and here.batches % self._every == 0:
            self.seen.take()  # only the last batches are compared, at the end
        here.batches += 1
        self.seen.note([inputs, names], self._steps)

    def _after_forward(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        self.here.phase = f"after {self.here.phase}"

    def _before_step(self, optimizer: Optimizer, inputs: Any, names: Any) -> None:
        self.here.phase = "update"
        is_due = self._closely or self._steps < 2 or self._steps % self._every == 0
        if is_due and self._in_vain < MOST_IN_VAIN:
            self.compare("step")
        self._steps += 1

    def _after_step(self, optimizer: Optimizer, inputs: Any, names: Any) -> None:
        self.here.phase, self.here.has_stepped = "after update", True
        self.here.steps += 1

    def compare(self, when: str) -> None:
        """Raises Found, on every rank, for faults in the rows of all ranks; warns of possible ones.

        Every rank must call it after as many steps, or it waits a few seconds for nothing.
        """
        row = self._row(self._closely or not self._steps)
        self._warn_of_epoch(self._steps + (when == "step"))
        answer = self._ask(f"{when}/{self._steps}", row)
        self._in_vain = 0 if answer else self._in_vain + 1
        self._take(answer or Answer())

    def conclude(self) -> None:
        """Compares for the last time when this rank's loop has ended; waits for all ranks' ends."""
        self.here.phase, self.here.has_ended = FINISHED, True
        row, answer = self._row(True), None
        self._warn_of_epoch(self._steps)
        while answer is None:  # the watch ends the wait for a lost rank
            answer = self._ask("end", row)
        self._take(answer)

    def _take(self, answer: Answer) -> None:
        self._closely = answer.closely
        if answer.failure:
            raise Found(answer.failure)
        if answer.warning:
            self._say(f"warning: {answer.warning}")

    def _row(self, in_detail: bool) -> RankRow:
        parameters = list(self._model.parameters())
        gradients = [each.grad for each in parameters
                     if each.grad is not None and each.grad.layout == torch.strided]
        marks, sizes = self.seen.take()
        return RankRow(self._steps, _numbers(parameters, in_detail), _numbers(gradients, in_detail),
                   marks, sizes, self.seen.batches, self.seen.first_epoch(), self._is_wrapped())

    def _is_wrapped(self) -> bool:
        """True if the loop has called the model, and it averages what backward computes."""
        return self.here.batches > 0 and any(
            isinstance(each, DistributedDataParallel) for each in self._model.modules())

    def _ask(self, topic: str, row: RankRow) -> Answer | None:
        """The leader's answer to all ranks' rows, None when it takes too long."""
        keys = [f"{topic}/{rank}" for rank in range(self._world.size)]
        self._store.set(keys[self._world.rank], json.dumps(row))
        if not self._wait(keys if self._world.is_leader else [topic]):
            return None
        if self._world.is_leader:
            self._answer(topic, keys)
        return Answer(*json.loads(self._store.get(topic)))

    def _wait(self, keys: list[str]) -> bool:
        """Waits for the keys; False if they are late. (The store's own wait would print that.)"""
        deadline, looks = time.monotonic() + ANSWER_SECONDS, 0
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return False
            looks += 1
            time.sleep(min(poll_seconds(self._world.size, looks), FIRST_LOOK * 2**looks))
        return True

    def _answer(self, topic: str, keys: list[str]) -> None:
        rows = [RankRow(*json.loads(each)) for each in self._store.multi_get(keys)]
        for key in keys:
            self._store.delete_key(key)
        answer = self._comparison.answer(rows, is_last=topic == "end")
        self._store.set(topic, json.dumps(answer))

    def _warn_of_epoch(self, steps: int) -> None:
        if not self._told_epoch and self.seen.forgotten_set_epoch(steps):
            self._told_epoch = True
            self._say(f"warning: rank {self._world.rank} is in its second epoch, and its sampler "
                      "was not told: every epoch has the same order. Call "
                      "sampler.set_epoch(epoch) before each")


def _numbers(tensors: Sequence[Tensor], in_detail: bool) -> list[int]:
    """A checksum for each tensor, or one for all of them."""
    if not tensors:
        return []
    sums = checksums(tensors)
    return (sums if in_detail else checksums([sums])).tolist()
