r"""Names of classes, runs and hosts stand on the page as they are called, and do nothing there.

Mutations that turn this red: drop _take_literally from svg; drop `finalize` from the page's
environment; drop `as_markdown` from one line of page.md.j2; drop `visible` from eval_report.
"""

import json
import re
import xml.etree.ElementTree as xml

import pytest

from common.report import eval_report
from common.reporting.confusion_figures import confusion
from common.reporting.difference_figures import loss_differences
from common.reporting.figure_style import svg
from common.reporting.page import Page
from common.reporting.recorded_run import find_runs
from tests.recorded import write_run

ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLASSES = ("a$_$b", "$x^2$", "<script>alert(1)</script>", "\x1b]0;title\x07", "\u202egnp",
           "new\nline", "[a](javascript:b)", "![a](http://x/y.png)", "a|b", "`c`", "\udcff",
           "日本語", "l" * 200, "_private", "")


@pytest.fixture
def page(tmp_path):
    size = len(CLASSES)
    for name in ("a$_$b <b>", "two\x1b[2J"):
        host = " ".join(["h\x07ost", *CLASSES])
        folder = write_run(tmp_path / name, host=host, loss=len(name), confusion=[
            [row * size + column + len(name) for column in range(size)] for row in range(size)])
        log = folder / "metrics_rank0.jsonl"
        log.write_text(log.read_text().replace('["ant", "bee"]', json.dumps(CLASSES)))
    Page.of(find_runs([tmp_path]), []).write(tmp_path, "comparison")
    return tmp_path


def test_the_page_obeys_no_name(page):
    html = (page / "comparison.html").read_text()
    assert not ODD.search(html)
    assert "<script>alert" not in html and "&lt;script&gt;alert(1)" in html
    assert "\\x1b]0;title\\x07" in html and "\\u202egnp" in html and "日本語" in html


def test_markdown_holds_no_markup_of_a_name(page):
    text = (page / "comparison.md").read_text()
    assert not ODD.search(text)
    assert "&lt;script>alert(1)&lt;/script>" in text and "<script" not in text
    assert r"\[a\](javascript:b)" in text and r"!\[a\](http" in text and r"a\|b" in text
    assert all(line.count(" | ") == first.count(" | ") for first, line in rows(text))


def rows(text: str):
    """Each row of a table with its table's first; escaped bars do not count."""
    first = ""
    for line in text.replace(r"\|", "").splitlines():
        first = (first or line) if line.startswith("| ") else "" if not line else first
        if line.startswith("| "):
            yield first, line
        elif not line.startswith("|---"):
            first = ""


def test_figures_take_names_literally(page):
    drawn = sorted((page / "comparison_figures").glob("*.svg"))
    assert drawn
    for path in drawn:
        root = xml.fromstring(path.read_text())  # control characters are not XML
        assert not ODD.search("".join(root.itertext()))
    words = " ".join(xml.fromstring((page / "comparison_figures/confusion.svg").read_text())
                     .itertext())
    assert "a$_$b" in words and "$x^2$" in words and "日本語" in words
    assert "l" * 50 not in words  # a long name leaves room for the figure


def test_logarithmic_axes_have_plain_numbers(tmp_path):
    for name, loss in (("PartOne", 2.0), ("a$_$b", 2.002)):
        write_run(tmp_path / name, loss=loss)
    words = "".join(xml.fromstring(svg(loss_differences(find_runs([tmp_path])))).itertext())
    assert "a$_$b" in words and "1e-03" in words and "mathdefault" not in words


def test_a_figure_of_names_that_are_formulae_is_drawn(page):
    svg(confusion(find_runs([page])))


def test_the_report_obeys_no_class():
    text, plain = eval_report([0, 1], [0, 1], 0.5, "a\x1b.pt", ["\x1b[2J", "new\nline"])
    assert not ODD.search(text) and "\\x1b[2J" in text and "new\\nline" in text
    assert plain["class_names"] == ["\\x1b[2J", "new\\nline"]
