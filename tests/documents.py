"""Commands as README.md, docs/*.md and exercises/README.md show them, the mark above each block.

    <!-- run -->                the tests run it, as printed
    <!-- slow: reason -->       so do the slow tests
    <!-- not run: reason -->    it takes hours, say; flags are checked
    <!-- needs a cluster -->    it needs other machines or root; flags are checked

In any block, a command that names another host or a launcher of a cluster needs a cluster. A block
without a mark must hold no commands: it is output, or a drawing. The lesson has two more marks, for
changes of code and for answers: see tests/lesson.py.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.ranks import ROOT

PROGRAMS = ("python3", "torchrun", "mpirun", "srun", "sbatch", "sudo", "diff", "pip", "watch",
            "tensorboard", "git", "cp", "for")
ELSEWHERE = re.compile(r"^(srun|sbatch|sudo) |\b10\.0\.0\.1\b|ssh_cluster")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
             ROOT / "exercises/README.md"]


class Command(NamedTuple):
    """One command: where it stands, its mark ("" for none), and its text."""

    document: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"

    def words(self) -> list[str]:
        """The words of the command as a shell splits it, without comments."""
        return shlex.split(self.text, comments=True)

    def runs_here(self) -> bool:
        """True if one machine is enough, and the mark says that it is run."""
        return self.mark.startswith(("run", "slow")) and not ELSEWHERE.search(self.text)


def commands() -> list[Command]:
    """Every command in a fenced block, in order."""
    return [Command(path.relative_to(ROOT).as_posix(), mark, text) for path in DOCUMENTS
            for mark, block in blocks(path) for text in in_block(block)]


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(mark, text) of the fenced blocks."""
    pattern = r"(?:^<!-- ([^\n]*) -->\n)?^```[^\n]*\n(.*?)^```"
    for found in re.finditer(pattern, path.read_text(), re.MULTILINE | re.DOTALL):
        yield found[1] or "", found[2]


def in_block(block: str) -> Iterator[str]:
    """Each command of a block; where prompts ($) stand, only what follows them."""
    lines = re.findall(r"^for (?:.|\n)*?^done$|^.+$", block.replace("\\\n", " "), re.MULTILINE)
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    yield from filter(_is_command, prompted or lines)


def _is_command(line: str) -> bool:
    first = re.sub(r"""^(\w+=("[^"]*"|\S+) )+""", "", line).split(" ")[0]
    return first in PROGRAMS or bool(
        re.fullmatch(r"((scripts|benchmarks)/\S+\.(sh|py)|\.venv/bin/\w+)", first))
