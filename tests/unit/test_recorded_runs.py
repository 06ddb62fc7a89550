"""Runs as their logs tell them, and the sentences that follow.

Mutations that turn this red: keep the first iteration in `durations`; the fastest rank's seconds
instead of the slowest's; leave `samples` out of the merged loss; compare all iterations in
`loss_gap`; base on the slowest run of one rank; drop `node` folders' merging; mean instead of max
of the bytes in `pairs`; the last step's bytes in bytes_sent; `return False` in
is_another_algorithm.
"""

import json

import pytest

from common import run_findings as findings
from common.failures import DataError
from common.recorded_run import find_runs
from tests.recorded import write_course, write_run


@pytest.fixture
def course(tmp_path):
    return find_runs([write_course(tmp_path)])


def test_parts_come_in_the_lessons_order_with_slowest_seconds_and_no_warm_up(tmp_path):
    write_course(tmp_path)
    write_run(tmp_path / "PartThree", 4, own=0.95, slow={2: 0.5}, root_sends=1.5)
    runs = find_runs([tmp_path])
    assert [run.name for run in runs] == ["PartOne", "PartTwo/gather-scatter",
                                          "PartTwo/all-reduce", "PartThree"]
    assert [run.mean for run in runs] == pytest.approx([2.0, 1.9, 1.0, 1.45])
    assert runs[0].images_per_second == pytest.approx(50) and len(runs[0].durations) == 3
    assert runs[3].merged[0]["loss"] == pytest.approx(2.0 + 1.5)
    assert runs[3].phases[2]["forward"] == pytest.approx(1.45 / 4)


def test_a_run_brought_back_from_several_nodes_is_one(tmp_path):
    for rank in (0, 1):
        whole = write_run(tmp_path / "whole", 2)
        place = tmp_path / "ssh" / f"node{rank}" / "PartThree"
        place.mkdir(parents=True)
        name = f"metrics_rank{rank}.jsonl"
        (place / name).write_text((whole / name).read_text().replace('"node"', f'"node{rank}"'))
    run, = find_runs([tmp_path / "ssh"])
    assert run.name == "PartThree" and len(run.phases) == 2
    assert set(run.hosts.values()) == {"node0", "node1"}


def test_several_folders_give_their_names(tmp_path):
    runs = find_runs([write_run(tmp_path / name / "PartOne").parent for name in ("a", "b")])
    assert [run.name for run in runs] == ["a/PartOne", "b/PartOne"]


def test_a_folder_without_a_step_is_an_error(tmp_path):
    write_run(tmp_path / "PartOne", steps=0, ended=False)
    with pytest.raises(DataError, match="no run"):
        find_runs([tmp_path])


def test_the_summary_says_what_the_figures_say(course):
    text = " ".join(findings.summary(course))
    for words in ("All-reduce moved half the bytes of gather/scatter's root and was 1.9 times as "
                  "fast.",
                  "4 ranks (DDP) are 2.11 times as fast as one: they share one machine's 2 cores",
                  "Gather-scatter spends 47 % of its time averaging; within backward it takes "
                  "place in all-reduce, DDP.",
                  "Gather-scatter's rank 0 sends 3.0 MB an iteration, 2 times as much",
                  "No rank is a straggler.", "Test accuracy is 65.0 %."):
        assert words in text, text


@pytest.mark.parametrize("loss, says", [
    (2.0, "runs learn the same: in the first 10 iterations their losses are equal, bit for bit"),
    (2.001, "runs learn the same"), (2.1, "do not learn the same")])
def test_early_losses_tell_whether_runs_learn_the_same(tmp_path, loss, says):
    write_run(tmp_path / "PartOne", steps=14)
    path = write_run(tmp_path / "PartThree", steps=14, loss=loss) / "metrics_rank0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for event in lines[-8:]:
        if event["event"] == "step":
            event["loss"] += 9  # roundings have grown: that is no other way of learning
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    assert says in findings.learning(find_runs([tmp_path]))


def test_another_algorithm_is_no_mistake_and_its_bytes_are_a_mean(tmp_path):
    for name, loss, sends in (("all-reduce", 2.0, 3), ("reduce-scatter", 2.0, 3),
                              ("local-sgd", 2.5, 0)):
        path = write_run(tmp_path / "PartTwo" / name, steps=14, loss=loss, root_sends=sends)
    log = path / "metrics_rank0.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    [step for step in events if step["event"] == "step"][-1]["bytes_sent"] = 1400
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    runs = find_runs([tmp_path])
    assert {run.name: run.bytes_sent[0] for run in runs}["PartTwo/local-sgd"] == 100
    said = findings.learning(runs)
    assert "all 2 runs learn the same" in said
    assert said.endswith("(other algorithms left out: local-sgd)")


def test_a_straggler_is_named(tmp_path):
    write_run(tmp_path / "PartTwo/all-reduce", 3, sync=0.5, slow={1: 0.5}, root_sends=1.5)
    assert "rank 1 is the straggler" in findings.straggling(find_runs([tmp_path]))


@pytest.mark.parametrize("name, ranks, steps, sync, says", [
    ("PartOne", 1, 1, 0.0, "loss falls"), ("PartOne", 1, 3, 0.0, "Backward takes most"),
    ("PartTwo/gather-scatter", 4, 3, 0.5, "The busiest rank sends 3.0 MB an iteration."),
    ("PartThree", 4, 3, 0.0, "Averaging takes place within backward in DDP.")])
def test_one_run_alone_has_a_summary_too(tmp_path, name, ranks, steps, sync, says):
    write_run(tmp_path / name, ranks, steps, sync=sync, root_sends=3 * (ranks > 1))
    assert says in " ".join(findings.summary(find_runs([tmp_path])))
