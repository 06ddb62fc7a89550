"""The documents say few numbers in a sentence, can be found, and quote what is printed.

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
MOST_NUMBERS = 4.0
DENSE = [path for path in DOCUMENTS if path.name in ("README.md", "one_node.md", "network.md")]
SPEAKING = ("common", "PartOne", "PartTwo", "PartThree", "scripts", "studies")
UNKNOWN = "…"  # a name or a number, in a sentence
# Not by the failures' classes: interrupted, terminated, done, and a fault of the program.
OTHER_CODES = {0, 1, 130, 143}


def running_text(text: str) -> str:
    """Without code, tables, comments, and the addresses of links."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^\|.*?$|^    .*?$|`[^`]*`|\]\([^)]*\)", " ", text,
                  flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\d+\. ", "", text, flags=re.MULTILINE)


def numbers_in_a_hundred_words(text: str) -> float:
    """Numbers in a hundred words of text; names such as VGG-11 and 3x3 do not count."""
    words = running_text(text).split()
    numbers = [word for word in words if re.match(r"[^\w`]*\d(?!\w*[a-z])", word)]
    return 100 * len(numbers) / max(1, len(words))


@pytest.mark.parametrize("path", DENSE, ids=name_of)
def test_figures_stand_in_tables(path):
    assert numbers_in_a_hundred_words(path.read_text()) <= MOST_NUMBERS


def test_numbers_are_counted_in_sentences_alone():
    text = "| 1 | 2 |\n```\n3\n```\nVGG-11 took (4 s), -5, `6` [a page](7.md).\n"
    assert running_text(text).split() == ["VGG-11", "took", "(4", "s),", "-5,", "[a", "page", "."]
    assert numbers_in_a_hundred_words(text) == 25


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
