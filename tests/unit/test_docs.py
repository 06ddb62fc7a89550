"""README and docs: every command is run, or marked as needing more than one machine.

Mutations that turn this red: rename a flag or a script and forget the documents; a command without
a mark; a link to a file that is gone.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, Command, commands
from tests.ranks import ROOT, cluster, program, run_programs
from tests.recorded import write_course
from tests.workload import SMALL, plant

MARKS = ("run", "needs a cluster", "slow: ")
# What stands in the documents, and what the tests have.
SMALLER = {"--workload": SMALL[1], "--data-dir": None, "--output-dir": None, "--batch-size": None,
           "--epochs": None, "--profile": "1:1"}


def test_every_command_is_marked():
    unmarked = [str(command) for command in commands() if not command.mark.startswith(MARKS)]
    assert not unmarked, "see tests/documents.py for the marks"


def known_flags() -> set[str]:
    """Every flag that a program of this project takes."""
    sources = [path for folder in ("common", "scripts", "benchmarks")
               for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh")]
    return set(re.findall(r"""["'( ](--?[\w-]+)""", "\n".join(map(Path.read_text, sources))))


@pytest.mark.parametrize("command", commands(), ids=str)
def test_programs_and_flags_exist(command):
    ours = [word for word in command.words if re.match(r"(Part|scripts/|benchmarks/)\S+/?\S*\.\w+$",
                                                       word)]
    assert all((ROOT / word).exists() for word in ours), command
    if not ours:
        return
    after = command.words[command.words.index(ours[0]) + 1:]
    flags = {word.partition("=")[0] for word in after if word.startswith("--")}
    assert flags <= known_flags(), flags - known_flags()


def cheap() -> list[Command]:
    """One of each command that is run: some stand in several documents."""
    return list({command.words: command for command in commands()
                 if command.mark == "run"}.values())


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """Stands for outputs/: logs of the four runs."""
    return write_course(tmp_path_factory.mktemp("outputs"))


@pytest.mark.parametrize("command", cheap(), ids=str)
def test_a_command_works(command, course, tmp_path):
    words = list(command.words)
    main = next((word for word in words if word.endswith("main.py")), "")
    if words[0] == "python3" and main == words[1]:
        outcomes = run_programs(_part(main.split("/")[0], words[2:], tmp_path))
        assert {outcome.code for outcome in outcomes} == {0}, outcomes
        return
    words = [re.sub(r"^outputs(?=/|$)", str(course), word) for word in words]
    words[0] = sys.executable if words[0] == "python3" else words[0]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == (1 if words[0] == "diff" else 0), done.stdout + done.stderr
    assert done.stdout


def _part(part: str, words: list[str], folder: Path) -> list:
    """A part's command on the small workload, with all its ranks where it names its own."""
    flags, ranks = [*SMALL, "--output-dir", str(folder / "out")], 1
    words = [piece for word in words for piece in word.split("=", 1)]
    while words:
        flag = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("-") else None
        if flag in ("--num-nodes", "-N"):
            ranks = int(value or 1)
        if flag in ("--master-ip", "-M", "--rank", "-R", "--num-nodes", "-N"):
            continue
        value = SMALLER.get(flag, value)
        flags += [flag, value] if value else [] if flag in SMALLER else [flag]
    if ranks == 1 and part == "PartOne":
        return [program(part, flags, folder, "rank0", before=plant)]
    return cluster(part, ranks, flags, folder, before=dict.fromkeys(range(ranks), plant))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert all((path.parent / link).exists() for link in links), links


@pytest.mark.slow  # a minute and more: three parts of real programs, torch loaded each time
def test_the_quick_start_ends_by_naming_the_page(tmp_path):
    done = subprocess.run(["scripts/quickstart.sh", "--max-iterations", "3", "--output-dir",
                           str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"{tmp_path}/comparison.html")
    assert (tmp_path / "comparison.html").stat().st_size > 100_000


@pytest.mark.slow  # eight trainings on three ranks
def test_the_lessons_table_of_mistakes():
    done = subprocess.run([sys.executable, "-m", "tests.multiprocess.show_mistakes"], cwd=ROOT,
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.count("FAILED") == 6, done.stderr


@pytest.mark.slow  # two runs of a real program
def test_the_worker_sweep_ends_in_its_figure(tmp_path):
    done = subprocess.run(["scripts/worker_sweep.sh", "--workload", "digits-vgg11", "--output-dir",
                           str(tmp_path), "--max-iterations", "3", "--batch-size", "16"], cwd=ROOT,
                          capture_output=True, text=True, timeout=280,
                          env={"PATH": "/usr/bin:/bin", "WORKERS": "0 1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "comparison_figures" / "worker-sweep.svg").exists()
    assert (tmp_path / "1/PartOne/traces/trace_all_epoch1_1workers.json.gz").exists()
