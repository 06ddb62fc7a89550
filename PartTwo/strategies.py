"""From a strategy's name to the object in the seam. Read the strategies in this order.

by_hand.py has the assignment's; pipelined.py takes both apart into messages; overlapped.py hides
the messages behind backward, and cross_step.py behind the next forward too: each is the answer to
the one before. Every strategy works in place on a list of tensors and does not know the training
loop. Last local_sgd.py, which averages weights now and then: another algorithm; and
own_strategy.py, which lets a user's own class stand in their place.

A new strategy has a row here, and its name in common/settings/strategies.py, from which the command
line knows it without torch.
"""

from collections.abc import Callable
from functools import partial

from common.core.failures import UsageError
from common.settings.user_code import Place
from common.step.gradient_sync import GradientSync
from PartTwo import on_virtual_nodes
from PartTwo.by_hand import Flat, PerTensor, all_reduce, gather_scatter
from PartTwo.cross_step import CrossStepAllReduce
from PartTwo.local_sgd import DiLoCo, local_sgd
from PartTwo.on_virtual_nodes import CrossStepVirtual, FlatVirtual, OverlappedVirtual
from PartTwo.overlapped import OverlappedAllReduce
from PartTwo.own_strategy import own_strategy
from PartTwo.pipelined import by_ranks, pipelined_gather_scatter, reduce_scatter_all_gather
from PartTwo.sync_options import DEFAULTS, SyncOptions

Maker = Callable[[SyncOptions], GradientSync]

STRATEGIES: dict[str, Maker] = {
    "gather-scatter": partial(Flat, gather_scatter),
    "all-reduce": partial(Flat, all_reduce),
    "gather-scatter-per-tensor": partial(PerTensor, gather_scatter),
    "all-reduce-per-tensor": partial(PerTensor, all_reduce),
    "gather-scatter-pipelined": partial(Flat, by_ranks(pipelined_gather_scatter)),
    "reduce-scatter": partial(Flat, by_ranks(reduce_scatter_all_gather)),
    "overlapped-all-reduce": OverlappedAllReduce,
    "cross-step-all-reduce": CrossStepAllReduce,
    "local-sgd": local_sgd,
    "diloco": DiLoCo,
}
# With --virtual-nodes; the others cannot add in a given order.
ON_VIRTUAL_NODES: dict[str, Maker] = {
    "gather-scatter": partial(FlatVirtual, on_virtual_nodes.gather_scatter),
    "all-reduce": on_virtual_nodes.flat_all_reduce,
    "gather-scatter-pipelined": partial(FlatVirtual, pipelined_gather_scatter),
    "reduce-scatter": partial(FlatVirtual, reduce_scatter_all_gather),
    "overlapped-all-reduce": OverlappedVirtual,
    "cross-step-all-reduce": CrossStepVirtual,
}


def create_strategy(name: str, options: SyncOptions = DEFAULTS) -> GradientSync:
    """A new strategy by its name on the command line, or by its place in a user's file.

    Raises UsageError for an unknown name.
    """
    if place := Place.parse(name):
        return own_strategy(place)
    known = ON_VIRTUAL_NODES if options.virtual_nodes else STRATEGIES
    if name not in known:
        raise UsageError(f"no strategy is called {name!r}; there are: {', '.join(known)}")
    return known[name](options)
