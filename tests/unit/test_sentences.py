"""Every sentence about random runs holds against their numbers, by an oracle of its own.

    python3 -m pytest tests/unit/test_sentences.py -m slow      # 2,000 cases

A sentence that the oracle does not know is a failure, too: it would go unchecked.

Mutations that turn this red: "falls" for each course of a loss; one precision for the head's;
`learns` for equal losses with other digests; tensors' bytes for sent ones; the evaluate_function
spans not counted as computing; ROUND_FLOOR in at_most; no look for messages; all runs for those
with a score; the hosts of some ranks for all; the slower run's name in compare_seconds; one run's
difference for all alike; ranks whose log is missing called no straggler.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import isfinite, isnan
from pathlib import Path
from statistics import fmean, median, stdev
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from common.core.failures import DataError
from common.core.spread import half_interval, times_as_fast
from common.report import compare_seconds
from common.reporting import figure_style
from common.reporting import page as page_module
from common.reporting.digests import digests_as_text, have_one_digest
from common.reporting.merged_steps import straggler
from common.reporting.page import Page
from common.reporting.recorded_run import RecordedRun, find_runs
from common.reporting.run_state import describe
from tests.random_runs import PER_EPOCH, Drawn, draw_runs

SEED, RESUMED = 40, 534  # the latter after ranks of which a log is missing
DIGITS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER = r"[\d.]+(?:e[-+]\d+)?|nan"
LEARNS = ("seed", "learning_rate", "precision", "batch_size", "epochs")
APART = (r"their losses (?:are equal, bit for bit, in (?P<equal>[^;,]+?)|differ by "
         rf"(?P<at>{NUMBER})(?: at most)? in the first common iteration(?: and by "
         rf"(?P<most>{NUMBER}) "
         r"at most in (?P<several>[^;,]+?))?)")


class Case:
    """A drawn case, and the sentences on it."""

    def __init__(self, drawn: dict[str, Drawn], runs: list[RecordedRun]) -> None:
        self.runs = [drawn[run.name] for run in runs]
        self.by_name = {run.short.lower(): run for run in self.runs}

    def named(self, words: str) -> list[Drawn]:
        return [self.by_name[name.lower()] for name in re.split(", | and ", words)]


def close(said: str, value: float, digits: int = 2) -> bool:
    return isnan(value) and said == "nan" or said == f"{value:.{digits}f}"


def is_bound(said: float, value: float) -> bool:
    """True if a bound in one digit holds, and is not larger than it need be."""
    return isnan(said) and isnan(value) or value <= said * (1 + 1e-9) and said <= 2 * value


def gaps_of(one: Drawn, other: Drawn) -> list[float]:
    places = sorted(one.losses.keys() & other.losses.keys())[:10]
    return [abs(one.losses[place] - other.losses[place]) for place in places]


def count_of(words: str) -> int:
    found = re.search(r"\d+", words)
    return int(found[0]) if found else 1


def check_apart(found: re.Match, runs: list[Drawn], head: Drawn) -> None:
    gaps = [gaps_of(head, run) for run in runs]
    if equal := found["equal"]:
        assert all(len(each) == count_of(equal) and not any(each) for each in gaps)
        return
    assert is_bound(float(found["at"]), max(each[0] for each in gaps)) or not float(found["at"])
    if several := found["several"]:
        assert all(len(each) == count_of(several) for each in gaps)
        assert is_bound(float(found["most"]), max(map(max, gaps)))


def one_digest(runs: list[Drawn], head: Drawn) -> bool:
    return len({run.digest for run in [head, *runs]}) == 1 and bool(head.digest)


def differ_in(one: Drawn, other: Drawn) -> set[str]:
    return {name for name in (*LEARNS, "wire") if one.told.get(name) != other.told.get(name)}


def learned_the_same(case: Case, found: re.Match) -> None:
    runs, head = case.named(found["they"]), *case.named(found["head"])
    assert one_digest(runs, head) and found["digest"] == head.digest
    assert all(run.losses.keys() == head.losses.keys() for run in runs)
    check_apart(found, runs, head)


def losses_alike(case: Case, found: re.Match) -> None:
    *runs, head = case.named(found["they"])
    check_apart(found, runs, head)
    assert not one_digest(runs, head) or any(run.losses.keys() != head.losses.keys()
                                             for run in runs)
    if found["weights"]:
        assert all(run.digest and head.digest and run.digest != head.digest for run in runs)


def rounding(case: Case, found: re.Match) -> None:
    runs, head = case.named(found["they"]), *case.named(found["head"])
    assert found["precision"] == head.told["precision"]
    for run in runs:
        assert not differ_in(run, head) and any(gaps_of(run, head)) and not (
            one_digest([run], head) and run.losses.keys() == head.losses.keys())
        assert gaps_of(run, head)[0] <= 5e-3
    check_apart(found, runs, head)


def statistics(case: Case, found: re.Match) -> None:
    runs, head = case.named(found["they"]), *case.named(found["head"])
    assert all(run.told["batch_norm"] == "local" and run.ranks != head.ranks for run in runs)
    check_apart(found, runs, head)


def another_algorithm(case: Case, found: re.Match) -> None:
    runs, head = case.named(found["they"]), *case.named(found["head"])
    for run in runs:
        assert "local-sgd" in (run.short, head.short) or "wire" in differ_in(run, head)
    check_apart(found, runs, head)


def another_setting(case: Case, found: re.Match) -> None:
    runs, head = case.named(found["they"]), *case.named(found["head"])
    flags = {flag.replace("--", "").replace("-", "_") for flag in re.findall("--[a-z-]+", found[0])}
    assert all(differ_in(run, head) - {"wire"} == flags for run in runs)
    check_apart(found, runs, head)


def fault(case: Case, found: re.Match) -> None:
    runs, head = case.named(found["they"]), *case.named(found["head"])
    worst = case.named(found["worst"])[0] if found["worst"] else runs[0]
    gap = gaps_of(worst, head)[int(found["at"]) - 1]
    assert abs(float(found["gap"]) - gap) <= 0.5 * gap
    assert float(found["room"]) < float(found["gap"])
    assert not any(differ_in(run, head) or one_digest([run], head)
                   and run.losses.keys() == head.losses.keys() for run in runs)


def course_of_the_loss(case: Case, found: re.Match) -> None:
    run = case.named(found["name"])[0] if found["name"] else case.runs[0]
    losses = list(run.losses.values())
    last = losses[1:][-10:]
    if found["way"] == "is":
        assert len(losses) == 1 and float(found["begin"]) == pytest.approx(losses[0], rel=0.01)
        return
    end = fmean(last)
    assert found["way"] == ("falls" if end < losses[0] else "rises" if end > losses[0] else "stays")
    assert float(found["begin"]) == pytest.approx(losses[0], rel=0.01)
    if found["end"]:
        assert float(found["end"]) == pytest.approx(end, rel=0.01)
        assert (float(found["end"]) < float(found["begin"])) == (found["way"] == "falls")
        assert count_of(found["over"]) == len(last)
    others = case.runs[1:]
    assert not others or not any(gaps_of(one, two) for one, two in pairwise(case.runs))


def speed_up(case: Case, found: re.Match) -> None:
    run, = case.named(found["name"])
    alone = [each for each in case.runs if each.ranks == 1 and len(each.durations) > 1]
    base = min(alone, key=lambda each: fmean(each.durations))
    assert run.ranks == int(found["ranks"]) and fmean(run.durations) == min(
        fmean(each.durations) for each in case.runs if each.ranks > 1 and len(each.durations) > 1)
    times = times_as_fast(base.durations, run.durations)
    assert close(found["times"], times) if found["times"] else times is None
    machines = len(set(run.hosts.values()))
    assert bool(found["shared"]) == (len(run.hosts) == run.ranks > machines)
    if found["machines"]:
        assert int(found["machines"]) == machines > 1
    if found["shared"]:
        assert int(found["shared"]) == run.ranks
    if found["cores"]:
        assert int(found["cores"]) == run.cores and len(set(run.hosts.values())) == 1
        assert bool(found["overhead"]) == (run.cores == 1)  # each run computes on one thread
        assert found["noun"] == ("core" if run.cores == 1 else "cores")


def strategies(case: Case, found: re.Match) -> None:
    root, = case.named(found["name"])
    assert root.ranks == int(found["ranks"]) and (found["s"] == "s") == (root.ranks > 1)
    alike = [run for run in case.runs if run.ranks == root.ranks and len(run.durations) > 1]
    told = found["told"].split(", ")
    assert len(told) == len(alike) - 1 > 0
    for each in told:
        name, times = re.fullmatch(r"(\S+) (?:is ([\d.]+) times as fast|does not differ beyond the "
                                   "spread)", each).groups()
        run, = case.named(name)
        assert run in alike and run is not root
        ratio = times_as_fast(root.durations, run.durations)
        assert close(times, ratio) and times != "1.00" if times else ratio is None


def phase_shares(run: Drawn) -> dict[str, float]:
    steps = [step["seconds"] for row in list(run.rows.values())[1:] for step in row.values()]
    by_rank = {rank: [row[rank]["seconds"] for row in list(run.rows.values())[1:] if rank in row]
               for row in list(run.rows.values())[1:] for rank in row}
    means = {phase: sum(fmean(step[phase] for step in each) for each in by_rank.values())
             for phase in steps[0]}
    return {phase: 100 * mean / sum(means.values()) for phase, mean in means.items()}


def overlaps(run: Drawn) -> bool:
    steps = [step for row in (list(run.rows.values())[1:] or run.rows.values())
             for step in row.values()]
    return run.ranks > 1 and any(step["bytes"] for step in steps) and sum(
        step["seconds"]["sync"] for step in steps) < 0.01 * sum(step["duration"] for step in steps)


def slowest_phase(case: Case, found: re.Match) -> None:
    run = case.named(found["name"])[0] if found["name"] else case.runs[0]
    assert found["name"] or len(case.runs) == 1
    shares = phase_shares(run)
    assert found["phase"].lower() == max(shares, key=lambda name: shares[name])
    assert close(found["share"], shares[found["phase"].lower()], 0)


def averaging(case: Case, found: re.Match) -> None:
    several = [run for run in case.runs if run.ranks > 1 and run.durations]
    if found["name"]:
        run, = case.named(found["name"])
        assert not overlaps(run) and close(found["share"], phase_shares(run)["sync"], 0)
        assert phase_shares(run)["sync"] == pytest.approx(max(
            phase_shares(each)["sync"] for each in several if not overlaps(each)))
    if within := found["within"] or found["alone"]:
        assert {run.name for run in case.named(within)} == {
            run.name for run in several if overlaps(run)}


def bytes_moved(case: Case, found: re.Match) -> None:
    counting = []
    for amount, names in re.findall(r"([\d.]+ (?:MB|kB|bytes?))(?: in (.+?))?(?=, [\d.]+ |$)",
                                    found["told"]):
        for name, root in re.findall(r"(\S+?)(?: \(rank (\d+)\))?(?:, | and |$)", names):
            run, = case.named(name)
            counting.append(run.name)
            check_amount(run, amount, root)
        if not names:
            run, = [each for each in case.runs if each.ranks > 1]
            counting.append(run.name)
            check_amount(run, amount, "")
    assert sorted(counting) == sorted(run.name for run in case.runs if max(sent_by(run).values()))


def sent_by(run: Drawn) -> dict[int, int]:
    rows = list(run.rows.values())
    return {rank: round(fmean(row[rank]["bytes"] for row in rows if rank in row))
            for rank in rows[-1]}


def check_amount(run: Drawn, amount: str, root: str) -> None:
    number, unit = amount.split()
    most = max(sent_by(run).values())
    assert float(number) > 0 and abs(float(number) * {"MB": 1e6, "kB": 1e3}.get(unit, 1) - most) \
        <= 0.51 * {"MB": 1e5, "kB": 1e2}.get(unit, 1)
    assert (unit == "byte") == (most == 1)
    if root:
        assert [rank for rank, sent in sent_by(run).items() if sent == most] == [int(root)]


def own_work(run: Drawn) -> list[dict[int, float]]:
    phases = ("data", "forward") + ("backward",) * (not overlaps(run))
    return [{rank: sum(step["seconds"][phase] for phase in phases) for rank, step in row.items()}
            for row in list(run.rows.values())[1:] or run.rows.values()]


def a_straggler(case: Case, found: re.Match) -> None:
    run, = case.named(found["name"])
    rank, rows = int(found["rank"]), [row for row in own_work(run) if len(row) > 1]
    rows = [row for row in rows if rank in row]
    mine = fmean(row[rank] for row in rows)
    others = fmean(median(own for each, own in row.items() if each != rank) for row in rows)
    assert mine > 1.1 * others and int(found["rows"]) == len(rows)
    assert float(found["own"]) == pytest.approx(1000 * mine, abs=0.06)
    assert float(found["others"]) == pytest.approx(1000 * others, abs=0.06)
    assert int(found["times"]) == sum(max(row, key=lambda each: row[each]) == rank for row in rows)


def no_straggler(case: Case, found: re.Match) -> None:
    for run in case.runs:
        work = own_work(run)
        if run.ranks == 1 or len(run.durations) < 2:
            continue
        assert len({rank for row in work for rank in row}) >= run.ranks
        for rank in {rank for row in work for rank in row}:
            ahead = [row[rank] - median(own for each, own in row.items() if each != rank)
                     for row in work if rank in row and len(row) > 1]
            others = [median(own for each, own in row.items() if each != rank)
                      for row in work if rank in row and len(row) > 1]
            slowest = max(run.rows and work[0], key=lambda each: fmean(
                row[each] for row in work if each in row))
            if rank == slowest and ahead:
                assert fmean(ahead) <= 0.1 * fmean(others) or fmean(ahead) <= half_interval(ahead)


def scores(case: Case, found: re.Match) -> None:
    tested = [run for run in case.runs if run.score is not None and isfinite(run.score)]
    values = sorted(100 * run.score for run in tested)
    assert close(found["low"], values[0], 1) and close(found["high"] or found["low"], values[-1], 1)
    assert {run.name for run in (case.named(found["names"]) if found["names"] else case.runs)} == {
        run.name for run in tested}


def differences(case: Case, found: re.Match) -> None:
    first, = case.named(found["name"])
    for gap, name in re.findall(rf"({NUMBER}) in (\S+?)(?:, |$)", found["told"]):
        run, = case.named(name)
        common = first.losses.keys() & run.losses.keys()
        largest = max(abs(first.losses[place] - run.losses[place]) for place in common)
        assert is_bound(float(gap), largest)


def all_equal(case: Case, found: re.Match) -> None:
    first, *others = case.runs
    commons = [first.losses.keys() & run.losses.keys() for run in others]
    assert all(first.losses[place] == run.losses[place]
               for run, places in zip(others, commons, strict=True) for place in places)
    assert any(commons)


def mistakes(case: Case, found: re.Match) -> None:
    run, = case.named(found["name"])
    wrong = [(count, sum(row), place) for place, row in enumerate(run.matrix)
             for other, count in enumerate(row) if other != place]
    assert run.ranks == int(found["ranks"])
    most = max((count for count, *_ in wrong), default=0)
    if found["no"]:
        assert most == 0
    elif found["sum"]:
        assert int(found["sum"]) == sum(count for count, *_ in wrong)
        assert int(found["all"]) == sum(map(sum, run.matrix))
    else:
        assert (int(found["most"]), int(found["of"])) in [each[:2] for each in wrong]
        assert int(found["most"]) == most > 0


def traced(case: Case, found: re.Match) -> None:
    run, = case.named(found["name"])
    busy, moving = run.loads["busy"], run.loads["moving"]
    if found["alone"]:
        assert run.ranks == 1
    elif found["without"]:
        assert not moving[0].any() and int(found["ranks"]) == run.ranks > 1
    else:
        assert moving[0].any() and run.ranks > 1
        share = 100 * (busy & moving).sum() / moving.sum()
        assert abs(float(found["share"] or 0) - share) <= 0.5 + 1e-9  # a half rounds either way


THEY, HEAD = r"(?P<they>.+?)", r"(?P<head>\S+)"
KINDS: dict[str, Callable[[Case, re.Match], None]] = {
    rf"{THEY} learns? what {HEAD} learns, bit for bit: the weights at the end have one digest, "
    rf"(?P<digest>\w+)(?:; {APART})?": learned_the_same,
    rf"{THEY}: {APART}(?P<weights>, and the weights at the end differ)?": losses_alike,
    rf"{THEY} differs? from {HEAD} by no more than rounding in (?P<precision>\w+) explains, which "
    "grows from step to step as it does for one rank that adds in another order: "
    rf"{APART}(?:; --precision float64 leaves next to nothing of it)?": rounding,
    rf"{THEY} do(?:es)? not learn quite what {HEAD} learns, because each rank normalises by the "
    rf"batch statistics of its own shard: {APART}(?:; --batch-norm synchronised removes the cause)?"
    : statistics,
    rf"{THEY} trains? by another algorithm than {HEAD}: {APART}(?:; .* on both removes the cause)?"
    : another_algorithm,
    rf"{THEY} do(?:es)? not have {HEAD}'s .+?: {APART}(?:; equal values remove the cause)?"
    : another_setting,
    rf"FAULT: {THEY} do(?:es)? not learn what {HEAD} learns, and nothing that is known of them "
    rf"explains it: their losses differ by (?P<gap>{NUMBER}) in common iteration (?P<at>\d+)"
    rf"(?: of (?P<worst>\S+?))?, and their settings leave room for (?P<room>{NUMBER})(?:; .*)?"
    : fault,
    rf"the loss(?: of (?P<name>\S+))? (?P<way>falls|rises|stays|is) (?:from|at|in)? ?"
    rf"(?P<begin>{NUMBER})(?: in the first iteration to (?P<end>{NUMBER}) in (?P<over>.+)"
    r"| in its only iteration)?": course_of_the_loss,
    r"(?P<ranks>\d) ranks \((?P<name>\S+)\) (?:are (?P<times>[\d.]+) times as fast as one|and one "
    r"do not differ in speed beyond the spread of their iterations)(?:; the (?P<shared>\d) share "
    r"(?:(?P<machines>\d) machines|one machine's (?P<cores>\d) (?P<noun>cores?)"
    r"(?P<overhead>, and one uses as many: that is communication overhead, not speed-up)?))?"
    : speed_up,
    r"on (?P<ranks>\d) rank(?P<s>s?), against (?P<name>\S+): (?P<told>.+)": strategies,
    r"(?P<phase>\w+) takes (?P<share>\d+) % of the time(?: in (?P<name>\S+))?": slowest_phase,
    r"(?:(?P<name>\S+) spends (?P<share>\d+) % of its time averaging(?:; averaging takes less than "
    r"1 % of the time after backward in (?P<within>.+))?|averaging takes less than 1 % of the time "
    r"after backward in (?P<alone>.+))": averaging,
    r"each iteration the busiest rank sends (?P<told>.+)": bytes_moved,
    r"(?P<name>\S+): rank (?P<rank>\d) is the straggler: (?P<own>[\d.]+) ms of own work an "
    r"iteration, the other ranks' median (?P<others>[\d.]+) ms; slowest in (?P<times>\d+) of "
    r"(?P<rows>\d+) iterations?": a_straggler,
    "no rank is a straggler": no_straggler,
    "who waits for whom in an iteration": lambda case, found: None,
    r"test accuracy (?:is|lies between) (?P<low>[\d.]+) %(?: and (?P<high>[\d.]+) %)?"
    r"(?: in (?P<names>.+))?": scores,
    r"losses differ from (?P<name>\S+)'s by at most (?P<told>.+)": differences,
    r"all common losses are equal to (?P<name>\S+)'s, bit for bit": all_equal,
    r"(?P<name>\S+), (?P<ranks>\d) ranks?: (?:(?P<no>no test image is mistaken)|(?P<sum>\d+) of "
    r"(?P<all>\d+) test images are mistaken|\w+ is taken for \w+ most often, (?P<most>\d+) of "
    r"(?P<of>\d+) times?)": mistakes,
    r"(?P<name>\S+): (?:(?P<alone>one step of one rank)|one step of (?P<ranks>\d) ranks; "
    r"(?P<without>no message is) in the trace"
    r"|messages are under way while the ranks compute nothing|(?P<share>\d+) % of the time that "
    "messages are under way, the ranks compute)": traced}


def check(case: Case, sentence: str) -> None:
    """Fails where a sentence contradicts the numbers, or where nothing here knows it."""
    text = sentence.removesuffix(".")
    matches = [(kind, found) for kind, oracle in KINDS.items()
               if (found := re.fullmatch(f"(?:{kind})", text, re.IGNORECASE | re.DOTALL))
               and all(name in case.by_name for key in ("they", "head", "name")
                       for name in re.split(", | and ", (found.groupdict().get(key) or "").lower())
                       if name)]
    assert matches, f"unknown: {text}"
    for kind, found in matches[:1]:
        KINDS[kind](case, found)


def tables_hold(case: Case, page: Page, runs: list[RecordedRun]) -> None:
    """The timing table, the page's title and the lines on how a run is doing."""
    for run, row in zip(case.runs, page.timing.rows, strict=True):
        took = run.durations
        spread = f" ± {stdev(took):.3f}" if len(took) > 1 else ""
        assert row[2] == (f"{fmean(took):.3f}{spread}" if took else "-")
        assert int(row[4]) == len(took)
        assert not took or row[3] == f"{median(took):.3f}"
        assert any(sent_by(run).values()) == (row[7] != "-" and float(row[7]) > 0)
    several = len(case.runs)
    assert page.title.startswith(f"{several} run{'s' * (several > 1)} of digits-vgg11: ")
    for run, recorded in zip(case.runs, runs, strict=True):
        told, code = describe(recorded, time.time())
        assert code == run.failed and ("finished" in told.splitlines()[0]) == run.ended
        epoch, iteration = list(run.rows)[-1]
        done = (epoch - 1) * PER_EPOCH + iteration + 1
        assert f"epoch {epoch} of 10, iteration {done} of " in told
        recent = min(20, len(run.rows))
        assert ("(last iteration, rank 0)" if recent == 1 else
                f"(last {recent} iterations, rank 0)") in told


def digests_hold(case: Case, runs: list[RecordedRun]) -> None:
    said, digests = digests_as_text(runs).splitlines()[-1], [run.digest for run in case.runs]
    missing, different = digests.count(""), len(set(digests))
    number = DIGITS[len(digests)].capitalize()
    assert said.startswith(f"{number} run{'s' * (len(digests) > 1)}, ")
    assert have_one_digest(runs) == (len(digests) > 1 and not missing and different == 1)
    assert ("learned the same weights, bit for bit" in said) == have_one_digest(runs)
    assert ("did NOT learn" in said) == (not missing and different > 1)
    assert ("did not end" in said) == bool(missing)
    assert ("no other to compare" in said) == (len(digests) == 1 and not missing)


def speeds_hold(case: Case) -> None:
    """Part Two's comparison of two runs that followed one another is right."""
    for one, two in pairwise(run for run in case.runs if run.durations):
        said = compare_seconds(("first", "second"), one.durations, two.durations)
        means = fmean(one.durations), fmean(two.durations)
        shown = [float(each) for each in re.match(rf"({NUMBER}) and ({NUMBER})", said).groups()]
        assert shown == pytest.approx(means, rel=0.01)
        if found := re.search(r": (\w+) is ([\d.]+) times as fast as (\w+)$", said):
            assert float(found[2]) == pytest.approx(max(means) / min(means), abs=0.006)
            assert found[1] == ("first" if means[0] < means[1] else "second") != found[3]
            assert (shown[0] < shown[1]) == (found[1] == "first")
        else:
            assert times_as_fast(one.durations, two.durations) is None


def sentences_of(page: Page) -> Iterator[str]:
    yield from page.summary
    for section in page.sections:
        yield from filter(None, section.pictures)


def hold(seed: int, folder: Path) -> None:
    """Draws the case with this seed, and holds all that is said of it against its numbers."""
    drawn = draw_runs(random.Random(seed), folder)
    try:
        runs = find_runs([folder])
    except DataError:
        assert not drawn
        return
    case = Case(drawn, runs)
    assert len(case.runs) == len(drawn)
    page = Page.of(runs, [])
    for sentence in sentences_of(page):
        check(case, " ".join(sentence.split()))
    assert page.learning[0] == next(iter(page.summary))
    tables_hold(case, page, runs)
    digests_hold(case, runs)
    speeds_hold(case)
    for recorded in runs:
        assert any(len(row) > 1 for row in recorded.steps.values()) or straggler(
            recorded.steps).startswith("no straggler: ")


def titles_alone(patch: pytest.MonkeyPatch, without_figures: bool) -> None:
    """Figures are made and not drawn, or not even made: their titles stand in their places."""
    patch.setattr(page_module, "Picture", SimpleNamespace(
        of=lambda name, figure: figure.get_suptitle() * (name != "learning")))
    page_module._timeline.cache_clear()
    if without_figures:
        patch.setattr(figure_style, "Figure", lambda **_: Untouched())


class Untouched(MagicMock):
    """A figure that takes what is drawn, and has its title."""

    def subplots(self, rows: int, columns: int, squeeze: bool) -> np.ndarray:
        axes = MagicMock()
        axes.get_legend_handles_labels.return_value = [], ["label"]
        panels = np.empty((rows, columns), dtype=object)
        panels.fill(axes)
        return panels

    def get_figheight(self) -> float:
        return 3.0

    def get_suptitle(self) -> str:
        return self.suptitle.call_args.args[0]


@pytest.mark.parametrize("seed", [*range(SEED, SEED + 12), RESUMED])
def test_every_sentence_holds(seed, tmp_path, monkeypatch):
    titles_alone(monkeypatch, without_figures=seed > SEED)
    hold(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_sentence_of_2000_cases_holds(tmp_path):
    for seed in range(2000):
        with pytest.MonkeyPatch.context() as patch:
            titles_alone(patch, without_figures=seed % 10 > 0)
            try:
                hold(seed, tmp_path / str(seed))
            except Exception as error:
                raise AssertionError(f"case {seed}: {error!r}") from error
