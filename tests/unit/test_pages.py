"""The documents can be found, lead to what there is, and quote what is printed.

Mutations that turn this red: a page that docs/README.md does not name; a sentence of
docs/troubleshooting.md that the code no longer prints; a heading renamed that a page links to;
another exit code for DataError.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.core import failures
from tests.documents import DOCUMENTS
from tests.ranks import ROOT
from tests.unit.test_structure import name_of

INDEX = ROOT / "docs/README.md"
SPEAKING = ("common", "PartOne", "PartTwo", "PartThree", "scripts", "studies")
UNKNOWN = "…"  # a name or a number, in a sentence
# Not by the failures' classes: done, a fault of the program, interrupted, killed and terminated.
OTHER_CODES = {0, 1, 130, 137, 143}


def test_the_index_names_every_page():
    named = {(INDEX.parent / link).resolve()
             for link in re.findall(r"\]\(([^)#:]+)", INDEX.read_text())}
    assert not {*map(Path.resolve, DOCUMENTS)} - named - {INDEX}


def headings(path: Path) -> list[str]:
    """The headings, as GitHub names them in links."""
    found = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_into_a_page_lead_to_headings(path):
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text())
    assert not [link for link in links if link[1] not in headings((path.parent / link[0])
                                                                  if link[0] else path)]


def printed(node: ast.AST) -> str:
    """The text that an expression prints, with UNKNOWN for parts only known when it runs."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(printed, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return printed(left) + printed(right)
    return UNKNOWN


def sentences(folder: Path) -> Iterator[str]:
    """Every string in the programs of a folder that may be printed."""
    for path in folder.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
        yield from (printed(node) for node in nodes if node not in docstrings
                    and isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp))
    for path in folder.rglob("*.sh"):
        joined = re.sub(r"\\\n\s*", "", path.read_text())
        yield from re.sub(r"\$(\w+|\{[^}]*\})", UNKNOWN, joined).split("\n")


@pytest.fixture(scope="module")
def everything_printed() -> str:
    return "\n".join(sentence.replace("\n", " ") for folder in SPEAKING
                     for sentence in sentences(ROOT / folder))


TROUBLES = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/troubleshooting.md").read_text(),
                      re.MULTILINE)


@pytest.mark.parametrize("sentence", TROUBLES)
def test_a_trouble_is_quoted_as_it_is_printed(sentence, everything_printed):
    assert re.search(".*".join(map(re.escape, sentence.split(UNKNOWN))), everything_printed)


def test_every_row_of_troubles_quotes_a_sentence():
    rows = [line for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines()
            if line.startswith("| ") and not line.startswith("| you see |")]
    assert len(rows) == len(TROUBLES)


def test_the_reference_has_every_exit_code():
    table = (ROOT / "docs/reference.md").read_text().partition("## Exit codes")[2]
    listed = {int(code) for cell in re.findall(r"\| ([\d, ]+) (?=\|)", table)
              for code in cell.split(",")}
    kinds = {kind.exit_code for kind in failures.Failure.__subclasses__()
             if kind is not failures.Verdict}
    assert listed == kinds | OTHER_CODES
