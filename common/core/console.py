"""What a run prints on standard output: plain on the leader, marked with rank and host elsewhere.

    say = console(world)
    say("waiting for rank 2")
"""

import socket
import sys
import time
from collections.abc import Callable

from common.core.world import World

_printed = [time.monotonic()]


def last_printed() -> float:
    """When this process last printed a line, or was started: a time.monotonic() value."""
    return _printed[0]


def mark(world: World) -> str:
    """What stands before a rank's lines where ranks share a terminal; nothing on the leader."""
    return "" if world.is_leader else f"[rank {world.rank} {socket.gethostname()}] "


def console(world: World) -> Callable[[str], None]:
    """A function that prints lines at once, above the progress bar if there is one."""
    before = mark(world)

    def say(text: str) -> None:
        from tqdm import tqdm  # --help answers without it

        # One write a line: ranks that share a terminal must not break into each other's lines.
        tqdm.write("".join(f"{before}{line}\n" for line in text.split("\n")), end="")
        sys.stdout.flush()
        _printed[0] = time.monotonic()

    return say
