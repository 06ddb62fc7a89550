"""How runs are doing, from their logs alone.

    python3 scripts/status.py outputs
    watch python3 scripts/status.py outputs

Ends with 0 when all runs are finished or going on, with a failed run's own exit code, and with 75
when one has fallen silent without a word: killed, or its machine is gone.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, [])

import argparse
import time
from math import inf
from statistics import fmean, median

from common.cluster.program import run_program
from common.core.failures import PeerLost
from common.core.progress import PHASES, slowest_phase
from common.reporting.recorded_run import RecordedRun, find_runs

RECENT = 20  # iterations that loss, speed and phase are taken from
PATIENCE = 60.0  # seconds of silence, or ten iterations if that is longer


def describe(run: RecordedRun, now: float) -> tuple[str, int]:
    """What to say about a run, and its exit code. `now` is a time.time() value."""
    steps = [row[0] for row in run.steps.values() if 0 in row]
    recent, place = steps[-RECENT:], steps[-1]
    usual = median(step["duration"] for step in recent)
    per_epoch = run.start["iterations_per_epoch"]
    last = min(run.settings["epochs"] * per_epoch, run.settings["max_iterations"] or inf)
    done = (place["epoch"] - 1) * per_epoch + place["iteration"] + 1
    outcome = next(event for event in reversed(run.events)
                   if event["event"] in ("start", "failed", "end"))
    silence = now - (run.folder / "metrics_rank0.jsonl").stat().st_mtime
    code, left = 0, ""
    if outcome["event"] == "end":
        state = "finished"
    elif outcome["event"] == "failed":
        code = outcome["exit_code"]
        state = f"failed (exit code {code}): {outcome['why']}"
    elif silence > max(PATIENCE, 10 * usual):
        code = PeerLost.exit_code
        state = f"silent for {duration(silence)}: killed, or its machine is gone"
    else:
        state = f"running, last heard {duration(silence)} ago"
        left = f", {duration(usual * (last - done))} left"
    return (f"{run.name} on {run.ranks} rank{'s' * (run.ranks > 1)}: {state}\n"
            f"  epoch {place['epoch']} of {run.settings['epochs']}, iteration {done} of {last} "
            f"({100 * done / last:.0f} %){left}\n  {_speed(run, recent, usual)}"), code


def _speed(run: RecordedRun, recent: list[dict], usual: float) -> str:
    phase, fraction = slowest_phase({name: sum(step["seconds"][name] for step in recent)
                                     for name in PHASES})
    return (f"loss {fmean(step['loss'] for step in recent):.3f} (last {len(recent)} iterations, "
            f"rank 0), {run.settings['batch_size'] / usual:.0f} samples/s, mostly {phase} "
            f"({100 * fraction:.0f} %)"
            + ("" if run.test_score is None
               else f", test {run.metric.name} {run.metric.shown(run.test_score)}"))


def duration(seconds: float) -> str:
    """In words with two units at most: "3 s", "12 min 5 s", "2 h 10 min"."""
    whole = max(0, round(seconds))
    for unit, length, smaller, smaller_length in (("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // smaller_length
            return f"{whole // length} {unit} {rest} {smaller}"
    return f"{whole} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tells how runs are doing, from their logs.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUTPUT_DIR")
    told = [describe(run, time.time()) for run in find_runs(parser.parse_args().folders)]
    print("\n".join(text for text, _ in told))
    sys.exit(max(code for _, code in told))


if __name__ == "__main__":
    run_program(main)
