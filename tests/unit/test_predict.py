"""scripts/predict.py end to end, on planted cells and planted runs; what it refuses.

Mutations that turn this red: calibrate on the cells to be predicted; take the links' round trip for
their latency; data loading no part of computing; count the averaging as computing; hosts for
machines; pass over --shared-processors, or take it for granted; a workload of another model; a bar
for one cell; import numpy in studies/prediction/fitting.py.
"""

import json
import re
import subprocess
import sys

import pytest

from common.core.failures import DataError, UsageError
from studies.prediction import sources
from studies.prediction.fitting import calibrate
from studies.prediction.grid import COMPUTE_ONLY
from studies.prediction.model import STRATEGIES
from studies.prediction.sources import BOX_LATENCY, read_source
from studies.prediction.tables import NO_BAR
from tests.clone import bare_python, fresh_clone
from tests.facts import says
from tests.grid import CELLS, PLANTED, cell, grid
from tests.ranks import ROOT
from tests.recorded import GRADIENT, write_course, write_run

RATE = 25e6  # bytes a second


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


def write_preflight(folder, machines=4, rate=RATE):
    path = folder / "preflight.json"
    link = {"bandwidth": rate, "round_trip": 2e-4, "clock_ahead": 0.0, "error": ""}
    none = dict.fromkeys(("bandwidth", "round_trip", "clock_ahead"))
    path.write_text(json.dumps({
        "links": [[none if a == b else link for b in range(4)] for a in range(4)],
        "ranks": [{"machine": f"m{rank % machines}"} for rank in range(4)]}))
    return path


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Planted tensors for VGG-11's."""
    monkeypatch.setattr(sources, "PROFILE", write_grid(tmp_path))


def test_cells_that_it_has_not_seen_and_which_strategy_here(tmp_path):
    path, picture = write_grid(tmp_path), tmp_path / "seen.svg"
    done = predict(path, "--calibrate-on", "2:none", "2:100mbit", "4:1gbit", "4:none", "--nodes",
                   4, 8, "--rate", "300mbit", "--figure", picture)
    assert done.returncode == 0, done.stderr
    unseen = len(CELLS) - 4
    errors = line_with(done.stdout, unseen * (1 + len(STRATEGIES)), "%")
    assert float(re.search(r"([\d.]+) %", errors)[1]) < 1
    assert line_with(done.stdout, "|", "8 nodes", "300mbit") and "±" in done.stdout
    assert line_with(done.stdout, "4 nodes", "300mbit", "overlapped-all-reduce, bf16 wire")
    assert line_with(done.stdout, "|", "overlapped-all-reduce, bf16 wire", "images/s")
    assert says(picture.read_text(), "15 %")


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


def test_the_simulation_draws_its_figure(tmp_path):
    picture = tmp_path / "scaling.svg"
    done = predict(write_grid(tmp_path), "--simulate", picture, "--levels", "4:10gbit", "8:1gbit",
                   "--nodes", 2)
    assert done.returncode == 0, done.stderr
    assert says(picture.read_text(), "32 ranks") and says(done.stdout, picture)


def test_a_python_without_any_package_predicts(tmp_path):
    """Nothing is installed yet: a clone without .venv."""
    clone, bare = fresh_clone(tmp_path / "clone"), bare_python(tmp_path / "python")
    command = ["scripts/predict.py", str(write_grid(tmp_path)), "--nodes", "4", "--rate", "1gbit"]
    done, same = (subprocess.run([python, *command], cwd=folder, capture_output=True, text=True,
                                 timeout=100, env={"PATH": "/usr/bin:/bin"})
                  for python, folder in ((bare, clone), (sys.executable, ROOT)))
    assert done.returncode == 0 and line_with(done.stdout, "4 nodes", "1gbit"), done.stderr
    assert done.stdout == same.stdout
    done = subprocess.run([bare, *command, "--simulate", "x.svg"], cwd=clone, capture_output=True,
                          text=True, timeout=100)
    assert done.returncode == 2 and says(done.stderr, "matplotlib")


def test_runs_and_their_preflight_become_cells(tmp_path, profile):
    course = write_course(tmp_path / "outputs")
    source = read_source([course], write_preflight(tmp_path))
    only, = source.cells
    assert (only["nodes"], only["rate"], source.batch) == (4, RATE, 100)
    assert source.machine.machines == 4 and source.machine.cores == 2
    assert source.latency == pytest.approx(1e-4)
    assert only["variants"][COMPUTE_ONLY]["steps"] == pytest.approx([1.0] * 3)
    assert only["variants"]["gather-scatter"]["steps"] == pytest.approx([1.9] * 3)
    assert only["variants"]["Part Three"]["steps"] == pytest.approx([0.95] * 3)
    assert sum(only["gradient_bytes"]) == pytest.approx(GRADIENT)
    model = calibrate(source.cells, source.machine, source.batch, source.latency)
    assert model.predict("gather-scatter", 4, RATE).seconds == pytest.approx(1.9)
    assert model.predict("gather-scatter", 4, RATE / 10).seconds > 1.9 + 2


def test_a_preflight_beside_the_runs_is_found(tmp_path, profile):
    course = write_course(tmp_path / "outputs")
    write_preflight(course, machines=1)
    assert read_source([course], None).machine.machines == 1


@pytest.mark.parametrize("write, error, fact", [
    (lambda folder: None, DataError, "outputs"),
    (lambda folder: write_course(folder / "course"), UsageError, "--preflight FILE"),
    (lambda folder: (write_preflight(folder), write_run(folder / "one")), DataError, "ranks"),
    (lambda folder: (write_preflight(folder),
                     write_run(folder / "PartThree", 4, root_sends=1.5)),
     DataError, "--sync all-reduce"),
    (lambda folder: (write_preflight(folder), write_run(folder / "mlp", 4, workload="mnist-mlp")),
     UsageError, "scripts/choose_strategy.py"),
    (lambda folder: ((folder / "preflight.json").write_text("{}"), write_course(folder / "c")),
     DataError, "preflight.json"),
])
def test_runs_that_say_too_little(tmp_path, write, error, fact):
    folder = tmp_path / "outputs"
    folder.mkdir()
    write(folder)
    preflight = write_preflight(tmp_path) if fact == "outputs" else None
    with pytest.raises(error) as raised:
        read_source([folder], preflight)
    assert says(raised.value, fact)


@pytest.mark.parametrize("flags, code, facts", [
    (["no_such_file"], 4, ["no_such_file"]),
    (["README.md"], 4, ["README.md", "benchmarks/sync.py"]),
    (["GRID", "--rate", "quick"], 2, ["quick", "300mbit"]),
    (["GRID", "--calibrate-on", "9:none"], 2, ["9:none", "2:100mbit"]),
    (["GRID", "--nodes", "0"], 2, ["--nodes", 0, 1]),
    (["GRID", "--levels", "3:1gbit"], 2, ["3:1gbit", "SIZE:RATE"]),
    (["GRID", "--levels", "32768:1gbit"], 2, ["--levels", 32768, 4, 16384]),
    (["GRID", "--figure", "x.svg"], 2, ["--figure", "--calibrate-on"]),
    (["GRID", "--levels", "4:1gbit", "--simulate", "/no/such/folder.svg"], 2,
     ["/no/such/folder.svg"]),
])
def test_what_cannot_be_meant_is_one_sentence(tmp_path, flags, code, facts):
    done = predict(*(write_grid(tmp_path) if flag == "GRID" else flag for flag in flags))
    assert done.returncode == code
    error, = done.stderr.splitlines()
    assert error.startswith("error: ") and says(error, *facts)
    assert bool(done.stdout) == ("--simulate" in flags)  # a file is written last


def test_the_latency_of_a_box_is_taken_for_a_grid(tmp_path):
    source = read_source([write_grid(tmp_path)], None)
    assert source.latency == BOX_LATENCY and source.machine == PLANTED.machine
