"""Sentences that compare runs: computed from the logs; within the spread, speeds count as equal.

    python3 scripts/compare.py outputs
"""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean

from common.core.progress import slowest_phase
from common.core.spread import times_as_fast
from common.reporting.merged_steps import NEXT_TO_NOTHING, straggler
from common.reporting.recorded_run import RecordedRun, capital, short
from common.settings import causes
from common.settings.causes import EARLY, Learned, join

MEGABYTE = 1e6
WORK = ("workload", "model", "image_size", "batch_size")  # settings: what an iteration computes


def learning(runs: Sequence[RecordedRun]) -> str:
    """Says if the runs learn the same, and if not the gravest cause; without advice."""
    return causes_of_differences(runs)[0].split("; ")[0]


def causes_of_differences(runs: Sequence[RecordedRun]) -> list[str]:
    """The causes of differences, gravest first; the loss's course if runs cannot be compared."""
    learned = [Learned(short(run.name), run.ranks, run.settings, {
        (row["epoch"], row["iteration"]): row["loss"] for row in run.merged},
        run.start.get("has_batch_norm", True), run.last("evaluation").get("weights", ""),
        run.start.get("data", "")) for run in runs]
    return causes.sentences(learned) or [_course_of_the_loss(
        [row["loss"] for row in runs[0].merged], f" of {short(runs[0].name)}" * bool(runs[1:]))]


def _course_of_the_loss(losses: Sequence[float], whose: str) -> str:
    """The loss from the first iteration to the last ones: falls, rises or stays."""
    last = losses[1:][-EARLY:]
    if not last:
        return f"the loss{whose} is {losses[0]:.3g} in its only iteration"
    if not isfinite(fmean([losses[0], *last])):
        return f"the loss{whose} is not finite in all of its iterations"
    begin, end = causes.told_apart(losses[0], fmean(last), digits=3)
    way = "falls" if fmean(last) < losses[0] else "rises" if fmean(last) > losses[0] else "stays"
    if way == "stays":
        return f"the loss{whose} stays at {begin}"
    several = f"the mean of the last {len(last)} iterations" if last[1:] else "the last iteration"
    return f"the loss{whose} {way} from {begin} in the first iteration to {end} in {several}"


def going_on(run: RecordedRun) -> str:
    """How often the run went on with other ranks, and what that cost; "" if it never did."""
    changes = [event for _, event in run.changes]
    if not changes:
        return ""
    stalled, trained = sum(event["seconds"] for event in changes), sum(run.durations)
    ranks = {what: sorted({rank for event in changes for rank in event[what]})
             for what in ("lost", "came")}
    who = [f"rank{'s' * (len(each) > 1)} {join([*map(str, each)])} {what}"
           for what, each in ranks.items() if each]
    return (f"{short(run.name)} went on in place {len(changes)} time{'s' * (len(changes) > 1)} "
            f"({', '.join(who)}; dotted lines), and stood still for {stalled:.1f} s: "
            f"{trained / (trained + stalled):.1%} of its time was useful")


def timed(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs with at least one iteration after the first."""
    return [run for run in runs if run.mean]


def repeated(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs with a spread: two iterations or more after the first."""
    return [run for run in runs if len(run.durations) > 1]


def train_the_same(runs: Sequence[RecordedRun]) -> bool:
    """True if an iteration is the same work in all runs, but for precision and ranks."""
    return len({tuple(run.settings.get(name) for name in WORK) for run in runs}) < 2


def base_of(runs: Sequence[RecordedRun]) -> RecordedRun | None:
    """The run that speed-up is measured against: the fastest on one rank, if all train the same."""
    if not train_the_same(timed(runs)):
        return None
    alone = [run for run in timed(runs) if run.ranks == 1]
    return min(alone, key=lambda run: run.mean or 0, default=None)


def speed_up(runs: Sequence[RecordedRun]) -> str:
    """The best speed-up over one rank, and which machines the ranks share."""
    base = base_of(repeated(runs))
    many = [run for run in repeated(runs) if run.ranks > 1]
    if base is None or not many:
        return ""
    best = min(many, key=lambda run: run.mean or 0)
    several = f"{best.ranks} ranks ({short(best.name)})"
    times = times_as_fast(base.durations, best.durations)
    text = (f"{several} are {times:.2f} times as fast as one" if times else
            f"{several} and one do not differ in speed beyond the spread of their iterations")
    return text + _shared_machines(best, base)


def _shared_machines(run: RecordedRun, base: RecordedRun) -> str:
    """Says which machines the run's ranks share, and if they compute with no more than `base`."""
    machines, cores = len(set(run.hosts.values())), run.start["cores"]
    if not len(run.hosts) == run.ranks > machines:
        return ""
    if machines > 1:
        return f"; the {run.ranks} share {machines} machines"
    threads, alone = (each.start["ran_on"]["threads"] for each in (run, base))
    text = f"; the {run.ranks} share one machine's {cores} core{'s' * (cores > 1)}"
    if run.start["ran_on"]["device"] != "cpu" or alone < min(cores, run.ranks * threads):
        return text
    return text + ", and one uses as many: that is communication overhead, not speed-up"


def strategies(runs: Sequence[RecordedRun]) -> list[str]:
    """Every run's speed against gather/scatter's, or the slowest's, by number of ranks.

    Empty if the runs train different things.
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
    whole = sum(sum(rank.values()) for rank in ranks)
    return sum(rank["sync"] for rank in ranks) / (whole or 1.0)


def where_time_goes(runs: Sequence[RecordedRun]) -> str:
    """The run that averages longest, or the longest phase where there is nothing to average."""
    known = timed(runs)
    several = [run for run in known if run.ranks > 1]
    if known and not several:
        phase, fraction = slowest_phase(next(iter(known[0].phases.values())))
        where = f" in {short(known[0].name)}" * (len(runs) > 1)
        return f"{phase} takes {100 * fraction:.0f} % of the time{where}"
    if not several:
        return ""
    waiting = [run for run in several if not run.overlaps_sync]
    overlapping = [short(run.name) for run in several if run.overlaps_sync]
    within = (f"averaging takes less than {100 * NEXT_TO_NOTHING:.0f} % of the time after backward "
              f"in {join(overlapping)}")
    if not waiting:
        return within
    worst = max(waiting, key=_sync_fraction)
    text = f"{short(worst.name)} spends {100 * _sync_fraction(worst):.0f} % of its time averaging"
    return text + f"; {within}" * bool(overlapping)


def bytes_moved(runs: Sequence[RecordedRun]) -> str:
    """Says how much each run's busiest rank sends; runs that send equally much are together."""
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
    """Bytes in MB, in kB below 0.1 MB, and below 0.1 kB in bytes."""
    if sent < 100:
        return f"{sent:.0f} byte{'s' * (sent != 1)}"
    return f"{sent / MEGABYTE:.1f} MB" if sent >= MEGABYTE / 10 else f"{sent / 1000:.1f} kB"


def straggling(runs: Sequence[RecordedRun]) -> str:
    """The first straggler of any run; or a sentence that denies one, or "" if that is unknown."""
    several = [run for run in repeated(runs) if run.ranks > 1]
    stragglers = [f"{short(run.name)}: {text}" for run in several
                  if not (text := straggler(run.steps)).startswith("no ")]
    # of a rank whose log is missing nothing is known
    whole = all(len(run.phases) == run.ranks for run in several)
    return stragglers[0] if stragglers else "no rank is a straggler" if several and whole else ""


def scores(runs: Sequence[RecordedRun]) -> str:
    """The first run's metric on the test set, after training, in all runs that have it."""
    metric = runs[0].metric
    tested = [(run.test_score, short(run.name)) for run in runs
              if run.metric == metric and run.test_score is not None and isfinite(run.test_score)]
    if not tested:
        return ""
    where = f" in {join([name for _, name in tested])}" * (len(tested) < len(runs))
    low, high = (metric.shown(end(tested)[0], 1) for end in (min, max))
    return (f"test {metric.name} is {low}{where}" if low == high
            else f"test {metric.name} lies between {low} and {high}{where}")


def summary(runs: Sequence[RecordedRun]) -> list[str]:
    """The remaining findings in plain language: one whole sentence each, without empty ones."""
    return as_sentences([speed_up(runs), *strategies(runs), where_time_goes(runs),
                         bytes_moved(runs), straggling(runs), scores(runs)])


def as_sentences(sentences: Sequence[str]) -> list[str]:
    """The sentences that are not empty, with a capital and a full stop."""
    return [capital(sentence) + "." for sentence in sentences if sentence]
