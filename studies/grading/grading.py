"""From a user's strategy to its grade: what is wrong, first of all, and the marks.

    grade = grade_of(Place.parse("my_sync.py:MyAllReduce"), bound="ring", seconds=60)
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from common.core.user_code import Place
from studies.grading.costs import SLACK, Cost, costs, too_many_bytes
from studies.grading.finding import HEADLINES, Finding
from studies.grading.findings import finding
from studies.grading.scenarios import BASIC, PLAN, Scenario
from studies.grading.session import Outcome, outcomes
from studies.grading.supervision import Trouble

Plan = Mapping[int, Sequence[Scenario]]
# Where only these scenarios fail, they say what is wrong.
SIGNS = {"gradients that are not contiguous": "not-contiguous",
         "a parameter without gradient": "none-gradient",
         "a gradient of zeros on the last rank": "zero-gradient"}

CHEATS = ("forged", "processes", "nothing-sent")


class Check(NamedTuple):
    """A scenario on a number of ranks; without `finding` it was passed, if it was run."""

    world: int
    scenario: Scenario
    was_run: bool
    finding: Finding | None

    @property
    def is_passed(self) -> bool:
        return self.was_run and self.finding is None


class Grade(NamedTuple):
    """The judgement on one strategy. `tolerance` is what it declares: 0 for an exact one."""

    place: Place
    diagnosis: Finding | None
    checks: Sequence[Check]
    costs: Sequence[Cost]
    bound: str
    tolerance: float
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 for right, 1 for wrong, 2 for what cannot be used."""
        if self.diagnosis is None:
            return 0
        return 2 if self.diagnosis.id in ("unusable", "raises", "ends-process") and not any(
            check.is_passed and check.world > 1 for check in self.checks) else 1

    @property
    def correctness(self) -> float:
        """The share of the checks that were passed.

        It is 0 for what is right on one rank alone, and for who cheats anywhere.
        """
        if any(check.finding and check.finding.id in CHEATS for check in self.checks):
            return 0.0
        passed = [check for check in self.checks if check.is_passed]
        return len(passed) / len(self.checks) if any(check.world > 1 for check in passed) else 0.0

    @property
    def bytes_mark(self) -> float:
        """1 within the bound, less in proportion to what is too much; 0 where nothing is right."""
        if not self.correctness:
            return 0.0
        if self.bound == "none":
            return 1.0
        worst = max((cost.share(self.bound) for cost in self.costs), default=inf)
        return 1.0 if worst <= SLACK else 1 / worst


def grade_of(place: Place, bound: str = "none", seconds: float = 60, plan: Plan = PLAN) -> Grade:
    """Runs the strategy at `place` in processes of its own, for `seconds` at most.

    `plan` has the scenarios by number of ranks; `bound` is "ring", "root" or "none".
    """
    start = time.monotonic()
    try:
        run = outcomes(place, seconds, plan)
        unusable = None
    except Trouble as trouble:
        run = []
        unusable = Finding("unusable", f"{HEADLINES['unusable']}: {trouble.sentence}",
                           rank=trouble.rank, trace=trouble.trace)
    checks, found = checks_of(run, plan), costs(run)
    return Grade(place, unusable or diagnosis(checks) or too_many_bytes(found, bound), checks,
                 found, bound, max((each.tolerance for each in run), default=0.0),
                 time.monotonic() - start)


def checks_of(run: Sequence[Outcome], plan: Plan = PLAN) -> list[Check]:
    """Of all that is planned, whether it was run or not."""
    by_key = {(each.world, each.scenario.name): each for each in run}
    found = [_check(world, scenario, by_key.get((world, scenario.name)))
             for world, scenarios in plan.items() for scenario in scenarios]
    works = {check.world for check in found if check.scenario is BASIC and check.is_passed}
    return [check._replace(was_run=check.was_run and (check.world in works
                                                    or not check.scenario.is_accident))
            for check in found]


def _check(world: int, scenario: Scenario, outcome: Outcome | None) -> Check:
    with np.errstate(all="ignore"):  # a strategy may leave any numbers
        return Check(world, scenario, outcome is not None, outcome and finding(outcome))


def diagnosis(checks: Sequence[Check]) -> Finding | None:
    """The one mistake that explains the others best."""
    common = [check for check in checks if not check.scenario.is_special]
    failed = [check for check in common if check.finding]
    worlds = {check.world for check in checks}
    works = {world for world in worlds if all(check.is_passed for check in common
                                              if check.world == world)}
    first = next((check for check in failed if check.world > 1), None) or next(iter(failed), None)
    if first is not None and first.finding is not None:
        if works and works == worlds - {1}:
            return first.finding.because("single-rank")
        if 2 in works:
            good, bad = _words(works - {1}), _words(worlds - works - {1})
            return first.finding.because("two-not-three", f" (right on {good}, wrong on {bad})")
        return _as_a_sign(first, failed)
    others = [check for check in checks if check.finding]
    if others:
        return _as_a_sign(others[0], others)
    if not all(check.was_run for check in checks):
        return Finding("time-limit", f"{HEADLINES['time-limit']}")
    return None


def _words(worlds: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(worlds)))


def _as_a_sign(first: Check, failed: Sequence[Check]) -> Finding:
    found = first.finding
    assert found is not None
    if first.scenario.name in SIGNS and found.id != "time-limit":
        return found.because(SIGNS[first.scenario.name])
    if found.id == "sum-not-divided":  # divided by the number of others, on two ranks
        better = [check.finding for check in failed
                  if check.finding and check.finding.id == "wrong-divisor"]
        return better[0] if better else found
    return found
