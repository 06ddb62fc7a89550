"""How fast runs are against one another, in sentences that say nothing within the spread.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence

from common.core.spread import times_as_fast
from common.reporting.recorded_run import RecordedRun, short


def timed(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs with at least one iteration after the first."""
    return [run for run in runs if run.mean]


def repeated(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs that have a spread: two iterations or more after the first."""
    return [run for run in runs if len(run.durations) > 1]


def base_of(runs: Sequence[RecordedRun]) -> RecordedRun | None:
    """The run that speed-up is measured against: the fastest on one rank."""
    alone = [run for run in timed(runs) if run.ranks == 1]
    return min(alone, key=lambda run: run.mean or 0, default=None)


def speed_up(runs: Sequence[RecordedRun]) -> str:
    """The best speed-up over one rank, and whether the ranks share a machine."""
    base = base_of(repeated(runs))
    many = [run for run in repeated(runs) if run.ranks > 1]
    if base is None or not many:
        return ""
    best = min(many, key=lambda run: run.mean or 0)
    several = f"{best.ranks} ranks ({short(best.name)})"
    times = times_as_fast(base.durations, best.durations)
    text = (f"{several} are {times:.2f} times as fast as one" if times else
            f"{several} and one do not differ in speed beyond the spread of their iterations")
    cores, hosts = best.start.get("cores", 0), len(set(best.hosts.values()))
    shared = hosts == 1 and cores and cores <= best.ranks
    return text + (f"; the {best.ranks} share one machine's {cores} cores" if shared else "")


def strategies(runs: Sequence[RecordedRun]) -> list[str]:
    """For each number of ranks, every run's speed against gather/scatter's, or the slowest's."""
    known = repeated(runs)
    groups = [[run for run in known if run.ranks == ranks]
              for ranks in sorted({run.ranks for run in known})]
    return [_against(group) for group in groups if len(group) > 1]


def _against(runs: Sequence[RecordedRun]) -> str:
    root = next((run for run in runs if run.name.endswith("gather-scatter")),
                max(runs, key=lambda run: run.mean or 0))
    others = [f"{short(run.name)} {_compared(root, run)}" for run in runs if run is not root]
    ranks = f"{root.ranks} rank{'s' * (root.ranks > 1)}"
    return f"on {ranks}, against {short(root.name)}: {', '.join(others)}"


def _compared(root: RecordedRun, run: RecordedRun) -> str:
    times = times_as_fast(root.durations, run.durations)
    return f"is {times:.2f} times as fast" if times else "does not differ beyond the spread"
