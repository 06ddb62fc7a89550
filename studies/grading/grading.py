"""From a user's strategy to its grade: what is wrong, first of all, and the marks.

    grade = grade_of(Place.parse("my_sync.py:MyAllReduce"), bound="ring", seconds=60)
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from common.core.user_code import Place
from studies.grading.costs import Cost, costs, too_many_bytes
from studies.grading.finding import HEADLINES, Finding
from studies.grading.findings import finding
from studies.grading.scenarios import BASIC, PLAN, Scenario
from studies.grading.session import Outcome, outcomes
from studies.grading.supervision import Trouble

Plan = Mapping[int, Sequence[Scenario]]
# Where only these scenarios fail, they say what is wrong.
SIGNS = {"gradients that are not contiguous": "not-contiguous",
         "a parameter without gradient": "none-gradient"}


class Test(NamedTuple):
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
    tests: Sequence[Test]
    costs: Sequence[Cost]
    bound: str
    tolerance: float
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 for right, 1 for wrong, 2 for what cannot be used."""
        if self.diagnosis is None:
            return 0
        return 2 if self.diagnosis.id in ("unusable", "raises") and not any(
            test.is_passed and test.world > 1 for test in self.tests) else 1

    @property
    def correctness(self) -> float:
        """The share of the tests that were passed."""
        return sum(test.is_passed for test in self.tests) / len(self.tests)

    @property
    def bytes_mark(self) -> float:
        """1 within the bound, less in proportion to what is too much."""
        if self.bound == "none":
            return 1.0
        shares = [cost.share(self.bound) for cost in self.costs]
        return min(1.0, 1 / max(shares)) if shares and too_many_bytes(
            self.costs, self.bound) else float(bool(shares))


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
    tests, found = tests_of(run, plan), costs(run)
    return Grade(place, unusable or diagnosis(tests) or too_many_bytes(found, bound), tests,
                 found, bound, max((each.tolerance for each in run), default=0.0),
                 time.monotonic() - start)


def tests_of(run: Sequence[Outcome], plan: Plan = PLAN) -> list[Test]:
    """Of all that is planned, whether it was run or not."""
    by_key = {(each.world, each.scenario.name): each for each in run}
    found = [_test(world, scenario, by_key.get((world, scenario.name)))
             for world, scenarios in plan.items() for scenario in scenarios]
    works = {test.world for test in found if test.scenario is BASIC and test.is_passed}
    return [test._replace(was_run=test.was_run and (test.world in works
                                                    or not test.scenario.is_accident))
            for test in found]


def _test(world: int, scenario: Scenario, outcome: Outcome | None) -> Test:
    return Test(world, scenario, outcome is not None, outcome and finding(outcome))


def diagnosis(tests: Sequence[Test]) -> Finding | None:
    """The one mistake that explains the others best."""
    common = [test for test in tests if not test.scenario.is_accident and not test.scenario.unused]
    failed = [test for test in common if test.finding]
    worlds = {test.world for test in tests}
    works = {world for world in worlds if all(test.is_passed for test in common
                                              if test.world == world)}
    first = next((test for test in failed if test.world > 1), None) or next(iter(failed), None)
    if first is not None and first.finding is not None:
        if works and works == worlds - {1}:
            return first.finding.because("single-rank")
        if 2 in works:
            good = " and ".join(str(world) for world in sorted(works) if world > 1)
            return first.finding.because("two-not-three", f" (right on {good})")
        return _as_a_sign(first, failed)
    others = [test for test in tests if test.finding]
    if others:
        return _as_a_sign(others[0], others)
    if not all(test.was_run for test in tests):
        return Finding("time-limit", f"{HEADLINES['time-limit']}")
    return None


def _as_a_sign(first: Test, failed: Sequence[Test]) -> Finding:
    found = first.finding
    assert found is not None
    if first.scenario.name in SIGNS:
        return found.because(SIGNS[first.scenario.name])
    if found.id == "sum-not-divided":  # divided by the number of others, on two ranks
        better = [test.finding for test in failed
                  if test.finding and test.finding.id == "wrong-divisor"]
        return better[0] if better else found
    return found
