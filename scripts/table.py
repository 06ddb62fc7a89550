"""Prints the results of a folder of runs, from their summary.json files.

    python3 scripts/table.py --output-dir outputs/quickstart [--markdown]
"""

import argparse
import json
from pathlib import Path

RUNS = ("PartOne", "PartTwo/gather-scatter", "PartTwo/all-reduce", "PartThree")
HEAD = ("part", "ranks", "seconds an iteration", "n", "speed", "test accuracy", "report")


def rows(folder: Path) -> list[tuple[str, ...]]:
    """One row of text for each run in `folder`; speed is relative to Part One."""
    summaries = {name: json.loads((folder / name / "summary.json").read_text())
                 for name in _runs_in(folder)}
    base = summaries.get("PartOne", {}).get("mean_iteration_seconds")
    return [_row(folder, name, summary, base) for name, summary in summaries.items()]


def _runs_in(folder: Path) -> list[str]:
    found = [str(path.parent.relative_to(folder)) for path in folder.rglob("summary.json")]
    return sorted(found, key=lambda name: (RUNS.index(name) if name in RUNS else len(RUNS), name))


def _row(folder: Path, name: str, summary: dict, base: float | None) -> tuple[str, ...]:
    mean = summary["mean_iteration_seconds"]
    seconds = f"{mean:.3f} ± {summary['stdev_iteration_seconds']:.3f}" if mean else "-"
    return (name, str(summary["world_size"]),
            seconds, str(max(0, summary["iterations"] - 1)),
            f"{base / mean:.2f}" if base and mean else "-",
            f"{100 * summary['test_accuracy']:.2f} %", str(folder / name / "report.txt"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of runs.")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    parser.add_argument("--markdown", action="store_true")
    options, _ = parser.parse_known_args()
    table = [HEAD, *rows(options.output_dir)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEAD))]
    if options.markdown:
        table.insert(1, tuple("-" * width for width in widths))
    bar = "|" if options.markdown else ""
    for row in table:
        print(f"{bar} " + f" {bar or ' '} ".join(
            text.ljust(width) for text, width in zip(row, widths, strict=True)) + f" {bar}")


if __name__ == "__main__":
    main()
