"""The result of a proof in a sentence: computed from the JSON of scripts/prove.py.

    python3 scripts/compare.py outputs --proof docs/proof_float64.json

A proof has one table a precision. A case in it compares one rank's training with another's: held to
bounds ("agrees", "FAILED: ..."), or measured only.
"""

from collections.abc import Sequence
from typing import Any

from common.settings.causes import at_most, join, told_apart

Table = dict[str, Any]
Case = dict[str, Any]
NAMES = {"gather-scatter": "gather/scatter", "ddp": "DDP"}
FAILED = "FAILED: "
ONE_RANK = "one rank, "
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NAMED = 3  # more strategies than these are counted
# Where a bound has grown to this fraction of the weights, agreement proves little.
MEANINGFUL = 1e-6


def number(value: int) -> str:
    """A whole number, small ones in words."""
    return NUMBERS[value] if value < len(NUMBERS) else str(value)


def ranks(size: int) -> str:
    """A number of ranks in words."""
    return f"{number(size)} rank{'s' * (size > 1)}"


def held_to_bounds(table: Table) -> list[Case]:
    """The strategies that were judged, on any number of ranks."""
    return [case for case in table["cases"] if not case["name"].startswith(ONE_RANK)
            and (case["verdict"] == "agrees" or case["verdict"].startswith(FAILED))]


def best_table(tables: Sequence[Table]) -> Table:
    """The one to show first: in float64, where rounding stays small, if there is one."""
    return next((table for table in tables if table["settings"]["precision"] == "float64"),
                tables[0])


def claim(table: Table) -> str:
    """Says whether N ranks learn what one rank learns, with the number that shows it."""
    if failed := [case for case in table["cases"] if case["verdict"].startswith(FAILED)]:
        return _failure(table, failed)
    judged = held_to_bounds(table)
    if not judged:
        return "The proof has compared no strategy with one rank."
    gap = max(case["gaps"]["weights"]["absolute"] for case in judged)
    names = list(dict.fromkeys(shown(case["name"]) for case in judged))
    text = (names[0][0].upper() + join(names)[1:] if len(names) <= NAMED
            else f"All {number(len(names))} strategies")
    sizes = sorted({case["ranks"] for case in judged})
    several = join([number(size) for size in sizes]) + " rank" + "s" * (sizes[-1] > 1)
    return f"{text} on {several} {_agreement(table, gap, len(names))}"


def _agreement(table: Table, gap: float, names: int) -> str:
    after = (f"after {table['steps']} steps of {table['settings']['workload']} in "
             f"{table['settings']['precision']}")
    learn = "learns" if names == 1 else "learn"
    if table["bounds"]["weights"]["relative"] > MEANINGFUL:
        return (f"{'stays' if names == 1 else 'stay'} within what rounding does to one rank: "
                f"{after} no weight differs by more than {gap:.0e}, and "
                f"{table['bounds']['weights']['absolute']:.0e} is explained by rounding.")
    differs = (f"no weight differs by more than {at_most(gap)}" if gap else
               "all weights are equal, bit for bit")
    return f"{learn} what one rank learns: {after} {differs}."


def _failure(table: Table, failed: Sequence[Case]) -> str:
    case = failed[0]
    quantity = case["verdict"].removeprefix(FAILED).split(", ")[0]
    others = f" {number(len(failed) - 1).capitalize()} more of {len(table['cases'])} comparisons " \
             "failed." if len(failed) > 1 else ""
    gap, bound = told_apart(*(each[quantity]["absolute"]
                              for each in (case["gaps"], table["bounds"])))
    return (f"The proof FAILED: {shown(case['name'])} on "
            f"{ranks(case['ranks'])} does not learn what one rank learns. In "
            f"{table['settings']['precision']} the {quantity} "
            f"{'differs' if quantity == 'loss' else 'differ'} by "
            f"{gap}, where the bound is {bound}.{others}")


def shown(name: str) -> str:
    """A strategy's name as sentences have it."""
    return NAMES.get(name, name)
