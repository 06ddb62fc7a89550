"""README's figures are those of the files that their commands wrote; each has a row that renews it.

A figure whose file was never recorded is told as an expected failure, with its command. Mutations
that turn this red: change a figure in README, or in its file.
"""

import json
import re
from statistics import median
from typing import Any

import pytest

from studies.prediction.calibration import checks
from studies.prediction.fitting import calibrate
from studies.prediction.sources import read_source
from tests.facts import says
from tests.ranks import ROOT

README = (ROOT / "README.md").read_text()
CALIBRATED_ON = {"4:none", "4:1gbit", "4:100mbit", "2:none", "2:100mbit"}


def recorded(name: str) -> dict[str, Any]:
    """The record that the command of that row wrote."""
    path = ROOT / f"docs/results/{name}.json"
    if not path.exists():
        pytest.xfail(f"not recorded yet: scripts/renew_docs.sh {name}")
    found = json.loads(path.read_text())
    assert found["conditions"] and found["processor"] and re.fullmatch(r"\d{4}-\d\d-\d\d",
                                                                      found["date"])
    assert found["n"] > 0
    return found


def claim(link: str) -> str:
    """The row of README's table that ends in this link."""
    row = re.search(rf"^\| .*\({re.escape(link)}\) \|$", README, re.MULTILINE)
    assert row, link
    return row[0]


def test_the_digest_and_the_seconds_are_the_quick_starts():
    found = recorded("quickstart")
    (digest,) = re.findall("`([0-9a-f]{8})`", claim("docs/virtual_nodes.md"))
    assert README.count(digest) == 6 and digest == found["digest"]
    assert says(README, f"{found['seconds']} s") and found["installing_included"]


def test_so_many_runs_were_killed_and_so_many_were_identical():
    found = recorded("kills")
    assert says(claim("docs/faults.md"), f"{found['identical']} of {found['n']}")
    assert len(found["kills"]) == found["n"]


def test_the_others_had_ended_after_so_many_seconds():
    found = recorded("detection")
    assert says(claim("docs/faults.md#how-long-until-everybody-has-ended"),
                f"{found['faults']['killed']['median']:.1f} s", found["n"],
                found["processor"].split(" Processor")[0])
    of_faults = (ROOT / "docs/faults.md").read_text()
    for fault, seconds in found["faults"].items():
        assert f"| {fault} | {seconds['median']:.1f} s | {seconds['p95']:.1f} s |" in of_faults


def test_images_a_second_are_the_measured_ones():
    found = recorded("peers")
    for precision, times in found["over_best_peer"].items():
        speed = found["rows"][f"project-{precision}"]["images_per_second"]
        assert says(claim("docs/one_node.md"), precision, f"{speed:.0f}", f"{times['times']:.1f}")


def test_the_prediction_errs_so_much_on_so_many_steps():
    source = read_source(ROOT / "docs/results/sync_grid.json")
    seen = [each for each in source.cells if f"{each['nodes']}:{each['rate']}" in CALIBRATED_ON]
    unseen = [each for each in source.cells if each not in seen]
    assert len(seen) == len(CALIBRATED_ON)
    found = checks(calibrate(seen, source.machine, source.batch, source.latency), unseen)
    new = [each for each in found if each.nodes not in {cell["nodes"] for cell in seen}]
    held = sum(each.is_within_bar for each in found)
    bars = [100 * (each.predicted.error or 0) for each in found]
    assert says(claim("docs/predicting.md"), len(found), len(new), len(found) - len(new), held,
                f"{100 * median(abs(each.error) for each in found):.1f} %",
                f"{min(bars):.0f} to {max(bars):.0f} %")
