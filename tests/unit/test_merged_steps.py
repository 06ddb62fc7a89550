"""Merging the ranks' logs: losses weighted by samples, and the true straggler.

Mutations that turn this red: leave `samples` out of the loss's sum; use max instead of the spread;
count `sync`, or Part Three's backward, as own work; compare with the mean that the straggler is in;
floats for the exact sums; one key for all logs in logs_of_runs, or all in one of
_one_and_left_over; `rank < inf` in by_place; the first start in ranks_at for the last; the
last iteration alone in averages_in_backward.
"""

import json
import re

import pytest

from common.core.events import read_events
from common.core.progress import PHASES
from common.reporting.merged_steps import (
    averages_in_backward,
    by_place,
    logs_of_runs,
    merge,
    straggler,
)
from common.reporting.recorded_run import find_runs
from tests.facts import says
from tests.recorded import write_run

SHARES = {0: 3, 1: 2, 2: 2}


def write(folder, work: dict[int, float], steps: int = 4, in_backward: bool = False) -> None:
    """Logs of ranks that compute for `work` seconds a step, then wait for the slowest."""
    end = max(work.values()) + 0.1
    for rank, busy in work.items():
        folder.mkdir(exist_ok=True)
        with (folder / f"metrics_rank{rank}.jsonl").open("w") as file:
            file.write(json.dumps({"event": "start"}) + "\n")
            for iteration in range(steps):
                backward = end - busy / 2 if in_backward else busy / 2
                seconds = {"data": 0.0, "forward": busy / 2, "backward": backward,
                           "sync": 0.0 if in_backward else end - busy, "update": 0.001 * rank}
                file.write(json.dumps({
                    "event": "step", "epoch": 1, "iteration": iteration, "loss": float(rank),
                    "accuracy": 0.5, "samples": SHARES[rank], "duration": end,
                    "seconds": seconds, "bytes_sent": 100}) + "\n")


def names_one(sentence: str) -> bool:
    """True if the sentence on the straggler names a rank."""
    assert "straggler" in sentence
    return bool(re.search(r"rank \d", sentence))


def read_steps(folder):
    (_, paths), = logs_of_runs([folder])
    return by_place(paths)


def test_the_loss_is_a_mean_over_samples(tmp_path):
    write(tmp_path, {0: 0.2, 1: 0.2, 2: 0.4})
    steps = read_steps(tmp_path)
    one = merge((1, 0), steps[1, 0])
    assert one["samples"] == 7 and one["ranks"] == [0, 1, 2]
    assert one["loss"] == pytest.approx((0 * 3 + 1 * 2 + 2 * 2) / 7)


def test_exact_sums_give_one_loss_on_any_number_of_ranks():
    def step(loss_sum: str) -> dict:
        return {"samples": 3, "loss_sum": loss_sum, "loss": 9.0, "accuracy": 0.0, "duration": 1.0,
                "bytes_sent": 0, "seconds": dict.fromkeys(PHASES, 0.1)}
    shards = ["100000000000000000000", "1/3", "-100000000000000000000"]
    three = merge((1, 0), {rank: step(each) for rank, each in enumerate(shards)})
    assert three["loss"] == 1 / 27


@pytest.mark.parametrize("in_backward", [False, True])
def test_the_straggler_is_who_works_longest_not_who_waits_longest(tmp_path, in_backward):
    write(tmp_path, {0: 0.2, 1: 0.4, 2: 0.21}, in_backward=in_backward)
    assert says(straggler(read_steps(tmp_path)), "rank 1")


def test_one_slow_rank_of_two_is_named(tmp_path):
    write(tmp_path, {0: 0.2, 1: 0.23})
    assert says(straggler(read_steps(tmp_path)), "rank 1", 3)


def test_equal_ranks_have_no_straggler(tmp_path):
    write(tmp_path, {0: 0.2, 1: 0.21, 2: 0.2})
    assert not names_one(straggler(read_steps(tmp_path)))


def test_one_iteration_does_not_decide_where_gradients_travel(tmp_path):
    write(tmp_path, {0: 0.2, 1: 0.4})
    steps = read_steps(tmp_path)
    for step in steps[1, 3].values():
        step["seconds"]["sync"] = 0.0
    assert not averages_in_backward(steps)
    for row in steps.values():
        for step in row.values():
            step["seconds"]["sync"] = 0.0
    assert averages_in_backward(steps)


def test_ranks_of_two_runs_are_not_compared(tmp_path):
    write_run(tmp_path / "fast", ranks=2, steps=6, own=1.0)
    write_run(tmp_path / "slow", ranks=3, steps=4, own=2.0)
    fast, slow = find_runs([tmp_path])
    assert (fast.name, fast.ranks, slow.name, slow.ranks) == ("fast", 2, "slow", 3)
    assert not names_one(straggler(fast.steps)) and not names_one(straggler(slow.steps))


def test_what_a_run_on_more_ranks_has_left_is_not_laid_beside_the_new_ones(tmp_path):
    write_run(tmp_path, ranks=4, own=2.0)
    write_run(tmp_path, ranks=2, own=1.0)
    run, = find_runs([tmp_path])
    assert not names_one(straggler(run.steps))
    assert run.ranks == 2 and all(len(row) == 2 for row in run.steps.values())


def resume(folder, ranks: int, at: int, **more) -> None:
    """Resumes the run in `folder` at step `at`, an epoch's first, on another number of ranks.

    As RunLog does it, each of these ranks drops what it wrote from there on, and no other's log.
    """
    resumed, epoch = write_run(folder / "resumed", ranks=ranks, **more), 1 + at // 2
    for path in resumed.iterdir():
        old, new = folder / path.name, list(read_events(path))
        kept = [event for event in read_events(old) if event.get("epoch", 0) < epoch]
        kept += [new[0] | {"position": [epoch, 0, at]},
                 *(event for event in new[1:] if event.get("epoch", epoch) >= epoch)]
        old.write_text("".join(json.dumps(event) + "\n" for event in kept))
        path.unlink()
    resumed.rmdir()


def test_after_a_resume_on_fewer_ranks_the_lost_ranks_steps_do_not_count(tmp_path):
    """Steps 4 to 7 were trained twice: by four ranks, and since the last checkpoint by two."""
    write_run(tmp_path, ranks=4, steps=8, ended=False)
    resume(tmp_path, ranks=2, at=4, steps=6)  # two ranks are at step 6 now
    run, = find_runs([tmp_path])
    assert [row["ranks"] for row in run.merged] == 4 * [[0, 1, 2, 3]] + 2 * [[0, 1]]
    assert [row["samples"] for row in run.merged] == 6 * [100]
    assert run.merged[5]["loss"] == pytest.approx(2.0 / 6 + 0.5)
    resume(tmp_path, ranks=4, at=6, steps=8)
    run, = find_runs([tmp_path])
    assert [len(row) for row in run.steps.values()] == [4, 4, 4, 4, 2, 2, 4, 4]


def test_files_that_are_named_nearly_as_a_ranks_log_are_passed_over(tmp_path):
    write(tmp_path, {0: 0.2, 1: 0.2})
    for name in ("metrics_rank01.jsonl", "metrics_rank\u0661.jsonl", "metrics_rank_old.jsonl",
                 "metrics_rank1 (copy).jsonl"):
        (tmp_path / name).write_bytes((tmp_path / "metrics_rank0.jsonl").read_bytes())
    (tmp_path / "metrics_rank2.jsonl").mkdir()
    (_, paths), = logs_of_runs([tmp_path])
    assert [path.name for path in paths] == ["metrics_rank0.jsonl", "metrics_rank1.jsonl"]
