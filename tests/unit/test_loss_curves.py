"""Loss curves: every rank's samples in them, gaps against the first run, and a figure of them.

Mutations that turn this red: `!=` to `>` in read_curve; `max` to `min` or `abs` dropped in
largest_gap; a scale of its own for each panel.
"""

import sys
from xml.etree import ElementTree

import pytest

from common.failures import DataError, UsageError
from scripts.loss_curves import Curve, draw, largest_gap, main, read_curve
from tests.recorded import write_run


def test_ranks_are_merged(tmp_path):
    curve = read_curve(write_run(tmp_path / "run", ranks=2, steps=3))
    assert curve.ranks == 2
    assert curve.losses == pytest.approx({(1, 0): 2.5, (1, 1): 1.5, (2, 0): 2 / 3 + 0.5})


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_rank_is_an_error(missing, tmp_path):
    folder = write_run(tmp_path / "run", ranks=3)
    (folder / f"metrics_rank{missing}.jsonl").unlink()
    with pytest.raises(DataError):
        read_curve(folder)


def test_a_folder_of_several_runs_is_an_error(tmp_path):
    for name in "ab":
        write_run(tmp_path / name)
    with pytest.raises(DataError, match="2 runs"):
        read_curve(tmp_path)


def test_the_largest_gap_and_its_place(tmp_path):
    reference = Curve(tmp_path, 1, {(1, 0): 3.0, (1, 1): 2.0, (2, 0): 1.0})
    other = Curve(tmp_path, 2, {(1, 0): 3.1, (1, 1): 1.5, (2, 0): 1.2})
    assert largest_gap(other, reference) == (0.5, (1, 1))
    with pytest.raises(DataError, match="compared"):
        largest_gap(Curve(tmp_path, 2, {(1, 0): 3.0}), reference)


def test_the_command_draws_and_says_the_gaps(tmp_path, monkeypatch, capsys):
    one, two = (write_run(tmp_path / name, ranks) for name, ranks in (("one", 1), ("two", 2)))
    picture = tmp_path / "docs" / "curves.svg"
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", "--output", str(picture), "--panel",
                                      "global", str(one), str(two), "--panel", "alone", str(one)])
    main()
    assert "2 ranks: at most 5.00e-01 from 1 rank, at epoch" in capsys.readouterr().out
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_panels_share_their_scale(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: drawn.append(self))
    draw([("a", [Curve(tmp_path, 1, {(1, 0): 9.0})]), ("b", [Curve(tmp_path, 1, {(1, 0): 1.0})])],
         tmp_path / "x.svg")
    upper, lower = drawn[0].axes
    assert upper.get_ylim() == lower.get_ylim() and upper.get_ylim()[1] >= 9


def test_a_panel_without_a_folder_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", "--output", "x.svg", "--panel", "title"])
    with pytest.raises(UsageError, match="folder"):
        main()
