"""Costs of a strategy: bytes sent, beside the bound of its task."""

from collections.abc import Sequence
from math import log2, prod
from statistics import median
from typing import NamedTuple

from studies.grading.cells import EXACT
from studies.grading.finding import Finding
from studies.grading.scenarios import Scenario
from studies.grading.session import Outcome

SLACK = 1.1  # for headers, and what connections exchange


class SyncCost(NamedTuple):
    """The cost on `world` ranks: bytes of the gradient, of the busiest rank and of all together.

    Bytes are medians over steps.
    """

    world: int
    gradient: int
    busiest: int
    together: int

    def share(self, bound: str) -> float:
        """Bytes sent, as a fraction of those that `bound`, "ring" or "root", allows."""
        others = self.world - 1
        if bound == "ring":
            return self.busiest / (2 * others / self.world * self.gradient)
        return max(self.busiest / (others * self.gradient),
                   self.together / (2 * others * self.gradient))


def costs(outcomes: Sequence[Outcome]) -> list[SyncCost]:
    """The costs on each number of ranks, from two, whose large scenario ended without trouble."""
    return [_cost(each) for each in outcomes
            if each.scenario.shows_costs and each.world > 1 and each.trouble is None]


def _cost(outcome: Outcome) -> SyncCost:
    sent = [[each.sent for each in step.traffic] for step in outcome.steps]
    return SyncCost(outcome.world, _gradient_bytes(outcome.scenario), int(median(map(max, sent))),
                int(median(map(sum, sent))))


def least_bytes(outcome: Outcome) -> int:
    """The least bytes that a rank must send, and receive, to exchange gradients of all steps.

    The numbers are random, so each takes as many bits as its error allows; half of them is asked
    for, as an error may be spread unevenly.
    """
    bits = log2(1 / max(EXACT, outcome.tolerance)) / 2
    return int(len(outcome.steps) * _gradient_bytes(outcome.scenario) * bits / 64)


def _gradient_bytes(scenario: Scenario) -> int:
    return 8 * sum(prod(shape) for name, shape in scenario.shapes if name not in scenario.unused)


def too_many_bytes(every: Sequence[SyncCost], bound: str) -> list[Finding]:
    """A finding for the smallest number of ranks that sends more than `bound` allows, or none."""
    return [Finding("too-many-bytes", "more bytes are sent than the task allows: with "
                    f"{cost.world} ranks the busiest sends {cost.busiest:,} bytes in a step "
                    f"and all together {cost.together:,}, that is {cost.share(bound):.2f} "
                    f"times the bound ({bound}), for gradients of {cost.gradient:,} bytes")
            for cost in every if bound != "none" and cost.share(bound) > SLACK][:1]
