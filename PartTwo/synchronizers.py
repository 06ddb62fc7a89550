"""The strategies by name. Read their files in this order: each is the answer to the one before.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync all-reduce

by_hand.py has the assignment's; pipelined.py takes both apart into messages; overlapped.py hides
the messages behind backward, and cross_step.py behind the next forward too. Every strategy works in
place on a list of tensors and does not know the training loop. Last local_sgd.py, which averages
weights now and then: another algorithm. A new strategy is a row of SYNCHRONIZERS.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from common.core.failures import UsageError
from common.core.settings import Settings, SyncChoice
from common.step.gradient_sync import GradientSync
from PartTwo.by_hand import Flat, PerTensor, all_reduce, gather_scatter
from PartTwo.cross_step import CrossStepAllReduce
from PartTwo.local_sgd import DiLoCo, LocalSGD
from PartTwo.overlapped import OverlappedAllReduce
from PartTwo.pipelined import pipelined_gather_scatter, reduce_scatter_all_gather
from PartTwo.quantised import BITS, QuantisedFlat
from PartTwo.wire import Wire


class SyncOptions(NamedTuple):
    """What can be chosen about a strategy: see --bucket-mb, --wire and --sync.

    `iterations` are those of an epoch, over which local SGD spreads its rounds; `timeout` is
    torch's for a collective, in seconds.
    """

    bucket_mb: float = 1.0
    wire: str = "float32"
    sync_every: int = 50
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    timeout: float = 1800.0
    iterations: int = 1

    @classmethod
    def of(cls, settings: Settings, choice: SyncChoice, iterations: int) -> "SyncOptions":
        """What the command line says of a strategy, for epochs of `iterations` steps."""
        return cls(settings.bucket_mb, settings.wire, choice.every, choice.rate, choice.momentum,
                   settings.collective_timeout, iterations)

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * 1e6)


def _weight_mean(wire: str) -> GradientSync:
    """What averages weights, or progress where `wire` rounds."""
    return QuantisedFlat(BITS[wire]) if wire in BITS else Flat(all_reduce, Wire(wire))


def _local_sgd(options: SyncOptions) -> GradientSync:
    mean, every = _weight_mean(options.wire), options.sync_every
    if options.wire == "float32":
        return LocalSGD(every, options.iterations, mean)
    return DiLoCo(every, options.iterations, mean, rate=1, momentum=0)


def _diloco(options: SyncOptions) -> GradientSync:
    return DiLoCo(options.sync_every, options.iterations, _weight_mean(options.wire),
                  options.outer_learning_rate, options.outer_momentum)


SYNCHRONIZERS: dict[str, Callable[[SyncOptions], GradientSync]] = {
    "gather-scatter": lambda options: Flat(gather_scatter, Wire(options.wire)),
    "all-reduce": lambda options: Flat(all_reduce, Wire(options.wire)),
    "gather-scatter-per-tensor": lambda options: PerTensor(gather_scatter),
    "all-reduce-per-tensor": lambda options: PerTensor(all_reduce),
    "gather-scatter-pipelined": lambda options: Flat(pipelined_gather_scatter, Wire(options.wire)),
    "reduce-scatter": lambda options: Flat(reduce_scatter_all_gather, Wire(options.wire)),
    "overlapped-all-reduce": lambda options: OverlappedAllReduce(options.bucket_bytes,
                                                                 Wire(options.wire)),
    "cross-step-all-reduce": lambda options: CrossStepAllReduce(
        options.bucket_bytes, Wire(options.wire), timedelta(seconds=options.timeout)),
}
# Other algorithms: these learn something else than what one rank learns.
LOCAL_SYNCHRONIZERS: dict[str, Callable[[SyncOptions], GradientSync]] = {
    "local-sgd": _local_sgd, "diloco": _diloco}
DEFAULTS = SyncOptions()


def create_synchronizer(name: str, options: SyncOptions = DEFAULTS) -> GradientSync:
    """A new strategy by its name on the command line; an unknown name is a UsageError."""
    known = SYNCHRONIZERS | LOCAL_SYNCHRONIZERS
    if name not in known:
        raise UsageError(f"no strategy is called {name!r}; there are: {', '.join(known)}")
    return known[name](options)
