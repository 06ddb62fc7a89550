"""scripts/gpu_check.sh runs every row of its table, whatever becomes of one of them.

Mutations that turn this red: raise where a command fails; wait without a limit; leave out the
deadline; count skipped tests as passed; kill the row's first process alone; run rows that need what
is not here; misspell a flag in any row's command.
"""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_check import check
from benchmarks.gpu_checks.report import write
from benchmarks.gpu_checks.rows import GpuCheck, GpuMachine, rows
from benchmarks.gpu_checks.running import GpuResult
from common.options.command_line import parse_command_line
from scripts import prove
from tests.ranks import ROOT


def python(name: str, code: str, seconds: float = 60) -> GpuCheck:
    return GpuCheck(name, (sys.executable, "-c", code), seconds)


TABLE = [python("fails", "print('this went wrong'); raise SystemExit(3)"),
         GpuCheck("is no program", ("no-such-program",), 60),
         python("hangs", "import subprocess, sys; print('on the way', flush=True);"
                "subprocess.run(['sleep', '7654'])", 1),
         replace(python("cannot be", "raise SystemExit(4)"), lacking="no GPU"),
         python("works", "print('well')"),
         python("skips", "print('SKIPPED [14] test_x.py: no GPU\\n14 skipped in 0.05s')"),
         python("skips some", "print('13 passed, 1 skipped in 9.05s')")]


def test_a_failure_and_a_time_out_are_written_down_and_the_rest_runs(tmp_path):
    outcomes = check(TABLE, minutes=10)
    assert [each.how for each in outcomes] == [
        "failed (3)", "failed (No such file or directory)", "stopped after 1 s", "not here",
        "passed", "all skipped", "passed"]
    assert [each.last for each in outcomes] == [
        "this went wrong", "", "on the way", "no GPU", "well", "14 skipped in 0.05s",
        "13 passed, 1 skipped in 9.05s"]
    assert [each.is_fault for each in outcomes] == [True, True, True, False, False, True, False]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")
                if path.exists()]
    assert b"sleep\x007654\x00" not in commands
    text = write(outcomes, tmp_path / "gpu_x", {"gpus": "none"})
    assert "| fails | failed (3) | this went wrong |" in text
    assert len(json.loads((tmp_path / "gpu_x.json").read_text())["steps"]) == len(TABLE)


def test_the_fastest_of_each_precision_are_compared(tmp_path):
    speeds = {"course-float32": 9000, "project-float32": 200, "project_compiled-float32": 300,
              "lightning-float32": 250, "resident_compiled-float32": 400, "project-bf16": 500,
              "lightning-tf32": 800}
    found = {name: {"images_per_second": speed, "settings": "eager"}
             for name, speed in speeds.items()}
    found["lightning-bf16"] = {"failed": "no memory"}
    text = write([GpuResult(replace(TABLE[-1], name="speed"), "passed", 1, "", found)],
                 tmp_path / "gpu_x", {})
    assert "| float32 | 1.20 | 0.75 |" in text
    assert "| tf32 |  |  |" in text and "| bf16 |  |  |" in text


def test_no_row_begins_past_the_deadline():
    begun = time.monotonic()
    outcomes = check([python("sleeps", "import time; time.sleep(60)", 6000), *TABLE[-1:]], 0.01)
    assert [each.how for each in outcomes] == ["stopped after 1 s", "no time left"]
    assert time.monotonic() - begun < 30


def test_pretended_every_row_runs_to_its_end():
    done = subprocess.run([ROOT / "scripts/gpu_check.sh", "--pretend"], capture_output=True,
                          text=True)
    path = Path(re.search(r"^written to (\S+\.json)", done.stderr, re.MULTILINE)[1])
    steps = json.loads(path.read_text())["steps"]
    assert ROOT not in path.parents
    assert [step["name"] for step in steps] == [
        row.name for row in rows(GpuMachine(0, Path(), is_pretended=True))]
    assert done.returncode == 0 and {step["how"] for step in steps} <= {"passed", "not here"}, (
        done.stdout)
    assert sum(step["how"] == "not here" for step in steps) <= 4  # tests, NCCL twice, Lightning
    turns = {name: turn for step in steps if step["name"].startswith("speed")
             for name, turn in step["found"].items()}
    assert {"course-float32", "project_graphed-float32", "resident_nchw-float32"} <= turns.keys()
    assert any("test_accuracy" in run for step in steps for run in step["found"].values())


def test_the_flags_of_a_gpus_rows_are_the_programs(tmp_path):
    """Pretended rows have other flags, so a run on a CPU does not try these."""
    parsed = []
    for row in rows(GpuMachine(2, tmp_path)):
        words = [word.replace("{folder}", str(tmp_path)) for word in row.command]
        for number, word in enumerate(words):
            part, rest = word.removesuffix("/main.py"), words[number + 1:]
            if part in ("PartOne", "PartTwo", "PartThree"):
                world = ["--master-ip", "10.0.0.1", "--num-nodes", "2", "--rank", "0"]
                parse_command_line(part, rest + world * (part != "PartOne"))
                parsed.append(row.name)
            if word == "benchmarks/gpu_checks/resume.py":
                parse_command_line("PartOne", words[number + 2:])
                parsed.append(row.name)
            if word == "scripts/prove.py":
                prove.parse(rest)
                parsed.append(row.name)
    assert len(parsed) == 9, parsed
