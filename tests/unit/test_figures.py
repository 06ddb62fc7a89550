"""Figures: what they show, that axes have units, and that grey and colour-blind readers can tell.

Mutations that turn this red: a phase left out of the bars, or not stacked; the ideal line from 0;
speed-up upside down; seconds where milliseconds are written; two line styles alike; the trace's
first step for its last; overlapping pieces counted twice; waiting in AccumulateGrad, or in what
sends, counted as computing; evaluate_function left out of it; every thread for those that run
backward; a GPU's host; no look for messages; an epoch's mean at its end; marks of one size; zeros
written into a matrix; ties told as the worst mistake; a face of pure black.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from common.reporting import confusion_figures, figures
from common.reporting.figure_style import (
    BAR_EDGE,
    BLACK,
    DARK,
    GRID,
    INK,
    LINES,
    PAPER,
    PHASES,
    line,
    svg,
)
from common.reporting.recorded_run import find_runs
from common.reporting.timeline import last_step, overlap, phase_is, spans, timeline
from common.reporting.timeline import title as timeline_title
from tests.facts import says
from tests.recorded import write_course, write_run


@pytest.fixture
def course(tmp_path):
    return find_runs([write_course(tmp_path)])


def words(figure) -> str:
    axes = figure.axes
    return " ".join([figure.get_suptitle(), *(each.get_xlabel() for each in axes),
                     *(each.get_ylabel() for each in axes)])


@pytest.mark.parametrize("name, units", [
    ("learning", ["iteration", "loss", "accuracy", "%"]), ("phases", ["ms", "iteration"]),
    ("speed-up", ["ranks", "speed"])])
def test_a_figure_says_what_to_conclude_in_which_units(course, name, units):
    figure = figures.FIGURES[name](course)
    assert len(figure.get_suptitle()) > 15
    assert says(words(figure), *units)
    assert svg(figure) == svg(figures.FIGURES[name](course))


def test_every_run_has_its_line_and_its_epochs_marks(course):
    loss, accuracy = figures.learning(course).axes
    lines = [line for line in loss.lines if len(line.get_xdata()) == 4]
    assert [line.get_label() for line in lines] == [figures.label(run) for run in course]
    assert list(lines[0].get_ydata()) == pytest.approx([2.0, 1.0, 2 / 3, 0.5])
    marks = [list(line.get_xdata()) for line in loss.lines if len(line.get_xdata()) == 2]
    assert marks == [[1.5, 3.5]] * 4  # in the middle of iterations 1, 2 and 3, 4
    assert [line.get_xdata()[0] for line in loss.lines if len(line.get_xdata()) == 1] == [4] * 4
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([0, 10, 20, 30])


def test_phases_are_stacked_for_every_rank_in_milliseconds(course):
    axes, = figures.phases(course).axes
    assert len(axes.patches) == len(PHASES) * 13
    gather = [patch for patch in axes.patches if patch.get_y() == axes.patches[1].get_y()]
    assert [patch.get_width() for patch in gather] == pytest.approx([0, 250, 750, 900, 0])
    assert [patch.get_x() for patch in gather] == pytest.approx([0, 0, 250, 1000, 1900])


def test_speed_up_stands_beside_the_ideal(course):
    axes, = figures.speed_up(course).axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
             for line in axes.lines}
    assert lines["ideal"] == ([1, 4], [1, 4])
    assert lines["all-reduce"] == ([1, 4], pytest.approx([1.0, 2.0]))


def test_marks_of_equal_runs_are_all_seen(course):
    figure = figures.learning([course[0], *(replace(run, steps=course[0].steps)
                                            for run in course[1:])])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    loss = figure.axes[0]
    for at, height in ((1.5, 1.5), (4, 1.25)):  # an epoch's mean, the test set's
        x, y = loss.transData.transform((at, height))
        row, column = len(pixels) - round(y), round(x)
        seen = pixels[row - 12:row + 12, column - 12:column + 12].reshape(-1, 3)
        for index in range(len(course)):
            colour = 255 * np.array(to_rgb(line(index)["color"]))
            assert (np.abs(seen - colour).max(axis=1) < 8).sum() >= 8, (at, index)


def matrices(tmp_path, *found):
    """Runs with these confusion matrices."""
    for name, matrix in enumerate(found):
        write_run(tmp_path / str(name), confusion=matrix)
    return find_runs([tmp_path])


def cells(figure) -> dict[tuple[float, float], str]:
    return {text.get_position(): text.get_text() for text in figure.axes[0].texts}


def title(figure) -> str:
    return " ".join(figure.get_suptitle().split())


def test_the_confusion_matrix_names_the_worst_mistake_and_leaves_zeros_blank(course, tmp_path):
    figure = confusion_figures.confusion(course)
    assert says(title(figure), "bee", "ant", 5, 10)
    assert cells(figure) == {(0, 0): "8", (1, 0): "2", (0, 1): "5", (1, 1): "5"}
    tied, none = matrices(tmp_path / "other", [[8, 2], [2, 8]], [[9, 0], [0, 9]])
    assert says(title(confusion_figures.confusion([tied])), 4, 20)
    assert not says(title(confusion_figures.confusion([none])), 18)
    assert cells(confusion_figures.confusion([none])) == {(0, 0): "9", (1, 1): "9"}


def test_what_runs_do_not_have_is_not_drawn(tmp_path):
    runs = find_runs([write_run(tmp_path / "PartOne", steps=1, ended=False).parent])
    assert confusion_figures.confusion(runs) is None
    assert [name for name, draw in figures.FIGURES.items() if draw(runs)] == ["learning"]


def test_looks_differ_without_colour():
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[at:at + 2], 16) for at in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    bars = [(round(lightness(look["facecolor"]) / 60), look["hatch"]) for look in PHASES.values()]
    assert len(set(bars)) == len(bars)
    assert len({(look["linewidth"], look.get("dashes")) for look in LINES}) == len(LINES)


def test_every_ink_has_its_counterpart_on_a_dark_page(course):
    drawn = [figure for draw in figures.FIGURES.values() if (figure := draw(course))]
    for text in map(svg, [*drawn, confusion_figures.confusion(course)]):
        before, rules, after = re.split(r"(@media \(prefers-color-scheme: dark\) \{.*?\n\})", text,
                                        flags=re.DOTALL)
        assert f"#paper path {{fill: {DARK[PAPER]} !important}}" in rules
        assert '<g id="paper">' in after and "text {fill: " in rules
        for what, colour in set(re.findall(r"(fill|stroke): (#[0-9a-f]{6})", after)):
            shown = to_rgb(DARK[colour] if f'"{what}: {colour}"' in rules else colour)
            if colour not in (BAR_EDGE, GRID, PAPER):
                assert contrast(shown, to_rgb(DARK[PAPER])) > 2.5, (what, colour)


def contrast(one, other) -> float:
    """The contrast that WCAG defines: 1 for equal colours, 21 for black on white."""
    light, dark = sorted((0.05 + sum(
        weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        for weight, part in zip((0.2126, 0.7152, 0.0722), colour, strict=True))
        for colour in (one, other)), reverse=True)
    return light / dark


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shade", [confusion_figures.RIGHT, confusion_figures.MISTAKEN])
def test_numbers_in_a_matrix_are_legible_on_light_paper_and_on_dark(depth, shade):
    for paper, ink in ((PAPER, BLACK), (DARK[PAPER], DARK[BLACK])):
        share = depth * confusion_figures.DEEPEST
        cell = [share * one + (1 - share) * other
                for one, other in zip(to_rgb(shade), to_rgb(paper), strict=True)]
        assert contrast(cell, to_rgb(ink)) > 4.5


def event(rank: int, name: str, start: float, end: float, track: int = 0, **more) -> dict:
    return {"ph": "X", "pid": rank, "tid": track, "name": name, "ts": start, "dur": end - start,
            **more}


def operator(rank: int, name: str, start: float, end: float, track: int = 5) -> dict:
    return event(rank, name, start, end, track, cat="cpu_op")


ENGINE = "autograd::engine::evaluate_function: "
TWO_STEPS = [event(rank, name, base + at, base + to) for rank in (0, 1) for base in (0, 1000)
             for name, at, to in (("data", 0, 100), ("forward", 100, 300), ("backward", 300, 700),
                                  ("sync", 700, 700), ("update", 700, 800))]
MESSAGES = [event(0, "gloo:all_reduce", 1500, 1650, 9), event(0, "gloo:all_reduce", 1600, 1750, 9),
            event(1, "gloo:all_reduce", 1600, 1700, 9), event(1, "gloo:all_reduce", 500, 600, 9)]


def test_the_timeline_shows_the_last_step_and_what_hides_in_it():
    trace = {"traceEvents": [
        *TWO_STEPS, *MESSAGES,
        operator(0, ENGINE + "MmBackward", 1310, 1320), operator(1, ENGINE + "Mm", 1310, 1320),
        operator(0, "aten::convolution", 1400, 1650), operator(1, "aten::mm", 1300, 1650),
        operator(1, "aten::mul", 1600, 1640), operator(1, "c10d::allreduce_", 1650, 1700),
        {**event(1, "backward", 1710, 1790), "tid": 11}]}  # a GPU's copy: no phase of the host
    assert last_step(trace) == (1000, 1800)
    backward = phase_is("backward")
    assert spans(trace, 1, (1000, 1800), backward) == [(pytest.approx(0.3), pytest.approx(0.4))]
    assert overlap(trace, backward) == pytest.approx((200 + 100) / (250 + 100))
    assert overlap(trace) == pytest.approx((150 + 50) / (250 + 100))  # the rest of it only waits
    figure = timeline(trace, "DDP")
    assert says(title(figure), "57 %")
    assert re.search(r"\bms\b|milliseconds", words(figure))
    drawn = svg(figure).partition("</style>")[2]
    assert f"fill: {INK}" in drawn  # the bytes: matplotlib would not write black


@pytest.mark.parametrize("events, share", [
    ([operator(0, ENGINE + "OursBackward", 1500, 1600)], 100),  # no operator within: it is ours
    ([operator(0, "Ours", 1500, 1600)], 100),
    ([operator(0, ENGINE + "torch::autograd::AccumulateGrad", 1500, 1600)], 0),  # hooks wait here
    ([operator(0, "aten::mm", 1500, 1600, 6)], 0),  # a thread that adds what has arrived
    ([event(0, "training.py(40): forward", 1500, 1600, 5, cat="python_function")], 0),
    ([operator(0, ENGINE + "SumsBackward", 1500, 1600), operator(0, "aten::sum", 1500, 1520),
      operator(0, "c10d::allreduce_", 1520, 1530)], 20),  # sends within, and waits
    ([operator(0, "aten::mm", 1500, 1600), event(0, "gemm", 1500, 1510, 7, cat="kernel")], 10)],
    ids=["backward of ours", "forward of ours", "hooks", "another thread", "Python's frames",
         "sends within", "a GPU"])
def test_what_counts_as_computing(events, share):
    backward = operator(0, ENGINE + "Mm", 1310, 1320)
    trace = {"traceEvents": [*TWO_STEPS, *MESSAGES, backward, *events]}
    assert overlap(trace) == pytest.approx(share / 350)


def test_a_title_claims_nothing_that_the_trace_does_not_hold():
    without, idle = {"traceEvents": TWO_STEPS}, {"traceEvents": [*TWO_STEPS, *MESSAGES]}
    alone = {"traceEvents": [each for each in TWO_STEPS if each["pid"] == 0]}
    titles = {timeline_title(trace) for trace in (without, idle, alone)}
    assert len(titles) == 3 and not any("%" in each for each in titles)
