"""SIGTERM, SIGINT, SIGHUP and SIGUSR1 in any phase: out within the grace period, and nothing lost.

Mutations that turn this red: `return self._passed` in Stop.freeze (ranks leave with unsaved work);
leave SIGUSR1 or SIGHUP out of EXIT_CODES, or catch a SIGHUP that nohup ignores; drop `self._done
or` in Stop.is_done (time runs out); drop `_forget_signals` (a signal to a forked worker stops the
run), or the blocking before a fork (a signal to a new worker stops the run); ask for another parent
in _obey_parent (it never ends); 0 for SAME_SIGNAL_SECONDS; "" for CLEARED_LINE; drop protect_output
from run_program. tests/unit/test_signals.py has more.
"""

import contextlib
import fcntl
import multiprocessing
import os
import pty
import random
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from common.cluster import stopping
from common.cluster.ending import advice
from common.cluster.signals import listen_for_signals
from common.cluster.stopping import Stop
from common.core.events import read_events
from common.run import checkpoint_file, checkpoint_folder
from studies.proof.ranks import CONTEXT
from tests.facts import says
from tests.faults.disturbed import joined, running, wait_for
from tests.ranks import error_lines
from tests.runs import FOLDERS, Case, end_of, launch, same_bits
from tests.workload import plant

SIGNALS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 75}
KINDS = [("PartOne", 1), ("gather-scatter", 3), ("all-reduce", 2), ("PartThree", 3)]
PHASES = ("start-up", "training", "evaluation", "saving")


def cases(count: int, seed: int) -> list[tuple]:
    """Every phase with every kind of run and signal in turn; at a step and to ranks by chance."""
    chance = random.Random(seed)
    drawn = []
    for number in range(count):
        run, size = KINDS[(number + number // 4) % 4]
        phase = PHASES[number % 4]
        case = Case(run, size, "memory", chance.randint(2, 5), chance.randint(0, 16))
        told = chance.choice([None, chance.randrange(size)])
        drawn.append((case, phase, list(SIGNALS)[number % 3], told))
    return drawn


def check(case: Case, phase: str, number: signal.Signals, told: int | None, folder,
          undisturbed, tell: Callable[[int, int], None] = os.kill) -> None:
    with running(case, folder) as programs:
        wait_for(folder, phase, case.kill_at if phase == "training" else 0)
        for rank, each in enumerate(programs):
            if told in (None, rank):
                tell(each.process.pid, number)
        codes, seconds = joined(programs, stopping.GRACE_SECONDS)
        assert codes == [SIGNALS[number]] * len(programs), [each.output() for each in programs]
        assert seconds < 10
        for each in programs:
            line, = error_lines(each.output())
            assert says(line, number.name) and (phase != "training" or "epoch" in line), line
            assert not says(line, f"{stopping.GRACE_SECONDS:.0f} s")  # which were long enough
    if phase == "training":
        steps = [len(losses) for losses in steps_of(case, folder)]
        assert len(set(steps)) == 1 and case.kill_at < steps[0]
        saved, *_ = checkpoint_folder.newest(folder / FOLDERS[case.run] / "checkpoints")
        assert checkpoint_file.read(saved)["position"][2] == steps[0]  # all that was trained
    launch(case, folder, "auto")
    assert same_bits(end_of(case, folder), undisturbed(case))


def steps_of(case: Case, folder) -> list[list]:
    return [list(read_events(folder / FOLDERS[case.run] / f"metrics_rank{rank}.jsonl", "step"))
            for rank in range(case.world_size)]


@pytest.mark.parametrize("case, phase, number, told", cases(8, seed=1), ids=str)
def test_a_signal_stops_all_ranks_after_one_step(case, phase, number, told, tmp_path, undisturbed):
    check(case, phase, number, told, tmp_path, undisturbed)


@pytest.mark.parametrize("run", ["local-sgd", "diloco"])
def test_a_signal_between_synchronisation_rounds_loses_nothing(run, tmp_path, undisturbed):
    """Each rank has weights of its own; they average them after 9 steps only."""
    check(Case(run, 3, "memory", 50, 5), "training", signal.SIGTERM, 1, tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("case, phase, number, told", cases(40, seed=2), ids=str)
def test_many_signals(case, phase, number, told, tmp_path, undisturbed):
    check(case, phase, number, told, tmp_path, undisturbed)


@pytest.mark.parametrize("case, number", [
    (Case("PartOne", 1, "workers", 4, 5), signal.SIGUSR1),
    (Case("all-reduce", 2, "workers", 4, 11), signal.SIGTERM)], ids=str)
def test_a_signal_to_every_process_of_the_job(case, number, tmp_path, undisturbed):
    """A scheduler sends it so: the loader's workers must not leave before the step is done."""
    check(case, "training", number, None, tmp_path, undisturbed, tell=os.killpg)


def test_a_signal_while_the_others_are_missing(tmp_path):
    case = Case("all-reduce", 3, "memory", 3, 0)
    with running(case, tmp_path) as programs:
        programs[2].process.kill()
        programs[2].process.join()
        time.sleep(1)
        for each in programs[:2]:
            os.kill(each.process.pid, signal.SIGTERM)
        codes, seconds = joined(programs[:2], 20)
    assert codes == [143, 143] and seconds < 10


def test_a_signal_while_all_wait_in_a_collective(tmp_path, undisturbed):
    """Rank 1 is stopped in mid-step, so rank 0 is blocked inside gloo when its signal comes."""
    case = Case("all-reduce", 2, "memory", 4, 6)
    with running(case, tmp_path) as programs:
        wait_for(tmp_path, "training", 6)
        os.kill(programs[1].process.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(programs[0].process.pid, signal.SIGTERM)
        time.sleep(1)
        os.kill(programs[1].process.pid, signal.SIGCONT)
        codes, _ = joined(programs, 20)
        assert codes == [143, 143], [each.output() for each in programs]
        line, = error_lines(programs[0].output())
        assert says(line, "SIGTERM", "epoch 1")
        assert not says(line, f"{stopping.GRACE_SECONDS:.0f} s")
    launch(case, tmp_path, "auto")
    assert same_bits(end_of(case, tmp_path), undisturbed(case))


@pytest.mark.parametrize("run, size", [("PartOne", 1), ("all-reduce", 2)])
def test_on_a_terminal_the_sentence_takes_the_place_of_the_bar(run, size, tmp_path):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    (tmp_path / "rank0.out").symlink_to(os.ttyname(end))
    shown = bytearray()
    reader = threading.Thread(target=read_all, args=(terminal, shown))
    reader.start()
    with running(Case(run, size, "memory", 4, 6), tmp_path) as programs:
        wait_for(tmp_path, "training", 6)
        os.kill(programs[0].process.pid, signal.SIGTERM)
        codes, _ = joined(programs, 20)
    os.close(end)
    reader.join()
    os.close(terminal)
    assert codes == [143] * size and b"samples/s" in shown  # there was a bar
    line, = (line for line in lines_of(shown.decode()) if "error: " in line)
    assert line.startswith("error: ") and "SIGTERM" in line and "samples/s" not in line


def test_a_run_that_loses_its_terminal_saves_and_leaves(tmp_path, undisturbed):
    """From then on whatever is printed is an error."""
    terminal, end = pty.openpty()
    os.set_blocking(terminal, False)
    (tmp_path / "rank0.out").symlink_to(os.ttyname(end))
    case = Case("PartOne", 1, "memory", 50, 0)
    with running(case, tmp_path) as programs:
        while not (tmp_path / "at_training_6").exists():
            with contextlib.suppress(BlockingIOError):
                os.read(terminal, 65536)
            time.sleep(0.01)
        os.close(end)
        os.close(terminal)
        os.kill(programs[0].process.pid, signal.SIGHUP)  # as the kernel, or a shell, does
        codes, _ = joined(programs, 20)
    assert codes == [143]
    saved, *_ = checkpoint_folder.newest(tmp_path / "PartOne" / "checkpoints")
    assert checkpoint_file.read(saved)["position"][2] == len(steps_of(case, tmp_path)[0]) > 6


def read_all(terminal: int, shown: bytearray) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(terminal, 65536):
            shown += data


def lines_of(shown: str) -> list[str]:
    """The lines that stand on a wide screen in the end."""
    lines = []
    for text in shown.split("\n"):
        line = ""
        for part in text.removesuffix("\r").split("\r"):
            is_cleared = part.startswith("\x1b[K")
            part = part.removeprefix("\x1b[K")
            line = part if is_cleared else part + line[len(part):]
        lines.append(line)
    return lines


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    case = Case("PartOne", 1, "memory", 4, 6)
    with running(case, tmp_path, pause=3.0) as programs:
        wait_for(tmp_path, "training", 0)
        pid = programs[0].process.pid
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        os.kill(pid, signal.SIGINT)  # a launcher passing on what the terminal has sent already
        time.sleep(1)
        assert programs[0].process.is_alive()
        os.kill(pid, signal.SIGTERM)
        codes, seconds = joined(programs, 20)
    assert codes == [143] and seconds < 1
    assert says(error_lines(programs[0].output())[0], "signal")


@pytest.mark.parametrize("run, size", [("PartOne", 1), ("all-reduce", 2)])
def test_when_the_grace_period_is_too_short_the_last_checkpoint_is_named(run, size, tmp_path):
    plants = {rank: partial(plant_sleeper, tmp_path) for rank in range(size)}
    with running(Case(run, size, "memory", 2, 0), tmp_path, plants=plants) as programs:
        wait_for(tmp_path, "asleep")
        os.kill(programs[0].process.pid, signal.SIGTERM)
        codes, seconds = joined(programs, 20)
    assert codes == [143] * size and seconds < 8
    for each in programs:
        line, = error_lines(each.output())
        assert says(line, "SIGTERM", "1 s", "Epoch_1_Iteration_2.pt", "--resume auto")


def plant_sleeper(folder) -> None:
    """The small workload, with a grace period of one second and a third step that takes forever."""
    from common.run import run

    plant()
    stopping.GRACE_SECONDS = 1.0
    finish_step = run.Run.finish_step

    def sleep_in_the_third(self: run.Run, *arguments) -> None:
        if self.position.step == 2:
            time.sleep(1)  # the watch passes on what was saved
            (folder / "at_asleep_0").touch()
            time.sleep(1000)
        finish_step(self, *arguments)
    run.Run.finish_step = sleep_in_the_third


def test_signals_to_a_forked_worker_are_none_to_the_run(tmp_path):
    case = Case("PartOne", 1, "workers", 4, 6)
    with running(case, tmp_path, pause=0.2) as programs:
        wait_for(tmp_path, "training", 3)
        parent = programs[0].process.pid
        children = [int(word) for word in
                    open(f"/proc/{parent}/task/{parent}/children").read().split()]
        assert children
        for child in children:
            for number in SIGNALS:
                os.kill(child, number)
        codes, _ = joined(programs, 30)
    assert codes == [0], programs[0].output()


def start_and_terminate_a_worker() -> None:
    listen_for_signals(Stop())
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    worker.start()
    worker.terminate()
    worker.join(20)
    sys.exit(3 if worker.exitcode is None else 0)


def test_a_worker_obeys_the_process_that_forked_it():
    """Else the end of a failed run would wait for its workers for ever."""
    process = CONTEXT.Process(target=start_and_terminate_a_worker)
    process.start()
    process.join(30)
    assert process.exitcode == 0


def listen_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listen_for_signals(Stop())
    sys.exit(0 if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else 3)


def test_nohup_is_obeyed():
    process = CONTEXT.Process(target=listen_under_nohup)
    process.start()
    process.join(30)
    assert process.exitcode == 0


@pytest.mark.parametrize("arguments, environment, command", [
    (["PartTwo/main.py", "-R", "1", "--resume", "replace"], {},
     "python3 PartTwo/main.py -R 1 --resume auto"),
    (["PartOne/main.py", "--resume=no", "--data-dir", "my data"], {},
     "python3 PartOne/main.py --data-dir 'my data' --resume auto"),
    (["PartOne/main.py", "--resume", "my file.pt:changed"], {},
     "python3 PartOne/main.py --resume 'auto:my file.pt:changed'"),
    (["PartOne/main.py", "--resume=a.pt", "--resume", "auto"], {},
     "python3 PartOne/main.py --resume auto:a.pt"),
    (["PartOne/main.py", "--resume", "auto:changed"], {},
     "python3 PartOne/main.py --resume auto:changed"),
    (["PartTwo/main.py", "-R", "1"],
     {"RUN_COMMAND": "scripts/a.sh 4 --resume=no --resume my\\ file.pt --data-dir my\\ data "},
     "scripts/a.sh 4 --data-dir my\\ data --resume 'auto:my file.pt'"),
])
def test_the_resume_command_is_this_ranks_own(arguments, environment, command):
    told = advice(75, "c/Epoch_1.pt", arguments, environment)
    assert says(told, "c/Epoch_1.pt") and told.endswith(f" {command}")
    assert advice(75, None, arguments, environment) == ""
    assert advice(2, "c/Epoch_1.pt", arguments, environment) == ""


@pytest.mark.parametrize("arguments, environment, facts", [
    (["PartThree/main.py"], {"TORCHELASTIC_RUN_ID": "x"}, ["torchrun", "--resume auto"]),
    (["PartThree/main.py", "--resume", "a.pt"], {"TORCHELASTIC_RUN_ID": "x"},
     ["torchrun", "--resume auto:a.pt"]),
    (["PartTwo/main.py"], {"OMPI_COMM_WORLD_RANK": "1", "SLURM_STEP_ID": "0"},
     ["mpirun", "--resume auto"])])
def test_under_a_launcher_its_command_is_the_one_to_resume_with(arguments, environment, facts):
    told = advice(75, "c/Epoch_1.pt", arguments, environment)
    assert says(told, "c/Epoch_1.pt", *facts) and told.endswith(facts[-1])
