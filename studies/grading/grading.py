"""Grades a user's strategy: its mistakes, gravest first, and the marks.

    grade = grade_of(Place.parse("my_sync.py:MyAllReduce"), bound="ring", seconds=60)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from common.core.visible import visible
from common.settings.user_code import Place
from studies.grading.costs import SLACK, SyncCost, costs, too_many_bytes
from studies.grading.finding import CHEATS, HEADLINES, RACES, Finding
from studies.grading.findings import findings
from studies.grading.mistakes import ScenarioCheck, mistakes
from studies.grading.scenarios import BASIC, PLAN, Scenario
from studies.grading.session import Outcome, outcomes
from studies.grading.supervision import Trouble

Plan = Mapping[int, Sequence[Scenario]]
HANG_WEIGHT, RACE_WEIGHT = 0.5, 0.25


class Grade(NamedTuple):
    """The judgement on one strategy: its mistakes, gravest first, and what they cost.

    `tolerance` is what counted of the one that it declares: 0 for an exact one.
    """

    place: Place
    mistakes: Sequence[Finding]
    checks: Sequence[ScenarioCheck]
    costs: Sequence[SyncCost]
    bound: str
    tolerance: float
    seconds: float

    @property
    def name(self) -> str:
        """The place in one line: a folder's name may have line ends, to look like two rows."""
        return visible(str(self.place))

    @property
    def diagnosis(self) -> Finding | None:
        """The gravest mistake."""
        return self.mistakes[0] if self.mistakes else None

    @property
    def exit_code(self) -> int:
        """The exit code: 0 for right, 1 for wrong, 2 for unusable."""
        if self.diagnosis is None:
            return 0
        return 2 if self.diagnosis.id in ("unusable", "raises", "ends-process") and not any(
            check.is_passed and check.world > 1 for check in self.checks) else 1

    @property
    def is_undecided(self) -> bool:
        """True if nothing is known to be wrong, and time was too short for the rest."""
        return {each.id for each in self.mistakes} == {"time-limit"}

    @property
    def weight(self) -> float:
        """The weight of a check that counts: 1, less for a race or if a rank is left waiting, or 0.

        It is 0 if only one rank is right, and for cheats.
        """
        if not self._ids.isdisjoint(CHEATS) or not any(self._counts(check) and check.world > 1
                                                       for check in self.checks):
            return 0.0
        if self._has_race:
            return RACE_WEIGHT
        return HANG_WEIGHT if "rank-left-waiting" in self._ids else 1.0

    @property
    def _ids(self) -> set[str]:
        return {each.id for check in self.checks for each in check.findings}

    @property
    def _has_race(self) -> bool:
        return not self._ids.isdisjoint(RACES)

    def _counts(self, check: ScenarioCheck) -> bool:
        """True if it was passed; with a race all count, as chance says which are passed."""
        return check.is_passed or self._has_race

    def mark(self, check: ScenarioCheck) -> float:
        """The fraction of a check's points that is given."""
        return self.weight * self._counts(check)

    @property
    def correctness(self) -> float:
        """The mean of the checks' marks."""
        return sum(map(self.mark, self.checks)) / len(self.checks)

    @property
    def bytes_mark(self) -> float:
        """The mark for bytes: the weight within the bound, less in proportion beyond it."""
        if self.bound == "none":
            return self.weight
        worst = max((cost.share(self.bound) for cost in self.costs), default=inf)
        return self.weight if worst <= SLACK else self.weight / worst


def grade_of(place: Place, bound: str = "none", seconds: float = 60, plan: Plan = PLAN,
             tell: Callable[[str], None] = lambda line: None, tolerance: float = 0.0) -> Grade:
    """Runs the strategy at `place` in processes of its own, for `seconds` at most.

    `plan` has the scenarios by number of ranks; `bound` is "ring", "root" or "none". `tell` is
    called with what is done next. `tolerance` is the most that a strategy may declare.
    """
    start = time.monotonic()
    try:
        run, unusable = outcomes(place, seconds, plan, tell, tolerance), None
    except Trouble as trouble:
        run, unusable = [], Finding("unusable", f"{HEADLINES['unusable']}: {trouble.sentence}",
                                    rank=trouble.rank, trace=trouble.trace)
    checks, sent = checks_of(run, plan), costs(run)
    wrong = [unusable] if unusable else [*mistakes(checks), *too_many_bytes(sent, bound)]
    counted = max((each.tolerance for each in run), default=0.0)
    return Grade(place, wrong, checks, sent, bound, counted, time.monotonic() - start)


def checks_of(run: Sequence[Outcome], plan: Plan = PLAN) -> list[ScenarioCheck]:
    """A check for every planned scenario, run or not."""
    by_key = {(each.world, each.scenario.name): each for each in run}
    planned = [_check(world, scenario, by_key.get((world, scenario.name)))
               for world, scenarios in plan.items() for scenario in scenarios]
    works = {check.world for check in planned if check.scenario is BASIC and check.is_passed}
    return [check._replace(was_run=False, findings=[])
            if check.scenario.is_accident and check.world not in works else check
            for check in planned]


def _check(world: int, scenario: Scenario, outcome: Outcome | None) -> ScenarioCheck:
    with np.errstate(all="ignore"):  # a strategy may leave any numbers
        return ScenarioCheck(world, scenario, outcome is not None,
                             findings(outcome) if outcome else [])
