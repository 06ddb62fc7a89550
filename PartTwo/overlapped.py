"""The lesson after the flat all-reduce: gradients travel while backward computes the others.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync overlapped-all-reduce

Backward works from the last layer to the first. In VGG-11 nine tenths of the gradient's bytes
belong to the last four convolutions and are ready first: they can travel behind the rest. This is
what DistributedDataParallel does inside (Li et al., 2020, arXiv:2006.15704), in plain Python, with
two differences: buckets are never rebuilt, so that a resumed run sums in the same order, and they
are small enough that the first one leaves early.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from common.cluster.process_group import new_group
from common.core.collectives import ring_bytes, total_bytes, world_size
from common.step.gradient_check import LateCheck
from common.step.gradient_sync import GradientSync
from common.step.shared_gradients import Used, require_known, trained_alike
from PartTwo.buckets import Bucket, fill_buckets, windows
from PartTwo.sync_options import SyncOptions
from PartTwo.wire import Wire


class InFlight(NamedTuple):
    """A bucket on its way: what to wait for, and what is sent, which becomes the mean."""

    work: Any
    payload: Tensor


class OverlappedAllReduce(GradientSync):
    """All-reduces each bucket as soon as backward has filled it, and waits for all in the seam.

    Buckets leave strictly in order on every rank, whatever order gradients come in: collectives
    match by order, and ranks that disagreed about it would add unlike tensors.
    """

    _used: Used
    """The parameters that had gradients in the last step that was sent."""

    def __init__(self, options: SyncOptions) -> None:
        self._bucket_bytes = round(options.bucket_mb * 1e6)
        self._wire = Wire(options.wire)
        self._buckets: list[Bucket] = []
        self._sent: list[InFlight] = []
        self._trained: list[Parameter] = []
        self._owed: dict[Tensor, Tensor] = {}
        self._lanes: list[Any] = []
        self._is_held = False
        self._rows = 1
        self._check = LateCheck()
        self._timeout = options.timeout

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Allots a bucket to each parameter, the last layer's first; hooks into its gradient.

        Every rank must call it. Raises RanksDisagree when other parameters are trained here than on
        the leader, or lie otherwise in memory: buckets travel as they lie.
        """
        self._trained = trained_alike(model, same_layout=True)
        self._buckets = fill_buckets(self._trained[::-1], self._bucket_bytes, self._rows)
        self._lanes = self._open_lanes()
        self._wire.expect([bucket.parameters[0].new_empty(bucket.size)
                           for bucket in self._buckets])
        self._owed = {parameter: window for bucket, residual
                      in zip(self._buckets, self._wire.residuals(), strict=False)
                      for parameter, window in zip(
                          bucket.parameters, windows(residual, bucket.parameters), strict=True)}
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(
                    lambda ready, bucket=bucket: self._take(bucket, ready))

    def _open_lanes(self) -> list[Any]:
        """Returns the process group that each bucket is sent on."""
        return [dist.group.WORLD] * len(self._buckets)

    def _open_lane(self) -> Any:
        """One whose buckets no others can delay."""
        return new_group(self._timeout)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def state(self) -> list[Tensor]:
        return self._wire.residuals()

    def _take(self, bucket: Bucket, parameter: Parameter) -> None:
        if self._is_held:
            return
        bucket.take(parameter, self._to_send(parameter))
        while len(self._sent) < len(self._buckets) and self._buckets[len(self._sent)].is_full:
            self._send(self._buckets[len(self._sent)])

    def _to_send(self, parameter: Parameter) -> list[Tensor]:
        """A parameter's part of what is sent; in place where it can be."""
        if parameter.grad is None:  # other ranks may have computed it
            parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad.div_(world_size())]

    def _send(self, bucket: Bucket) -> None:
        self._check.look([p.grad for p in bucket.parameters if p.grad is not None])
        self._sent.append(self._start(len(self._sent), bucket))

    def _start(self, number: int, bucket: Bucket) -> InFlight:
        """Sends the bucket that leaves as the `number`-th of its step."""
        payload = self._wire.pack(number, bucket.rows[0])
        work = dist.all_reduce(payload, op=dist.ReduceOp.SUM, group=self._lanes[number],
                               async_op=True)
        self.bytes_sent += ring_bytes(total_bytes([payload]), world_size())
        return InFlight(work, payload)

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Waits for the means; `gradients` are the model's, and live in the buckets already."""
        self._send_the_rest(gradients)
        for bucket, sent in zip(self._buckets, self._sent, strict=True):
            self._receive(bucket, sent)
            bucket.empty()
        self._sent.clear()
        self._used.drop(self._owed)

    def _send_the_rest(self, gradients: Sequence[Tensor]) -> None:
        """For what backward did not compute, earlier micro-batches' gradient leaves, or zeros."""
        require_known(gradients, self._trained)
        here = [parameter.grad is not None for parameter in self._trained]
        for bucket in self._buckets[len(self._sent):]:
            for parameter in list(bucket.missing):
                bucket.take(parameter, self._to_send(parameter))
            self._send(bucket)
        self._check.finish()
        self._used = self._used_anywhere(here)
        self.bytes_sent += self._used.bytes_sent

    def _used_anywhere(self, here: Sequence[bool]) -> Used:
        return Used(self._trained, here)

    def _receive(self, bucket: Bucket, sent: InFlight) -> None:
        sent.work.wait()
        self._wire.unpack(sent.payload, bucket.rows[0])
