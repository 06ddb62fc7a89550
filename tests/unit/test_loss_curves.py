"""Loss curves: ranks merged by samples, gaps against the first run, and a figure that holds them.

Mutations that turn this red: the mean of ranks without samples in read_curve; `!= ranks` to
`> ranks`; `max` to `min` or `abs` dropped in largest_gap; a scale of its own for each panel;
`floor` for `ceil` in nice_ticks.
"""

import json
import re
import sys
from xml.etree import ElementTree

import pytest

from common.failures import DataError, UsageError
from scripts.line_panels import Line, Panel, nice_ticks, svg
from scripts.loss_curves import Curve, largest_gap, main, read_curve


def write_run(folder, by_rank: list[list[tuple[float, int]]]):
    """One metrics file a rank from its (loss, samples) of each iteration, two an epoch."""
    folder.mkdir(parents=True)
    for rank, steps in enumerate(by_rank):
        events = [{"event": "start", "world_size": len(by_rank)}]
        events += [{"event": "step", "epoch": 1 + index // 2, "iteration": index % 2, "loss": loss,
                    "samples": samples} for index, (loss, samples) in enumerate(steps)]
        (folder / f"metrics_rank{rank}.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_ranks_are_merged_by_samples(tmp_path):
    curve = read_curve(write_run(tmp_path / "run", [[(1.0, 3), (4.0, 2)], [(5.0, 1), (8.0, 2)]]))
    assert curve.ranks == 2 and curve.losses == {(1, 0): 2.0, (1, 1): 6.0}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_rank_is_an_error(missing, tmp_path):
    folder = write_run(tmp_path / "run", [[(1.0, 3)]] * 3)
    (folder / f"metrics_rank{missing}.jsonl").unlink()
    with pytest.raises(DataError):
        read_curve(folder)


def test_the_largest_gap_and_its_place(tmp_path):
    reference = Curve(tmp_path, 1, {(1, 0): 3.0, (1, 1): 2.0, (2, 0): 1.0})
    other = Curve(tmp_path, 2, {(1, 0): 3.1, (1, 1): 1.5, (2, 0): 1.2})
    assert largest_gap(other, reference) == (0.5, (1, 1))
    with pytest.raises(DataError, match="compared"):
        largest_gap(Curve(tmp_path, 2, {(1, 0): 3.0}), reference)


@pytest.mark.parametrize("low, high, ticks", [
    (0, 196, [0, 50, 100, 150, 200]), (1.31, 2.72, [1, 1.5, 2, 2.5, 3]), (2, 2, [2, 2.5])])
def test_ticks_are_round_and_enclose(low, high, ticks):
    assert nice_ticks(low, high) == ticks


def test_panels_share_the_vertical_scale():
    figure = svg([Panel("a & b", [Line("x", [0.0, 10.0])]), Panel("c", [Line("y", [0.0, 5.0])])],
                 "iteration", "loss")
    points = [[float(pair.split(",")[1]) for pair in drawn.split()]
              for drawn in re.findall('points="([^"]+)"', figure)]
    (bottom, top), (also_bottom, half) = points
    assert bottom == also_bottom and half == pytest.approx((bottom + top) / 2)
    words = [element.text for element in ElementTree.fromstring(figure).iter() if element.text]
    assert {"a & b", "c", "iteration", "loss", "x", "y", "10"} <= set(words)


def test_the_command_draws_and_says_the_gaps(tmp_path, monkeypatch, capsys):
    one = write_run(tmp_path / "one", [[(2.0, 4), (1.0, 4), (0.5, 4)]])
    two = write_run(tmp_path / "two", [[(1.0, 2), (1.0, 2), (0.5, 2)],
                                       [(3.0, 2), (1.0, 2), (0.75, 2)]])
    picture = tmp_path / "docs" / "curves.svg"
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", "--output", str(picture), "--panel",
                                      "global", str(one), str(two), "--panel", "alone", str(one)])
    main()
    said = capsys.readouterr().out
    assert "2 ranks: at most 1.25e-01 from 1 rank, at epoch 2 iteration 0" in said
    assert picture.read_text().count("<polyline") == 3


def test_a_panel_without_a_folder_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", "--output", "x.svg", "--panel", "title"])
    with pytest.raises(UsageError, match="folder"):
        main()
