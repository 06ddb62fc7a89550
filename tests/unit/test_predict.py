"""scripts/predict.py end to end, on planted cells and planted runs; what it refuses.

Mutations that turn this red: calibrate on the cells to be predicted; take the links' round trip for
their latency; data loading no part of computing; count the averaging as computing; hosts for
machines; pass over --shared-processors, or take it for granted; a workload of another model; a bar
for one cell; import numpy in studies/prediction/fitting.py.
"""

import json
import subprocess
import sys

import pytest

from common.core.failures import DataError, UsageError
from studies.prediction import sources
from studies.prediction.fitting import calibrate
from studies.prediction.grid import COMPUTE_ONLY
from studies.prediction.model import STRATEGIES
from studies.prediction.sources import BOX_LATENCY, read_source
from tests.clone import bare_python, fresh_clone
from tests.grid import CELLS, PLANTED, cell, grid
from tests.ranks import ROOT
from tests.recorded import GRADIENT, write_course, write_run

RATE = 25e6  # bytes a second


def predict(*flags) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "scripts/predict.py", *map(str, flags)], cwd=ROOT,
                          capture_output=True, text=True, timeout=100)


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
    assert f"{unseen * (1 + len(STRATEGIES))} steps of unseen cells: error 0." in done.stdout
    assert "| 8 nodes, seconds a step | 300mbit |" in done.stdout
    assert "within it\n" in done.stdout
    assert "4 nodes, 300mbit: overlapped-all-reduce, bf16 wire, " in done.stdout
    assert "| another node pays up to | 300mbit |" in done.stdout
    assert "within 15 %" in picture.read_text()


def test_nodes_have_processors_of_their_own_unless_told_otherwise(tmp_path):
    path = write_grid(tmp_path)
    said = [predict(path, "--nodes", 8, "--rate", "none", *flags).stdout
            for flags in ((), ("--shared-processors",))]
    own, shared = ([float(line.split("|")[2].split("±")[0]) for line in each.splitlines()
                    if line.startswith("| compute only")][0] for each in said)
    assert shared == pytest.approx(4 * own, rel=0.01)  # 8 ranks on 2 cores
    assert "nodes: each with processors of its own, 1 thread a rank;" in said[0]
    assert "nodes: hosts that share 1 machine of 2 cores, as the measured ones did" in said[1]


def test_one_cell_has_no_error_bar(tmp_path):
    cells = grid()
    cells["cells"] = [cell(4, "none")]
    (tmp_path / "one.json").write_text(json.dumps(cells))
    done = predict(tmp_path / "one.json", "--nodes", 4, "--rate", "1gbit")
    assert done.returncode == 0 and "±" not in done.stdout
    assert "not enough data for an error bar: that takes 3 cells" in done.stdout
    assert "and here 1 calibrates" in done.stdout
    assert " s a step (not enough data for an error bar)" in done.stdout


def test_of_more_nodes_than_were_measured_it_predicts_steps_without_a_bar(tmp_path):
    said = predict(write_grid(tmp_path), "--nodes", 4, 8, "--rate", "1gbit").stdout
    of_four, of_eight = (next(line for line in said.splitlines()
                              if line.startswith(f"{nodes} nodes, 1gbit")) for nodes in (4, 8))
    assert " to " in of_four and "no error bar" not in of_four
    assert of_eight.endswith("(2 to 4 nodes were measured: no error bar)")
    assert "4 nodes are the most that were measured" in said


def test_the_simulation_draws_its_figure(tmp_path):
    picture = tmp_path / "scaling.svg"
    done = predict(write_grid(tmp_path), "--simulate", picture, "--levels", "4:10gbit", "8:1gbit",
                   "--nodes", 2)
    assert done.returncode == 0, done.stderr
    assert "32 ranks keep" in picture.read_text() and str(picture) in done.stdout


def test_a_python_without_any_package_predicts(tmp_path):
    """Nothing is installed yet: a clone without .venv."""
    clone, bare = fresh_clone(tmp_path / "clone"), bare_python(tmp_path / "python")
    command = ["scripts/predict.py", str(write_grid(tmp_path)), "--nodes", "4", "--rate", "1gbit"]
    done, same = (subprocess.run([python, *command], cwd=folder, capture_output=True, text=True,
                                 timeout=100, env={"PATH": "/usr/bin:/bin"})
                  for python, folder in ((bare, clone), (sys.executable, ROOT)))
    assert done.returncode == 0 and "4 nodes, 1gbit: " in done.stdout, done.stderr
    assert done.stdout == same.stdout
    done = subprocess.run([bare, *command, "--simulate", "x.svg"], cwd=clone, capture_output=True,
                          text=True, timeout=100)
    assert done.returncode == 2 and "has no matplotlib" in done.stderr


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


@pytest.mark.parametrize("write, error, sentence", [
    (lambda folder: None, DataError, "no run with a step"),
    (lambda folder: write_course(folder / "course"), UsageError, "give --preflight FILE"),
    (lambda folder: (write_preflight(folder), write_run(folder / "one")), DataError,
     "several ranks"),
    (lambda folder: (write_preflight(folder),
                     write_run(folder / "PartThree", 4, root_sends=1.5)),
     DataError, "average during backward"),
    (lambda folder: (write_preflight(folder), write_run(folder / "mlp", 4, workload="mnist-mlp")),
     UsageError, "VGG-11 only"),
    (lambda folder: ((folder / "preflight.json").write_text("{}"), write_course(folder / "c")),
     DataError, "no preflight with links"),
])
def test_runs_that_say_too_little(tmp_path, write, error, sentence):
    folder = tmp_path / "outputs"
    folder.mkdir()
    write(folder)
    preflight = None if sentence != "no run with a step" else write_preflight(tmp_path)
    with pytest.raises(error, match=sentence):
        read_source([folder], preflight)


@pytest.mark.parametrize("flags, code, sentence", [
    (["no_such_file"], 4, "there is no folder no_such_file"),
    (["README.md"], 4, "README.md is no grid of cells that benchmarks/sync.py wrote"),
    (["GRID", "--rate", "quick"], 2, "'quick' is no rate: write 300mbit, 1gbit or none"),
    (["GRID", "--calibrate-on", "9:none"], 2, "there is no cell 9:none; there are: 2:100mbit"),
    (["GRID", "--nodes", "0"], 2, "'0' is not a whole number of at least 1"),
    (["GRID", "--levels", "3:1gbit"], 2, "'3:1gbit' is no level: write SIZE:RATE"),
    (["GRID", "--levels", "32768:1gbit"], 2, "--levels must come to 4 to 16384 ranks"),
    (["GRID", "--figure", "x.svg"], 2, "say with --calibrate-on which ones it may see"),
    (["GRID", "--levels", "4:1gbit", "--simulate", "/no/such/folder.svg"], 2, "cannot be written"),
])
def test_what_cannot_be_meant_is_one_sentence(tmp_path, flags, code, sentence):
    done = predict(*(write_grid(tmp_path) if flag == "GRID" else flag for flag in flags))
    assert done.returncode == code
    error, = done.stderr.splitlines()
    assert error.startswith("error: ") and sentence in error


def test_the_latency_of_a_box_is_taken_for_a_grid(tmp_path):
    source = read_source([write_grid(tmp_path)], None)
    assert source.latency == BOX_LATENCY and source.machine == PLANTED.machine
