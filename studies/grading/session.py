"""Runs a strategy through the scenarios of every world size.

All scenarios of one size share one set of processes; it is replaced where an exception ended it.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import randbits
from typing import NamedTuple, cast

from common.core.visible import visible
from common.settings.user_code import Place
from studies.grading.messages import Order, Seen, Settled
from studies.grading.scenarios import BASIC, PLAN, Scenario
from studies.grading.socket_bytes import Traffic
from studies.grading.supervision import Ranks, Trouble

TOGETHER_SECONDS = 0.005  # so that all ranks have the order when they start
SETTLE_SECONDS = 0.02  # for what arrives late
NAMES_ELSEWHERE = r"import \*|globals|exec|setattr"  # what may give a file names unseen in its text


class SeenStep(NamedTuple):
    """The ranks' reports on one step, by rank, and the bytes that they sent and received."""

    seen: Sequence[Seen]
    settled: Sequence[Settled]
    traffic: Sequence[Traffic]


class Outcome(NamedTuple):
    """A scenario's steps as far as they were run, and what has ended them early.

    Its data follow from `secret`.
    """

    scenario: Scenario
    world: int
    steps: Sequence[SeenStep]
    tolerance: float
    secret: int
    trouble: Trouble | None = None

    @property
    def hangs(self) -> bool:
        return self.trouble is not None and self.trouble.kind == "hangs"


def outcomes(place: Place, seconds: float,
             plan: Mapping[int, Sequence[Scenario]] = PLAN,
             tell: Callable[[str], None] = lambda line: None,
             tolerance: float = 0.0) -> list[Outcome]:
    """Runs the scenarios within `seconds`, and returns their outcomes.

    `tell` is called with a line for each number of ranks. `tolerance` is the most that counts of
    what the strategy declares. No scenario follows a hang in the first one on several ranks. Raises
    Trouble where the strategy cannot be used at all.
    """
    if sentence := _lacks_name(place):
        raise Trouble("unusable", 0, sentence)
    deadline, done, secret = time.monotonic() + seconds, list[Outcome](), randbits(128)
    for world, scenarios in plan.items():
        left = list(scenarios)
        tell(f"{visible(str(place))}: {len(left)} scenarios on {ranks_in_words(world)}")
        while left and time.monotonic() < deadline:
            run = _with_one_set_of_processes(place, world, left, secret, deadline, tolerance)
            done += run
            left = left[len(run):]
            if _ends_this_size(run[-1]):
                left = []
        if done and done[-1].hangs and len([each for each in done if each.world > 1]) == 1:
            return done
    return done


def _lacks_name(place: Place) -> str:
    """A sentence if the file defines other things, and its text never has the name; else "".

    Known without running the file, and so before any rank is started.
    """
    text = place.file.read_text(errors="replace") if place.file.is_file() else ""
    own = re.findall(r"^(?:class|def) (\w+)", text, re.MULTILINE)
    if not own or re.search(rf"\b{re.escape(place.name)}\b|{NAMES_ELSEWHERE}", text):
        return ""
    return visible(f"{place.file} has no {place.name!r}; it has {', '.join(own)}")


def ranks_in_words(world: int) -> str:
    return "1 rank" if world == 1 else f"{world} ranks"


def _ends_this_size(last: Outcome) -> bool:
    """True if the other scenarios on as many ranks would only take time, or fail alike."""
    special = last.scenario.is_accident or last.scenario.unused
    return not special and (last.hangs or last.scenario is BASIC and last.trouble is not None)


def _with_one_set_of_processes(place: Place, world: int, scenarios: Sequence[Scenario],
                               secret: int, deadline: float,
                               tolerance: float) -> list[Outcome]:
    """Runs scenarios up to the first trouble, at least one, and returns their outcomes."""
    ended = []
    with Ranks(world, place, scenarios, secret) as ranks:
        tolerance = min(tolerance, ranks.tolerance())
        for number, scenario in enumerate(scenarios):
            steps, trouble = _run(ranks, world, number, scenario, deadline)
            ended.append(Outcome(scenario, world, steps, tolerance, secret, trouble))
            if trouble:
                break
    return ended


def _run(ranks: Ranks, world: int, number: int, scenario: Scenario,
         deadline: float) -> tuple[list[SeenStep], Trouble | None]:
    steps = []
    try:
        for step in range(scenario.steps):
            if time.monotonic() > deadline:
                raise Trouble("time-limit", 0)
            order = Order(number, step, time.monotonic() + TOGETHER_SECONDS)
            before = ranks.traffic()
            if scenario.loses_a_peer and step:
                ranks.ask_without(world - 1, order)
            seen = cast(list[Seen], ranks.ask(order))
            time.sleep(SETTLE_SECONDS if scenario.is_one_late else TOGETHER_SECONDS)
            traffic = [*map(Traffic.since, ranks.traffic(), before)]
            settling = Order(number, step, is_settling=True)
            settled = cast(list[Settled], ranks.ask(settling))
            steps.append(SeenStep(seen, settled, traffic))
    except Trouble as trouble:
        return steps, trouble
    return steps, None
