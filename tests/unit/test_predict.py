"""scripts/predict.py end to end, on planted cells; what it refuses.

Mutations that turn this red: calibrate on the cells to be predicted; take a box's latency for a
measured one; pass over --shared-processors, or take it for granted; a bar for one cell; import
numpy in studies/prediction/fitting.py.
"""

import json
import re
import subprocess
import sys

import pytest

from studies.prediction.model import STRATEGIES
from studies.prediction.sources import BOX_LATENCY, read_source
from studies.prediction.tables import NO_BAR
from tests.clone import bare_python, fresh_clone
from tests.facts import says
from tests.grid import CELLS, PLANTED, cell, grid
from tests.ranks import ROOT


def predict(*flags) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "scripts/predict.py", *map(str, flags)], cwd=ROOT,
                          capture_output=True, text=True, timeout=100)


def line_with(text: str, *facts: object) -> str:
    """The first line that says `facts`; "" if none does."""
    return next((line for line in text.splitlines() if says(line, *facts)), "")


def write_grid(folder):
    path = folder / "grid.json"
    path.write_text(json.dumps(grid()))
    return path


def test_cells_that_it_has_not_seen_and_which_strategy_here(tmp_path):
    done = predict(write_grid(tmp_path), "--calibrate-on", "2:none", "2:100mbit", "4:1gbit",
                   "4:none", "--nodes", 4, 8, "--rate", "300mbit")
    assert done.returncode == 0, done.stderr
    unseen = len(CELLS) - 4
    errors = line_with(done.stdout, unseen * (1 + len(STRATEGIES)), "%")
    assert float(re.search(r"([\d.]+) %", errors)[1]) < 1
    assert line_with(done.stdout, "|", "8 nodes", "300mbit") and "±" in done.stdout
    assert line_with(done.stdout, "4 nodes", "300mbit", "overlapped-all-reduce, bf16 wire")
    assert line_with(done.stdout, "|", "overlapped-all-reduce, bf16 wire", "images/s")


def test_nodes_have_processors_of_their_own_unless_told_otherwise(tmp_path):
    path = write_grid(tmp_path)
    said = [predict(path, "--nodes", 8, "--rate", "none", *flags).stdout
            for flags in ((), ("--shared-processors",))]
    own, shared = ([float(line.split("|")[2].split("±")[0]) for line in each.splitlines()
                    if line.startswith("| compute only")][0] for each in said)
    assert shared == pytest.approx(4 * own, rel=0.01)  # 8 ranks on 2 cores
    assert line_with(said[0], "nodes", 1, "2 cores", "--shared-processors")
    assert line_with(said[1], "1 machine", "2 cores") and "--shared-processors" not in said[1]


def test_one_cell_has_no_error_bar(tmp_path):
    cells = grid()
    cells["cells"] = [cell(4, "none")]
    (tmp_path / "one.json").write_text(json.dumps(cells))
    done = predict(tmp_path / "one.json", "--nodes", 4, "--rate", "1gbit")
    assert done.returncode == 0 and "±" not in done.stdout
    assert line_with(done.stdout, NO_BAR, 3, 1)
    assert line_with(done.stdout, "4 nodes", "1gbit", NO_BAR)


def test_of_more_nodes_than_were_measured_it_predicts_steps_without_a_bar(tmp_path):
    said = predict(write_grid(tmp_path), "--nodes", 4, 8, "--rate", "1gbit").stdout
    of_four, of_eight = (next(line for line in said.splitlines() if says(line, nodes, "1gbit")
                              and "|" not in line) for nodes in ("4 nodes", "8 nodes"))
    assert [len(re.findall(r"\d\.\d{3}", line)) for line in (of_four, of_eight)] == [3, 1]
    assert says(of_eight, 2, 4) and says(said.splitlines()[-1], 4)  # nodes were measured


def test_a_python_without_any_package_predicts(tmp_path):
    """Nothing is installed yet: a clone without .venv."""
    clone, bare = fresh_clone(tmp_path / "clone"), bare_python(tmp_path / "python")
    command = ["scripts/predict.py", str(write_grid(tmp_path)), "--nodes", "4", "--rate", "1gbit"]
    done, same = (subprocess.run([python, *command], cwd=folder, capture_output=True, text=True,
                                 timeout=100, env={"PATH": "/usr/bin:/bin"})
                  for python, folder in ((bare, clone), (sys.executable, ROOT)))
    assert done.returncode == 0 and line_with(done.stdout, "4 nodes", "1gbit"), done.stderr
    assert done.stdout == same.stdout


@pytest.mark.parametrize("flags, code, facts", [
    (["no_such_file"], 4, ["no_such_file"]),
    (["README.md"], 4, ["README.md", "benchmarks/sync.py"]),
    (["docs"], 4, ["docs", "scripts/choose_strategy.py"]),
    (["GRID", "--rate", "quick"], 2, ["quick", "300mbit"]),
    (["GRID", "--calibrate-on", "9:none"], 2, ["9:none", "2:100mbit"]),
    (["GRID", "--nodes", "0"], 2, ["--nodes", 0, 1]),
])
def test_what_cannot_be_meant_is_one_sentence(tmp_path, flags, code, facts):
    done = predict(*(write_grid(tmp_path) if flag == "GRID" else flag for flag in flags))
    assert done.returncode == code
    error, = done.stderr.splitlines()
    assert error.startswith("error: ") and says(error, *facts) and not done.stdout


def test_the_latency_of_a_box_is_taken_where_none_was_measured(tmp_path):
    path = write_grid(tmp_path)
    source = read_source(path)
    assert source.latency == BOX_LATENCY and source.machine == PLANTED.machine
    measured = grid()
    measured["made_on"]["latency"] = 1e-4
    path.write_text(json.dumps(measured))
    assert read_source(path).latency == 1e-4
