"""Check that each pair of ranks can exchange a message, made as soon as the group is formed.

gloo takes whoever connects first, and begins with the right bytes, for the rank it expects: a
scanner of ports can take a rank's place. Only a message tells, and without one the first collective
would wait until its timeout, without a word on who is missing.

    exchange_greetings(ranks, rank, seconds=60)
"""

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from common.cluster.rank_info import RankInfo
from common.core.failures import PeerLost

TAG = 7  # of these messages alone


def exchange_greetings(ranks: Sequence[RankInfo], rank: int, seconds: float) -> None:
    """Sends every other rank one number, and waits for theirs. Every rank must call; gloo only.

    Raises PeerLost naming the first rank whose number does not come in time, and where it was.
    """
    others = [other for other in range(len(ranks)) if other != rank]
    numbers = {other: torch.full((1,), -1) for other in others}
    works = {other: [dist.irecv(numbers[other], other, tag=TAG),
                     dist.isend(torch.tensor([rank]), other, tag=TAG)] for other in others}
    deadline = time.monotonic() + seconds
    for other in others:
        try:
            for work in filter(None, works[other]):
                work.wait(timedelta(seconds=max(0.01, deadline - time.monotonic())))
        except RuntimeError as error:
            raise _silence(ranks[rank], ranks[other], seconds) from error
        if int(numbers[other]) != other:
            raise _silence(ranks[rank], ranks[other], seconds)


def _silence(here: RankInfo, other: RankInfo, seconds: float) -> PeerLost:
    return PeerLost(
        f"{here} ({here.address}) is connected to {other} ({other.address}), but got no message "
        f"from it within {seconds:.0f} s: another program may have connected in its place while "
        "the run started, or a firewall drops what they send; keep other programs (a scanner of "
        "ports?) off these addresses, and start again")
