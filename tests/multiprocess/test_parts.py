"""The literal mains end to end: what they leave behind, what they refuse, what they say.

Mutations that turn this red: write NaN into the summary; count the first iteration; check only the
first of Part Two's folders; let Part One ignore a launcher; delete the whole folder on replace;
leave the clock out of finish_step.
"""

import json
import math
import re
import subprocess
import sys

import pytest

from common.core.events import read_events
from tests.facts import says
from tests.ranks import ROOT, cluster, error_lines, program, run_programs
from tests.workload import SMALL, plant

PARTS = {"PartOne": ["PartOne"], "PartTwo": ["PartTwo/gather-scatter", "PartTwo/all-reduce"],
         "PartThree": ["PartThree"]}


def launch(part: str, folder, *flags: str, ranks: int = 2, environment=None):
    flags = [*SMALL, "--output-dir", str(folder / "out"), *flags]
    programs = ([program(part, flags, folder, "rank0", environment, before=plant)]
                if part == "PartOne" else
                cluster(part, ranks, flags, folder, before=dict.fromkeys(range(ranks), plant)))
    return run_programs(programs)


def finite(value) -> bool:
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16", "float64"])
@pytest.mark.parametrize("part", PARTS)
def test_a_run_leaves_what_the_readme_says(part, precision, tmp_path):
    outcomes = launch(part, tmp_path, "--precision", precision)
    assert {outcome.code for outcome in outcomes} == {0}, outcomes
    for name in PARTS[part]:
        folder = tmp_path / "out" / name
        summary = json.loads((folder / "summary.json").read_text())
        assert finite(summary) and summary["iterations"] == 18 and summary["test_samples"] == 31
        assert summary["world_size"] == len(outcomes) and summary["parameters"] == 825
        assert summary["precision"] == precision
        sent = 825 * (8 if precision == "float64" else 4)  # either way 2 ranks send it once
        sent += 10 * (part == "PartTwo")  # a byte of each tensor: whether it has a gradient
        assert summary["bytes_per_iteration"] == (sent if len(outcomes) == 2 else 0)
        assert 0 < summary["mean_iteration_seconds"] < 10
        report = json.loads((folder / "report.json").read_text())
        assert report["test_accuracy"] == summary["test_accuracy"]
        assert json.loads((folder / "settings.json").read_text())["precision"] == precision
        names = {path.name for path in folder.iterdir()}
        assert names == {"summary.json", "report.json", "report.txt", "settings.json",
                         "checkpoints", *(f"{kind}{rank}{suffix}" for rank in range(len(outcomes))
                                          for kind, suffix in ((".lock_rank", ""),
                                                               ("logs_rank", ".txt"),
                                                               ("metrics_rank", ".jsonl")))}
    assert "10 = " + " + ".join([str(10 // len(outcomes))] * len(outcomes)) in outcomes[0].output
    assert all("[rank 1 " in line for line in outcomes[-1].output.splitlines()
               if "Batch Idx" in line) or part == "PartOne"


@pytest.mark.parametrize("part", PARTS)
def test_all_ranks_save_together_when_the_last_checkpoint_is_old(part, tmp_path):
    outcomes = launch(part, tmp_path, "--checkpoint-every", "1e-6min", ranks=3)
    assert {outcome.code for outcome in outcomes} == {0}, outcomes
    for name in PARTS[part]:
        for rank in range(len(outcomes)):
            saved = read_events(tmp_path / "out" / name / f"metrics_rank{rank}.jsonl", "checkpoint")
            assert [event["file"] for event in saved] == [
                "Epoch_1.pt", "Epoch_2_Iteration_1.pt", "Epoch_2.pt"]


def test_part_two_compares_its_tasks(tmp_path):
    outcomes = launch("PartTwo", tmp_path, "--precision", "float64", "--batch-norm",
                      "synchronised")
    for rank, outcome in enumerate(outcomes):
        assert any(says(line, "gather-scatter", "all-reduce", f"rank {rank}")
                   for line in outcome.output.splitlines()) and "FAULT" not in outcome.output
        assert re.search(rf"\brank {rank}\b.*\bloss(es)?\b", outcome.output)


def test_the_comparison_of_real_runs(tmp_path):
    for part in PARTS:
        launch(part, tmp_path)
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, str(ROOT / "scripts/compare.py"), out],
                          capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    names = [name for part in PARTS.values() for name in part]
    assert "batch statistics" in " ".join(lines)
    rows = lines[next(at for at, line in enumerate(lines) if line.startswith("run ")) + 1:][:4]
    assert [line.split()[0] for line in rows] == names, done.stderr
    assert all(" 17 " in line for line in rows)
    assert lines[-1].endswith(f"{out}/comparison.html") and (out / "comparison.html").exists()
    text = (out / "comparison.md").read_text()
    assert " 825" not in text and "![" in text and "confusion.svg" in text
    assert text.count("python3 ") == len(PARTS)  # to resume each part


def test_a_finished_run_can_be_resumed_and_compared(tmp_path):
    for _ in range(2):
        outcomes = launch("PartTwo", tmp_path, "--resume", "auto")
        assert {outcome.code for outcome in outcomes} == {0}, outcomes
    more = launch("PartTwo", tmp_path, "--resume", "auto", ranks=3)
    assert {outcome.code for outcome in more} == {0}, more


def test_part_two_looks_at_all_its_folders_before_it_trains(tmp_path):
    launch("PartTwo", tmp_path, "--sync", "all-reduce")
    outcomes = launch("PartTwo", tmp_path)
    assert {outcome.code for outcome in outcomes} == {2}, outcomes
    assert says(error_lines(outcomes[0].output)[0], "all-reduce", "--resume auto")
    assert "Batch Idx" not in outcomes[0].output


def test_replace_deletes_a_runs_files_and_nothing_else(tmp_path):
    launch("PartOne", tmp_path)
    mine = tmp_path / "out" / "PartOne" / "main.py"
    mine.write_text("not a run's file")
    old = (tmp_path / "out" / "PartOne" / "metrics_rank0.jsonl").read_text()
    outcome, = launch("PartOne", tmp_path, "--resume", "replace", "--epochs", "1")
    assert outcome.code == 0 and mine.exists()
    assert len((tmp_path / "out" / "PartOne" / "metrics_rank0.jsonl").read_text()) < len(old)
    names = {path.name for path in (tmp_path / "out" / "PartOne" / "checkpoints").iterdir()}
    assert names == {"Epoch_1.pt"}


def test_a_launcher_that_starts_several_part_ones_is_told(tmp_path):
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    outcome, = launch("PartOne", tmp_path, environment=environment)
    assert outcome.code == 2 and says(error_lines(outcome.output)[0], "torchrun", 2)


def test_debug_adds_the_traceback_and_keeps_the_exit_code(tmp_path):
    outcome, = launch("PartOne", tmp_path, "--resume", str(tmp_path / "none.pt"), "--debug")
    assert outcome.code == 4 and "Traceback" in outcome.output
    assert re.search("error: .*/none.pt", outcome.output)


@pytest.mark.parametrize("arguments, fact", [
    (["PartTwo", "node-0", "4", "9", "--epochs", "1"], "rank 9"),
    (["PartTwo", "--epochs", "1"], "MASTER_IP"),
])
def test_the_per_node_script(arguments, fact, monkeypatch):
    for name in ("MASTER_IP", "NUM_NODES", "RANK"):
        monkeypatch.delenv(name, raising=False)
    ended = subprocess.run([str(ROOT / "scripts/run_node.sh"), *arguments], capture_output=True,
                           text=True, timeout=120)
    assert ended.returncode == 2 and says(ended.stderr, fact)
