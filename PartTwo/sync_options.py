"""The settings that a strategy of Part Two is made with."""

from datetime import timedelta
from typing import NamedTuple

from common.settings.settings import Settings
from common.settings.types import SyncChoice


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
