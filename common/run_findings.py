"""What a comparison of runs says, in sentences and figures: computed, never assumed.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence
from statistics import fmean, pstdev

from common.merged_steps import own_work, straggler
from common.phase_timer import dearest_phase
from common.recorded_run import RecordedRun

EARLY = 10  # iterations in which roundings have not grown yet
# Roundings leave 1e-6 in these, batch-norm statistics of each rank's own share 1e-3, a mistake 0.1.
SAME_LOSS = 5e-3
MEGABYTE = 1e6


def short(name: str) -> str:
    """A run's name without its part where the strategy says it all."""
    return name.replace("PartTwo/", "").replace("PartThree", "DDP")


def loss_gap(runs: Sequence[RecordedRun]) -> float | None:
    """The largest difference of any two runs' global losses in the first ten common iterations."""
    losses = [{(row["epoch"], row["iteration"]): row["loss"] for row in run.merged} for run in runs]
    if len(losses) < 2:
        return None
    common = sorted(set.intersection(*map(set, losses)))[:EARLY]
    return max((max(by[place] for by in losses) - min(by[place] for by in losses)
                for place in common), default=None)


def learning(runs: Sequence[RecordedRun]) -> str:
    """Whether the runs learn the same thing, those left out that are not meant to."""
    equals = [run for run in runs if not run.is_another_algorithm] or runs
    others = [short(run.name) for run in runs if run not in equals]
    return _same_or_not(equals) + (
        f" (other algorithms left out: {', '.join(others)})" if others else "")


def _same_or_not(runs: Sequence[RecordedRun]) -> str:
    gap = loss_gap(runs)
    if gap is None:
        return f"the loss falls from {runs[0].merged[0]['loss']:.2f} to {_late_loss(runs[0]):.2f}"
    early = f"in the first {EARLY} iterations their losses " + (
        f"differ by {gap:.1g} at most" if gap else "are equal, bit for bit")
    return (f"all {len(runs)} runs learn the same: {early}" if gap < SAME_LOSS
            else f"the {len(runs)} runs do not learn the same: {early}")


def _late_loss(run: RecordedRun) -> float:
    return fmean(row["loss"] for row in run.merged[-EARLY:])


def timed(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs with at least one iteration after the first."""
    return [run for run in runs if run.mean]


def speed(runs: Sequence[RecordedRun]) -> str:
    """Fastest against slowest of the runs on several ranks, or of all."""
    candidates = [run for run in timed(runs) if run.ranks > 1] or timed(runs)
    if len(candidates) < 2:
        return f"{candidates[0].mean:.2f} s an iteration" if candidates else "nothing was timed"
    fastest = min(candidates, key=lambda run: run.mean or 0)
    slowest = max(candidates, key=lambda run: run.mean or 0)
    return (f"{short(fastest.name)} is {_times(slowest, fastest):.2f} times as fast as "
            f"{short(slowest.name)}")


def _times(slow: RecordedRun, fast: RecordedRun) -> float:
    assert slow.mean and fast.mean
    return slow.mean / fast.mean


def base_of(runs: Sequence[RecordedRun]) -> RecordedRun | None:
    """The run that speed-up is measured against: the fastest on one rank."""
    alone = [run for run in timed(runs) if run.ranks == 1]
    return min(alone, key=lambda run: run.mean or 0, default=None)


def speed_up(runs: Sequence[RecordedRun]) -> str:
    """The best speed-up over one rank, and, where ranks share a machine, why there is none."""
    base = base_of(runs)
    many = [run for run in timed(runs) if run.ranks > 1]
    if base is None or not many:
        return ""
    best = max(many, key=lambda run: _times(base, run))
    text = (f"{best.ranks} ranks ({short(best.name)}) are {_times(base, best):.2f} times as fast "
            "as one")
    cores, hosts = best.start.get("cores", 0), len(set(best.hosts.values()))
    if hosts == 1 and cores and cores <= best.ranks:
        text += f": they share one machine's {cores} cores, so there is no speed to be gained"
    return text


def spent(run: RecordedRun) -> tuple[str, float]:
    """The phase that takes longest on average over the ranks, and its share."""
    ranks = list(run.phases.values())
    return dearest_phase({phase: fmean(rank[phase] for rank in ranks) for phase in ranks[0]})


def sync_share(run: RecordedRun) -> float:
    """Seconds in the seam over all seconds, of all ranks."""
    ranks = list(run.phases.values())
    return sum(rank["sync"] for rank in ranks) / sum(sum(rank.values()) for rank in ranks)


def where_time_goes(runs: Sequence[RecordedRun]) -> str:
    """Who waits longest in the seam."""
    several = [run for run in timed(runs) if run.ranks > 1]
    if not several:
        return f"{spent(runs[0])[0]} takes most of the time" if timed(runs) else ""
    waiting = [run for run in several if not run.hides_sync]
    hiding = ", ".join(short(run.name) for run in several if run.hides_sync)
    if not waiting:
        return f"averaging takes place within backward in {hiding}"
    worst = max(waiting, key=sync_share)
    text = f"{short(worst.name)} spends {100 * sync_share(worst):.0f} % of its time averaging"
    return text + (f"; within backward it takes place in {hiding}" if hiding else "")


def bytes_moved(runs: Sequence[RecordedRun]) -> str:
    """The busiest rank's bytes of the extremes."""
    several = [run for run in runs if max(run.bytes_sent.values()) > 0]
    if not several:
        return ""
    busiest = max(several, key=lambda run: max(run.bytes_sent.values()))
    calmest = min(several, key=lambda run: max(run.bytes_sent.values()))
    most, least = (max(run.bytes_sent.values()) for run in (busiest, calmest))
    if len(several) == 1:
        return f"the busiest rank sends {most / MEGABYTE:.1f} MB an iteration"
    if most == least:
        return f"the busiest rank sends {most / MEGABYTE:.1f} MB an iteration in all runs"
    rank = max(busiest.bytes_sent, key=lambda one: busiest.bytes_sent[one])
    return (f"{short(busiest.name)}'s rank {rank} sends {most / MEGABYTE:.1f} MB an iteration, "
            f"{most / least:.2g} times as much as the busiest of {short(calmest.name)}")


def skew(run: RecordedRun) -> list[float]:
    """Each iteration's own work of the slowest rank minus the fastest's, in seconds."""
    work = [[own_work(step, row.values()) for step in row.values()]
            for row in list(run.steps.values())[1:]]
    return [max(each) - min(each) for each in work]


def straggling(runs: Sequence[RecordedRun]) -> str:
    """The first straggler of any run, or that there is none."""
    several = [run for run in timed(runs) if len(run.phases) > 1]
    told = [(run, straggler(run.steps)) for run in several]
    named = [f"{short(run.name)}: {text}" for run, text in told if not text.startswith("no ")]
    return named[0] if named else "no rank is a straggler" if several else ""


def accuracy(runs: Sequence[RecordedRun]) -> str:
    """Test accuracies after training."""
    tested = [run.last("evaluation") for run in runs if run.last("evaluation")]
    if not tested:
        return ""
    values = [100 * event["test_accuracy"] for event in tested]
    if len(values) == 1 or pstdev(values) == 0:
        return f"test accuracy is {values[0]:.1f} %"
    return f"test accuracy lies between {min(values):.1f} and {max(values):.1f} %"


def pairs(runs: Sequence[RecordedRun]) -> list[str]:
    """Each way to average against gather/scatter: bytes and speed in one sentence."""
    several = [run for run in timed(runs) if run.ranks > 1]
    roots = [run for run in several if run.name.endswith("gather-scatter")]
    if not roots:
        return []
    root, most = roots[0], max(roots[0].bytes_sent.values())
    return [f"{short(run.name)} moved {_fraction(max(run.bytes_sent.values()) / most)} the bytes "
            f"of gather/scatter's root and was {_faster(_times(root, run))}"
            for run in several if run is not root and run.ranks == root.ranks]


def _fraction(ratio: float) -> str:
    return "half" if abs(ratio - 0.5) < 0.01 else f"{ratio:.2g} times"


def _faster(ratio: float) -> str:
    return f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times as slow"


def summary(runs: Sequence[RecordedRun]) -> list[str]:
    """The plain-language summary: one sentence each, whole, nothing empty."""
    sentences = [learning(runs), *pairs(runs), speed_up(runs), where_time_goes(runs),
                 bytes_moved(runs), straggling(runs), accuracy(runs)]
    return [sentence[0].upper() + sentence[1:] + "." for sentence in sentences if sentence]
