"""Prints what a run says; and what it is doing, when three seconds pass without a line.

    say = console(world)
    for path in counted(paths, "images decoded"): ...
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from common.core.progress import FINISHED, Progress, process_progress
from common.core.visible import visible
from common.core.world import World

SILENCE_SECONDS = 2.4  # a line that is due then stands there before three seconds have passed
LOOK_SECONDS = 0.1
# After a first step only these phases are long enough: a step has a line of its own.
PRINTED_LATER = ("evaluation", "saving")

Thing = TypeVar("Thing")
_counts: list[str] = []
_last_printed = [time.monotonic()]
_lock = threading.RLock()


def mark(world: World) -> str:
    """Prefix of a rank's lines, as ranks may share a terminal; empty on the leader."""
    return "" if world.is_leader else f"[rank {world.name} {socket.gethostname()}] "


def console(world: World) -> Callable[[str], None]:
    """A function that prints lines at once, above the progress bar if there is one."""
    before = mark(world)

    def say(text: str) -> None:
        from tqdm import tqdm  # --help answers without it

        tqdm.set_lock(_lock)  # not its own between processes, which a killed one leaves behind
        # One write a line: ranks that share a terminal must not break into each other's lines.
        tqdm.write("".join(f"{before}{visible(line)}\n" for line in text.split("\n")), end="")
        sys.stdout.flush()
        _last_printed[0] = time.monotonic()

    return say


def counted(things: Sequence[Thing], what: str) -> Iterator[Thing]:
    """The things, one after the other; a long wait's line then ends in "N of M `what`"."""
    _counts.append("")
    try:
        for done, thing in enumerate(things):
            _counts[-1] = f": {done:,} of {len(things):,} {what}"
            yield thing
    finally:
        _counts.pop()


def tell_long_waits(world: World, progress: Progress | None = None) -> None:
    """From now on the leader prints where the run is whenever it has printed nothing for too long.

    Call once a process, before torch is imported: that is the first thing that takes long. Ends
    when the phase is FINISHED. `progress` is the process's own unless given.
    """
    progress = progress or process_progress()
    progress.phase = "loading torch"
    if world.is_leader:
        threading.Thread(target=_print, args=(world, progress), name="long waits",
                         daemon=True).start()


def _print(world: World, progress: Progress) -> None:
    say, begun, place = console(world), time.monotonic(), ""
    while progress.phase != FINISHED:
        now = time.monotonic()
        if place != (here := f"{progress.run} {progress.phase}"):
            begun, place = now, here
        is_slow = not progress.has_stepped or progress.phase in PRINTED_LATER
        if is_slow and now - _last_printed[0] > SILENCE_SECONDS:
            seconds = round(now - begun)
            so_far = f", {seconds} s so far" * (seconds > 0)
            say(f"  {_words(progress)}{so_far}{''.join(_counts[-1:])}")
        time.sleep(LOOK_SECONDS)


def _words(progress: Progress) -> str:
    """The current work: "loading data", or "epoch 1 iteration 0 (backward)"."""
    if progress.epoch == 0 or progress.phase in PRINTED_LATER:
        return progress.phase
    return progress.place().removeprefix("at ")
