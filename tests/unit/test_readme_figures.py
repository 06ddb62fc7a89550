"""README's figures are those of the files that their commands wrote; each has a row that renews it.

A figure whose file was never recorded is told as an expected failure, with its command. Mutations
that turn this red: change a figure in README, or in its file.
"""

import json
import re
from typing import Any

import pytest

from studies.prediction.calibration import checks
from studies.prediction.fitting import calibrate
from studies.prediction.sources import read_source
from studies.prediction.tables import errors_in_words
from tests.ranks import ROOT

README = (ROOT / "README.md").read_text()
CLAIMS = dict(re.findall(r"^\| (The same bits|Killed anywhere|The culprit|The fastest|The strategy)"
                         r"[^|]*\| ([^|]*) \|", README, re.MULTILINE))
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


def figures(claim: str, pattern: str) -> list[str]:
    found = re.search(pattern, CLAIMS[claim])
    assert found, (claim, CLAIMS[claim])
    return list(found.groups())


def test_the_table_has_five_claims():
    assert len(CLAIMS) == 5


def test_the_digest_and_the_seconds_are_the_quick_starts():
    found = recorded("quickstart")
    (digest,) = figures("The same bits", "`([0-9a-f]{8})`")
    assert README.count(digest) == 6 and digest == found["digest"]
    assert f"The quick start took {found['seconds']} s " in README and found["installing_included"]


def test_so_many_runs_were_killed_and_so_many_were_identical():
    found = recorded("kills")
    assert figures("Killed anywhere", r"(\d+) of (\d+) runs") == [
        str(found["identical"]), str(found["n"])]
    assert len(found["kills"]) == found["n"]


def test_the_others_had_ended_after_so_many_seconds():
    found = recorded("detection")
    assert figures("The culprit", r"in ([\d.]+) s \(median of (\d+) runs, ([^)]*)\)") == [
        f"{found['faults']['killed']['median']:.1f}", str(found["n"]),
        found["processor"].split(" Processor")[0]]
    of_faults = (ROOT / "docs/faults.md").read_text()
    for fault, seconds in found["faults"].items():
        assert f"| {fault} | {seconds['median']:.1f} s | {seconds['p95']:.1f} s |" in of_faults


def test_images_a_second_are_the_measured_ones():
    found = recorded("peers")
    times = found["over_best_peer"]
    assert figures("The fastest", r"(\d+) images a second in float32, (\d+) in bf16: "
                                  r"([\d.]+) and ([\d.]+) times the best peer") == [
        f"{found['rows']['project-float32']['images_per_second']:.0f}",
        f"{found['rows']['project-bf16']['images_per_second']:.0f}",
        f"{times['float32']['times']:.1f}", f"{times['bf16']['times']:.1f}"]


def test_the_prediction_errs_so_much_on_so_many_steps():
    source = read_source([ROOT / "docs/results/sync_grid.json"], None)
    seen = [each for each in source.cells if f"{each['nodes']}:{each['rate']}" in CALIBRATED_ON]
    unseen = [each for each in source.cells if each not in seen]
    assert len(seen) == len(CALIBRATED_ON)
    found = checks(calibrate(seen, source.machine, source.batch, source.latency), unseen)
    new = [each for each in found if each.nodes not in {cell["nodes"] for cell in seen}]
    error, steps, of_new, other, held = figures(
        "The strategy", r"([\d.]+ %) error in the median, over (\d+) steps .*\((\d+) on three "
                        r"nodes, (\d+) on two or four at another rate\).* held (\d+) of them")
    said = errors_in_words(found)
    assert said.startswith(f"{steps} steps of unseen cells: error {error} in the median")
    assert f"; {held} of the {steps} with an error bar within it" in said
    assert [int(of_new), int(other)] == [len(new), len(found) - len(new)]
    bars = [100 * (each.predicted.error or 0) for each in found]
    assert f"bars of {min(bars):.0f} to {max(bars):.0f} %" in CLAIMS["The strategy"]
