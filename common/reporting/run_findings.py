"""What a comparison of runs says: computed, never assumed, and no speed within the spread.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence
from statistics import fmean

from common.core.progress import slowest_phase
from common.core.spread import times_as_fast
from common.reporting import causes
from common.reporting.causes import EARLY, Learned, join
from common.reporting.merged_steps import straggler
from common.reporting.recorded_run import RecordedRun, capital, short

MEGABYTE = 1e6
WORK = ("workload", "model", "image_size", "batch_size")  # settings: what an iteration computes


def learning(runs: Sequence[RecordedRun]) -> str:
    """Whether the runs learn the same thing, and if not the gravest cause; without what to do."""
    return causes_of_differences(runs)[0].split("; ")[0]


def causes_of_differences(runs: Sequence[RecordedRun]) -> list[str]:
    """The same for every cause, the gravest first; of a single run, how its loss falls."""
    learned = [Learned(short(run.name), run.ranks, run.settings, {
        (row["epoch"], row["iteration"]): row["loss"] for row in run.merged},
        run.start.get("has_batch_norm", True)) for run in runs]
    losses = [row["loss"] for row in runs[0].merged]
    return causes.sentences(learned) or [
        f"the loss falls from {losses[0]:.2f} to {fmean(losses[-EARLY:]):.2f}"]


def timed(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs with at least one iteration after the first."""
    return [run for run in runs if run.mean]


def repeated(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs that have a spread: two iterations or more after the first."""
    return [run for run in runs if len(run.durations) > 1]


def train_the_same(runs: Sequence[RecordedRun]) -> bool:
    """Whether an iteration of all of them is the same work but for its precision and its ranks."""
    return len({tuple(run.settings.get(name) for name in WORK) for run in runs}) < 2


def base_of(runs: Sequence[RecordedRun]) -> RecordedRun | None:
    """The run that speed-up is measured against: the fastest on one rank, if all train the same."""
    if not train_the_same(timed(runs)):
        return None
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
    cores = best.start["cores"]
    shared = len(set(best.hosts.values())) == 1 and cores <= best.ranks
    return text + (f"; the {best.ranks} share one machine's {cores} cores" if shared else "")


def strategies(runs: Sequence[RecordedRun]) -> list[str]:
    """For each number of ranks, every run's speed against gather/scatter's, or the slowest's.

    Nothing where they train different things.
    """
    known = repeated(runs)
    if not train_the_same(known):
        return []
    groups = [[run for run in known if run.ranks == ranks]
              for ranks in sorted({run.ranks for run in known})]
    return [_against(group) for group in groups if len(group) > 1]


def _against(runs: Sequence[RecordedRun]) -> str:
    root = next((run for run in runs if run.name.endswith("gather-scatter")),
                max(runs, key=lambda run: run.mean or 0))
    compared = []
    for run in runs:
        if run is not root:
            times = times_as_fast(root.durations, run.durations)
            compared.append(f"{short(run.name)} " + (
                f"is {times:.2f} times as fast" if times else "does not differ beyond the spread"))
    ranks = f"{root.ranks} rank{'s' * (root.ranks > 1)}"
    return f"on {ranks}, against {short(root.name)}: {', '.join(compared)}"


def _sync_fraction(run: RecordedRun) -> float:
    ranks = run.phases.values()
    return sum(rank["sync"] for rank in ranks) / sum(sum(rank.values()) for rank in ranks)


def where_time_goes(runs: Sequence[RecordedRun]) -> str:
    """The run that averages longest, or the longest phase where there is nothing to average."""
    known = timed(runs)
    several = [run for run in known if run.ranks > 1]
    if known and not several:
        phase, fraction = slowest_phase(next(iter(known[0].phases.values())))
        return f"{phase} takes {100 * fraction:.0f} % of the time"
    if not several:
        return ""
    waiting = [run for run in several if not run.overlaps_sync]
    overlapping = [short(run.name) for run in several if run.overlaps_sync]
    within = f"within backward in {join(overlapping)}"
    if not waiting:
        return f"averaging takes place {within}"
    worst = max(waiting, key=_sync_fraction)
    text = f"{short(worst.name)} spends {100 * _sync_fraction(worst):.0f} % of its time averaging"
    return text + (f"; averaging takes place {within}" if overlapping else "")


def bytes_moved(runs: Sequence[RecordedRun]) -> str:
    """What the busiest rank of each run sends; runs that send equally much are named together."""
    by_amount: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: -max(run.bytes_sent.values())):
        if most := max(run.bytes_sent.values()):
            ranks = [rank for rank, sent in run.bytes_sent.items() if sent == most]
            root = f" (rank {ranks[0]})" * (len(ranks) == 1 < len(run.bytes_sent))
            by_amount.setdefault(amount(most), []).append(short(run.name) + root)
    if not by_amount:
        return ""
    several = sum(run.ranks > 1 for run in runs) > 1  # of which some may not count their bytes
    return "each iteration the busiest rank sends " + ", ".join(
        words + f" in {join(names)}" * several for words, names in by_amount.items())


def amount(sent: float) -> str:
    """Bytes in MB, or in kB below 0.1 MB."""
    return f"{sent / MEGABYTE:.1f} MB" if sent >= MEGABYTE / 10 else f"{sent / 1000:.1f} kB"


def straggling(runs: Sequence[RecordedRun]) -> str:
    """The first straggler of any run, or that there is none."""
    several = [run for run in repeated(runs) if len(run.phases) > 1]
    told = [f"{short(run.name)}: {text}" for run in several
            if not (text := straggler(run.steps)).startswith("no ")]
    return told[0] if told else "no rank is a straggler" if several else ""


def scores(runs: Sequence[RecordedRun]) -> str:
    """The first run's metric on the test set, after training, in all runs that have it."""
    metric = runs[0].metric
    values = sorted(run.test_score for run in runs
                    if run.metric == metric and run.test_score is not None)
    if not values:
        return ""
    low, high = metric.shown(values[0], 1), metric.shown(values[-1], 1)
    return (f"test {metric.name} is {low}" if low == high
            else f"test {metric.name} lies between {low} and {high}")


def summary(runs: Sequence[RecordedRun]) -> list[str]:
    """What else there is to say, in plain language: one sentence each, whole, nothing empty."""
    return as_sentences([speed_up(runs), *strategies(runs), where_time_goes(runs),
                         bytes_moved(runs), straggling(runs), scores(runs)])


def as_sentences(sentences: Sequence[str]) -> list[str]:
    """Those that are not empty, with a capital and a full stop."""
    return [capital(sentence) + "." for sentence in sentences if sentence]
