"""A grade as text, as JSON, and as the results file that Gradescope reads."""

from collections.abc import Sequence
from typing import Any

from studies.grading.costs import SyncCost
from studies.grading.finding import Finding
from studies.grading.grading import HANG_WEIGHT, RACE_WEIGHT, Grade
from studies.grading.mistakes import ScenarioCheck
from studies.grading.session import ranks_in_words

POINTS = 100.0
POINTS_FOR_BYTES = 20.0  # of these, where the task has a bound
NOT_RUN = "not run, because of what went wrong before"
RIGHT = {1.0: "right",  # by what it counts
         HANG_WEIGHT: "right, and counts half, because a rank is left waiting elsewhere",
         RACE_WEIGHT: "right this time, and all count a quarter, because of a race elsewhere",
         0.0: "right, and counts nothing, because of what is wrong elsewhere"}


def as_text(grade: Grade) -> str:
    """A sentence for each mistake, with the user's traceback if there is one; a short table."""
    lines = [f"{grade.name}: {verdict(grade)}", *_trace(grade.diagnosis)]
    for each in grade.mistakes[1:]:
        lines += [f"  {'also':12}{each.sentence}", *_trace(each)]
    lines.append(f"  {'correct':12}{passed(grade)} scenarios"
                 + (f", within the tolerance it declares ({grade.tolerance:g})"
                    if grade.tolerance else ""))
    lines += [f"  {ranks_in_words(cost.world):12}{_sent(cost, grade.bound)}"
              for cost in grade.costs]
    lines.append(f"  {'points':12}{points(grade):.1f} of {POINTS:.0f}")
    return "\n".join(lines)


def _trace(found: Finding | None) -> list[str]:
    """A traceback, marked line by line: its text is the strategy's, and may look like ours."""
    return [f"  | {line}" for line in found.trace.rstrip().splitlines()] if found else []


def _sent(cost: SyncCost, bound: str) -> str:
    limit = "" if bound == "none" else f", {cost.share(bound):.2f} times the bound ({bound})"
    return f"{cost.busiest:,} bytes a step from the busiest rank{limit}"


def as_list(grades: Sequence[Grade]) -> str:
    """One line a strategy, for a whole class."""
    ids = [", ".join(each.id for each in grade.mistakes) or verdict(grade) for grade in grades]
    width = max(map(len, ("mistakes, gravest first", *ids)))
    return "\n".join([f"{'points':>6}  {'mistakes, gravest first':{width}}  strategy", *(
        f"{points(grade):6.1f}  {words:{width}}  {grade.name}"
        for grade, words in zip(grades, ids, strict=True))])


def verdict(grade: Grade) -> str:
    """The verdict in one sentence."""
    if grade.diagnosis is None:
        return "right" + (" (compressed)" if grade.tolerance else "")
    return f"{'UNDECIDED' if grade.is_undecided else 'WRONG'}: {grade.diagnosis.sentence}"


def passed(grade: Grade) -> str:
    return f"{sum(check.is_passed for check in grade.checks)} of {len(grade.checks)}"


def points(grade: Grade) -> float:
    """Points for correctness, and for bytes if there is a bound."""
    for_bytes = _points_for_bytes(grade)
    return round((POINTS - for_bytes) * grade.correctness + for_bytes * grade.bytes_mark, 1)


def _points_for_bytes(grade: Grade) -> float:
    return 0.0 if grade.bound == "none" else POINTS_FOR_BYTES


def as_record(grade: Grade) -> dict[str, Any]:
    """The whole grade as plain values, for --json."""
    rows = [{"id": each.id, "sentence": each.sentence, "tensor": each.tensor, "rank": each.rank,
             "traceback": each.trace} for each in grade.mistakes]
    return {"strategy": str(grade.place), "is_right": not rows, "exit_code": grade.exit_code,
            "verdict": verdict(grade), "diagnosis": rows[0] if rows else None,
            "mistakes": rows, "tolerance": grade.tolerance, "points": points(grade),
            "correctness": grade.correctness, "seconds_to_grade": grade.seconds,
            "scenarios": [{"ranks": check.world, "name": check.scenario.name,
                           "is_passed": check.is_passed, "told": _told(check, grade.weight)}
                          for check in grade.checks],
            "bound": grade.bound, "bytes_mark": grade.bytes_mark,
            "costs": [cost._asdict() for cost in grade.costs]}


def as_gradescope(grades: Sequence[Grade]) -> dict[str, Any]:
    """The content of Gradescope's results.json; points are the mean over strategies."""
    rows = [row for grade in grades for row in _rows(grade, len(grades))]
    upto = [round(sum(row[1] for row in rows[:end]), 1) for end in range(len(rows) + 1)]
    tests = [{"name": name, "score": round(share * (after - before), 1),
              "max_score": round(after - before, 1), "output": text}
             for (name, _, share, text), before, after in zip(rows, upto, upto[1:], strict=False)]
    return {"score": round(sum(map(points, grades)) / len(grades), 1),
            "output": "\n\n".join(map(as_text, grades)), "tests": tests}


def _rows(grade: Grade, strategies: int) -> list[tuple[str, float, float, str]]:
    """(name, most points, fraction of them given, text for the student) of each test."""
    before = f"{grade.name}: " if strategies > 1 else ""
    most = (POINTS - _points_for_bytes(grade)) / len(grade.checks) / strategies
    rows = [(f"{before}{ranks_in_words(check.world)}, {check.scenario.name}", most,
             grade.mark(check), _told(check, grade.weight)) for check in grade.checks]
    if grade.bound != "none":
        sent = [f"{ranks_in_words(cost.world)}: {_sent(cost, grade.bound)}" for cost in grade.costs]
        rows.append((f"{before}bytes sent ({grade.bound})", POINTS_FOR_BYTES / strategies,
                     grade.bytes_mark, "\n".join(sent) or NOT_RUN))
    return rows


def _told(check: ScenarioCheck, weight: float) -> str:
    if check.findings:
        return "\n".join(each.sentence for each in check.findings)
    return RIGHT[weight] if check.is_passed else NOT_RUN
