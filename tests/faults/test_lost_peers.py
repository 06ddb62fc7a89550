"""A rank that is killed, stopped, asleep or cut off is named on every other rank, within seconds.

And nothing is lost: the run, resumed, ends bit for bit as if nothing had happened.

Mutations that turn this red: `set` for compare_set in Board.first (no common sentence); return None
in Heartbeats._silent_rank (a stopped rank is never named), in _stuck_rank (a sleeping one); do not
start the guard thread (a stopped leader hangs all); no pulse for a rank that was never heard; ask
nobody for the fate of a silent rank.
"""

import os
import random
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from common.cluster import rendezvous
from tests.facts import says
from tests.faults.disturbed import joined, plant_phases, running, wait_for
from tests.ranks import error_lines
from tests.runs import MORE_RUNS, RUNS, Case, end_of, launch, same_bits

KINDS = [("gather-scatter", 4), ("PartOne", 1), ("all-reduce", 4), ("PartThree", 4)]
SECONDS = 10


def kills(count: int, seed: int) -> list[Case]:
    """Every kind of run in turn, killed after a step by chance."""
    chance = random.Random(seed)
    return [Case(*KINDS[number % 4], "memory", chance.randint(2, 6), chance.randint(0, 17))
            for number in range(count)]


def check_survivors(programs, victim: int, codes, expected: str) -> None:
    """All but the victim said the same sentence, which names the victim, and ended with 75."""
    name = f"rank {victim} ("
    pid = f"pid {programs[victim].process.pid})"
    sentences = set()
    for rank, each in enumerate(programs):
        if rank == victim:
            continue
        line, = error_lines(each.output())
        assert codes[rank] == 75, each.output()
        sentence = line.partition(". ")[0]  # what follows is each rank's own
        sentences.add(sentence)
        assert name in sentence and pid in sentence and expected in sentence
        assert ("--timeout" in sentence) == (expected == "--timeout")
        assert re.search(r"(?<!-)\bcheckpoint\b(?!-)", line)  # the last one, or that there is none
        assert f"-R {rank}" in line and line.endswith("--resume auto")
    if expected != "store":  # which went with the leader: each then speaks for itself
        assert len(sentences) <= 1, sentences


def end_victim(programs, victim: int) -> None:
    programs[victim].process.kill()
    programs[victim].process.join()


@pytest.fixture
def check_kill(tmp_path, undisturbed):
    def check(case: Case, seed: int) -> None:
        chance = random.Random(seed)
        victim = chance.randrange(case.world_size)
        with running(case, tmp_path) as programs:
            wait_for(tmp_path, "training", case.kill_at)
            time.sleep(chance.uniform(0, 0.1))
            os.kill(programs[victim].process.pid, signal.SIGKILL)
            codes, seconds = joined(programs, SECONDS)
            assert seconds < SECONDS
            if any(code != 0 for rank, code in enumerate(codes) if rank != victim):
                check_survivors(programs, victim, codes, "process" if victim else "store")
        launch(case, tmp_path, "auto")
        assert same_bits(end_of(case, tmp_path), undisturbed(case))
    return check


@pytest.mark.parametrize("seed, case", list(enumerate(kills(10, seed=3))), ids=str)
def test_a_rank_killed_at_any_instant(seed, case, check_kill):
    check_kill(case, seed)


@pytest.mark.parametrize("seed, run", list(enumerate(MORE_RUNS)))
def test_a_rank_killed_under_the_other_strategies(seed, run, check_kill):
    check_kill(Case(run, 4, "memory", 3, 5 + 2 * seed), 50 + seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed, case", list(enumerate(kills(100, seed=4))), ids=str)
def test_many_ranks_killed(seed, case, check_kill):
    check_kill(case, 1000 + seed)


@pytest.fixture
def check_kill_all(tmp_path, undisturbed):
    def check(case: Case, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(chance.randint(1, 3)):
            for path in tmp_path.glob("at_*"):
                path.unlink()
            with running(case, tmp_path, "auto") as programs:
                wait_for(tmp_path, "start-up")
                time.sleep(chance.uniform(0.3, 1.5))
                for each in programs:
                    each.process.kill()
        launch(case, tmp_path, "auto")
        assert same_bits(end_of(case, tmp_path), undisturbed(case))
        assert not list((tmp_path / RUNS[case.run]).rglob("*.partial"))
    return check


@pytest.mark.parametrize("seed, case", list(enumerate(kills(5, seed=5))), ids=str)
def test_all_ranks_killed_again_and_again(seed, case, check_kill_all):
    check_kill_all(case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed, case", list(enumerate(kills(50, seed=6))), ids=str)
def test_many_times_all_ranks_killed(seed, case, check_kill_all):
    check_kill_all(case, 1000 + seed)


def disturb(fault: str, folder: Path, seed: int) -> None:
    """Stops a rank by signal, lets one sleep, or kills the master, at a step by chance."""
    folder = folder / str(seed)
    folder.mkdir()
    chance = random.Random(seed)
    case = Case(*KINDS[(0, 2, 3)[seed % 3]], "memory", 3, 0)
    victim = 0 if fault == "master killed" else chance.randrange(case.world_size)
    step = chance.randint(4, 12)
    asleep = fault == "asleep"
    patience = 6 if asleep else 60  # seconds; the ranks have twice that to join
    with running(case, folder, more=("--timeout", str(patience)), plants={
            victim: partial(plant_sleeper, folder, step)} if asleep else None) as programs:
        wait_for(folder, fault if asleep else "training", 0 if asleep else step)
        if not asleep:
            number = signal.SIGKILL if fault == "master killed" else signal.SIGSTOP
            os.kill(programs[victim].process.pid, number)
        others = [each for rank, each in enumerate(programs) if rank != victim]
        _, seconds = joined(others, patience * asleep + SECONDS + 5)
        end_victim(programs, victim)
        assert seconds < patience * asleep + SECONDS, f"took {seconds:.1f} s"
        expected = "--timeout" if asleep else "" if victim else "store"
        check_survivors(programs, victim, [each.process.exitcode for each in programs], expected)


def plant_sleeper(folder: Path, step: int) -> None:
    """Does as plant_phases, and this rank falls asleep in Python in the given step."""
    from common.run import run

    plant_phases(folder)
    finish_step = run.Run.finish_step

    def fall_asleep(self: run.Run, *arguments) -> None:
        if self.position.step == step:
            (folder / "at_asleep_0").touch()
            time.sleep(1000)
        finish_step(self, *arguments)
    run.Run.finish_step = fall_asleep


@pytest.mark.parametrize("fault", ["SIGSTOP", "asleep", "master killed"])
def test_a_silent_rank_is_named_everywhere(fault, tmp_path):
    """Four runs, two at a time: they mostly wait."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(disturb, fault, tmp_path), range(4)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["SIGSTOP", "asleep", "master killed"])
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_silent_ranks(fault, seed, tmp_path):
    disturb(fault, tmp_path, seed)


def test_a_rank_stopped_before_its_first_word(tmp_path):
    """It has joined and is never heard of again: silence counts all the same."""
    case = Case("all-reduce", 2, "memory", 3, 0)
    with running(case, tmp_path, plants={1: partial(plant_mute, tmp_path)}) as programs:
        wait_for(tmp_path, "mute")
        codes, seconds = joined(programs[:1], SECONDS + 2)
        end_victim(programs, 1)
        line, = error_lines(programs[0].output())
        assert codes == [75] and seconds < SECONDS
        assert "rank 1 (" in line and says(line, "start")


def plant_mute(folder: Path) -> None:
    """Stops this process right after it has joined, before any heartbeat."""
    from common.cluster import board, watch

    plant_phases(folder)
    watch.Watch._post = lambda self, to: None
    post = board.Board.post

    def post_and_stop(self, topic, value) -> None:
        post(self, topic, value)
        if topic == board.JOINED:
            (folder / "at_mute_0").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
    board.Board.post = post_and_stop


class Cable:
    """Forwards TCP between a rank and the master's port, until it is cut: then nothing passes.

    No connection is closed, just as with a pulled network cable.
    """

    def __init__(self, port: int) -> None:
        self.uncut = threading.Event()
        self.uncut.set()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near = self._listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self._target))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        while data := one.recv(65536):
            self.uncut.wait()
            other.sendall(data)


def plant_behind_cable(folder: Path) -> None:
    """This rank's store connections go through a cable, cut when the file `cut` appears.

    The data connections are frozen with it: each step waits for the file to go away again.
    """
    from common.run import run

    plant_phases(folder)
    connect = rendezvous.connect_store
    cables: list[Cable] = []

    def connect_by_cable(world, address):
        from dataclasses import replace
        cables.append(Cable(world.master_port))
        return connect(replace(world, master_port=cables[-1].port), address)
    rendezvous.connect_store = connect_by_cable
    finish_step = run.Run.finish_step

    def cut(self: run.Run, *arguments) -> None:
        finish_step(self, *arguments)
        if self.position.step == 5:
            for cable in cables:
                cable.uncut.clear()
            (folder / "at_cut_0").touch()
            time.sleep(1000)
    run.Run.finish_step = cut


def test_a_cut_network_ends_both_sides(tmp_path):
    case = Case("all-reduce", 3, "memory", 3, 0)
    plants = {2: partial(plant_behind_cable, tmp_path)}
    with running(case, tmp_path, plants=plants) as programs:
        wait_for(tmp_path, "cut")
        codes, seconds = joined(programs, SECONDS + 2)
        assert codes == [75, 75, 75] and seconds < SECONDS
        check_survivors(programs, 2, codes, "")
        line, = error_lines(programs[2].output())
        assert "rank 0 (" in line and re.search(r"\bstore\b.*\b\d+\.\d s\b", line)
