"""Commands as README.md and docs/*.md show them, with the mark above each block.

    <!-- run -->                the tests run it, in small form
    <!-- slow: reason -->       so do the slow tests, or it takes hours; the reason says which
    <!-- needs a cluster -->    it needs other machines, root or a launcher: flags are checked

A block without a mark must hold no commands: it is output, or a drawing.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.ranks import ROOT

PROGRAMS = ("python3", "torchrun", "srun", "sbatch", "sudo", "diff", "pip", "watch", "tensorboard",
            "git")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


class Command(NamedTuple):
    """One command: where it stands, its mark ("" for none), and its words without comments."""

    document: str
    mark: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}: {shlex.join(self.words)}"


def commands() -> list[Command]:
    """Every command in a fenced block, in order."""
    return [Command(path.name, mark, tuple(words)) for path in DOCUMENTS
            for mark, block in blocks(path) for words in in_block(block)]


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(mark, text) of the fenced blocks."""
    pattern = r"(?:^<!-- ([^\n]*) -->\n)?^```[^\n]*\n(.*?)^```"
    for found in re.finditer(pattern, path.read_text(), re.MULTILINE | re.DOTALL):
        yield found[1] or "", found[2]


def in_block(block: str) -> Iterator[list[str]]:
    """The words of each command of a block; where prompts ($) stand, only what follows them."""
    lines = block.replace("\\\n", " ").splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in prompted or lines:
        if _is_command(line):
            yield shlex.split(line, comments=True)


def _is_command(line: str) -> bool:
    first = re.sub(r"""^(\w+=("[^"]*"|\S+) )+""", "", line).split(" ")[0]
    return first in PROGRAMS or bool(re.fullmatch(r"(scripts|benchmarks)/\S+\.(sh|py)", first))
