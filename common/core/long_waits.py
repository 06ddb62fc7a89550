"""Prints what a run is doing, and how far it is, when three seconds pass without a line.

    for path in counted(paths, "images decoded"): ...
"""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from common.core.console import console, last_printed
from common.core.progress import FINISHED, Progress, process_progress
from common.core.world import World

SILENCE_SECONDS = 2.4  # a line that is due then stands there before three seconds have passed
LOOK_SECONDS = 0.1
# After a first step only these phases are long enough: a step has a line of its own.
PRINTED_LATER = ("evaluation", "saving")

Thing = TypeVar("Thing")
_counts: list[str] = []


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
        if now - last_printed() > SILENCE_SECONDS and _is_printed(progress):
            seconds = round(now - begun)
            so_far = f", {seconds} s so far" * (seconds > 0)
            say(f"  {_words(progress)}{so_far}{''.join(_counts[-1:])}")
        time.sleep(LOOK_SECONDS)


def _words(progress: Progress) -> str:
    """The current work: "loading data", or "epoch 1 iteration 0 (backward)"."""
    if progress.epoch == 0 or progress.phase in PRINTED_LATER:
        return progress.phase
    return progress.place().removeprefix("at ")


def _is_printed(progress: Progress) -> bool:
    return not progress.has_stepped or progress.phase in PRINTED_LATER
