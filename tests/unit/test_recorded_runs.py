"""Runs as their logs tell them, and the sentences that follow.

Mutations that turn this red: keep the first iteration in `durations`; the fastest rank's seconds
instead of the slowest's; leave `samples` out of the merged loss; the learning title with what to
do; base on the slowest run of one rank; drop `node` folders' merging; the least busy rank's bytes
in bytes_moved; the last step's bytes in bytes_sent;
`fmean(ahead) > 0` for a straggler; a ratio upside down, or told although times_as_fast gives none;
the speed sentence whatever the ratio; `{values[0]}` and `{values[-1]}` without
rounding; `train_the_same` left out of either.
"""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from common.core.failures import DataError
from common.core.progress import PHASES
from common.reporting import run_findings as findings
from common.reporting import tables
from common.reporting.recorded_run import RecordedRun, capital, find_runs, short
from common.reporting.run_findings import speed_up, strategies
from tests.facts import says
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
    with pytest.raises(DataError) as raised:
        find_runs([tmp_path])
    assert says(raised.value, tmp_path)


def test_bytes_that_a_strategy_does_not_count_are_not_shown_as_none_sent(tmp_path):
    write_run(tmp_path / "PartTwo" / "my_sync.Mine", 4, sync=1.0, root_sends=0)
    write_run(tmp_path / "PartTwo" / "all-reduce", 4, sync=1.0, root_sends=1.5)
    runs = find_runs([tmp_path])
    shown = tables.timing([*runs, *find_runs([write_run(tmp_path / "PartOne")])])
    column = [says(name, "MB") for name in shown.head].index(True)
    assert [row[column] for row in shown.rows] == ["1.5", "-", "0.0"]
    assert says(findings.bytes_moved(runs), "1.5 MB", "all-reduce")
    assert "my_sync" not in findings.bytes_moved(runs)


def test_the_summary_says_what_the_figures_say(course):
    expected = (("4 ranks", "DDP", "2.11", "2 cores"),
                ("4 ranks", "gather-scatter", "all-reduce", "1.90", "DDP", "2.00"),
                ("Gather-scatter", "47 %", "1 %", "all-reduce", "DDP"),
                ("gather-scatter", "3.0 MB", "rank 0", "all-reduce", "DDP", "1.5 MB"),
                ("straggler",), ("accuracy", "65.0 %"))
    for sentence, facts in zip(findings.summary(course), expected, strict=True):
        assert says(sentence, *facts)


@pytest.mark.parametrize("loss, facts", [
    (2.0, ["bit", 10, "weights"]), (2.0002, ["rounding", "float32"]), (2.1, ["FAULT"])])
def test_early_losses_tell_whether_runs_learn_the_same(tmp_path, loss, facts):
    write_run(tmp_path / "PartOne", steps=14)
    path = write_run(tmp_path / "PartThree", steps=14, loss=loss,
                     digest="other") / "metrics_rank0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for event in lines[-8:]:
        if event["event"] == "step":
            event["loss"] += 9  # roundings have grown: that is not another way of learning
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    runs = find_runs([tmp_path])
    assert says(findings.learning(runs), "DDP", "PartOne", *facts)
    assert ";" not in findings.learning(runs)
    assert findings.causes_of_differences(runs)[0].startswith(findings.learning(runs))


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
    another, same = findings.causes_of_differences(runs)
    assert says(another, "local-sgd", "all-reduce", "algorithm")
    assert says(same, "reduce-scatter", "all-reduce", "5eed1234")


def test_a_straggler_is_named(tmp_path):
    write_run(tmp_path / "PartTwo/all-reduce", 3, sync=0.5, slow={1: 0.5}, root_sends=1.5)
    assert says(findings.straggling(find_runs([tmp_path])), "all-reduce", "rank 1")


def planted(name: str, ranks: int, seconds: list[float], work: list[list[float]] | None = None,
            accuracy: float = 0.5, cores: int = 2, threads: int = 1, hosts: str = "aaaa",
            device: str = "cpu") -> RecordedRun:
    """A run whose iterations took these seconds, after a first; `work` of each by rank."""
    steps = {(1, at): {rank: {
        "loss": 1.0, "accuracy": 0.5, "samples": 4, "duration": whole, "bytes_sent": 10**6,
        "seconds": {**dict.fromkeys(PHASES, 0.0), "sync": whole / 2,
                    "forward": work[at][rank] if work else whole / 2}}
        for rank in range(ranks)} for at, whole in enumerate([seconds[0], *seconds])}
    start = {"event": "start", "settings": {"batch_size": 4}, "world_size": ranks, "cores": cores,
             "ran_on": {"threads": threads, "device": device}}
    tested = {"event": "evaluation", "test_accuracy": accuracy}
    return RecordedRun(name, Path(name), [start, tested], steps,
                       dict(enumerate(hosts[:ranks])))


def test_ranks_that_share_cores_and_are_faster_are_told_no_reason_why_they_are_not():
    said = speed_up([planted("PartOne", 1, [1.21] * 9), planted("PartThree", 4, [1.0] * 9)])
    assert says(said, "DDP") and sorted(re.findall(r"[\d.]+", said)) == ["1.21", "2", "4", "4"]


@pytest.mark.parametrize("cores, alone, device, hosts, says, is_overhead", [
    (2, 2, "cpu", "aaaa", "the 4 share one machine's 2 cores", True),
    (8, 4, "cpu", "aaaa", "the 4 share one machine's 8 cores", True),
    (8, 1, "cpu", "aaaa", "the 4 share one machine's 8 cores", False),
    (2, 2, "cuda", "aaaa", "the 4 share one machine's 2 cores", False),
    (2, 2, "cpu", "aabb", "the 4 share 2 machines", False), (2, 2, "cpu", "abcd", "", False)])
def test_ranks_that_share_a_machine_are_said_to(cores, alone, device, hosts, says, is_overhead):
    said = speed_up([planted("PartOne", 1, [2.0] * 9, threads=alone), planted(
        "PartThree", 4, [1.0] * 9, cores=cores, hosts=hosts, device=device)])
    assert "2.00 times" in said and says in said and ("share" in said) is bool(says)
    assert ("communication overhead, not speed-up" in said) is is_overhead


def test_a_speed_whose_spread_holds_one_is_an_interval():
    runs = [planted("PartOne", 1, [1.0, 1.5, 1.0, 1.5]),
            planted("PartTwo/all-reduce", 2, [0.8, 0.9, 0.8, 0.9]),
            planted("PartTwo/gather-scatter", 2, [0.5] * 4), planted("PartThree", 2, [0.5, 3.0])]
    speeds = [row[6] for row in tables.timing(runs).rows]
    assert speeds == ["1.00", "0.92 to 2.05", "2.50", "unknown"]


@pytest.mark.parametrize("ratio", [1.004, 1 / 1.004])
@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_a_difference_within_the_spread_is_no_ratio(ratio, spread):
    noise = [spread * (-1) ** at for at in range(20)]
    runs = [planted("PartOne", 1, [1 + each for each in noise]),
            planted("PartTwo/gather-scatter", 4, [ratio + each for each in noise]),
            planted("PartTwo/all-reduce", 4, [1 + each for each in noise])]
    sentences = [speed_up(runs), *strategies(runs)]
    assert not re.search(r"\d\.\d", " ".join(sentences)) and len(sentences) == 2
    assert all(says(sentence, "4 ranks", "spread") for sentence in sentences)


@pytest.mark.parametrize("other", [{"workload": "digits-mlp"}, {"batch_size": 50},
                                   {"model": "resnet18"}, {"image_size": 96}])
def test_speeds_of_different_work_are_not_divided(other, tmp_path):
    write_run(tmp_path / "PartOne", own=2.0)
    write_run(tmp_path / "PartThree", 2, own=1.0)
    write_run(tmp_path / "PartTwo/all-reduce", 2, own=1.5, sync=0.25)
    same = find_runs([tmp_path])
    assert "2.00" in [row[6] for row in tables.timing(same).rows]
    assert speed_up(same) and strategies(same)
    write_run(tmp_path / "PartOne", own=2.0, **other)
    runs = find_runs([tmp_path])
    assert {row[6] for row in tables.timing(runs).rows} == {"-"}
    assert speed_up(runs) == "" and strategies(runs) == []


def test_one_iteration_has_no_spread_and_says_nothing_of_speed():
    runs = [planted("PartOne", 1, [1.0]), planted("PartThree", 4, [9.0])]
    assert speed_up(runs) == "" and strategies(runs) == [] and findings.straggling(runs) == ""


def test_a_rank_that_is_late_only_now_and_then_is_no_straggler():
    late = [[1.0, 1.0, 4.0 if at == 5 else 1.0] for at in range(11)]
    always = [[1.0, 1.0, 1.3] for _ in range(11)]
    for work, named in ((late, False), (always, True)):
        run = planted("PartTwo/all-reduce", 3, [2.0] * 10, work)
        assert says(findings.straggling([run]), "rank 2") is named


def test_accuracies_that_read_alike_are_one_figure():
    runs = [planted("a", 1, [1.0] * 3, accuracy=each) for each in (0.65, 0.6501)]
    assert re.findall(r"[\d.]+ %", findings.scores(runs)) == ["65.0 %"]


def test_few_bytes_are_not_none():
    assert [findings.amount(sent) for sent in (2.4e6, 1e5, 4200)] == ["2.4 MB", "0.1 MB", "4.2 kB"]


@settings(max_examples=150, deadline=None)
@given(seed=some.integers(0, 10**6), count=some.integers(2, 40),
       spread=some.sampled_from([0.0, 0.001, 0.05, 0.3]), gap=some.sampled_from([0, 0.003, 0.2, 1]))
def test_no_sentence_contradicts_its_figures(seed, count, spread, gap):
    draw = random.Random(seed)
    runs = [planted(name, ranks, [
        (1 + gap * draw.random()) * max(0.1, draw.gauss(1, spread)) for _ in range(count)])
        for name, ranks in (("PartOne", 1), ("PartTwo/gather-scatter", 4),
                            ("PartTwo/all-reduce", 4), ("PartThree", 4))]
    mean = {short(run.name): run.mean for run in runs}
    alone, root = mean["PartOne"], mean["gather-scatter"]
    sentences = findings.summary(runs)
    named = r"(gather-scatter|all-reduce|DDP)"
    _, fastest, said_of_one = re.split(named, sentences[0])
    _, _, _, *others = re.split(named, sentences[1])  # after the one that they are compared with
    clauses = [(alone / mean[fastest], said_of_one), *(
        (root / mean[name], said) for name, said in zip(others[::2], others[1::2], strict=True))]
    assert len(clauses) == 3
    for ratio, said in clauses:
        figures = re.findall(r"\d+\.\d+", said)
        assert figures == ([] if says(said, "spread") else [f"{ratio:.2f}"]) != ["1.00"]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("name, ranks, steps, sync, facts", [
    ("PartOne", 1, 1, 0.0, ["loss", 2]), ("PartOne", 1, 3, 0.0, ["Backward", "75 %"]),
    ("PartTwo/gather-scatter", 4, 3, 0.5, ["3.0 MB"]), ("PartThree", 4, 3, 0.0, ["DDP", "1 %"])])
def test_one_run_alone_has_a_summary_too(tmp_path, name, ranks, steps, sync, facts):
    write_run(tmp_path / name, ranks, steps, sync=sync, root_sends=3 * (ranks > 1))
    runs = find_runs([tmp_path])
    assert any(says(sentence, *facts) for sentence in [
        *findings.causes_of_differences(runs), *findings.summary(runs)])


def test_a_log_of_an_older_version_is_one_sentence(tmp_path):
    folder = write_run(tmp_path / "PartOne")
    path = folder / "metrics_rank0.jsonl"
    path.write_text(path.read_text().replace('"processor": "abacus", ', ""))
    with pytest.raises(DataError) as raised:
        find_runs([tmp_path])
    assert says(raised.value, folder, "processor")


@pytest.mark.parametrize("text, with_capital", [
    ("all-reduce is fast", "All-reduce is fast"), ("own_sync.Mine lags", "own_sync.Mine lags"),
    ("it is so.", "It is so."), ("", "")])
def test_a_name_out_of_a_users_file_gets_no_capital(text, with_capital):
    assert capital(text) == with_capital
