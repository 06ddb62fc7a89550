"""From a strategy's name to the object in the seam. Read the strategies in this order.

by_hand.py has the assignment's; pipelined.py takes both apart into messages; overlapped.py hides
the messages behind backward, and cross_step.py behind the next forward too: each is the answer to
the one before. Every strategy works in place on a list of tensors and does not know the training
loop. Last local_sgd.py, which averages weights now and then: another algorithm; and
own_strategy.py, which lets a user's own class stand in their place.
"""

from datetime import timedelta
from importlib import import_module
from typing import NamedTuple

from common.core.failures import UsageError
from common.settings.settings import Settings
from common.settings.strategies import LOCAL_STRATEGIES, ON_VIRTUAL_NODES, STRATEGIES
from common.settings.types import SyncChoice
from common.settings.user_code import Place
from common.step.gradient_sync import GradientSync


class SyncOptions(NamedTuple):
    """Options that a strategy is made with: see --bucket-mb, --wire and --sync.

    `every` is the least number of steps between synchronisation rounds, which are spread over the
    `iterations` of an epoch; `rate` and `momentum` are the outer optimizer's; `timeout` is torch's
    for a collective; `virtual_nodes` is None where each rank is one node.
    """

    bucket_mb: float = 1.0
    wire: str = "float32"
    every: int = 50
    rate: float = 0.7
    momentum: float = 0.9
    timeout: timedelta = timedelta(minutes=30)
    iterations: int = 1
    virtual_nodes: int | None = None

    @classmethod
    def of(cls, settings: Settings, choice: SyncChoice, iterations: int) -> "SyncOptions":
        """Returns a strategy's options from the settings, for epochs of `iterations` steps."""
        return cls(settings.bucket_mb, settings.wire, choice.every, choice.rate, choice.momentum,
                   timedelta(seconds=settings.collective_timeout), iterations,
                   settings.virtual_nodes)


DEFAULTS = SyncOptions()


def create_strategy(name: str, options: SyncOptions = DEFAULTS) -> GradientSync:
    """A new strategy by its name on the command line, or by its place in a user's file.

    An unknown name is a UsageError.
    """
    if place := Place.parse(name):
        from PartTwo.own_strategy import own_strategy

        return own_strategy(place)
    known = ON_VIRTUAL_NODES if options.virtual_nodes else STRATEGIES | LOCAL_STRATEGIES
    if name not in known:
        raise UsageError(f"no strategy is called {name!r}; there are: {', '.join(known)}")
    module, _, maker = known[name].partition(":")
    return getattr(import_module(module), maker)(options)
