"""How a run is doing, from its log alone.

    python3 scripts/status.py outputs
"""

from statistics import fmean, median

from common.core.failures import DataError, PeerLost
from common.core.progress import PHASES, slowest_phase
from common.reporting.recorded_run import RecordedRun

RECENT = 20  # iterations that loss, speed and phase are taken from
PATIENCE = 60.0  # seconds of silence, or ten iterations if that is longer


def describe(run: RecordedRun, now: float) -> tuple[str, int]:
    """What to say about a run, and its exit code. `now` is a time.time() value."""
    if "iterations_per_epoch" not in run.start:
        raise DataError(f"{run.folder} was logged by an older version of this program, which did "
                        "not say how long an epoch is")
    steps = [row[0] for row in run.steps.values() if 0 in row]
    recent = steps[-RECENT:]
    usual = median(step["duration"] for step in recent)
    outcome = run.outcome
    silence = now - (run.folder / "metrics_rank0.jsonl").stat().st_mtime
    code, progress = 0, _progress(run, steps)
    if outcome.get("event") == "end":
        state = "finished"
    elif outcome:
        code = outcome["exit_code"]
        state = f"failed (exit code {code}): {outcome['why']}"
    elif silence > max(PATIENCE, 10 * usual):
        code = PeerLost.exit_code
        state = f"silent for {duration(silence)}: killed, or its machine is gone"
    else:
        state = f"running, last heard {duration(silence)} ago"
        progress += f", {duration(usual * (_last(run) - _done(run, steps)))} left"
    return (f"{run.name} on {run.ranks} rank{'s' * (run.ranks > 1)}: {state}\n  {progress}\n  "
            f"{_speed(run, recent, usual)}"), code


def _done(run: RecordedRun, steps: list[dict]) -> int:
    last = steps[-1]
    return (last["epoch"] - 1) * run.start["iterations_per_epoch"] + last["iteration"] + 1


def _last(run: RecordedRun) -> int:
    whole = run.settings["epochs"] * run.start["iterations_per_epoch"]
    return min(whole, run.settings["max_iterations"] or whole)


def _progress(run: RecordedRun, steps: list[dict]) -> str:
    done, last = _done(run, steps), _last(run)
    return (f"epoch {steps[-1]['epoch']} of {run.settings['epochs']}, iteration {done} of {last} "
            f"({100 * done / last:.0f} %)")


def _speed(run: RecordedRun, recent: list[dict], usual: float) -> str:
    phase, fraction = slowest_phase({name: sum(step["seconds"][name] for step in recent)
                                  for name in PHASES})
    test = run.last("evaluation")
    return (f"loss {fmean(step['loss'] for step in recent):.3f} (last {len(recent)} iterations, "
            f"rank 0), {run.settings['batch_size'] / usual:.0f} images/s, mostly {phase} "
            f"({100 * fraction:.0f} %)"
            + (f", test accuracy {100 * test['test_accuracy']:.2f} %" if test else ""))


def duration(seconds: float) -> str:
    """In words with two units at most: "3 s", "12 min 5 s", "2 h 10 min"."""
    whole = max(0, round(seconds))
    for unit, length, smaller, smaller_length in (("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // smaller_length
            return f"{whole // length} {unit} {rest} {smaller}"
    return f"{whole} s"
