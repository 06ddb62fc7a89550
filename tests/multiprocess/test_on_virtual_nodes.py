"""Whole programs on virtual nodes: one digest, threads that must agree, and resume on other ranks.

Mutations that turn this red: the leader's totals alone in State.all_totals; `learned` left out of
the threads' row; ran_on without the `if settings.virtual_nodes` (a resume on other ranks is
refused).
"""

import subprocess
import sys
from functools import partial

import pytest

from common.core.events import read_events
from common.run import checkpoint_file
from tests.facts import says
from tests.ranks import ROOT, cluster, error_lines, program, run_programs
from tests.runs import FOLDERS, Case, launch
from tests.workload import SMALL, plant

NODES = ("--virtual-nodes", "4")


def end_of(folder, run: str) -> tuple:
    """All that must not depend on who computed the run: its last checkpoint, epochs, evaluation."""
    contents = checkpoint_file.read(folder / FOLDERS[run] / "checkpoints" / "Epoch_2.pt")
    log = folder / FOLDERS[run] / "metrics_rank0.jsonl"
    state = contents["optimizer_state_dict"]["state"]
    tensors = [*contents["model_state_dict"].values(),
               *(each["momentum_buffer"] for each in state.values())]
    epochs = [(each["epoch"], each["loss"], each["accuracy"]) for each in read_events(log, "epoch")]
    tests = [(each["test_loss"], each["weights"]) for each in read_events(log, "evaluation")]
    return ([each.numpy().tobytes() for each in tensors], epochs, tests,
            contents["loss"], contents["totals"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The end of Part One on four virtual nodes."""
    folder = tmp_path_factory.mktemp("alone")
    launch(Case("PartOne", 1, "memory", 4, 0), folder, "no", more=NODES)
    return end_of(folder, "PartOne")


@pytest.mark.parametrize("run, ranks, loader", [
    ("all-reduce", 3, "memory"), ("gather-scatter", 2, "workers"), ("PartThree", 4, "memory"),
    ("cross-step-all-reduce", 3, "workers")])
def test_any_part_ends_with_the_bits_of_one_node(run, ranks, loader, tmp_path, alone):
    launch(Case(run, ranks, loader, 4, 0), tmp_path, "no", more=NODES)
    assert end_of(tmp_path, run) == alone


@pytest.mark.parametrize("run, before, after, kill_at", [
    ("reduce-scatter", 3, 2, 7), ("PartThree", 1, 4, 12), ("overlapped-all-reduce", 4, 1, 9)])
def test_a_killed_run_goes_on_on_another_number_of_ranks(run, before, after, kill_at, tmp_path,
                                                         alone):
    case = Case(run, before, "memory", 2, kill_at)
    outcomes = run_programs(cluster(
        FOLDERS[run].split("/")[0], before, flags(case, tmp_path), tmp_path,
        before=dict.fromkeys(range(before), partial(plant, kill_at, rank=before - 1))))
    assert outcomes[before - 1].code == -9
    launch(case, tmp_path, "auto", world_size=after, more=NODES)
    assert end_of(tmp_path, run) == alone
    assert "bit-exact: yes" in (tmp_path / FOLDERS[run] / "logs_rank0.txt").read_text()


def test_a_killed_run_in_lockstep_goes_on_on_another_number_of_ranks(tmp_path):
    more, run = (*NODES, "--batch-norm", "synchronised"), "overlapped-all-reduce"
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    launch(Case("PartOne", 1, "memory", 4, 0), tmp_path / "whole", "no", more=more)
    case = Case(run, 3, "memory", 2, 7)
    launch(case, tmp_path / "resumed", "no", before=partial(plant, 7), more=more, code=-9)
    launch(case, tmp_path / "resumed", "auto", world_size=2, more=more)
    assert end_of(tmp_path / "resumed", run) == end_of(tmp_path / "whole", "PartOne")
    assert says((tmp_path / "resumed" / FOLDERS[run] / "logs_rank0.txt").read_text(),
                "bit-exact: yes")


def flags(case: Case, folder) -> list[str]:
    sync = [] if case.run == "PartThree" else ["--sync", case.run]
    return [*SMALL, "--output-dir", str(folder), "--checkpoint-every", str(case.every), *NODES,
            *sync]


def test_a_rank_with_other_threads_is_refused_at_the_start(tmp_path):
    outcomes = run_programs(cluster("PartTwo", 2, [*SMALL, "--output-dir", str(tmp_path), *NODES,
                                                   "--arithmetic", "native"],
                                    tmp_path, by_rank={1: ["--threads", "2"]},
                                    before=dict.fromkeys(range(2), plant)))
    for outcome in outcomes:
        assert outcome.code == 3
        assert says(error_lines(outcome.output)[0], "threads", 2, 1, "rank 0")


def test_a_run_does_not_go_on_with_other_threads_or_nodes(tmp_path):
    case = Case("PartOne", 1, "memory", 4, 5)
    launch(case, tmp_path, "no", before=partial(plant, 5),
           more=[*NODES, "--arithmetic", "native"], code=-9)
    for change, facts in ((["--threads", "2"], ("threads", 1, 2)),
                          (["--virtual-nodes", "3"], ("virtual_nodes", 4, 3))):
        again = program("PartOne", [*flags(case, tmp_path)[:-2], "--resume", "auto",
                                     "--arithmetic", "native", *change],
                        tmp_path, "again", before=plant)
        outcome, = run_programs([again])
        assert outcome.code == 2 and says(error_lines(outcome.output)[0], *facts)


def test_the_proof_to_the_bit_as_a_command():
    done = subprocess.run(
        [sys.executable, "scripts/prove.py", "--bits", *NODES, "--workload", "spiral-mlp",
         "--batch-size", "30", "--steps", "3", "--sizes", "1,3", "--precisions", "float32",
         "--strategies", "reduce-scatter,ddp"],
        cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    _, *rows = (line.split("|") for line in done.stdout.splitlines()
                if line.startswith(("| 1 |", "| 3 |")))  # the first is the reference
    assert [row[1:3] for row in rows] == [[f" {size} ", f" {name} "] for size in (1, 3)
                                          for name in ("reduce-scatter", "ddp")]
    assert len({row[7] for row in rows}) == 1 and len({row[-2] for row in rows}) == 1
    assert says(done.stdout.splitlines()[-1], 4)


@pytest.mark.parametrize("flags", [["--bits"], ["--virtual-nodes", "4"]])
def test_bits_and_virtual_nodes_go_together(flags):
    done = subprocess.run([sys.executable, "scripts/prove.py", *flags], cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and says(done.stderr, "--bits", "--virtual-nodes")
