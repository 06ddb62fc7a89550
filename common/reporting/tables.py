"""The tables of the page: heads and rows of text, the same for HTML, Markdown and a terminal."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from common.core.failures import DataError
from common.core.progress import PHASES
from common.reporting.figures import label
from common.reporting.proof_findings import best_table, claim
from common.reporting.recorded_run import RecordedRun
from common.reporting.run_findings import MEGABYTE
from common.reporting.speed_findings import base_of, timed

Runs = Sequence[RecordedRun]
NODE_SETTINGS = ("data_dir", "output_dir", "resume", "dry_run")
SHOWN_OPERATORS = 10


class Table(NamedTuple):
    """A caption, the columns' names, and rows of as many words; the first column names the row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def timing(runs: Runs) -> Table:
    """Seconds an iteration with spread, speed, and bytes."""
    base = base_of(runs)
    return Table(
        "Seconds an iteration, of its slowest rank: mean ± standard deviation, the first excluded. "
        "Speed is against one rank.",
        ("run", "ranks", "seconds an iteration", "median", "n", "images/s", "speed",
         "MB sent, busiest rank", "test accuracy"),
        [(run.name, str(run.ranks), *_times(run, base),
          f"{max(run.bytes_sent.values()) / MEGABYTE:.1f}", _test(run, "test_accuracy", 100, " %"))
         for run in runs])


def _times(run: RecordedRun, base: RecordedRun | None) -> tuple[str, ...]:
    if not run.mean:
        return "-", "-", "0", "-", "-"
    speed = f"{base.mean / run.mean:.2f}" if base and base.mean else "-"
    return (f"{run.mean:.3f} ± {run.spread:.3f}", f"{run.median:.3f}", str(len(run.durations)),
            f"{run.images_per_second:.0f}", speed)


def _test(run: RecordedRun, name: str, factor: float = 1, unit: str = "") -> str:
    event = run.last("evaluation")
    return f"{factor * event[name]:.{2 if unit else 3}f}{unit}" if event else "-"


def phases(runs: Runs) -> Table:
    """Where an iteration's time goes."""
    rows = []
    for run in timed(runs):
        means = {phase: fmean(rank[phase] for rank in run.phases.values()) for phase in PHASES}
        whole = sum(means.values())
        rows.append((label(run), *(f"{1000 * means[phase]:.1f} ({100 * means[phase] / whole:.0f} %)"
                                   for phase in PHASES)))
    return Table("Milliseconds of an iteration by phase, mean over ranks; in brackets the share",
                 ("run", *PHASES), rows)


def operators(runs: Runs) -> Table | None:
    """The top operators of the traced runs' leaders, by their time over all runs."""
    by_run = {label(run): {row["name"]: row for row in run.last("operators")["rows"]}
              for run in runs if run.last("operators")}
    total: Counter[str] = Counter()
    for rows in by_run.values():
        total.update({name: row["seconds"] for name, row in rows.items()})
    return Table("Seconds that rank 0 spent in the top operators while it was traced; in "
                 "brackets the share of all operators; -: not among the first ten",
                 ("operator", *by_run),
                 [(name, *(_operator(rows.get(name)) for rows in by_run.values()))
                  for name, _ in total.most_common(SHOWN_OPERATORS)]) if by_run else None


def _operator(row: dict[str, Any] | None) -> str:
    return f"{row['seconds']:.3f} ({100 * row['share']:.0f} %)" if row else "-"


def accuracy(runs: Runs) -> Table:
    """Loss and accuracy, in training and on the test set."""
    rows = []
    for run in runs:
        epoch = run.last("epoch")
        rows.append((label(run), str(len(run.steps)), f"{run.merged[0]['loss']:.3f}",
                     f"{epoch['loss']:.3f}" if epoch else "-",
                     f"{100 * epoch['accuracy']:.2f} %" if epoch else "-",
                     _test(run, "test_loss"), _test(run, "test_accuracy", 100, " %"),
                     run.last("evaluation").get("weights", "-")))
    return Table("Means over samples; training is the mean over the last epoch while weights move. "
                 "The digest is of the weights at the end: equal for equal bits",
                 ("run", "iterations", "first loss", "training loss", "training accuracy",
                  "test loss", "test accuracy", "digest"), rows)


def by_class(runs: Runs) -> Table | None:
    """Each class's recall on the test set; "-" where a run has other classes."""
    tested = [run for run in runs if "confusion_matrix" in run.last("evaluation")]
    if not tested:
        return None
    recalls = [_recognised(run.last("evaluation")) for run in tested]
    names = dict.fromkeys(name for recall in recalls for name in recall)
    return Table("Test images of each class that were recognised (recall)",
                 ("class", *(label(run) for run in tested)),
                 [(name, *(recall.get(name, "-") for recall in recalls)) for name in names])


def _recognised(evaluation: dict[str, Any]) -> dict[str, str]:
    return {name: f"{100 * row[place] / (sum(row) or 1):.1f} %" for place, (name, row) in
            enumerate(zip(evaluation["class_names"], evaluation["confusion_matrix"],
                          strict=True))}


def differing_settings(runs: Runs) -> Table | None:
    """The flags in which the runs differ."""
    rows = [(name, *map(_word, values)) for name, values in _settings(runs)
            if len(set(map(_word, values))) > 1]
    return Table("Flags in which the runs differ", ("flag", *(label(run) for run in runs)),
                 rows) if rows else None


def common_settings(runs: Runs) -> Table:
    """The flags in which they agree."""
    return Table("Flags that are the same in all", ("flag", "value"),
                 [(name, _word(values[0])) for name, values in _settings(runs)
                  if len(set(map(_word, values))) == 1])


def _settings(runs: Runs) -> list[tuple[str, list[Any]]]:
    names = dict.fromkeys(name for run in runs for name in run.settings
                          if name not in NODE_SETTINGS)
    return [(f"--{name.replace('_', '-')}", [run.settings.get(name) for run in runs])
            for name in names]


def _word(value: Any) -> str:
    words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return words if value is not None and words else "-"


def environment(runs: Runs) -> Table:
    """What each run ran on."""
    rows = []
    for run in runs:
        start, ran_on = run.start, run.start.get("ran_on", {})
        when = f"{datetime.fromtimestamp(start['time'], timezone.utc):%Y-%m-%d %H:%M} UTC" \
            if "time" in start else "-"
        rows.append((label(run), when,
                     ", ".join(sorted(set(run.hosts.values()))), start.get("processor", "-"),
                     str(start.get("cores", "-")), str(ran_on.get("threads", "-")),
                     *(ran_on.get(name, "-") for name in ("device", "python", "torch", "numpy")),
                     _algorithms(ran_on.get("convolutions", ""))))
    return Table("What the runs ran on, and what computed their convolutions",
                 ("run", "started", "hosts", "processor", "cores a node", "threads a rank",
                  "device", "python", "torch", "numpy", "convolutions"), rows)


def _algorithms(by_layer: str) -> str:
    """How many layers each algorithm computes: "2 library, 4 winograd-4"."""
    counted = Counter(by_layer.split())
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "-"


class Proof(NamedTuple):
    """What scripts/prove.py wrote: its claim, the table behind it, and all as tables."""

    claim: str
    best: dict[str, Any]
    tables: list[Table]


def read_proof(path: Path) -> Proof:
    """The proof in a file; raises DataError when it holds none."""
    try:
        data = json.loads(path.read_text())
        best = best_table(data["tables"])
        return Proof(claim(best), best, [_proof(table, path.name, data)
                                         for table in data["tables"]])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no proof that scripts/prove.py wrote") from error


def _proof(table: dict[str, Any], name: str, data: dict[str, Any]) -> Table:
    settings, quantities = table["settings"], list(table["bounds"])
    rows = [(str(case["ranks"]), case["name"],
             *(f"{case['gaps'][quantity]['absolute']:.1e}" for quantity in quantities),
             case["verdict"]) for case in table["cases"]]
    return Table(f"{name}: {settings['workload']} in {settings['precision']}, {table['steps']} "
                 "steps; the largest absolute difference from one rank "
                 f"(torch {data.get('torch', '?')}, {data.get('processor', '?')}; "
                 f"{data.get('command', 'scripts/prove.py')})",
                 ("ranks", "gradients averaged by", *quantities, "verdict"), rows)
