"""The comparison: valid HTML that needs no network, the same as Markdown, and figures that render.

Mutations that turn this red: a <div> left open in the template; a figure linked and not embedded;
autoescape off; a differing flag among the common ones; the standard deviation left out; a `|` not
escaped in Markdown; `min` for `max` in the picture's width (the page would scroll sideways);
`nowrap` for the cells or the narrow screen's rules left out (numbers would be cut off); the page's
or the figures' rules for dark readers left out; a label of one line in place of two; the proof
behind the rest; what is unknown sorted first; the place in a section not kept over a renewal;
`len(found) == 1` left out of have_one_digest; compare.py always ending with 0.
"""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import html5lib
import pytest

from common.reporting import what_ran
from common.reporting.digests import NOT_ENDED, digests_as_text, have_one_digest
from common.reporting.page import Page
from common.reporting.recorded_run import find_runs
from tests.facts import says
from tests.ranks import ROOT, error_lines
from tests.recorded import write_course, write_run
from tests.svg_text import cut_off

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FIGURES = 6  # at least, of the course's four runs
GAP = {"absolute": 2e-13, "relative": 2e-13}
PROOF = {"torch": "2.15", "processor": "abacus", "command": "prove.py --steps 3", "tables": [{
    "settings": {"workload": "digits-vgg11", "precision": "float64"}, "steps": 3,
    "bounds": {"weights": GAP},
    "cases": [{"ranks": 2, "name": "all-reduce | flat", "verdict": "agrees",
               "gaps": {"weights": GAP}}]}]}
CLAIM = "ll-reduce | flat", 3, "digits-vgg11", "float64", "2e-13"  # with any first letter


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
    assert re.search(r"^PartTwo/gather-scatter +4 +1\.900 ± 0\.000 ", said, re.MULTILINE)
    assert f"{folder}/comparison.html" in said.splitlines()[-1]
    proof, _, fault = " ".join(said.split()).partition("FAULT")
    assert is_claim(proof) and says(fault, "gather-scatter", "all-reduce", "DDP", "PartOne")


def is_claim(sentence: str) -> bool:
    return all(str(fact) in sentence for fact in CLAIM) and "FAILED" not in sentence


def test_a_failed_proof_is_the_first_sentence(tmp_path):
    failed = json.loads(json.dumps(PROOF).replace('"agrees"', '"FAILED: weights"'))
    write_course(tmp_path)
    (tmp_path / "proof.json").write_text(json.dumps(failed))
    page = Page.of(find_runs([tmp_path]), [tmp_path / "proof.json"])
    assert says(page.summary[0], "FAILED", "all-reduce | flat", "float64", "weights")
    assert says(page.first_sentences().splitlines()[0], "FAILED", "all-reduce | flat")


def test_a_flag_is_not_divided_at_the_end_of_a_line(tmp_path):
    page = Page.of(find_runs([write_course(tmp_path)]), [])
    long = replace(page, learning=[f"{'word ' * 18} --weight-decay and others"])
    assert "--weight-decay" in long.first_sentences()


def test_the_page_is_valid_and_complete(written):
    text = (written[0] / "comparison.html").read_text()
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    for heading, noun in zip(document.iter("h2"), ("proof", "time", "time", "learn", "settings",
                                                   "environment", "again"), strict=True):
        assert noun in heading.text.lower()
    sentences = [each.text for each in document.iter("li")]
    assert is_claim(sentences[0])
    assert any(says(each, 4, "gather-scatter", "all-reduce", "1.90") for each in sentences)
    words = " ".join(document.itertext())
    for fact in ("2.0e-13", "abacus", "prove.py --steps 3", "1.900 ± 0.000",
                 "--batch-size", "5eed1231", "1 library", "2 winograd-4", "503 MB",
                 "python3 PartThree/main.py --resume auto"):
        assert fact in words
    pictures = list(document.iter("img"))
    assert any(says(each.get("alt"), "PartOne", 2, "gather-scatter", "all-reduce", "DDP")
               and "FAULT" not in each.get("alt") for each in pictures)
    assert len(pictures) >= FIGURES and all(picture.get("alt") for picture in pictures)
    assert all(picture.get("src").startswith("data:image/svg+xml;base64,") for picture in pictures)


def test_the_page_needs_no_network_and_runs_its_own_script_alone(written):
    text = re.sub(r'src="data:[^"]*"', "", (written[0] / "comparison.html").read_text())
    assert not re.search(r"https?://|<link|@import|url\(|src=", text)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert [each.strip() for each in scripts] == [
        (ROOT / "common/reporting/page.js").read_text().strip()]
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)[1]
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert "default-src &#39;none&#39;" in policy and f"script-src &#39;sha256-{digest}" in policy


def test_markdown_says_the_same_and_its_figures_are_there(written):
    text = (written[0] / "comparison.md").read_text()
    assert "| PartTwo/gather-scatter | 4 | 1.900 ± 0.000 |" in text
    assert r"all-reduce \| flat" in text
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    page = (written[0] / "comparison.html").read_text()
    assert len(links) == page.count("<img ")
    assert all((written[0] / link).read_text().startswith("<?xml") for link in links)


def test_differences_of_settings(tmp_path):
    write_run(tmp_path / "a", data_dir="pets", output_dir="first", seed=1)
    write_run(tmp_path / "b", data_dir="dogs", output_dir="second", seed=2)
    runs = find_runs([tmp_path])
    differing, common = what_ran.settings(runs)
    assert [row[:3] for row in differing.rows] == [("--data-dir", "pets", "dogs"),
                                                   ("--seed", "1", "2")]
    assert "--seed" not in [row[0] for row in common.rows]
    assert what_ran.settings(runs[:1])[0].rows == []


def test_text_from_logs_is_escaped(tmp_path):
    write_run(tmp_path / "PartOne", workload="<script>alert(1)</script>")
    write_run(tmp_path / "'><script>alert(1)", 4)  # a name in the values of figures
    Page.of(find_runs([tmp_path]), []).write(tmp_path, "page")
    text = (tmp_path / "page.html").read_text()
    assert "alert(1)" in text and text.count("<script") == 1


@pytest.mark.parametrize("arguments, code, fact", [
    (["nowhere"], 4, "nowhere"), (["common"], 4, "common"), ([], 2, "OUTPUT_DIR"),
    (["{run}", "--proof", "README.md"], 4, "README.md")])
def test_mistakes_are_one_sentence(written, arguments, code, fact):
    arguments = [word.replace("{run}", str(written[0])) for word in arguments]
    done = subprocess.run([sys.executable, "scripts/compare.py", *arguments], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == code
    sentence, = error_lines(done.stderr)
    assert says(sentence, fact)


def test_one_digest_is_asked_of_all_runs(written, tmp_path):
    runs = find_runs([write_course(tmp_path / "one", digest="5eed1234")])
    assert have_one_digest(runs)
    assert not have_one_digest(runs[:1])  # compared with nothing
    one = digests_as_text(runs[:1]).splitlines()
    *rows, verdict = digests_as_text(runs).splitlines()
    assert says(verdict, "5eed1234") and says(one[1], "5eed1234") and len(one) == 2
    for row, name in zip(rows, ("PartOne", "gather-scatter", "all-reduce", "DDP"), strict=True):
        assert says(row, "5eed1234", name)
    shutil.rmtree(tmp_path / "one")
    write_run(tmp_path / "PartOne")
    write_run(tmp_path / "PartThree", 4, digest="5eed1235")
    done = subprocess.run([sys.executable, "scripts/compare.py", tmp_path, "--one-digest"],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert says(done.stdout, "5eed1234", "5eed1235", "scripts/prove.py --bits")
    write_run(tmp_path / "PartThree", 4, ended=False)
    runs = find_runs([tmp_path])
    assert not have_one_digest(runs)
    _, row, verdict = digests_as_text(runs).splitlines()
    assert row.startswith(f"{NOT_ENDED} ") and "--bits" not in verdict
    write_run(tmp_path / "PartOne", ended=False)
    assert not have_one_digest(find_runs([tmp_path]))  # no digest at all is not one


def test_no_letter_of_a_figure_is_cut_off(written):
    pictures = sorted((written[0] / "comparison_figures").glob("*.svg"))
    assert len(pictures) >= FIGURES
    for picture in pictures:
        text = picture.read_text()
        assert text.count("<text") > 5 and cut_off(text) == [], picture.name


def test_long_names_are_not_cut_off_either(tmp_path):
    for name, ranks in (("PartOne", 1), ("PartTwo/gather-scatter-per-tensor", 16),
                        ("a-folder-with-a-very-long-name/and-another-one-in-it/PartThree", 16)):
        write_run(tmp_path / name, ranks, sync=0.3, root_sends=3 * (ranks > 1))
    Page.of(find_runs([tmp_path]), []).write(tmp_path, "page")
    for picture in (tmp_path / "page_figures").glob("*.svg"):
        assert cut_off(picture.read_text()) == [], picture.name


def test_letters_outside_the_view_box_are_found():
    picture = """<svg viewBox="0 0 100 40"><g transform="translate(50 20)">
        <text style="font-size: 10px; text-anchor: {}" transform="rotate({} 0 0)">ten letters</text>
        </g></svg>"""
    assert cut_off(picture.format("middle", 0)) == []
    assert cut_off(picture.format("start", 0)) == ["ten letters"]
    assert cut_off(picture.format("middle", 90)) == ["ten letters"]


def test_the_page_and_its_figures_have_a_dark_side(written):
    page = (written[0] / "comparison.html").read_text()
    assert "color-scheme: light dark" in page
    named = set(re.findall(r"(--\w+):", re.search(r"dark\) \{(.*?)\}\s*\}", page, re.DOTALL)[1]))
    assert named == set(re.findall(r"var\((--\w+)\)", page))
    style = page[page.index("<style>"):page.index("</style>")]
    assert re.findall(r"(?<![-\w])(?:color|background|border[\w-]*): [^;]*#", style) == []
    for picture in (written[0] / "comparison_figures").glob("*.svg"):
        assert "prefers-color-scheme: dark" in picture.read_text()


MEASURE = """<script>addEventListener("load", () => {
  const pictures = [...document.images], canvas = document.createElement("canvas");
  const corner = (picture) => {
    const pen = canvas.getContext("2d");
    pen.drawImage(picture, 0, 0);
    return pen.getImageData(2, 2, 1, 1).data[0];
  };
  document.title = JSON.stringify({
    wide: document.documentElement.scrollWidth, window: innerWidth,
    cut: [...document.querySelectorAll(".wide, th, td")].filter(
        one => one.offsetParent && one.tagName != "THEAD" && !one.closest("thead")
               && one.scrollWidth > one.clientWidth + 1).length,
    paper: getComputedStyle(document.body).backgroundColor, corners: pictures.map(corner),
    rendered: pictures.filter(one => one.complete && one.naturalWidth > 100
                                     && one.clientWidth > 250 && one.clientHeight > 80).length,
    pictures: pictures.length});
});</script>"""


def without_policy(page) -> str:
    """The page's text without the policy that blocks the scripts of these tests."""
    return re.sub(r"<meta http-equiv=.Content-Security-Policy.*", "", page.read_text())


def dump(page, folder, dark: bool) -> str:
    """The page as a browser has rendered it ten seconds later."""
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         "--virtual-time-budget=10000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (scripts/test.sh does it)")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_a_browser_renders_every_figure_and_cuts_nothing_off(written, width, dark, tmp_path):
    page = tmp_path / "page.html"
    # A headless window is never narrower than 500 pixels; a frame is.
    (tmp_path / "inner.html").write_text(
        without_policy(written[0] / "comparison.html").replace("</head>", MEASURE + "</head>"))
    page.write_text('<!DOCTYPE html><meta name="color-scheme" content="light dark">'
                    f'<iframe src="inner.html" width="{width}" height="900" '
                    'style="border:0" onload="setTimeout(() => document.body.dataset.told = '
                    'frames[0].document.title, 0)"></iframe>')
    text = dump(page, tmp_path, dark)
    told = json.loads(re.search('data-told="([^"]*)"', text)[1].replace("&quot;", '"'))
    assert told["window"] == width and told["wide"] <= width and told["cut"] == 0
    assert told["rendered"] == told["pictures"] >= FIGURES
    assert told["paper"] == ("rgb(22, 25, 29)" if dark else "rgb(255, 255, 255)")
    assert set(told["corners"]) == {22 if dark else 255}


USE = """<script>addEventListener("load", () => {
  const within = (selector, place = document) => place.querySelector(selector);
  const table = within("#time-1").parentNode.querySelector("table");
  const names = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
  const button = within("thead th:nth-child(3) button", table);
  const before = names();
  button.click();
  const sorted = names(), head = button.parentNode.ariaSort;
  table.tBodies[0].rows[1].cells[2].textContent = "-";
  button.click();
  const unknown = names().pop();
  const plot = within(".plot[data-spots]");
  plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  const words = within(".value:not([hidden])", plot).textContent;
  within("figure > button").click();
  document.title = JSON.stringify({before, sorted, head, words,
    open: within("dialog").open, kept: history.state.sorted["time-1"], unknown});
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (scripts/test.sh does it)")
def test_a_browser_sorts_tables_tells_values_and_enlarges_figures(written, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(without_policy(written[0] / "comparison.html").replace("</head>",
                                                                           USE + "</head>"))
    title = re.search("<title>(.*?)</title>", dump(page, tmp_path, dark=False))[1]
    told = json.loads(html.unescape(title))
    assert told["before"] == ["PartOne", "PartTwo/gather-scatter", "PartTwo/all-reduce",
                              "PartThree"]
    assert told["sorted"] == ["PartThree", "PartTwo/all-reduce", "PartTwo/gather-scatter",
                              "PartOne"]  # by seconds an iteration
    assert told["head"] == "ascending" and told["kept"] == [2, "descending"]
    assert told["unknown"] == "PartTwo/all-reduce"
    assert says(told["words"], "ideal", 1)
    assert told["open"]


RETURN = """<script>
history.replaceState({again: true, section: "environment", top: 100,
                      sorted: {"time-1": [99, "ascending"]}}, "");
addEventListener("load", () => {
  document.title = JSON.stringify({
    top: Math.round(document.getElementById("environment").getBoundingClientRect().top),
    bar: document.querySelector(".live").textContent});
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (scripts/test.sh does it)")
def test_a_renewed_page_is_where_the_reader_was(written, tmp_path):
    """Also where a column is gone by which a table was sorted."""
    page = tmp_path / "page.html"
    page.write_text(without_policy(written[0] / "comparison.html").replace(
        "</head>", RETURN + "</head>").replace("<body>", '<body data-refresh="1000">'))
    title = re.search("<title>(.*?)</title>", dump(page, tmp_path, dark=False))[1]
    told = json.loads(html.unescape(title))
    assert told["top"] == 100
    assert re.search(r"\b\d+ (s|min)\b", told["bar"])  # since it was drawn
