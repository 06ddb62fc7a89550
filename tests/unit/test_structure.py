"""The house rules: floors, one seam, short mains, no local paths.

Mutation that turns the middle red: import common.run_log for read_events in recorded_run.
"""

import ast
import subprocess
import sys

import pytest

from tests.ranks import ROOT

# A module imports only from lower floors; modules of one floor may build on those before them.
FLOORS = (
    ("interpreter",
     "events", "phase_timer", "spread", "advice", "signals", "failures", "settings", "causes",
     "epoch_plan", "precision", "world", "other_runs", "console", "long_waits", "dataset_cache",
     "datasets", "mnist", "pooling", "vgg11", "dropout", "small_models", "recipes", "whitening",
     "workloads", "loaders", "model_split", "muon", "optimizers", "schedules", "early_stopping",
     "trace_file", "trackers"),
    ("batch_norm", "collectives", "gradient_sync", "accumulation", "checkpoint",
     "checkpoint_folder", "gradient_check", "fast_convolution", "convolutions", "tuned", "run_log",
     "addresses", "master_port", "rendezvous", "agreement", "watch", "devices", "process_group",
     "sentinel", "tracing", "save_clock", "weight_average", "run", "run_folder", "resume", "links",
     "node_facts", "all_reduce_speed", "board", "findings"),
    ("choices", "setup", "training", "evaluation", "preflight"),
    ("flag_types", "other_names", "flag_parser", "seam_flags", "recipe_flags", "command_line",
     "report", "assignment", "preflight_page"),
)
# What draws and compares runs from their logs: apart from these it needs the light modules alone,
# and nothing on the floors needs it.
ASIDE = ("merged_steps", "recorded_run", "speed_findings", "run_findings", "figure_style",
         "figures", "confusion_figures", "timeline", "proof_findings", "proof_figure")
LIGHT = ("causes", "events", "failures", "phase_timer", "settings", "spread", "trace_file")
ORDER = {name: (floor, place) for floor, names in enumerate(FLOORS)
         for place, name in enumerate(names)}
MAINS = ("PartOne", "PartTwo", "PartThree")


def imports(path) -> set[str]:
    """The names of this project's modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, module = node.module.partition(".")
            names = [module] if module else [alias.name for alias in node.names]
            found |= {f"{package}.{name}" for name in names
                      if package in ("common", *MAINS, "scripts", "tests")}
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "common").glob("*.py")), ids=lambda p: p.stem)
def test_modules_import_only_from_lower_floors(path):
    if path.stem == "__init__":
        assert imports(path) == {"common.assignment"}  # on first use only
        return
    if path.stem in ASIDE:
        before = ASIDE[:ASIDE.index(path.stem)]
        assert imports(path) <= {f"common.{name}" for name in (*LIGHT, *before)}
        return
    floor, place = ORDER[path.stem]
    for name in imports(path):
        package, _, module = name.partition(".")
        if package != "common":
            assert path.stem == "assignment", f"{path.stem} imports {name}"
            continue
        if floor == 0:
            assert ORDER[module] < (floor, place), f"{path.stem} imports {name}"
        else:
            assert ORDER[module][0] <= floor and ORDER[module] != (floor, place), (
                f"{path.stem} imports {name}")


@pytest.mark.parametrize("module", [*(f"common.{name}" for name in ASIDE), "scripts.status",
                                    "scripts.comparison.page", "scripts.merge_logs",
                                    "scripts.predict", "scripts.prediction.figures"])
def test_what_reads_logs_does_not_load_torch(module):
    check = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


def test_training_does_not_load_the_drawing():
    check = ("import sys, common.training, common.resume, common.report\n"
             "sys.exit(bool({'matplotlib', 'jinja2', 'tensorboard'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


def test_imports_within_a_floor_make_no_circle():
    graph = {path.stem: {name.partition(".")[2] for name in imports(path)
                         if name.startswith("common.")}
             for path in (ROOT / "common").glob("*.py") if path.stem != "__init__"}
    settled: set[str] = set()
    while graph:
        free = {name for name, needs in graph.items() if needs <= settled}
        assert free, f"a circle among {sorted(graph)}"
        settled |= free
        graph = {name: needs for name, needs in graph.items() if name not in free}


@pytest.mark.parametrize("part", MAINS)
def test_a_main_is_short_and_shows_its_wiring(part):
    path = ROOT / part / "main.py"
    tree = ast.parse(path.read_text())
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(path.read_text().splitlines()) <= 60
    assert functions == ["main"]
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    assert len(branches) == 1  # if __name__ == "__main__"


def test_there_is_one_training_loop():
    callers = {call: [path.relative_to(ROOT).as_posix()
                      for folder in ("common", *MAINS) for path in (ROOT / folder).glob("*.py")
                      for node in ast.walk(ast.parse(path.read_text()))
                      if isinstance(node, ast.Call) and ast.unparse(node.func) == call]
               for call in ("loss.backward", "gradient_sync.update", "optimizer.step")}
    loop = ["common/training.py"]
    assert callers == {"loss.backward": loop, "gradient_sync.update": loop,
                       "optimizer.step": ["common/gradient_sync.py"]}


def test_modules_are_short_and_lines_too():
    for folder in ("common", *MAINS):
        for path in (ROOT / folder).glob("*.py"):
            assert len(path.read_text().splitlines()) <= 270, path
