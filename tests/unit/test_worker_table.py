"""The table of a worker sweep says where the time goes, from the metrics alone.

Mutations that turn this red: keep the first steps; sort the names as words; print seconds as
milliseconds; take the most workers for the fewest.
"""

import json

import pytest

from common.core.failures import DataError
from scripts.worker_table import LEFT_OUT, bottleneck, table
from tests.ranks import program, run_programs


def write_run(folder, name: str, data_seconds: float) -> None:
    path = folder / name / "PartOne" / "metrics_rank0.jsonl"
    path.parent.mkdir(parents=True)
    steps = [{"event": "step", "samples": 32, "duration": 9.0 if early else 0.01 + data_seconds,
              "seconds": {"data": data_seconds, "forward": 0.004, "backward": 0.005,
                          "sync": 0.0, "update": 0.001}}
             for early in [True] * LEFT_OUT + [False] * 4]
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))


def test_it_has_milliseconds_and_the_share_of_waiting(tmp_path):
    for name, seconds in (("memory", 0.0), ("10", 0.0001), ("2", 0.01), ("12", 0.0), ("0", 0.03)):
        write_run(tmp_path, name, seconds)
    rows = table(tmp_path)
    assert [row[0] for row in rows] == ["0", "2", "10", "12", "memory"]
    assert rows[0] == ("0", "30.00", "4.00", "5.00", "1.00", "40.00 (40.00–40.00)", "4",
                       "800", "75 %")
    assert "with 10 workers the loop waits for data less than a tenth" in bottleneck(rows)
    assert "even with 2 workers" in bottleneck(rows[:2]) and "50 %" in bottleneck(rows[:2])
    assert bottleneck(rows[4:]) == "no run had workers"


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        table(tmp_path)


@pytest.mark.parametrize("name, code, words", [
    ("2", 0, "| 2 | 30.00 | 4.00 | 5.00 | 1.00 | 40.00 (40.00–40.00) | 4 | 800 | 75 % |"),
    ("", 4, "holds no run")])
def test_the_literal_command(name, code, words, tmp_path):
    if name:
        write_run(tmp_path / "sweep", name, 0.03)
    outcome, = run_programs([program("scripts/worker_table.py", [str(tmp_path / "sweep")],
                                     tmp_path, "table")])
    assert outcome.code == code and words in outcome.output, outcome.output
