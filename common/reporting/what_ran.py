"""Settings, environment and memory of the runs, and the commands that resume them.

    python3 scripts/compare.py outputs
"""

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from common.reporting.figures import Runs, label
from common.reporting.recorded_run import RecordedRun
from common.reporting.run_findings import MEGABYTE
from common.reporting.tables import Table
from common.settings.causes import join

NOT_COMPARED = ("output_dir", "resume", "dry_run")
UNKNOWN = "-"


def settings(runs: Runs) -> tuple[Table, Table]:
    """The flags in which the runs differ, and those in which they agree."""
    names = dict.fromkeys(name for run in runs for name in run.settings
                          if name not in NOT_COMPARED)
    rows = [(f"--{name.replace('_', '-')}", *(_word(run.settings.get(name)) for run in runs))
            for name in names]
    return (Table("Flags in which the runs differ", ("flag", *(label(run) for run in runs)),
                  [row for row in rows if len(set(row[1:])) > 1]),
            Table("Flags that are the same in all", ("flag", "value"),
                  [row[:2] for row in rows if len(set(row[1:])) == 1]))


def _word(value: Any) -> str:
    words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return words if value is not None and words else UNKNOWN


def environment(runs: Runs) -> Table:
    """The environments of the runs, a column a run; facts unknown for all runs are dropped."""
    facts = [_facts(run) for run in runs]
    rows = [(name, *(each[name] for each in facts)) for name in facts[0]]
    return Table("What the runs ran on, what computed their convolutions, and the most memory that "
                 "a rank's process has held (in Part Two its earlier runs count too)",
                 ("fact", *(label(run) for run in runs)),
                 [row for row in rows if set(row[1:]) != {UNKNOWN}])


def _facts(run: RecordedRun) -> dict[str, str]:
    start, ran_on = run.start, run.start["ran_on"]
    layers = Counter(ran_on["convolutions"].split())
    known = {
        "started": f"{datetime.fromtimestamp(start['time'], timezone.utc):%Y-%m-%d %H:%M} UTC",
        "hosts": ", ".join(sorted(set(run.hosts.values()))), "processor": start["processor"],
        "cores a node": start["cores"], "threads a rank": ran_on.get("threads"),
        "device": ran_on.get("device"),
        "convolutions": ", ".join(f"{count} {name}" for name, count in layers.items()),
        "their products": ran_on.get("products"),
        "vector instructions": ran_on.get("instructions"),
        **{name: ran_on.get(name) for name in ("python", "torch", "numpy")},
        "peak memory of a rank": _memory(run, "resident"),
        "peak memory of a rank's GPU": _memory(run, "device"),
        "digest of the weights": run.last("evaluation").get("weights")}
    return {name: str(fact or UNKNOWN) for name, fact in known.items()}


def _memory(run: RecordedRun, kind: str) -> str:
    held = sorted(memory[kind] for memory in run.memory.values() if kind in memory)
    words = dict.fromkeys(f"{size / MEGABYTE:.0f}" for size in held[:1] + held[-1:])
    return " to ".join(words) + " MB" * bool(words)


class Commands(NamedTuple):
    """The command that resumes some runs; the file `settings` has all their flags."""

    runs: str
    resume: str
    settings: Path | None


def commands(runs: Runs) -> list[Commands]:
    """The commands in the logs, each of which may have started several runs."""
    started: dict[str, list[RecordedRun]] = {}
    for run in runs:
        if "resume" in run.start:
            started.setdefault(run.start["resume"], []).append(run)
    return [Commands(join(list(map(label, several))), resume,
                     next((file for run in several
                           if (file := run.folder / "settings.json").exists()), None))
            for resume, several in started.items()]
