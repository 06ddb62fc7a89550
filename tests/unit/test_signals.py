"""The agreement on where to stop, in one process: any rank may be anywhere within a step.

Mutations that turn this red: `min` for `max` in StopAgreement.advance; no
`+ int(self.needs_saving)` in Stop.freeze; no wait in Stop.boundary; drop `or stop.is_over` from
request_stop; any other number of seconds of grace, or none in request_stop or in the agreement.
"""

import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore, Store

from common.cluster import agreement as agreement_module
from common.cluster import signals, stopping
from common.cluster.agreement import StopAgreement
from common.cluster.board import Board
from common.cluster.stopping import Stop
from common.core.progress import Progress
from common.core.world import World
from tests.facts import says


class Rank:
    """A rank's Stop and its part in the agreement, and a main thread that takes steps."""

    def __init__(self, store: Store, rank: int, size: int, passed: int, in_step: bool,
                 save_every: int) -> None:
        self.stop = Stop()
        self.stop.in_group = True
        self.agreement = StopAgreement(self.stop, Progress())
        self.board = Board(store, World(rank, size))
        self.names = [f"rank {each}" for each in range(size)]
        self.save_every = save_every
        self.stopped_at: int | None = None
        for number in range(1, passed + 1):
            self.stop.begin_step()
            self.save_if_due(number)
            self.stop.boundary()
        if in_step:
            self.stop.begin_step()
        self.thread = threading.Thread(target=self.train, args=(passed, in_step), daemon=True)

    def save_if_due(self, number: int) -> None:
        if number % self.save_every == 0:
            self.stop.saved()

    def train(self, passed: int, in_step: bool) -> None:
        """Goes on to the boundary where this rank is told to stop."""
        for number in range(passed + 1, passed + 10):
            if number > passed + 1 or not in_step:
                self.stop.begin_step()
            self.save_if_due(number)
            if self.stop.boundary():
                self.stopped_at = number
                self.stop.end()

    def advance(self):
        """Advances as the watch does; returns the verdict that holds, if any."""
        asked = self.board.read_first("stop")
        if found := self.agreement.advance(self.board, self.names, asked):
            self.board.publish(found)
        return self.board.verdict()


@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1,
                                   max_size=4), st.integers(1, 3), st.data())
def test_all_ranks_stop_at_one_boundary_that_each_can_reach(passed, places, save_every, data):
    """Ranks are at most one boundary apart, as they wait for each other in every step."""
    store, size = HashStore(), len(places)
    ranks = [Rank(store, number, size, passed + ahead, in_step, save_every)
             for number, (ahead, in_step) in enumerate(places)]
    ranks[data.draw(st.integers(0, size - 1))].stop.signal = signal.SIGTERM
    for _ in range(3):  # asked, frozen, given a boundary: with all main threads as good as blocked
        for rank in ranks:
            rank.advance()
    targets = {rank.agreement._target for rank in ranks}
    target, = targets
    assert target is not None
    for ahead, in_step in places:
        assert target >= passed + ahead  # no rank has passed it
        saved = (passed + ahead) % save_every == 0 or passed + ahead == 0
        if target == passed + ahead:  # a rank that is there already has nothing to lose
            assert saved and not in_step
    for rank in ranks:
        if not rank.stop.is_done():
            rank.thread.start()
    verdicts = wait_for_verdicts(ranks)
    assert {verdict.exit_code for verdict in verdicts} == {143}
    assert all(says(verdict, "SIGTERM") for verdict in verdicts)
    assert {rank.stopped_at for rank in ranks} <= {None, target}


def wait_for_verdicts(ranks) -> list:
    for _ in range(2000):
        verdicts = [rank.advance() for rank in ranks]
        if all(verdicts):
            return verdicts
        threading.Event().wait(0.001)
    raise AssertionError("the ranks did not come to an end")


def test_a_frozen_rank_passes_one_more_boundary_at_most():
    stop, passed = Stop(), []
    stop.boundary()
    stop.begin_step()
    assert stop.freeze() == 2

    def go_on() -> None:
        for number in (2, 3):
            passed.append((number, stop.boundary()))
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and passed == []
    stop.stop_at(3)
    thread.join(5)
    assert passed == [(2, False), (3, True)]


def test_before_all_have_joined_no_rank_waits():
    stop, board = Stop(), Board(HashStore(), World(1, 3))
    agreement = StopAgreement(stop, Progress())
    assert agreement.advance(board, [], None) is None
    stop.signal = signal.SIGINT
    verdict = agreement.advance(board, [], None)
    assert verdict is not None and verdict.exit_code == 130


def test_a_signal_after_everything_is_done_changes_nothing(monkeypatch):
    stop, left = Stop(), []
    monkeypatch.setattr(signals, "end_process", lambda *why: left.append(why))
    stop.is_over = True
    signals.request_stop(stop, signal.SIGTERM)
    assert not left


GRACE = 20  # seconds, as docs/faults.md promises: what schedulers leave between two signals is 30


class Ended(Exception):
    """Raised in the place of a process's end."""


def ended_by(monkeypatch, stop: Stop) -> tuple[str, int, list[float]]:
    """How request_stop ends a process without a group, and for how long it has waited."""
    waits: list[float] = []

    def end(why: str, code: int) -> None:
        raise Ended(why, code)
    monkeypatch.setattr(signals, "end_process", end)
    monkeypatch.setattr(signals.time, "sleep", waits.append)
    with pytest.raises(Ended) as found:
        signals.request_stop(stop, signal.SIGTERM)
    return *found.value.args, waits


def test_without_a_group_a_step_has_its_grace_and_then_the_process_ends(monkeypatch):
    stop = Stop()
    stop.begin_step()
    why, code, waits = ended_by(monkeypatch, stop)
    assert says(why, "SIGTERM", f"{GRACE} s") and (code, waits) == (143, [GRACE])


def test_without_anything_to_save_no_process_waits(monkeypatch):
    why, code, waits = ended_by(monkeypatch, Stop())
    assert says(why, "SIGTERM") and f"{GRACE} s" not in why and code == 143 and not waits


def test_in_a_group_the_ranks_have_the_same_grace(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(agreement_module.time, "monotonic", lambda: now[0])
    rank = Rank(HashStore(), 0, 2, passed=1, in_step=True, save_every=3)  # the other says nothing
    rank.stop.signal = signal.SIGTERM
    for now[0] in (1000.0, 1000.0 + GRACE - 0.1):
        assert rank.advance() is None
    now[0] = 1000.0 + GRACE + 0.1
    verdict = rank.advance()
    assert says(verdict, "SIGTERM", f"{GRACE} s")
    assert verdict.exit_code == 143 and stopping.GRACE_SECONDS == GRACE
