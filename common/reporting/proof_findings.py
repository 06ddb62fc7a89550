"""The result of a proof in a sentence: computed from the JSON of scripts/prove.py.

    python3 scripts/compare.py outputs --proof docs/proof_float64.json

A proof has one table a precision. A case in it compares one rank's training with another's: held to
bounds ("agrees", "FAILED: ..."), or measured only.
"""

from collections.abc import Sequence
from typing import Any

from common.settings.causes import at_most, join

Table = dict[str, Any]
FAILED = "FAILED: "
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NAMED = 3  # more strategies than these are counted
# Where a bound has grown to this fraction of the weights, agreement proves little.
MEANINGFUL = 1e-6


def number(value: int) -> str:
    """A whole number, small ones in words."""
    return NUMBERS[value] if value < len(NUMBERS) else str(value)


def ranks(*sizes: int) -> str:
    """Numbers of ranks in words."""
    return f"{join([number(size) for size in sizes])} rank{'s' * (sizes[-1] > 1)}"


def best_table(tables: Sequence[Table]) -> Table:
    """The one to show first: in float64, where rounding stays small, if there is one."""
    return next((table for table in tables if table["settings"]["precision"] == "float64"),
                tables[0])


def claim(table: Table) -> str:
    """Says whether N ranks learn what one rank learns, with the number that shows it."""
    cases, settings = table["cases"], table["settings"]
    after = f"after {table['steps']} steps of {settings['workload']} in {settings['precision']}"
    if failed := [case for case in cases if case["verdict"].startswith(FAILED)]:
        return (f"The proof FAILED: {after} {failed[0]['name']} on {ranks(failed[0]['ranks'])} has "
                "not learned what one rank learns, by its "
                f"{failed[0]['verdict'].removeprefix(FAILED)}; {len(failed)} of {len(cases)} "
                "comparisons failed.")
    judged = [case for case in cases
              if case["verdict"] == "agrees" and not case["name"].startswith("one rank, ")]
    if not judged:
        return "The proof has compared no strategy with one rank."
    names = list(dict.fromkeys(case["name"] for case in judged))
    who = join(names) if len(names) <= NAMED else f"{number(len(names))} strategies"
    return (f"{who[0].upper()}{who[1:]} on {ranks(*sorted({case['ranks'] for case in judged}))}: "
            f"what one rank learns. {after[0].upper()}{after[1:]} {_agreement(table, judged)}.")


def _agreement(table: Table, judged: Sequence[dict[str, Any]]) -> str:
    gap = max(case["gaps"]["weights"]["absolute"] for case in judged)
    bound = table["bounds"]["weights"]
    if not gap:
        return "all weights are equal, bit for bit"
    text = f"no weight differs by more than {at_most(gap)}"
    if bound["relative"] > MEANINGFUL:
        text += f", where rounding explains {bound['absolute']:.0e}: that proves little"
    return text
