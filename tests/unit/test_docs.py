"""README and docs: every command is run as printed, or marked with the reason why not.

They run in the order printed, in a fresh clone after the quick start: .venv is there, nothing is
activated, and python3 is a bare Python. `~` is a folder of the test's, with few images.

Mutations that turn this red: rename a flag or a script and forget the documents; a command without
a mark; a link to a file that is gone; drop use_environment from a program; print torchrun without
its folder; print two runs into one folder; rename a class in examples/own_sync.py.
"""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from common.options.command_line import PARTS, _parser
from common.settings.user_code import Place
from tests.clone import bare_python, fresh_clone, link_environment
from tests.documents import DOCUMENTS, Command, commands
from tests.lesson import tasks
from tests.ranks import ROOT, free_port
from tests.recorded import write_course
from tests.small_files import digits_as_mnist, write_image_folder
from tests.unit.test_structure import name_of

MARKS = ("run", "needs a cluster", "slow: ", "not run: ")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# What a command leaves behind, beyond its exit code.
LEAVES = {"scripts/quickstart.sh": "outputs/quickstart/comparison.html",
          "python3 scripts/compare.py outputs": "outputs/comparison.html",
          "python3 scripts/compare.py outputs/laptop": "outputs/laptop/comparison.html",
          "for workers in 0 1 2 4": "outputs/workers/comparison.html"}


def test_every_command_is_marked():
    unmarked = [str(command) for command in commands() if not command.mark.startswith(MARKS)]
    assert not unmarked, "see tests/documents.py for the marks"


def known_flags() -> set[str]:
    """Every flag that a program of this project takes."""
    sources = [path for folder in ("common/cluster", "scripts", "benchmarks", "studies")
               for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh")]
    ours = {flag for part in PARTS for flag in _parser(part).flags}
    return ours | set(re.findall(r"""["'( ](--?[\w-]+)""",
                                 "\n".join(map(Path.read_text, sources))))


@pytest.mark.parametrize("command", commands(), ids=str)
def test_programs_and_flags_exist(command):
    words = command.words()
    ours = [word for word in words if re.match(r"(Part|scripts/|benchmarks/)\S+/?\S*\.\w+$", word)]
    assert all((ROOT / word).exists() for word in ours), command
    if not ours:
        return
    after = words[words.index(ours[0]) + 1:]
    flags = {word.partition("=")[0] for word in after if word.startswith("--")}
    assert flags <= known_flags(), flags - known_flags()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_what_is_named_in_a_file_exists(path):
    found = re.findall(r"\b(?:examples|exercises|tests)/\S+?\.py:\w+", path.read_text())
    for place in filter(None, map(Place.parse, found)):
        files = [*ROOT.glob(str(place.file))]  # a * stands for several
        assert files and all(re.search(rf"^((class|def) {place.name}\b|{place.name} = )",
                                       file.read_text(), re.MULTILINE) for file in files), place


def run_here() -> list:
    """The commands to run: one of each, as some stand in several documents."""
    chosen: dict[tuple[str, ...], Command] = {}
    for command in commands():
        if command.runs_here() and command.words()[0] != "scripts/test.sh":  # which runs this
            chosen.setdefault(tuple(command.words()), command)
    return [pytest.param(command, id=str(command),
                         marks=[pytest.mark.slow] if command.mark.startswith("slow") else [])
            for command in chosen.values()]


class Newcomer(NamedTuple):
    """Somebody at a shell in a fresh clone."""

    clone: Path
    environment: dict[str, str]

    def run(self, text: str) -> subprocess.CompletedProcess:
        """Runs a line of shell, and leaves nothing of it running."""
        with subprocess.Popen(["bash", "-c", text], cwd=self.clone, env=self.environment,
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True) as process:
            try:
                out, errors = process.communicate()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(text, process.returncode, out, errors)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory) -> Newcomer:
    """A newcomer after the quick start: data in the home folder, Python packages only in .venv."""
    home = tmp_path_factory.mktemp("home")
    clone = fresh_clone(home / "clone")
    link_environment(clone)
    write_course(clone / "outputs/quickstart")  # unless the slow tests make it
    plant_data(home)
    return Newcomer(clone, {
        "PATH": f"{bare_python(home / 'python').parent}:/usr/bin:/bin", "HOME": str(home),
        "PET_MASTER_PORT": str(free_port())})  # what torchrun takes instead of 29500


def plant_data(home: Path) -> None:
    """Writes small versions of ~/cifar10, ~/pets and ~/mnist."""
    for split, count in (("train", 60), ("test", 6)):
        write_image_folder(home / "cifar10" / split, count, names=CIFAR10)
        write_image_folder(home / "pets" / split, count // 2, size=40)
    digits_as_mnist(home / "mnist")


@pytest.mark.timeout(3600)  # whole trainings, on machines that may be busy
@pytest.mark.parametrize("command", run_here())
def test_a_command_works_as_printed(command, newcomer):
    done = newcomer.run(command.text)
    told = done.stdout + done.stderr
    assert done.returncode == (1 if command.text.startswith("diff") else 0), told
    assert done.stdout and "Traceback" not in told, told
    for start, path in LEAVES.items():
        assert not f"{command.text} ".startswith(f"{start} ") or (newcomer.clone / path).exists()
    if "show_mistakes" in command.text:
        assert done.stdout.count("FAILED") == 6


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", tasks(), ids=str)
def test_a_change_of_the_lesson_gets_the_printed_answer(task, newcomer):
    newcomer.run("cp examples/own_sync.py mine.py; rm -rf outputs/unwrapped")
    path = newcomer.clone / task.file
    before = path.read_text()
    path.write_text(task.changed())
    try:
        done = newcomer.run(task.command)
    finally:
        path.write_text(before)
    task.check(done.stdout + done.stderr)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_to_files(path):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert all((path.parent / link).exists() for link in links), links


def test_the_sample_of_the_preflights_page_has_every_section():
    source = (ROOT / "common/preflight/page.py").read_text()
    sections = re.findall(r'\("([a-z -]+)", (?:_|speeds|\[)', source)
    sample = (ROOT / "docs/preflight.md").read_text()
    assert len(sections) == 6 and [name for name in sections if f"\n{name}\n" not in sample] == []
