"""A grade as text, as JSON, and as the results file that Gradescope reads."""

from collections.abc import Sequence
from typing import Any

from studies.grading.grading import Check, Grade

POINTS = 100.0
POINTS_FOR_BYTES = 20.0  # of these, where the task has a bound


def as_text(grade: Grade) -> str:
    """The sentence, the user's traceback if there is one, and a short table."""
    lines = [f"{grade.place}: {verdict(grade)}"]
    if grade.diagnosis and grade.diagnosis.trace:
        lines.append(grade.diagnosis.trace.rstrip())
    lines.append(f"  {'correct':12}{passed(grade)} scenarios"
                 + (f", within the tolerance it declares ({grade.tolerance:g})"
                    if grade.tolerance else ""))
    for cost in grade.costs:
        limit = "" if grade.bound == "none" else (
            f", {cost.share(grade.bound):.2f} times the bound ({grade.bound})")
        lines.append(f"  {f'{cost.world} ranks':12}{cost.busiest:,} bytes a step from the busiest "
                     f"rank{limit}; {cost.slowdown:.2f} times the seconds of our "
                     "all-reduce")
    lines.append(f"  {'points':12}{points(grade):.1f} of {POINTS:.0f}")
    return "\n".join(lines)


def as_list(grades: Sequence[Grade]) -> str:
    """One line a strategy, for a whole class."""
    return "\n".join([f"{'points':>6}  {'diagnosis':24}strategy", *(
        f"{points(grade):6.1f}  {grade.diagnosis.id if grade.diagnosis else 'right':24}"
        f"{grade.place}" for grade in grades)])


def verdict(grade: Grade) -> str:
    """One sentence."""
    if grade.diagnosis is None:
        return "right" + (" (compressed)" if grade.tolerance else "")
    return f"WRONG: {grade.diagnosis.sentence}"


def passed(grade: Grade) -> str:
    return f"{sum(check.is_passed for check in grade.checks)} of {len(grade.checks)}"


def points(grade: Grade) -> float:
    """For correctness, and for bytes where there is a bound; seconds count nothing."""
    for_bytes = _points_for_bytes(grade)
    return (POINTS - for_bytes) * grade.correctness + for_bytes * grade.bytes_mark


def _points_for_bytes(grade: Grade) -> float:
    return 0.0 if grade.bound == "none" else POINTS_FOR_BYTES


def as_record(grade: Grade) -> dict[str, Any]:
    """All of it, for --json."""
    found = grade.diagnosis
    return {"strategy": str(grade.place), "is_right": found is None,
            "exit_code": grade.exit_code, "verdict": verdict(grade),
            "diagnosis": found and {"id": found.id, "sentence": found.sentence,
                                    "tensor": found.tensor, "rank": found.rank,
                                    "traceback": found.trace},
            "tolerance": grade.tolerance, "points": points(grade),
            "correctness": grade.correctness, "seconds_to_grade": grade.seconds,
            "scenarios": [{"ranks": check.world, "name": check.scenario.name,
                           "is_passed": check.is_passed, "told": _told(check)}
                          for check in grade.checks],
            "bound": grade.bound, "bytes_mark": grade.bytes_mark,
            "costs": [cost._asdict() for cost in grade.costs]}


def as_gradescope(grades: Sequence[Grade]) -> dict[str, Any]:
    """What Gradescope expects in results.json; of several strategies, the mean of their points."""
    tests = [test for grade in grades for test in _tests(grade, len(grades))]
    return {"score": round(sum(map(points, grades)) / len(grades), 2),
            "output": "\n\n".join(map(as_text, grades)), "tests": tests}


def _tests(grade: Grade, strategies: int) -> list[dict[str, Any]]:
    before = f"{grade.place.name}: " if strategies > 1 else ""
    most = (POINTS - _points_for_bytes(grade)) / len(grade.checks) / strategies
    found = [_row(f"{before}{check.world} ranks, {check.scenario.name}", most,
                  check.is_passed and grade.correctness > 0, _told(check))
             for check in grade.checks]
    if grade.bound != "none":
        found.append(_row(f"{before}bytes sent ({grade.bound})", POINTS_FOR_BYTES / strategies,
                          grade.bytes_mark, "\n".join(map(str, grade.costs))))
    return found


def _row(name: str, most: float, share: float, output: str) -> dict[str, Any]:
    return {"name": name, "score": round(most * share, 3), "max_score": round(most, 3),
            "output": output}


def _told(check: Check) -> str:
    if check.finding:
        return check.finding.sentence
    return "right" if check.is_passed else "not run, because of what went wrong before"
