"""The page beyond tables and figures: values, waiting, commands, run states.

Mutations that turn this red: y from below in hover.py, or points outside the axes (NaN is nowhere);
own work for waiting; the median of ranks for the slowest; a linear scale; a finished run among
those in progress; drawing again although no log has grown; an end while a run goes on; an iteration
that a rank has not logged yet; a trace read for each drawing; marks of epochs that have not ended;
write_text in place of a file replaced; no refresh, or one that stays.
"""

import json
import os

import pytest

from common.core.trace_file import pack_trace
from common.reporting import difference_figures, live
from common.reporting import page as page_module
from common.reporting.confusion_figures import confusion
from common.reporting.figures import learning, phases
from common.reporting.hover import spots
from common.reporting.page import Page
from common.reporting.recorded_run import find_runs
from common.reporting.timeline import timeline
from common.reporting.waiting import figure as waiting_figure
from common.reporting.waiting import waits
from common.reporting.what_ran import commands, environment
from tests.facts import says
from tests.recorded import write_course, write_run


@pytest.fixture
def course(tmp_path):
    return find_runs([write_course(tmp_path)])


def laid_out(figure):
    figure.draw_without_rendering()
    return figure


def test_values_stand_where_the_figure_has_them(course):
    found = spots(laid_out(learning(course)))
    first = next(spot for spot in found if says(spot.words, "PartOne"))
    assert says(first.words, "1 rank", "loss", 2, "iteration 1")
    later = next(spot for spot in found
                 if says(spot.words, "PartOne", "loss", 0.5, "iteration 4"))
    assert 0 < first.x < later.x < 1 and 0 < first.y < later.y < 0.5  # the upper panel, falling
    assert any(says(spot.words, "DDP", "4 ranks", "accuracy", "%", 10) for spot in found)


def test_bars_and_cells_have_values_too(course):
    words = [spot.words for spot in spots(laid_out(phases(course)))]
    assert any(says(each, "PartOne", "rank 0", "backward", "1500 ms") for each in words)
    assert any(says(spot.words, "bee", "ant", 5) for spot in spots(laid_out(confusion(course))))


def test_what_is_not_a_number_stands_nowhere(tmp_path):
    runs = find_runs([write_run(tmp_path / "PartOne", loss=float("nan"))])
    found = spots(laid_out(learning(runs)))
    assert not any("loss nan" in spot.words for spot in found)
    assert any("accuracy" in spot.words for spot in found)


def test_long_lines_have_few_values(tmp_path):
    runs = find_runs([write_run(tmp_path / "PartOne", steps=900, epochs=450)])
    assert len(spots(laid_out(learning(runs)))) <= 2 * 200


def test_the_first_iterations_of_a_run_have_room(tmp_path):
    figure = learning(find_runs([write_run(tmp_path / "PartOne", steps=1, ended=False)]))
    assert all(axes.get_position().height > 0.2 for axes in laid_out(figure).axes)


def test_who_waits_for_whom(tmp_path):
    write_run(tmp_path / "PartThree", 4, own=1.0, slow={2: 0.5}, sync=0.1)
    write_run(tmp_path / "PartOne")
    alone, several = find_runs([tmp_path])
    assert waits(alone) == {}
    found = waits(several)
    assert [round(each.waits, 9) for each in found.values()] == [0.5, 0.5, 0, 0.5]
    assert found[2].own == 1.5 and found[2].times == 0
    assert {(each.rank, each.times, each.iterations) for rank, each in found.items()
            if rank != 2} == {(2, 3, 3)}
    drawn = laid_out(waiting_figure([alone, several]))
    words = [spot.words for spot in spots(drawn)]
    for facts in (("rank 0", "1000 ms"), ("rank 0", "waits", "500 ms"), ("rank 2", "1500 ms")):
        assert any(says(each, "DDP", *facts) for each in words), facts
    assert [says(text.get_text(), "rank 2", 3) for text in drawn.axes[0].texts] == [
        True, True, False, True]
    (tmp_path / "PartThree/metrics_rank3.jsonl").unlink()
    runs = find_runs([tmp_path / "PartThree"])
    assert waits(runs[0]) == {} and waiting_figure(runs) is None  # nobody knows


def span(name: str, start: float, end: float, track: int = 1, rank: int = 0) -> dict:
    """An event of a trace; times are milliseconds."""
    return {"ph": "X", "pid": rank, "tid": track, "name": name, "ts": 1000 * start,
            "dur": 1000 * (end - start)}


def step(*events: dict) -> dict:
    """The trace of a step: forward to 20 ms, backward to 60, sync to 80, update to 90."""
    times = (("data", 0, 1), ("forward", 1, 20), ("backward", 20, 60), ("sync", 60, 80),
             ("update", 80, 90))
    return {"traceEvents": [*(span(*each, track=0) for each in times), *events]}


def test_a_timeline_has_values_for_every_rank():
    trace = step(*(span("backward", 20, 60, track=0, rank=1) for _ in range(1)))
    assert any(says(spot.words, "rank 1", "backward", 20, 60)
               for spot in spots(laid_out(timeline(trace, "DDP"))))


def test_a_trace_is_read_once_until_it_changes(tmp_path, monkeypatch):
    runs, read = find_runs([write_run(tmp_path / "PartOne")]), []
    path = tmp_path / "PartOne/traces/trace_all_epoch1.json.gz"
    path.parent.mkdir()
    path.write_bytes(pack_trace(step()))
    unpack = page_module.unpack_trace
    monkeypatch.setattr(page_module, "unpack_trace",
                        lambda packed: read.append(packed) or unpack(packed))
    pages = [Page.of(runs, []) for _ in range(2)]
    assert len(read) == 1 and pages[0].sections == pages[1].sections
    os.utime(path, (1, 1))
    Page.of(runs, [])
    assert len(read) == 2


def test_differences_are_on_a_scale_of_orders_that_ends_in_zero(tmp_path):
    for name, loss in (("PartOne", 2.0), ("PartThree", 2.0), ("PartTwo/all-reduce", 2.002)):
        write_run(tmp_path / name, loss=loss)
    figure = difference_figures.loss_differences(find_runs([tmp_path]))
    axes, = figure.axes
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] == 0
    assert [list(line.get_ydata()) for line in axes.lines] == [
        pytest.approx([0.002, 0.001, 0.002 / 3, 0.0005]), [0, 0, 0, 0]]
    assert says(figure.get_suptitle(), "PartOne", 0.002, "all-reduce", 0, "DDP")
    alone = find_runs([tmp_path / "PartOne"])
    assert difference_figures.loss_differences(alone) is None
    same = find_runs([tmp_path / "PartOne", tmp_path / "PartThree"])
    assert says(difference_figures.loss_differences(same).get_suptitle(), "PartOne", "bit")


def test_one_command_is_told_once_for_all_its_runs(tmp_path):
    for name in ("PartTwo/gather-scatter", "PartTwo/all-reduce"):
        folder = write_run(tmp_path / name, 2)
        for path in folder.glob("metrics*"):
            path.write_text(path.read_text().replace(
                f"python3 {folder.name}/main.py", "python3 PartTwo/main.py --output-dir 'my runs'"))
    (tmp_path / "PartTwo/all-reduce/settings.json").write_text("{}")
    told, = commands(find_runs([tmp_path]))
    assert says(told.runs, "gather-scatter", "all-reduce", "2 ranks")
    assert told.resume == "python3 PartTwo/main.py --output-dir 'my runs' --resume auto"
    Page.of(find_runs([tmp_path]), []).write(tmp_path / "page", "it")
    assert 'href="../PartTwo/all-reduce/settings.json"' in (tmp_path / "page/it.html").read_text()


def test_the_environment_leaves_out_what_no_log_tells(course):
    names, told = zip(*((row[0], row[1:]) for row in environment(course).rows), strict=True)
    alone, *others = told[[says(name, "memory") for name in names].index(True)]
    assert says(alone, "500 MB") and len(others) == 3
    assert all(says(each, 500, "503 MB") for each in others)
    assert ("5eed1231", *("5eed1234",) * 3) in told
    assert not any(says(name, "GPU") or says(name, "instructions") for name in names)


def test_a_page_of_runs_that_go_on_shows_how_far_they_are_and_renews_itself(tmp_path):
    write_run(tmp_path / "PartOne")
    write_run(tmp_path / "PartThree", 2, steps=3, ended=False)
    page = Page.of(find_runs([tmp_path]), [])
    state, = page.progress
    assert says(state.title, "PartThree", "2 ranks") and (state.done, state.last) == (3, 4)
    assert says(page.title, 2, "digits-vgg11", "1 finished", "1 running")
    for refresh, times in ((5, 1), (0, 0)):
        page.write(tmp_path, "page", refresh)
        text = (tmp_path / "page.html").read_text()
        assert text.count('data-refresh="5"') == times
        assert text.count('<a href="">') == times  # loads it again without JavaScript
        assert 'http-equiv="refresh"' not in text  # takes a reader's place away: WCAG, F41
        assert '<progress max="4" value="3"' in text and state.words in text
    assert not list(tmp_path.rglob("*.partial"))


def test_a_page_is_never_seen_half_written(tmp_path):
    page = Page.of(find_runs([write_run(tmp_path / "PartOne")]), [])
    page.write(tmp_path, "page")
    before = (tmp_path / "page.html").stat().st_ino
    page.write(tmp_path, "page")
    assert (tmp_path / "page.html").stat().st_ino != before  # replaced, not written over


def test_watching_draws_when_logs_grow_and_ends_after_the_last_run(tmp_path, monkeypatch):
    """Time passes only in sleep; at each turn the runs are what `turns` leaves there."""
    now, drawn, said = [1000.0], [], []
    turns = iter([
        lambda: None,  # still nothing
        lambda: write_run(tmp_path / "PartOne", steps=2, ended=False),
        *[lambda: None] * 13,  # more than a minute in which no log grows
        lambda: write_run(tmp_path / "PartOne", 2, steps=3, ended=False),
        lambda: cut(tmp_path / "PartOne/metrics_rank1.jsonl"),
        lambda: write_run(tmp_path / "PartOne", 2, steps=4)])

    def sleep(seconds: float) -> None:
        now[0] += seconds
        next(turns, lambda: None)()

    def cut(path) -> None:
        """Rank 1 has not logged the third step yet."""
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
        leader = path.with_name("metrics_rank0.jsonl")
        leader.write_text(leader.read_text() + json.dumps({"event": "note", "text": "!"}) + "\n")

    monkeypatch.setattr(live.time, "sleep", sleep)
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "nice", lambda more: more)
    live.watch([tmp_path], lambda runs, refresh: drawn.append((len(runs[0].steps), refresh)),
               said.append, pause=5, quiet=60)
    assert drawn == [(2, 5), (3, 5), (2, 5), (4, 5)]
    assert len(said) == 1 and says(said[0], tmp_path)
    assert now[0] == 1000 + 5 * 18 + 65  # until more than a minute has passed since the end
