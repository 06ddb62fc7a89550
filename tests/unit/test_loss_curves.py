"""Loss curves: every rank's samples in them, differences from the first run, a figure of them.

Mutations that turn this red: `!=` to `>` in read_curve; `abs` dropped in the table; the curve
subtracted from the reference; the first 50 for the last; an interval of 0 in the conclusion; a
smoothed curve that begins at its first iteration; linear differences.
"""

import sys
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from common.core.failures import DataError, UsageError
from scripts import loss_curves
from scripts.loss_curves import Curve, conclusion, draw, main, read_curve, smoothed, table
from tests.recorded import write_run
from tests.svg_text import cut_off


def curve(label: str, losses: list[float], folder="runs") -> Curve:
    return Curve(label, folder, {(1, at): loss for at, loss in enumerate(losses)})


def test_ranks_are_merged(tmp_path):
    found = read_curve("two", write_run(tmp_path / "run", ranks=2, steps=3))
    assert found.losses == pytest.approx({(1, 0): 2.5, (1, 1): 1.5, (2, 0): 2 / 3 + 0.5})


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_rank_is_an_error(missing, tmp_path):
    folder = write_run(tmp_path / "run", ranks=3)
    (folder / f"metrics_rank{missing}.jsonl").unlink()
    with pytest.raises(DataError):
        read_curve("three", folder)


def test_a_folder_of_several_runs_is_an_error(tmp_path):
    for name in "ab":
        write_run(tmp_path / name)
    with pytest.raises(DataError, match="2 runs"):
        read_curve("one", tmp_path)


def test_differences_early_and_late():
    reference = curve("1 rank", [3.0] * 100)
    other = curve("4 ranks", [3.0 - 1e-6, *[2.5] * 9, *[3.0] * 40, *[3.25] * 50])
    assert table([reference, other]).splitlines()[-1] == (
        "| 4 ranks | 1.0e-06 | 5.0e-01 | +0.250 ± 0.000 |")
    with pytest.raises(DataError, match="compared"):
        curve("short", [3.0]).minus(reference)


def test_only_what_lies_beyond_the_spread_is_called_apart():
    reference = curve("1 rank", [1.0] * 100)
    apart = curve("4 ranks, each its own", [1.04 + 0.01 * (-1) ** at for at in range(100)])
    noise = curve("4 ranks", [1.001 + 0.1 * (-1) ** (at // 7) for at in range(100)])
    assert conclusion([reference, noise]).startswith("no run lies apart from 1 rank")
    assert conclusion([reference, noise, apart]) == (
        "apart from 1 rank in the mean of the last 50 iterations: 4 ranks, each its own (+0.040)")


def test_means_of_iterations_that_follow_one_another():
    values = [float(at) for at in range(30)]
    assert smoothed(values) == pytest.approx([12, 13, 14, 15, 16, 17])
    assert smoothed(values[:3]) == [1.0]


def test_the_command_draws_and_says_the_differences(tmp_path, monkeypatch, capsys):
    one, two = (write_run(tmp_path / name, ranks) for name, ranks in (("one", 1), ("two", 2)))
    picture = tmp_path / "docs" / "curves.svg"
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", "--output", str(picture), "--run", "1 rank",
                                      str(one), "--run", "2 ranks", str(two)])
    main()
    assert "| 2 ranks | 5.0e-01 | 5.0e-01 | +0.500 ± 0.000 |" in capsys.readouterr().out
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert cut_off(picture.read_text()) == []


def test_the_figure_shows_small_differences_too(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    monkeypatch.setattr(loss_curves, "svg", lambda figure: drawn.append(figure) or "")
    draw([curve("1", [1.0] * 30), curve("2", [1.0 + 1e-7] * 30)], tmp_path / "x.svg")
    loss, each, mean = drawn[0].axes
    assert each.get_yscale() == "log" and len(loss.lines) == 2
    assert list(each.lines[0].get_ydata()) == pytest.approx([1e-7] * 30)
    assert list(mean.lines[0].get_xdata()) == [25, 26, 27, 28, 29, 30]


@pytest.mark.parametrize("labels, sentence", [
    ("a", "nothing to compare"), ("ab", "cannot be written")])
def test_what_cannot_be_meant_is_a_usage_error(tmp_path, monkeypatch, labels, sentence):
    folder = write_run(tmp_path / "one")
    runs = [word for label in labels for word in ("--run", label, str(folder))]
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", *runs, "--output",
                                      str(folder / "metrics_rank0.jsonl" / "x.svg")])
    with pytest.raises(UsageError, match=sentence):
        main()
