"""The house rules: rooms in one direction, one loop, one seam, mains that differ by the lesson.

Mutations: `from common.run.run_log import read_events` in common/reporting/recorded_run.py turns
the order and the log readers red; a `loss.backward()` in PartTwo turns "one training loop" red; a
`run.tracer = run.tracer` in common/run/opening.py turns "given all it needs" red.
"""

import ast
import difflib
import inspect
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from common.core.progress import PHASES
from common.step.gradient_sync import GradientSync
from tests.ranks import ROOT

# A module imports only from its own room and from those before it. "" is the files of common/.
ROOMS = ("core", "settings", "arithmetic", "cluster", "data", "model", "options", "step", "run",
         "preflight", "witnessing", "reporting", "", "Parts", "studies", "benchmarks", "scripts")
NEED_ALONE = {"settings": ["core"], "arithmetic": ["core"], "reporting": ["core", "settings"],
              "cluster": ["core", "settings"], "data": ["core", "settings"]}
PARTS = ("PartOne", "PartTwo", "PartThree")
# The course's front door hands out Part Two's strategies.
EXCEPTION = "common/assignment.py"
FOLDERS = ("common", *PARTS, "studies", "benchmarks", "scripts")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LOG_READERS = [f"common.reporting.{path.stem}"
               for path in sorted((ROOT / "common/reporting").glob("[!_]*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(module: str) -> str | None:
    """The room a dotted name stands in; None for other packages."""
    package, *below = module.split(".")
    if package in PARTS:
        return "Parts"
    if package == "common":
        return below[0] if below and below[0] in ROOMS else ""
    return package if package in ("studies", "benchmarks", "scripts", "tests") else None


def imports(path: Path) -> set[str]:
    """The dotted names of this project that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if (ROOT / node.module.replace(".", "/")).is_dir():
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if room_of(name) is not None}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_room_imports_only_rooms_before_it(path):
    if name_of(path) in (EXCEPTION, "common/__init__.py"):
        return
    room = room_of(name_of(path).removesuffix(".py").replace("/", "."))
    allowed = [room, *NEED_ALONE.get(room, ROOMS[:ROOMS.index(room)])]
    wrong = {name for name in imports(path) if room_of(name) not in allowed
             and name not in ("common", *(f"common.{each}" for each in ROOMS))}
    assert not wrong


def test_the_exception_is_one():
    assert {room_of(name) for name in imports(ROOT / EXCEPTION)} > {"Parts"}
    assert imports(ROOT / "common/__init__.py") == {"common", "common.assignment"}  # on first use


def test_imports_make_no_circle():
    graph = {path: {name.replace(".", "/") for name in imports(path)}
             for path in SOURCES if path.stem != "__init__"}
    settled: set[str] = set()
    while graph:
        files = {name_of(path).removesuffix(".py") for path in graph}
        free = [path for path, needs in graph.items() if not needs & files]
        assert free, f"a circle among {sorted(map(name_of, graph))}"
        settled |= {name_of(path) for path in free}
        graph = {path: needs for path, needs in graph.items() if path not in free}


def test_every_room_has_its_place_in_the_order():
    rooms = {path.name for path in (ROOT / "common").iterdir()
             if path.is_dir() and not path.name.startswith(("_", "."))}
    assert rooms == set(ROOMS[:ROOMS.index("")])


def test_a_run_is_given_all_it_needs_when_it_is_made():
    targets = [(name_of(path), target) for path in SOURCES
               for node in ast.walk(ast.parse(path.read_text()))
               for target in getattr(node, "targets", [getattr(node, "target", None)])]
    assert not [(name, target.attr) for name, target in targets
                if isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name) and target.value.id == "run"]


@pytest.mark.parametrize("room", ROOMS[:ROOMS.index("")])
def test_a_room_says_what_it_is_and_which_file_to_read_first(room):
    path = ROOT / "common" / room / "__init__.py"
    tree = ast.parse(path.read_text())
    assert len(tree.body) == 1  # and imports nothing: --help must stay light
    first = (ast.get_docstring(tree) or "").rpartition("Read ")[2].split(" ")[0]
    assert (path.parent / first).is_file(), first


@pytest.mark.parametrize("module", [*LOG_READERS, "scripts.status", "scripts.predict"])
def test_what_reads_logs_does_not_load_torch(module):
    check = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


def test_training_does_not_load_the_drawing():
    check = ("import sys, common.training, common.run.opening, common.report\n"
             "sys.exit(bool({'matplotlib', 'jinja2', 'tensorboard'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("part", PARTS)
def test_a_main_shows_its_wiring(part):
    path = ROOT / part / "main.py"
    tree = ast.parse(path.read_text())
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert functions == ["main"]
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    assert len(branches) == 1  # if __name__ == "__main__"


@pytest.mark.parametrize("before, after", [*pairwise(PARTS)])
def test_what_differs_between_two_mains_is_the_lesson(before, after):
    lines = [(ROOT / part / "main.py").read_text().splitlines() for part in (before, after)]
    changed = [line for line in difflib.ndiff(*lines) if line[0] in "+-"]
    assert 0 < len(changed) <= 20


def calls_in(function: ast.AST) -> list[str]:
    return [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]


def test_the_loop_reads_as_the_lesson():
    tree = ast.parse((ROOT / "common/training.py").read_text())
    train, = [node for node in tree.body
              if isinstance(node, ast.FunctionDef) and node.name == "train"]
    called = calls_in(train)
    for name in ("(loss * part.weight).backward", "gradient_sync.average", "optimizer.step"):
        assert called.count(name) == 1, name
    timed = sorted((node.lineno, node.args[0].value) for node in ast.walk(train)
                   if isinstance(node, ast.Call) and ast.unparse(node.func) == "timer")
    assert [phase for _, phase in timed] == list(PHASES)
    assert "isinstance" not in called
    branches = [ast.unparse(node.test) for node in ast.walk(train)
                if isinstance(node, ast.If | ast.IfExp)]
    assert not any(word in branch for branch in branches for word in ("rank", "part.", "world"))


def test_there_is_one_training_loop():
    callers = {call: [name_of(path) for path in SOURCES
                      if path.parts[len(ROOT.parts)] in ("common", *PARTS)
                      for name in calls_in(ast.parse(path.read_text())) if name.endswith(call)]
               for call in (".backward", "gradient_sync.average", "optimizer.step")}
    loop = ["common/training.py"]
    # whose passes settle the buckets, and which hands over the gradients that backward has made
    others = ["PartThree/ddp.py", "common/step/lockstep.py"]
    assert callers == {".backward": [*others, *loop],
                       "gradient_sync.average": loop,
                       "optimizer.step": ["PartTwo/cross_step.py", *loop]}  # as gradients arrive


def test_the_seam_is_five_methods_and_three_attributes():
    methods = {name for name, value in vars(GradientSync).items() if inspect.isfunction(value)}
    assert methods == {"prepare", "no_sync", "average", "settle", "state"}
    attributes = {name for name in vars(GradientSync) if not name.startswith("_")} - methods
    assert attributes == {"bytes_sent", "replicas_agree", "waiting"}
    assert GradientSync.__bases__ == (object,)


def test_only_the_courses_front_door_unwraps_a_model():
    assert [name_of(path) for path in SOURCES
            if "unwrapped" in calls_in(ast.parse(path.read_text()))] == [EXCEPTION]
