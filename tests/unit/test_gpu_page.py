"""docs/gpu.md lists every file that does something else on a GPU, and says that none was run there.

Mutations that turn this red: a branch on the device in a file that the page does not name; the
sentence on top left out; a path without "never run" or "run on ..."; a path said to have run while
docs/results holds no record of it.
"""

import re

from tests.facts import says
from tests.ranks import ROOT

PAGE = (ROOT / "docs/gpu.md").read_text()
DIFFERS = re.compile(r"torch\.cuda|is_cuda|\.type [!=]= \"|ProfilerActivity\.CUDA|\[\"device\"\]")


def test_every_file_that_differs_by_device_is_on_the_page():
    files = [path.relative_to(ROOT).as_posix() for folder in ("common", "PartTwo", "PartThree")
             for path in (ROOT / folder).rglob("*.py") if DIFFERS.search(path.read_text())]
    assert len(files) > 10 and not [each for each in files if f"`{each}`" not in PAGE]


def test_the_page_says_where_each_path_was_run_and_that_nothing_was_measured():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and ".py`" in line]
    said = re.compile(r"\| (never run|run on [^|]+) \|$")
    assert len(rows) > 20 and all(said.search(row) for row in rows)
    if not list((ROOT / "docs/results").glob("gpu_*.md")):
        assert says(PAGE.split("\n\n")[1], "measured", "GPU", "no")
        assert all(row.endswith("| never run |") for row in rows)
