"""The comparison: valid HTML that needs no network, the same as Markdown, and figures that render.

Mutations that turn this red: a <div> left open in the template; a figure linked and not embedded;
autoescape off; a differing flag among the common ones; the standard deviation left out; a `|` not
escaped in Markdown; `min` for `max` in the picture's width (the page would scroll sideways).
"""

import json
import re
import shutil
import subprocess
import sys

import html5lib
import pytest

from common.recorded_run import find_runs
from scripts.comparison import tables
from scripts.comparison.page import Page
from tests.ranks import ROOT
from tests.recorded import write_course, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PROOF = {"torch": "2.15", "processor": "abacus", "tables": [{
    "settings": {"workload": "digits-vgg11", "precision": "float64"}, "steps": 3,
    "bounds": {"loss": 1e-12}, "cases": [{"ranks": 2, "name": "all-reduce | flat",
                                         "verdict": "agrees",
                                         "gaps": {"loss": {"absolute": 2e-13}}}]}]}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of runs with their comparison in it, and what the command said."""
    folder = write_course(tmp_path_factory.mktemp("course"))
    (folder / "proof.json").write_text(json.dumps(PROOF))
    done = subprocess.run([sys.executable, "scripts/compare.py", folder], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_command_prints_the_table_and_names_the_file(written):
    folder, said = written
    assert "1.900 ± 0.000" in said and f"{folder}/comparison.html" in said.splitlines()[-1]


def test_the_page_is_valid_and_complete(written):
    text = (written[0] / "comparison.html").read_text()
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    headings = [heading.text for heading in document.iter("h2")]
    assert headings == ["Time", "Where the time went", "What was learned", "Proof", "Settings",
                        "Environment"]
    words = " ".join(document.itertext())
    for expected in ("All-reduce moved half the bytes of gather/scatter's root", "2.0e-13",
                     "abacus", "1.900 ± 0.000", "50.0 %", "--batch-size"):
        assert expected in words
    pictures = list(document.iter("img"))
    assert len(pictures) >= 9 and all(picture.get("alt") for picture in pictures)
    assert all(picture.get("src").startswith("data:image/svg+xml;base64,") for picture in pictures)


def test_the_page_needs_no_network_and_runs_nothing(written):
    text = re.sub(r'src="data:[^"]*"', "", (written[0] / "comparison.html").read_text())
    assert not re.search(r"https?://|<script|<link|@import|url\(|src=", text)


def test_markdown_says_the_same_and_its_figures_are_there(written):
    text = (written[0] / "comparison.md").read_text()
    assert "| PartTwo/gather-scatter | 4 | 1.900 ± 0.000 |" in text
    assert r"all-reduce \| flat" in text
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    page = (written[0] / "comparison.html").read_text()
    assert len(links) == page.count("<img ")
    assert all((written[0] / link).read_text().startswith("<?xml") for link in links)


def test_differences_of_settings(tmp_path):
    write_run(tmp_path / "a", seed=1)
    write_run(tmp_path / "b", seed=2)
    runs = find_runs([tmp_path])
    assert [row[:3] for row in tables.differing_settings(runs).rows] == [("--seed", "1", "2")]
    assert "--seed" not in [row[0] for row in tables.common_settings(runs).rows]
    assert tables.differing_settings(runs[:1]) is None


def test_text_from_logs_is_escaped(tmp_path):
    write_run(tmp_path / "PartOne", workload="<script>alert(1)</script>")
    Page.of(find_runs([tmp_path]), []).write(tmp_path, "page")
    assert "<script" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("arguments, code, words", [
    (["nowhere"], 4, "no folder nowhere"), (["common"], 4, "no run"), ([], 2, "required"),
    (["{run}", "--proof", "README.md"], 4, "README.md is no proof")])
def test_mistakes_are_one_sentence(written, arguments, code, words):
    arguments = [word.replace("{run}", str(written[0])) for word in arguments]
    done = subprocess.run([sys.executable, "scripts/compare.py", *arguments], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr


MEASURE = """<script>addEventListener("load", () => {
  const pictures = [...document.images];
  document.title = JSON.stringify({
    wide: document.documentElement.scrollWidth, window: innerWidth,
    rendered: pictures.filter(one => one.complete && one.naturalWidth > 100
                                     && one.clientWidth > 250 && one.clientHeight > 80).length,
    pictures: pictures.length});
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (scripts/test.sh does it)")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_renders_every_figure_and_does_not_scroll_sideways(written, width, tmp_path):
    page = tmp_path / "page.html"
    # A headless window is never narrower than 500 pixels; a frame is.
    (tmp_path / "inner.html").write_text(
        (written[0] / "comparison.html").read_text().replace("</head>", MEASURE + "</head>"))
    page.write_text(f'<!DOCTYPE html><iframe src="inner.html" width="{width}" height="900" '
                    'style="border:0" onload="setTimeout(() => document.body.dataset.told = '
                    'frames[0].document.title, 0)"></iframe>')
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=10000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120)
    told = json.loads(re.search('data-told="([^"]*)"', done.stdout)[1].replace("&quot;", '"'))
    assert told["window"] == width and told["wide"] <= width
    assert told["rendered"] == told["pictures"] >= 9
