"""A run is a file: its settings.json starts it again, on another number of ranks too.

Mutations that turn this red: leave seed or virtual_nodes out of settings.json; write settings.json
before a changed run to resume is refused.
"""

import json
from pathlib import Path

from tests.ranks import cluster, program, run_programs
from tests.workload import SMALL, plant


def train(part: str, ranks: int, folder: Path, *flags: str, code: int = 0) -> Path:
    """Runs `part` on `ranks` ranks, which must all end with `code`; its output folder."""
    given = [*flags, "--output-dir", str(folder / "out")]
    folder.mkdir(exist_ok=True)
    programs = ([program(part, given, folder, "rank0", before=plant)] if part == "PartOne" else
                cluster(part, ranks, given, folder, before=dict.fromkeys(range(ranks), plant)))
    outcomes = run_programs(programs)
    assert [outcome.code for outcome in outcomes] == [code] * ranks, outcomes
    return folder / "out"


def digest(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["weights"]


def test_a_run_repeated_from_its_file_has_the_same_digest_on_other_ranks(tmp_path):
    out = train("PartOne", 1, tmp_path / "one", *SMALL, "--virtual-nodes", "4", "--seed", "7",
                "--learning-rate", "0.02", "--max-iterations", "6")
    told = out / "PartOne/settings.json"
    before = told.read_bytes()
    again = train("PartTwo", 2, tmp_path / "two", "--settings", str(told), "--sync", "all-reduce")
    assert digest(again / "PartTwo/all-reduce") == digest(out / "PartOne")
    train("PartOne", 1, tmp_path / "one", "--settings", str(told), "--seed", "8",
          "--resume", "auto", code=2)
    assert told.read_bytes() == before
