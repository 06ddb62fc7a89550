"""Elastic runs go on in place when ranks are lost, to the bit, and take ranks that come.

Mutations that turn this red: `contents["model_state_dict"] |= …` left out of in_memory.py (the
buffers of a broken step); `state.position = done` after the collectives of finish_step (a step
taken twice); `max(places)` turned to `min` (a survivor that is a step behind); totals of this rank
alone in finish_step; `closed` left out of the contents (an epoch's end that nobody comes back to);
no shutdown in Elastic.break_off (a stopped rank hangs all); `has_lost` always false (a rank that
comes back trains from the first weights); no objection to a newcomer.
"""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from common.core.events import read_events
from common.core.failures import RanksDisagree
from common.reporting.recorded_run import find_runs
from common.reporting.run_findings import going_on
from common.run import checkpoint_file
from tests.facts import says
from tests.faults.disturbed import plant_phases, wait_for
from tests.ranks import Program, cluster, error_lines, run_programs, started
from tests.runs import FOLDERS, STATE, Case, launch
from tests.workload import SMALL, plant

RANKS = 4
STEPS = 18


def programs_of(run: str, folder: Path, before, more=()) -> list[Program]:
    part = FOLDERS[run].split("/")[0]
    flags = [*SMALL, "--output-dir", str(folder), "--timeout", "20", *more]
    if part == "PartTwo":
        flags += ["--sync", run]
    by_rank = {rank: ["-N", f"2:{RANKS}"] for rank in range(RANKS)}
    return cluster(part, RANKS, flags, folder, by_rank, before)


def last_state(folder: Path, run: str) -> dict:
    contents = checkpoint_file.read(folder / FOLDERS[run] / "checkpoints" / "Epoch_2.pt")
    tensors = {name: each.tolist() for name, each in contents["model_state_dict"].items()}
    momenta = [each["momentum_buffer"].tolist()
               for each in contents["optimizer_state_dict"]["state"].values()]
    losses = [row["loss"] for row in find_runs([folder])[0].merged]
    return {"weights": tensors, "momenta": momenta, "losses": losses,
            **{name: contents[name] for name in STATE}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    """The end of Part One with as many virtual nodes, of which nobody is lost."""
    folder = tmp_path_factory.mktemp("undisturbed")
    launch(Case("PartOne", 1, "memory", 0, 0), folder, "no",
           more=["--virtual-nodes", str(RANKS), "--validation", "0.1"])
    return last_state(folder, "PartOne")


def changes(folder: Path, run: str, rank: int) -> list[tuple]:
    log = folder / FOLDERS[run] / f"metrics_rank{rank}.jsonl"
    return [(event["lost"], event["came"]) for event in read_events(log, "regrouped")]


@pytest.mark.parametrize(("run", "victim", "kill_at"), [
    ("gather-scatter", 0, 5), ("all-reduce", 2, 1), ("overlapped-all-reduce", 1, 9),
    ("PartThree", 3, 9), ("PartThree", 0, 12)])
def test_a_rank_is_killed_and_nothing_changes(run, victim, kill_at, undisturbed, tmp_path):
    before = {rank: partial(plant, kill_at, victim) for rank in range(RANKS)}
    outcomes = run_programs(programs_of(run, tmp_path, before, ["--validation", "0.1"]))
    assert [each.code for each in outcomes] == [
        -signal.SIGKILL if rank == victim else 0 for rank in range(RANKS)], outcomes
    assert last_state(tmp_path, run) == undisturbed
    survivor = (victim + 1) % RANKS
    assert changes(tmp_path, run, survivor) == [([victim], [])]
    recorded, = find_runs([tmp_path])
    assert [event["lost"] for _, event in recorded.changes] == [[victim]]
    assert says(going_on(recorded), "1 time", f"rank {victim} lost")


@pytest.mark.parametrize(("phase", "number", "victim"), [
    ("evaluation", 0, 0), ("evaluation", 0, 2), ("saving", 0, 0), ("training", 3, 1)])
def test_a_rank_that_is_killed_in_any_phase_comes_back(phase, number, victim, undisturbed,
                                                       tmp_path):
    before = {rank: partial(plant_phases, tmp_path, 0.2) for rank in range(RANKS)}
    programs = programs_of("all-reduce", tmp_path, before, ["--validation", "0.1"])
    again = programs_of("all-reduce", tmp_path, before, ["--validation", "0.1"])[victim]
    again.process._args = (again.process._args[0], programs[victim].process._args[1],
                           str(tmp_path / "again.out"), *again.process._args[3:])
    codes, text = killed_and_started_again(programs, victim, again, tmp_path, phase, number)
    assert codes == [-signal.SIGKILL if rank == victim else 0 for rank in range(RANKS)] + [0], text
    assert last_state(tmp_path, "all-reduce") == undisturbed


def killed_and_started_again(programs: list[Program], victim: int, again: Program, folder: Path,
                             phase: str, number: int) -> tuple[list[int | None], str]:
    """The exit codes of all programs, of `again` last; and what that has printed."""
    with started([each.process for each in programs]):
        wait_for(folder, phase, number)
        os.kill(programs[victim].process.pid, signal.SIGKILL)
        programs[victim].process.join()
        if phase == "saving":  # another rank's record tells where the group is
            (folder / "PartTwo" / f".group_rank{victim}.json").unlink()
        with started([again.process]):
            pass
    again.process.join()
    return ([each.process.exitcode for each in [*programs, again]],
            (folder / "again.out").read_text())


def plant_closed_ports() -> None:
    """The small workload, on a rank that reaches the others' doors, and with which nobody connects.
    """
    from common.cluster import process_group

    plant(None)

    def refuse(*_, **__) -> None:
        raise RuntimeError("the ports are closed")
    process_group.dist.init_process_group = refuse
    process_group._count_groups_anew = lambda: None


def test_who_comes_and_cannot_train_is_told_so_and_the_others_go_on(undisturbed, tmp_path):
    before = {rank: partial(plant_phases, tmp_path, 0.7) for rank in range(RANKS)}
    more = ["--validation", "0.1"]
    programs = programs_of("all-reduce", tmp_path, before, more)
    again = programs_of("all-reduce", tmp_path, {3: plant_closed_ports}, more)[3]
    again.process._args = (*again.process._args[:2], str(tmp_path / "again.out"),
                           *again.process._args[3:])
    codes, text = killed_and_started_again(programs, 3, again, tmp_path, "training", 2)
    assert codes == [0, 0, 0, -signal.SIGKILL, RanksDisagree.exit_code], text
    assert says(error_lines(text)[0], "ports")
    assert last_state(tmp_path, "all-reduce") == undisturbed


def test_the_others_of_a_stopped_rank_go_on_and_it_joins_when_it_wakes(undisturbed, tmp_path):
    before = {rank: partial(plant_phases, tmp_path, 1.0) for rank in range(RANKS)}
    programs = programs_of("overlapped-all-reduce", tmp_path, before, ["--validation", "0.1"])
    with started([each.process for each in programs]):
        wait_for(tmp_path, "training", 2)
        os.kill(programs[2].process.pid, signal.SIGSTOP)
        wait_for(tmp_path, "training", 5)
        os.kill(programs[2].process.pid, signal.SIGCONT)
    outcomes = [each.outcome() for each in programs]
    assert [each.code for each in outcomes] == [0] * RANKS, outcomes
    assert last_state(tmp_path, "overlapped-all-reduce") == undisturbed
    assert changes(tmp_path, "overlapped-all-reduce", 0) == [([2], []), ([], [2])]


def plant_end_while_forming() -> None:
    """The small workload, on a rank that ends while the second group's connections are made."""
    from common.cluster import process_group
    from common.cluster.elastic import elastic

    plant(None)
    plain = process_group._connecting

    def connecting(timeout):
        if elastic().group.generation:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(timeout)
    process_group._connecting = connecting


def test_a_rank_is_killed_while_the_next_group_forms(undisturbed, tmp_path):
    before = {0: partial(plant, 5, 1), 1: partial(plant, 5, 1), 2: plant_end_while_forming,
              3: partial(plant, 5, 1)}
    outcomes = run_programs(programs_of("all-reduce", tmp_path, before, ["--validation", "0.1"]))
    assert [each.code for each in outcomes] == [0, -signal.SIGKILL, -signal.SIGKILL, 0], outcomes
    assert last_state(tmp_path, "all-reduce") == undisturbed
    lost = sorted(rank for each, _ in changes(tmp_path, "all-reduce", 0) for rank in each)
    assert lost == [1, 2]


def test_too_few_are_left(tmp_path):
    before = {rank: partial(plant, 3, rank) if rank else partial(plant, None)
              for rank in range(RANKS)}
    outcomes = run_programs(programs_of("all-reduce", tmp_path, before))
    assert outcomes[0].code == 75
    assert says(error_lines(outcomes[0].output)[0], "rank 0", "at least 2")


@pytest.mark.parametrize(("flags", "fact"), [
    (["--sync", "all-reduce,gather-scatter"], "--sync"),
    (["--sync", "cross-step-all-reduce"], "cross-step-all-reduce"),
    (["--sync", "all-reduce", "--precision", "fp16"], "fp16"),
    (["--sync", "all-reduce", "--num-nodes", "5:4"], "5:4"),
    (["--sync", "all-reduce", "--virtual-nodes", "3"], "--virtual-nodes")])
def test_what_cannot_go_on_is_refused_at_the_start(flags, fact, tmp_path):
    only, = run_programs(cluster("PartTwo", 1, [
        *SMALL, "-N", "2:4", *flags, "--output-dir", str(tmp_path)], tmp_path,
        before={0: plant}))
    assert only.code == 2 and says(error_lines(only.output)[0], fact)
