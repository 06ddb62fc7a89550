"""--profile on the literal mains: a trace a rank, one of all, and the same training as without.

Mutations that turn this red: start before the epoch's second iteration; stop one step late; merge
on every rank; no worker count in the name; a mark that names nothing; traces kept on replace;
the operators added to the note; no record_shapes; trace_all_threads
returning None; stacks always or never; no look at the window
in create_loader.
"""

from math import prod

import pytest

from common.core.events import read_events
from common.core.failures import UsageError
from common.core.progress import PHASES
from common.core.trace_file import unpack_trace
from common.reporting.timeline import overlap, phase_is
from common.run.tracing import window
from common.settings.settings import Settings
from common.settings.types import Profile
from tests.facts import says
from tests.multiprocess.test_parts import launch
from tests.ranks import cluster, error_lines, run_programs
from tests.workload import SMALL, plant


def settings(**more) -> Settings:
    return Settings(workload="small", **{"epochs": 3, **more})


@pytest.mark.parametrize("profile, limit, expected", [
    ((1, 3), None, range(1, 4)), ((2, 3), None, range(11, 14)), ((3, 99), None, range(21, 30)),
    ((2, 5), 13, range(11, 13))])
def test_the_window_leaves_out_an_epochs_first_iteration(profile, limit, expected):
    found = window(settings(profile=Profile(*profile), max_iterations=limit), 10)
    assert found == expected


def test_an_epoch_of_one_iteration_can_be_traced():
    assert window(settings(profile=Profile(2)), 1) == range(1, 2)


@pytest.mark.parametrize("profile, limit", [((4, 1), None), ((2, 1), 11)])
def test_a_window_that_never_comes_is_a_usage_error(profile, limit):
    with pytest.raises(UsageError, match="--profile"):
        window(settings(profile=Profile(*profile), max_iterations=limit), 10)


def test_without_the_flag_nothing_is_traced():
    assert not window(settings(), 10)


def on_two_disks(folder, *flags: str):
    """Part Three on two ranks; rank R's output goes to `folder`/R."""
    folder.mkdir()
    outcomes = run_programs(cluster(
        "PartThree", 2, [*SMALL, *flags], folder, before={0: plant, 1: plant},
        by_rank={rank: ["--output-dir", str(folder / str(rank))] for rank in (0, 1)}))
    assert {outcome.code for outcome in outcomes} == {0}, outcomes
    return outcomes


def shapes_of(trace: dict, rank: int, name: str) -> list:
    """The shapes of the inputs of a rank's first operator of that name."""
    return next(event["args"]["Input Dims"] for event in trace["traceEvents"]
                if event["name"] == name and event["pid"] == rank)


def test_ddp_on_two_ranks_shows_averaging_under_backward(tmp_path):
    plain, traced = tmp_path / "plain", tmp_path / "traced"
    on_two_disks(plain)
    outcomes = on_two_disks(traced, "--profile", "2:3")
    assert says(outcomes[0].output, "trace_all_epoch2.json.gz", "https://ui.perfetto.dev")
    assert "trace_all" not in outcomes[1].output
    assert "calls" not in outcomes[0].output  # the table of operators is on the page
    assert "profiler_start" not in "".join(outcome.output for outcome in outcomes)
    runs = [traced / str(rank) / "PartThree" for rank in (0, 1)]
    for rank, more in ((0, {"trace_all_epoch2.json.gz"}), (1, set())):
        assert {path.name for path in (runs[rank] / "traces").iterdir()} == {
            f"trace_rank{rank}_epoch2.json.gz", *more}
    merged = unpack_trace((runs[0] / "traces" / "trace_all_epoch2.json.gz").read_bytes())
    for rank in (0, 1):
        names = [event["name"] for event in merged["traceEvents"]
                 if event["ph"] == "X" and event["pid"] == rank]
        assert {phase: names.count(phase) for phase in PHASES} == dict.fromkeys(PHASES, 3)
        assert any(name.startswith("gloo:") for name in names)
        assert shapes_of(merged, rank, "aten::convolution")[0] == [5, 3, 8, 8]  # of 10 samples
        assert not any(event.get("cat") == "python_function" for event in merged["traceEvents"])
    assert overlap(merged, phase_is("backward")) > 0  # how much of it is a matter of luck here
    assert has_the_gradients(merged)
    rows = next(read_events(runs[1] / "metrics_rank1.jsonl", "operators"))["rows"]
    assert 0 < len(rows) <= 10 and rows == sorted(rows, key=lambda row: -row["seconds"])
    losses = [[step["loss"] for step in read_events(
        folder / "0" / "PartThree" / "metrics_rank0.jsonl", "step")]
        for folder in (plain, traced)]
    assert losses[0] == losses[1]


def has_the_gradients(trace: dict) -> bool:
    """True if rank 0's messages in the trace hold about as many numbers as its gradients."""
    mine = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    messages, gradients = (sum(prod(shape) for event in mine if event["name"].startswith(name)
                               for shape in event["args"].get("Input Dims", ()))
                           for name in ("gloo:", "torch::autograd::AccumulateGrad"))
    return messages > gradients / 4 > 0


def test_messages_that_leave_from_threads_of_their_own_are_in_the_trace(tmp_path):
    on_two_disks(tmp_path / "out", "--profile", "1:1", "--virtual-nodes", "2",
                 "--max-iterations", "2")
    folder = tmp_path / "out/0"
    trace, = folder.glob("PartThree/traces/trace_all*")
    assert has_the_gradients(unpack_trace(trace.read_bytes()))


def test_traces_are_named_by_workers_and_replaced_with_the_run(tmp_path):
    flags = ("--max-iterations", "3", "--resume", "replace", "--profile")
    assert launch("PartOne", tmp_path, *flags, "1:1", "--loader", "workers:1")[0].code == 0
    traces = tmp_path / "out" / "PartOne" / "traces"
    assert (traces / "trace_rank0_epoch1_1workers.json.gz").exists()
    assert launch("PartOne", tmp_path, *flags, "1:1:stacks")[0].code == 0
    assert {path.name for path in traces.iterdir()} == {
        "trace_rank0_epoch1.json.gz", "trace_all_epoch1.json.gz"}
    events = unpack_trace((traces / "trace_all_epoch1.json.gz").read_bytes())["traceEvents"]
    calls = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert any("training.py" in name and "forward" in name for name in calls), sorted(calls)


def test_a_trace_that_never_comes_ends_the_run_before_it_begins(tmp_path):
    outcome, = launch("PartOne", tmp_path, "--profile", "2", "--max-iterations", "3")
    assert outcome.code == 2 and says(error_lines(outcome.output)[0], "--profile 2:5")
    assert not (tmp_path / "out").exists()
