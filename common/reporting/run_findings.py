"""What a comparison of runs says, in sentences and figures: computed, never assumed.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence
from statistics import fmean

from common.core.progress import slowest_phase
from common.reporting import causes
from common.reporting.causes import EARLY, Learned
from common.reporting.merged_steps import own_work, straggler
from common.reporting.recorded_run import RecordedRun, short
from common.reporting.speed_findings import repeated, speed_up, strategies, timed
from common.reporting.words import join

MEGABYTE = 1e6


def learning(runs: Sequence[RecordedRun]) -> str:
    """Whether the runs learn the same thing, and if not the gravest cause; without what to do."""
    return causes_of_differences(runs)[0].split("; ")[0]


def causes_of_differences(runs: Sequence[RecordedRun]) -> list[str]:
    """The same for every cause, the gravest first; of a single run, how its loss falls."""
    learned = [Learned(short(run.name), run.ranks, run.settings, {
        (row["epoch"], row["iteration"]): row["loss"] for row in run.merged}) for run in runs]
    return causes.sentences(learned) or [
        f"the loss falls from {runs[0].merged[0]['loss']:.2f} to {_late_loss(runs[0]):.2f}"]


def _late_loss(run: RecordedRun) -> float:
    return fmean(row["loss"] for row in run.merged[-EARLY:])


def spent(run: RecordedRun) -> tuple[str, float]:
    """The phase that takes longest on average over the ranks, and its fraction."""
    ranks = list(run.phases.values())
    return slowest_phase({phase: fmean(rank[phase] for rank in ranks) for phase in ranks[0]})


def sync_fraction(run: RecordedRun) -> float:
    """The sync phase's fraction of all ranks' time."""
    ranks = list(run.phases.values())
    return sum(rank["sync"] for rank in ranks) / sum(sum(rank.values()) for rank in ranks)


def where_time_goes(runs: Sequence[RecordedRun]) -> str:
    """The run that averages longest, or the longest phase where there is nothing to average."""
    several = [run for run in timed(runs) if run.ranks > 1]
    if not several:
        return _longest_phase(timed(runs)[0]) if timed(runs) else ""
    waiting = [run for run in several if not run.overlaps_sync]
    overlapping = [short(run.name) for run in several if run.overlaps_sync]
    within = f"within backward in {join(overlapping)}"
    if not waiting:
        return f"averaging takes place {within}"
    worst = max(waiting, key=sync_fraction)
    text = f"{short(worst.name)} spends {100 * sync_fraction(worst):.0f} % of its time averaging"
    return text + (f"; averaging takes place {within}" if overlapping else "")


def _longest_phase(run: RecordedRun) -> str:
    phase, fraction = spent(run)
    return f"{phase} takes {100 * fraction:.0f} % of the time"


def bytes_moved(runs: Sequence[RecordedRun]) -> str:
    """What the busiest rank of each run sends; runs that send equally much are named together."""
    by_amount: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: -max(run.bytes_sent.values())):
        if most := max(run.bytes_sent.values()):
            by_amount.setdefault(amount(most), []).append(short(run.name) + _root(run))
    if not by_amount:
        return ""
    several = sum(map(len, by_amount.values())) > 1
    return "each iteration the busiest rank sends " + ", ".join(
        words + f" in {join(names)}" * several for words, names in by_amount.items())


def _root(run: RecordedRun) -> str:
    """Which rank sends most, where it is one alone."""
    most = max(run.bytes_sent.values())
    ranks = [rank for rank, sent in run.bytes_sent.items() if sent == most]
    return f" (rank {ranks[0]})" if len(ranks) == 1 < len(run.bytes_sent) else ""


def amount(sent: float) -> str:
    """Bytes in MB, or in kB below 0.1 MB."""
    return f"{sent / MEGABYTE:.1f} MB" if sent >= MEGABYTE / 10 else f"{sent / 1000:.1f} kB"


def skew(run: RecordedRun) -> list[float]:
    """Each iteration's own work of the slowest rank minus the fastest's, in seconds."""
    work = [[own_work(step, row.values()) for step in row.values()]
            for row in list(run.steps.values())[1:]]
    return [max(each) - min(each) for each in work]


def straggling(runs: Sequence[RecordedRun]) -> str:
    """The first straggler of any run, or that there is none."""
    several = [run for run in repeated(runs) if len(run.phases) > 1]
    told = [f"{short(run.name)}: {text}" for run in several
            if not (text := straggler(run.steps)).startswith("no ")]
    return told[0] if told else "no rank is a straggler" if several else ""


def accuracy(runs: Sequence[RecordedRun]) -> str:
    """Test accuracies after training."""
    tested = [run.last("evaluation") for run in runs if run.last("evaluation")]
    values = sorted(100 * event["test_accuracy"] for event in tested)
    if not values:
        return ""
    low, high = f"{values[0]:.1f}", f"{values[-1]:.1f}"
    return (f"test accuracy is {low} %" if low == high
            else f"test accuracy lies between {low} and {high} %")


def summary(runs: Sequence[RecordedRun]) -> list[str]:
    """What else there is to say, in plain language: one sentence each, whole, nothing empty."""
    return as_sentences([speed_up(runs), *strategies(runs), where_time_goes(runs),
                         bytes_moved(runs), straggling(runs), accuracy(runs)])


def as_sentences(sentences: Sequence[str]) -> list[str]:
    """Those that are not empty, with a capital and a full stop."""
    return [sentence[0].upper() + sentence[1:] + "." for sentence in sentences if sentence]
