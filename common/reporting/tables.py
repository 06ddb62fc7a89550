"""The tables of the page: heads and rows of text, the same for HTML, Markdown and a terminal."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from common.core.failures import DataError
from common.core.files import read_json
from common.core.progress import PHASES
from common.core.spread import speed_in_words
from common.reporting.figures import label
from common.reporting.proof_findings import best_table, claim
from common.reporting.recorded_run import RecordedRun
from common.reporting.run_findings import MEGABYTE, base_of, timed

Runs = Sequence[RecordedRun]
SHOWN_OPERATORS = 10
LONG = 15  # rows: a longer table is folded up


class Table(NamedTuple):
    """A caption, the columns' names, and rows of as many words; the first column names the row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_long(self) -> bool:
        return len(self.rows) > LONG


def timing(runs: Runs) -> Table:
    """Seconds an iteration with spread, speed, and bytes."""
    base = base_of(runs)
    return Table(
        "Seconds an iteration, of its slowest rank: mean ± standard deviation, the first excluded; "
        "samples/s by that mean. Speed is against one rank; where the spread does not tell if it "
        "is above or below 1, its 95 % interval. MB sent: - where none were counted.",
        ("run", "ranks", "seconds an iteration", "median", "n", "samples/s", "speed",
         "MB sent, busiest rank", f"test {_metric(runs)}"),
        [(run.name, str(run.ranks), *_times(run, base),
          _megabytes_sent(run), _test_score(run)) for run in runs])


def _megabytes_sent(run: RecordedRun) -> str:
    most = max(run.bytes_sent.values())
    if not most:
        return "0.0" if run.ranks == 1 else "-"
    return f"{most / MEGABYTE:.1f}" if most >= MEGABYTE / 10 else f"{most / MEGABYTE:.1g}"


def _times(run: RecordedRun, base: RecordedRun | None) -> tuple[str, ...]:
    if not run.mean:
        return "-", "-", "0", "-", "-"
    spread = f" ± {stdev(run.durations):.3f}" if len(run.durations) > 1 else ""
    speed = "-" if not base else "1.00" if run is base else speed_in_words(base.durations,
                                                                           run.durations)
    return (f"{run.mean:.3f}{spread}", f"{median(run.durations):.3f}",
            str(len(run.durations)), f"{run.images_per_second:.0f}", speed)


def _test_score(run: RecordedRun) -> str:
    return "-" if run.test_score is None else run.metric.shown(run.test_score)


def _metric(runs: Runs) -> str:
    """The names of the metrics that the runs report beside the loss."""
    return " or ".join(dict.fromkeys(run.metric.name for run in runs))


def phases(runs: Runs) -> Table:
    """The table of phases: milliseconds of an iteration, mean over ranks."""
    rows = []
    for run in timed(runs):
        means = {phase: fmean(rank[phase] for rank in run.phases.values()) for phase in PHASES}
        whole = sum(means.values()) or 1.0
        rows.append((label(run), *(f"{1000 * means[phase]:.1f} ({100 * means[phase] / whole:.0f} %)"
                                   for phase in PHASES)))
    return Table("Milliseconds of an iteration by phase, mean over ranks; in brackets the share",
                 ("run", *PHASES), rows)


def operators(runs: Runs) -> Table:
    """The top operators of the traced runs' leaders, by their time over all runs."""
    by_run = {label(run): {row["name"]: row for row in run.last("operators")["rows"]}
              for run in runs if run.last("operators")}
    total: Counter[str] = Counter()
    for rows in by_run.values():
        total.update({name: row["seconds"] for name, row in rows.items()})
    return Table("Seconds that rank 0 spent in the top operators while it was traced; in "
                 "brackets the share of all operators; -: not among the first ten",
                 ("operator", *by_run),
                 [(name, *(f"{row['seconds']:.3f} ({100 * row['share']:.0f} %)" if row else "-"
                           for row in (rows.get(name) for rows in by_run.values())))
                  for name, _ in total.most_common(SHOWN_OPERATORS)])


def learned(runs: Runs) -> Table:
    """Loss and metric, in training and on the test set."""
    rows = []
    for run in runs:
        epoch, test = run.last("epoch"), run.last("evaluation")
        rows.append((label(run), str(len(run.steps)), f"{run.merged[0]['loss']:.3f}",
                     f"{epoch['loss']:.3f}" if epoch else "-",
                     run.metric.shown(epoch[run.metric.key]) if epoch else "-",
                     f"{test['test_loss']:.3f}" if test else "-", _test_score(run),
                     test.get("weights", "-")))
    return Table("Means over samples; training is the mean over the last epoch while weights move. "
                 "The digest is of the weights at the end: equal for equal bits",
                 ("run", "iterations", "first loss", "training loss", f"training {_metric(runs)}",
                  "test loss", f"test {_metric(runs)}", "digest"), rows)


class Proof(NamedTuple):
    """A file of scripts/prove.py: its claim, and its tables."""

    claim: str
    tables: list[Table]


def read_proof(path: Path) -> Proof:
    """The proof in a file. Raises DataError if it does not hold one."""
    try:
        data = read_json(path)
        return Proof(claim(best_table(data["tables"])),
                     [_proof(table, path.name, data) for table in data["tables"]])
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
