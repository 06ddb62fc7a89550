"""Condenses the findings of all scenarios to the mistakes behind them: each once, gravest first."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from studies.grading.finding import BY_CHANCE, CHEATS, HEADLINES, NO_MEANS, RACES, Finding
from studies.grading.scenarios import BASIC, Scenario

# Where only these scenarios fail, they say what is wrong.
SIGNS = {"gradients that are not contiguous": "not-contiguous",
         "a parameter without gradient": "none-gradient",
         "a gradient of zeros on the last rank": "zero-gradient"}
UNCLEAR_ON_TWO = ("wrong-divisor", "some-ranks-only")
GRAVITY = {id: place for place, id in enumerate(HEADLINES)}


class ScenarioCheck(NamedTuple):
    """A scenario on a number of ranks; without `findings` it was passed, if it was run."""

    world: int
    scenario: Scenario
    was_run: bool
    findings: Sequence[Finding]

    @property
    def is_passed(self) -> bool:
        return self.was_run and not self.findings


def mistakes(checks: Sequence[ScenarioCheck]) -> list[Finding]:
    """The mistakes, each as the clearest check shows it.

    A mistake in plain training is graver than one in a special scenario only.
    """
    races = [(check, each) for check in checks for each in check.findings if each.id in RACES]
    if races:
        checks = [_without(check, (*RACES, *BY_CHANCE)) for check in checks]
    common = [check for check in checks if not check.scenario.is_special
              and not _is_a_sign(check, checks)]
    firsts: dict[str, tuple[bool, Finding]] = {}
    told = [(check, _explained(each, check, checks, common))
            for check in checks for each in _news(check, checks)]
    for check, each in sorted([*races, *told], key=_clarity):
        firsts.setdefault(each.id, (check.scenario.is_special, each))
    if {"rank-left-waiting", "wrong-order"} <= firsts.keys():  # two signs of one mistake
        is_special, waiting = firsts.pop("rank-left-waiting")
        firsts["wrong-order"] = (is_special, waiting.because("wrong-order"))
    if "wrong-divisor" in firsts:  # by the number of others, which is 1 on two ranks
        firsts.pop("sum-not-divided", None)
    if not firsts and not all(check.was_run for check in checks):
        return [Finding("time-limit", HEADLINES["time-limit"])]
    return [each for _, each in sorted(firsts.values(), key=lambda each: (
        each[1].id not in CHEATS, each[0], GRAVITY[each[1].id]))]


def _without(check: ScenarioCheck, ids: Collection[str]) -> ScenarioCheck:
    return check._replace(findings=[each for each in check.findings if each.id not in ids])


def _clarity(told: tuple[ScenarioCheck, Finding]) -> tuple[bool, bool]:
    """Sorts the check that shows a mistake best first: with more than two ranks if it takes them.

    On two, a sum divided twice is one divided by four, and either rank may have reduced.
    """
    check, finding = told
    return check.world == 1, check.world == 2 and finding.id in UNCLEAR_ON_TWO


def _is_a_sign(check: ScenarioCheck, checks: Sequence[ScenarioCheck]) -> bool:
    """True if it fails because of its special feature: plain training works on as many ranks."""
    return (bool(check.findings) and check.scenario.name in SIGNS
            and any(each.is_passed and each.scenario is BASIC and each.world == check.world
                    for each in checks))


def _news(check: ScenarioCheck, checks: Sequence[ScenarioCheck]) -> Iterator[Finding]:
    """The check's findings, without those of NO_MEANS if plain training already has one."""
    basic = [each.id for other in checks for each in other.findings
             if other.scenario is BASIC and other.world == check.world]
    for each in check.findings:
        if (check.scenario is BASIC or each.id not in NO_MEANS
                or set(NO_MEANS).isdisjoint(basic)):
            yield each


def _explained(finding: Finding, check: ScenarioCheck, checks: Sequence[ScenarioCheck],
               common: Sequence[ScenarioCheck]) -> Finding:
    """The mistake that a finding is a sign of, if it fails only in some cases; else itself."""
    if finding.id in (*CHEATS, "time-limit"):
        return finding
    if _is_a_sign(check, checks):
        return finding.because(SIGNS[check.scenario.name])
    right = {world for world in (each.world for each in common)
             if all(each.is_passed for each in common if each.world == world)}
    wrong = {each.world for each in common if each.findings}
    if check in common and right and wrong == {1}:
        return finding.because("single-rank")
    if check in common and 2 in right:
        where = f" (right on {_words(right - {1})}, wrong on {_words(wrong - {1})})"
        return finding.because("two-not-three", where)
    return finding


def _words(worlds: Collection[int]) -> str:
    return " and ".join(map(str, sorted(worlds)))
