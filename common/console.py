"""What a run says on standard output: plain on the leader, marked with rank and host elsewhere.

    say = console(world)
    say("waiting for rank 2")
"""

import socket
from collections.abc import Callable

from tqdm import tqdm

from common.world import World


def console(world: World) -> Callable[[str], None]:
    """A function that prints lines at once, above the progress bar if there is one."""
    mark = "" if world.is_leader else f"[rank {world.rank} {socket.gethostname()}] "

    def say(text: str) -> None:
        tqdm.write("\n".join(mark + line for line in text.split("\n")))

    return say
