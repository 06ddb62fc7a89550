"""Traces of all ranks in one: a process a rank, one clock, phases in a row of their own.

Mutations that turn this red: leave out the base times; the first thread name for the last; a phase
left on its thread; the profiler's own span among the events.
"""

from common.core.trace_file import is_communication, merge_traces, pack_trace, unpack_trace


def trace(pid: int, base: int, start: float) -> dict:
    def named(tid: int, name: str) -> dict:
        return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0,
                "args": {"name": name}}

    def span(name: str, tid: int, begin: float, **more) -> dict:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start + begin, "dur": 5,
                **more}

    return {"baseTimeNanoseconds": base, "host_name": f"host{pid}", "traceEvents": [
        named(9, "thread 9 (python)"), named(9, "thread 9 (pt_gloo_runloop)"),
        span("forward", pid, 0), span("aten::add", pid, 1), span("gloo:all_reduce", 9, 2),
        span("PyTorch Profiler", 1, -50, cat="Trace"), {"ph": "s", "name": "x", "ts": 0}]}


def test_ranks_become_processes_on_one_clock():
    merged = merge_traces({0: trace(7, 1_000_000, 10.0), 1: trace(8, 1_002_000, 11.0)})
    spans = {(event["pid"], event["name"]): event for event in merged["traceEvents"]
             if event["ph"] == "X"}
    assert spans[0, "forward"]["ts"] == 0 and spans[1, "forward"]["ts"] == 3
    assert spans[1, "gloo:all_reduce"]["ts"] == 5 and len(spans) == 6
    assert spans[0, "forward"]["tid"] == 0 and spans[0, "aten::add"]["tid"] == 7


def test_a_gpus_copy_of_a_phase_stays_with_its_stream():
    one = trace(7, 0, 0.0)
    one["traceEvents"].append({"ph": "X", "name": "forward", "cat": "gpu_user_annotation",
                               "pid": 0, "tid": 11, "ts": 3.0, "dur": 4})
    spans = [event for event in merge_traces({0: one})["traceEvents"]
             if event["ph"] == "X" and event["name"] == "forward"]
    assert sorted(event["tid"] for event in spans) == [0, 11]


def test_tracks_have_names():
    merged = merge_traces({0: trace(7, 0, 0.0), 1: trace(8, 0, 0.0)})
    names = {(event["pid"], event["tid"], event["name"]): event["args"]
             for event in merged["traceEvents"] if event["ph"] == "M"}
    assert names[1, 0, "process_name"] == {"name": "rank 1 host8"}
    assert names[0, 0, "thread_name"] == {"name": "phases"}
    assert names[0, 9, "thread_name"] == {"name": "pt_gloo_runloop"}


def test_packing_is_undone_by_unpacking():
    assert unpack_trace(pack_trace(trace(7, 0, 0.0))) == trace(7, 0, 0.0)


def test_communication_is_what_moves_bytes():
    assert is_communication("gloo:all_reduce") and is_communication("ncclDevKernel_AllReduce")
    assert not is_communication("c10d::allreduce_")
