"""Grades every planted strategy and prints kind, diagnosis and whether it is the right one.

    python3 -m tests.grading.table            # all of them, some minutes
    python3 -m tests.grading.table stale      # those whose name begins so
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from common.settings.user_code import Place
from studies.grading.grading import Grade, grade_of
from studies.proof.ranks import preload

HERE = Path(__file__).parent
RIGHT, WRONG = HERE / "planted_right.py", HERE / "planted_wrong.py"
HELPERS = ("size", "flat", "unflat")
VAGUE = "differs"
OTHER_IDS = {"float32": "float32-arithmetic"}


def planted(path: Path) -> list[str]:
    """The strategies of a file, by name."""
    return [node.name for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in HELPERS]


def expected(path: Path, name: str) -> str:
    """The diagnosis that a strategy was written for; "right" for a strategy without a mistake."""
    kind = name.partition("__")[0].replace("_", "-")
    return "right" if path == RIGHT else OTHER_IDS.get(kind, kind)


def graded(path: Path, name: str, **how) -> tuple[str, Grade]:
    """The id of the diagnosis, and the grade."""
    bound = "ring" if name.startswith("too_many_bytes") else "none"
    grade = grade_of(Place(path, name), bound, tolerance=0.1, **how)
    return grade.diagnosis.id if grade.diagnosis else "right", grade


def rows(chosen: str) -> Iterator[tuple[str, str, Grade]]:
    """Name, mark and grade of each; prints its row."""
    for path in (RIGHT, WRONG):
        for name in filter(lambda name: name.startswith(chosen), planted(path)):
            found, grade = graded(path, name)
            mark = ("yes" if found == expected(path, name) else
                    "vague" if found == VAGUE else "NO")
            told = grade.diagnosis.sentence if grade.diagnosis else "right"
            print(f"| {name} | {found} | {mark} | {grade.seconds:.1f} | {told} |", flush=True)
            yield name, mark, grade


def main() -> None:
    preload("torch._dynamo", "studies.grading.rank_under_test")
    print("| planted | diagnosis | right? | s | sentence |\n|---|---|---|--:|---|")
    found = list(rows("".join(sys.argv[1:])))
    marks = [mark for _, mark, _ in found]
    seconds = [grade.seconds for _, _, grade in found]
    print(f"\n{len(found)} strategies: {marks.count('yes')} right, {marks.count('vague')} vague, "
          f"{marks.count('NO')} wrong diagnoses; at most {max(seconds):.1f} s, "
          f"median {median(seconds):.1f} s")
    sys.exit("NO" in marks)


if __name__ == "__main__":
    main()
