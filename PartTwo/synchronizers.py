"""From a strategy's name to the object in the seam. Read the strategies in this order.

by_hand.py has the assignment's; pipelined.py takes both apart into messages; overlapped.py hides
the messages behind backward, and cross_step.py behind the next forward too: each is the answer to
the one before. Every strategy works in place on a list of tensors and does not know the training
loop. Last local_sgd.py, which averages weights now and then: another algorithm.
"""

from importlib import import_module

from common.core.failures import UsageError
from common.core.strategies import LOCAL_STRATEGIES, STRATEGIES
from common.step.gradient_sync import GradientSync
from PartTwo.options import DEFAULTS, SyncOptions


def create_synchronizer(name: str, options: SyncOptions = DEFAULTS) -> GradientSync:
    """A new strategy by its name on the command line; an unknown name is a UsageError."""
    known = STRATEGIES | LOCAL_STRATEGIES
    if name not in known:
        raise UsageError(f"no strategy is called {name!r}; there are: {', '.join(known)}")
    module, _, maker = known[name].partition(":")
    return getattr(import_module(module), maker)(options)
