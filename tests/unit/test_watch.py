"""The watch in one process, with a clock that stands still: who is named, when, and by whom.

Mutations that turn this red: `set` for compare_set in Board.first; return None in _silent_rank or
_stuck_rank; max for min in either; leave the lag out of lost_rank; ignore collective_failed; one
patience for all in _limit; name one rank where all wait at the same place; return from
_excuse_absence at once; cap nothing there; take FINISHED ranks for silent ones; drop learn_saved;
leave the leader's news out of _listen, or the alarm out of the news; leave any of FINISHED, the run
or the evaluation out of Progress.order; drop the test of the exit code from Board.verdict or from
conclude; another factor than 5 in Settings.collective_timeout, or the timeout itself in its place
in process_group; name no pair in _stuck_rank, or always; pass no silence or no words on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch.distributed import HashStore

from common.cluster import board, heartbeats, process_group, watch
from common.cluster.board import Board
from common.cluster.heartbeats import BEAT_SECONDS, SILENCE_SECONDS
from common.cluster.stopping import Stop
from common.cluster.watch import Watch
from common.core.failures import Failure, PeerLost, Verdict
from common.core.progress import CONNECTING, FINISHED, PHASES, PHASES_AFTER_A_STEP, Progress
from common.core.world import World
from common.settings.settings import Settings
from tests.facts import says

PATIENCE = 60


class Left(Exception):
    """Raised in the place of a process's end."""


class Time:
    """`monotonic` and `sleep` as in the module `time`, without waiting."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Cluster:
    """Three watches on one store; `beat` lets chosen ranks live through some seconds."""

    def __init__(self, clock: Time) -> None:
        self.clock, self.store = clock, HashStore()
        self.boards = [Board(self.store, World(rank, 3)) for rank in range(3)]
        self.places = [Progress() for _ in range(3)]
        self.watches = [Watch(self.boards[rank], lambda: self.store, PATIENCE, Stop(),
                              self.places[rank]) for rank in range(3)]
        for rank, each in enumerate(self.watches):
            each.names = [f"rank {rank} (node{rank}, pid 1{rank})" for rank in range(3)]
            each._end_process = self._leave
            self.at(rank, 1, 5, "forward")

    def _leave(self, failure: Failure) -> None:
        raise Left(str(failure), failure.exit_code)

    def at(self, rank: int, epoch: int, iteration: int, phase: str,
           has_stepped: bool = True) -> None:
        here = self.places[rank]
        here.epoch, here.iteration, here.phase = epoch, iteration, phase
        here.has_stepped = has_stepped

    def beat(self, ranks: tuple[int, ...], seconds: float, every: float = BEAT_SECONDS) -> None:
        """Does the work of Watch._beat for these ranks; raises Left when one of them leaves."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += every
            for rank in ranks:
                self.watches[rank]._post(self.boards[rank])
            for rank in ranks:
                self.watches[rank]._listen(self.boards[rank])
                self.watches[rank]._judge(self.boards[rank])


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    clock = Time()
    for module in (board, heartbeats, watch):
        monkeypatch.setattr(module, "time", clock)
    found = Cluster(clock)
    found.beat((0, 1, 2), 1)
    return found


@contextmanager
def leaving(*facts: object) -> Iterator[None]:
    """Around beats in which a rank leaves, with a sentence that says `facts`."""
    with pytest.raises(Left) as left:
        yield
    assert says(left.value.args[0], *facts)


def test_a_silent_rank_is_named_and_the_others_are_not(cluster):
    cluster.beat((0, 1), SILENCE_SECONDS - 1)
    with leaving("rank 2 (node2, pid 12)", "epoch 1", "iteration 5", "forward", "6.0 s"):
        cluster.beat((0, 1), 2)


def test_a_leader_that_is_silent_is_named_even_if_its_store_answers(cluster):
    """Under torchrun the agent serves the store."""
    cluster.beat((1, 2), SILENCE_SECONDS - 1)
    with leaving("rank 0 (node0, pid 10)", "epoch 1", "iteration 5", "forward", "6.0 s"):
        cluster.beat((1, 2), 2)


def test_close_to_a_verdict_all_ranks_look_more_often(cluster):
    """So that the news of a verdict takes no beats."""
    cluster.beat((0, 1), SILENCE_SECONDS - 2)
    assert not any(each._alarmed for each in cluster.watches)
    cluster.beat((0, 1), 1.5)
    assert cluster.watches[0]._alarmed and cluster.watches[1]._alarmed
    cluster.beat((0, 1, 2), 1)
    assert not any(each._alarmed for each in cluster.watches)


def test_after_a_broken_collective_a_shorter_silence_is_enough(cluster):
    cluster.watches[1].heartbeats.collective_failed = True
    with leaving("rank 2", "2.0 s"):
        cluster.beat((0, 1), 3)


def test_a_watch_that_is_starved_itself_is_slower_to_judge(cluster):
    for _ in range(6):
        cluster.beat((0, 1, 2), 1.5, every=1.5)
    cluster.beat((0, 1), SILENCE_SECONDS + 2, every=1.5)
    with leaving("rank 2"):
        cluster.beat((0, 1), 10)


def test_time_that_a_rank_did_not_listen_is_no_silence_of_others(cluster):
    cluster.clock.now += 600  # suspended, with rank 2 the last to come back
    cluster.beat((0, 1), SILENCE_SECONDS / 2)
    cluster.beat((0, 1, 2), 1)
    with leaving("rank 2"):  # and soon all is as it was
        cluster.beat((0, 1), 2 * SILENCE_SECONDS + 6)


def test_the_rank_that_is_least_far_is_the_one_that_is_stuck(cluster):
    cluster.at(1, 1, 4, "update")
    cluster.beat((0, 1, 2), PATIENCE - 1)
    with leaving("rank 1", "epoch 1", "iteration 4", "update", "60 s", "--timeout"):
        cluster.beat((0, 1, 2), 2)


@pytest.mark.parametrize("culprit, others", [
    ((1, 8, "saving", 1), (1, 0, "evaluation", 1)),  # evaluation comes after the epoch's steps
    ((2, 3, "evaluation", 1), (2, 3, FINISHED, 1)),
    ((2, 0, "after saving", 1), (1, 0, "data", 2))])  # the other ranks are in Part Two's second run
def test_what_comes_later_is_no_sign_of_being_stuck(cluster, culprit, others):
    for rank, (*where, run) in enumerate((others, others, culprit)):
        cluster.at(rank, *where)
        cluster.places[rank].run = run
    with leaving("rank 2", "--timeout"):
        cluster.beat((0, 1, 2), 5 * PATIENCE + 1)


@pytest.mark.parametrize("epoch, phase, has_stepped, factor", [
    (1, "forward", False, 5), (1, "saving", True, 5), (0, "loading data", False, None),
    (1, FINISHED, True, None)])
def test_some_places_have_more_time(cluster, epoch, phase, has_stepped, factor):
    for rank in range(3):
        cluster.at(rank, epoch, 0, phase, has_stepped)
    cluster.beat((0, 1, 2), (factor or 50) * PATIENCE - 1)
    if factor:
        with leaving("rank 0", "--timeout"):
            cluster.beat((0, 1, 2), 2)


def test_ranks_do_not_connect_to_each_other_for_ever(cluster):
    for rank in range(3):
        cluster.at(rank, 0, 0, CONNECTING, has_stepped=False)
    cluster.beat((0, 1, 2), 2 * PATIENCE - 1)
    with leaving(CONNECTING, "network"):
        cluster.beat((0, 1, 2), 2)


def test_where_all_wait_for_each_other_no_rank_is_blamed(cluster):
    for rank in range(3):
        cluster.at(rank, 1, 5, "sync")
    with leaving("epoch 1", "iteration 5", "sync", "network"):
        cluster.beat((0, 1, 2), PATIENCE + 1)


def test_a_rank_that_has_finished_may_be_silent(cluster):
    cluster.at(2, 1, 9, FINISHED)
    cluster.beat((0, 1, 2), 1)
    cluster.beat((0, 1), 5 * SILENCE_SECONDS)


def test_the_first_verdict_holds_for_all(cluster):
    first = cluster.boards[0].publish(PeerLost("the first"))
    second = cluster.boards[1].publish(Failure("the second"))
    assert (str(second), second.exit_code) == (str(first), 75) == ("the first", 75)
    cluster.places[1].saved = ""
    cluster.store.set("saved", "Epoch_1.pt")
    with pytest.raises(Left) as left:  # silent long enough for a verdict of its own
        cluster.beat((1,), 2 * SILENCE_SECONDS)
    assert left.value.args == ("the first", 75)
    assert cluster.places[1].saved == "Epoch_1.pt"
    assert str(cluster.boards[2].verdict()) == "the first"


def test_of_two_verdicts_the_first_is_said_by_both(cluster):
    """Both see the silence at once, and have heard the last word at different times."""
    cluster.beat((0,), 1)
    said = []
    for rank in (0, 1):
        with pytest.raises(Left) as left:
            cluster.beat((rank,), 2 * SILENCE_SECONDS)
        said.append(left.value.args)
    assert said[0] == said[1]


def test_when_all_have_done_everything_no_failure_can_be_published_any_more(cluster):
    cluster.boards[0].conclude()
    assert cluster.boards[1].publish(PeerLost("too late")).exit_code == 0
    cluster.boards[2].conclude()
    cluster.beat((0, 1, 2), 5)  # and no rank leaves


def test_a_failure_that_was_published_before_the_end_holds_for_all(cluster):
    cluster.boards[0].publish(PeerLost("in time"))
    for each in cluster.boards:
        with pytest.raises(Verdict, match="in time") as raised:
            each.conclude()
        assert raised.value.exit_code == PeerLost.exit_code


@pytest.mark.parametrize("phase", [*PHASES, *PHASES_AFTER_A_STEP, CONNECTING])
@pytest.mark.parametrize("has_stepped", [True, False])
def test_torch_gives_no_collective_up_before_the_watch_does(phase, has_stepped):
    """Its own error names nobody. Nor much later, where a watch is gone."""
    longest = heartbeats.Heartbeats(PATIENCE)._limit(Progress(1, 5, phase, has_stepped))
    assert longest <= Settings(timeout=PATIENCE).collective_timeout <= 5 * PATIENCE


def test_the_group_is_formed_with_that_time(monkeypatch):
    formed = []

    @contextmanager
    def joined(*_: object):
        yield None, []
    monkeypatch.setattr(process_group, "joined", joined)
    monkeypatch.setattr(process_group, "form_group", lambda *found: formed.append(found[-1]))
    with process_group.process_group(World(0, 2, source="flags"), Settings(timeout=PATIENCE)):
        assert formed == [Settings(timeout=PATIENCE).collective_timeout]


@pytest.mark.parametrize("behind, phase, is_pair", [
    (2, "backward", True), (2, "sync", True), (2, "update", False), (2, "data", False)])
def test_a_rank_that_may_wait_is_named_with_the_one_that_is_ahead(behind, phase, is_pair, cluster):
    """A rank that goes on without the others leaves one behind that is not at fault."""
    cluster.at(0, 1, 6, "forward")
    cluster.at(behind, 1, 5, phase)
    cluster.at(1, 1, 8, "sync")
    with pytest.raises(Left) as found:
        cluster.beat((0, 1, 2), PATIENCE + 1)
    assert says(found.value, "rank 1 (node1, pid 11)", "iteration 8", "sync") == is_pair
    assert says(found.value, "rank 2 (node2, pid 12)", "epoch 1", "iteration 5", phase, "60 s",
                "--timeout")


def test_a_script_has_words_and_a_silence_of_its_own(cluster):
    mine = Board(cluster.store, World(0, 3), longer="timeout=", deadline=cluster.clock.now - 1)
    with pytest.raises(PeerLost, match="timeout="):
        mine.collect("the witness's start", 1, list)
    here = Watch(mine, lambda: cluster.store, PATIENCE, Stop(), Progress(), silence=20.0)
    place, names = Progress(1, 5, "update", has_stepped=True), ["rank 0"]

    def listen(seconds: int, beats: bool) -> str:
        for _ in range(round(seconds / BEAT_SECONDS)):
            cluster.clock.now += BEAT_SECONDS
            count = int(cluster.clock.now / BEAT_SECONDS) if beats else 1
            here.heartbeats.listen({0: heartbeats.beat(count, False, place)}, 1)
            here._answers.silence()
        return str(here.heartbeats.lost_rank(names))
    assert listen(19, beats=False) == "None" and here._answers.silence() is None
    silent = listen(2, beats=False)
    assert says(silent, "rank 0", "iteration 5") and "timeout=" not in silent
    assert says(listen(PATIENCE, beats=True), "rank 0", "iteration 5", "timeout=")


def test_the_leaders_store_may_be_silent_for_as_long(cluster):
    for silence in (SILENCE_SECONDS, 20.0):
        answers = watch.Answers(BEAT_SECONDS, silence)
        answers.note()
        found = []
        while not found and cluster.clock.now < 1e4:
            cluster.clock.now += BEAT_SECONDS
            found += [seconds for seconds in [answers.silence()] if seconds]
        assert silence < found[0] < silence + 3
