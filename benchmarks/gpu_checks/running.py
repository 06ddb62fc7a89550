"""Runs the rows of a table one after the other; whatever becomes of one, the next is run."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_checks.rows import FOLDER, GpuCheck
from common.core.events import read_events
from common.core.provenance import ROOT

PASSED, NOT_HERE, CUT_OFF, SKIPPED = "passed", "not here", "no time left", "all skipped"
# pytest's last line where it ran no test: "14 skipped in 0.05s", and its exit code is 0
NOTHING_RAN = re.compile(r"=* ?[0-9]+ (skipped|deselected)(, [0-9]+ (skipped|deselected))* in .*")
KEPT = ("test_accuracy", "mirrored_test_accuracy", "images_per_second", "bytes_per_iteration",
        "phase_seconds", "device", "backend")


@dataclass(frozen=True)
class GpuResult:
    """The end of a row: "passed", "failed (1)", "stopped after 60 s", "not here" and why.

    Tests of which none ran are "all skipped", and no more passed than a command that failed.

    `last` is the last line it printed, `found` what it measured: turns by name, runs by folder.
    """

    row: GpuCheck
    how: str
    seconds: float = 0.0
    last: str = ""
    found: dict[str, dict] = field(default_factory=dict)

    @property
    def is_fault(self) -> bool:
        return self.how not in (PASSED, NOT_HERE)


def run_row(row: GpuCheck, folder: Path, longer: float, deadline: float,
            environment: dict[str, str]) -> GpuResult:
    """Runs a row's command for at most `longer` times its seconds, and not past the deadline.

    `deadline` is of time.monotonic(). No process of its session outlives the call.
    """
    left = deadline - time.monotonic()
    if row.lacking or left <= 0:
        return GpuResult(row, NOT_HERE if row.lacking else CUT_OFF, last=row.lacking)
    folder.mkdir(parents=True)
    command = [word.replace(FOLDER, str(folder)) for word in row.command]
    limit, begun = min(longer * row.seconds, left), time.monotonic()
    with (folder / "output.txt").open("w") as output:
        how = _ended(command, limit, {**os.environ, **environment}, output)
    last = _last_line(folder / "output.txt")
    if how == PASSED and NOTHING_RAN.fullmatch(last):
        how = SKIPPED
    return GpuResult(row, how, time.monotonic() - begun, last, measured(folder))


def _ended(command: Sequence[str], limit: float, environment: dict[str, str], output) -> str:
    try:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output, start_new_session=True)
    except OSError as error:
        return f"failed ({error.strerror})"
    try:
        code = process.wait(limit)
        return PASSED if code == 0 else f"failed ({code})"
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def measured(folder: Path) -> dict[str, dict]:
    """The turns in the folder's speeds.json, and the figures of the runs below it, by folder."""
    speeds = folder / "speeds.json"
    found = json.loads(speeds.read_text()) if speeds.exists() else {}
    for summary in sorted(folder.rglob("summary.json")):
        figures = json.loads(summary.read_text())
        epochs = read_events(summary.parent / "metrics_rank0.jsonl", "epoch")
        found[summary.parent.relative_to(folder).as_posix()] = {
            name: figures[name] for name in KEPT if figures.get(name) is not None} | {
            "training_seconds": sum(epoch["seconds"] for epoch in epochs)}
    return found
