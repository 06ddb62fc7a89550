"""Chrome traces as files: read, written, and those of all ranks laid into one, a track a rank.

    python3 -c "from common.core.trace_file import *; print(unpack_trace(open('t.gz','rb').read()))"

https://ui.perfetto.dev and chrome://tracing open them, compressed as they are. Times in a trace are
microseconds from its own `baseTimeNanoseconds`, by the wall clock of its host.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from common.core.files import MOST_BYTES, parse_json
from common.core.progress import PHASES

Trace = dict[str, Any]
Event = dict[str, Any]
PHASE_TRACK = 0


def unpack_trace(data: bytes) -> Trace:
    """The trace that a .json.gz file holds. Raises ValueError where it holds none."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    if len(text) > MOST_BYTES:
        raise ValueError(f"it holds more than {MOST_BYTES / 1e9:.1f} GB")
    return parse_json(text)


def pack_trace(trace: Trace) -> bytes:
    return gzip.compress(json.dumps(trace).encode(), compresslevel=3)


def is_communication(name: str) -> bool:
    """Returns True for an event that moves bytes, such as "gloo:all_reduce" or an NCCL kernel."""
    return name.startswith(("gloo:", "nccl"))


def merge_traces(by_rank: Mapping[int, Trace]) -> Trace:
    """All ranks in one trace: process R is rank R, with its phases in a row of their own on top.

    Ranks are aligned by their hosts' wall clocks: between hosts they are off by what the clocks are
    (milliseconds under NTP), on one host by nothing. Time starts at the earliest event.
    """
    shifted = {rank: list(_on_the_wall(trace)) for rank, trace in by_rank.items()}
    start = min(event["ts"] for events in shifted.values() for event in events)
    merged: list[Event] = []
    for rank, events in sorted(shifted.items()):
        host = by_rank[rank].get("host_name", "")
        merged += [_meta(rank, 0, "process_name", name=f"rank {rank} {host}".strip()),
                   _meta(rank, 0, "process_sort_index", sort_index=rank),
                   _meta(rank, PHASE_TRACK, "thread_name", name="phases"),
                   _meta(rank, PHASE_TRACK, "thread_sort_index", sort_index=-1),
                   *_thread_names(rank, by_rank[rank])]
        for event in events:
            # A GPU's trace shows besides when a phase's work ran; the track is the host's.
            is_phase = event["name"] in PHASES and event.get("cat") != "gpu_user_annotation"
            track = PHASE_TRACK if is_phase else event["tid"]
            merged.append({**event, "pid": rank, "tid": track, "ts": event["ts"] - start})
    return {"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": merged}


def _on_the_wall(trace: Trace) -> Iterator[Event]:
    """The trace's timed events, in microseconds of the wall clock; the profiler's own left out."""
    base = trace.get("baseTimeNanoseconds", 0) / 1000
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") != "Trace":
            yield {**event, "ts": event["ts"] + base}


def _thread_names(rank: int, trace: Trace) -> Iterator[Event]:
    """A track's last name counts: the profiler first calls every thread after the program."""
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "thread_name"}
    for track, name in names.items():
        own = re.fullmatch(r"thread \d+ \((.*)\)", name)
        yield _meta(rank, track, "thread_name", name=own[1] if own else name)


def _meta(rank: int, track: int, kind: str, **args: Any) -> Event:
    return {"ph": "M", "pid": rank, "tid": track, "name": kind, "ts": 0, "args": args}
