"""Bytes sent during each computation, layer by layer: from a merged trace.

    python3 scripts/compare.py outputs        # for runs with --profile, on CPUs

Backward makes a layer's gradient, and what was ready before can travel meanwhile. The trace has the
time at which autograd hands over each gradient with its shape, and each message with the sizes of
its tensors. A message's span includes its waiting for other ranks; the bytes that rank 0 sends by
it are spread evenly over the span.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from common.core.trace_file import PHASE_TRACK, Event, Trace
from common.reporting.figure_style import PHASES, legend_below, new_figure
from common.reporting.messages import (
    are_all_there,
    bytes_of,
    bytes_sent,
    is_gradient,
    is_of_gpus,
    last_step,
    moves_bytes,
    ranks_of,
)

RANK = 0
BEFORE, EXPOSED, UPDATE = "before backward", "after the last gradient", "update"
MILLISECOND = 1e3  # of a trace's microseconds
UNITS = {"MB": 1e6, "kB": 1e3, "bytes": 1.0}


class ComputeSpan(NamedTuple):
    """The computation of rank 0 from `start` to `end`, in milliseconds of its last traced step.

    `made` are the bytes of the gradients that are ready at its end, `travelled` those that rank 0
    sent meanwhile.
    """

    computes: str
    start: float
    end: float
    made: float
    travelled: float


def travel(trace: Trace, counted: float = 0) -> list[ComputeSpan]:
    """The whole step in intervals, one a layer in backward; from the last one on bytes are EXPOSED.

    `counted` are the bytes that rank 0 has sent in it, by its log; 0 where none were counted. Empty
    where it sends nothing, or other messages than those in the trace; and for a trace without
    shapes or of GPUs, whose host knows neither when a gradient is ready nor when a message leaves.
    """
    begin, finish = last_step(trace)
    events = sorted((event for event in trace["traceEvents"] if event["ph"] == "X"
                     and event["pid"] == RANK and event["ts"] < finish
                     and event["ts"] + event["dur"] > begin), key=lambda event: event["ts"])
    ranks = len(ranks_of(trace))
    messages = [(event, bytes_sent(event, ranks)) for event in filter(moves_bytes, events)]
    phases = {event["name"]: event for event in events if event["tid"] == PHASE_TRACK}  # the last
    layers = _layers(events, phases["backward"])
    if is_of_gpus(trace) or not (layers and any(sent for _, sent in messages)
                                 and are_all_there(trace, counted)):
        return []
    backward, update = phases["backward"]["ts"], phases["update"]["ts"]
    edges = [begin, backward, *(at for _, at, _ in layers), update, finish]
    names = [BEFORE, *(name for name, *_ in layers), EXPOSED, UPDATE]
    made = [0.0, *(size for *_, size in layers), 0.0, 0.0]
    return [ComputeSpan(name, (start - begin) / MILLISECOND, (end - begin) / MILLISECOND, size,
                        sum(sent * _part(event, start, end) for event, sent in messages))
            for name, (start, end), size in zip(names, pairwise(edges), made, strict=True)]


def _layers(events: Iterable[Event], backward: Event) -> list[tuple[str, float, float]]:
    """(name, ready, bytes) of each gradient with two dimensions or more, in backward's order.

    Smaller ones, biases and batch norm's, are counted with the next of these. Of several passes
    in a step the last one counts, whose `backward` is given.
    """
    layers: list[tuple[str, float, float]] = []
    small = 0.0
    for event in events:
        if is_gradient(event) and event["ts"] >= backward["ts"] and bytes_of(event):
            small += bytes_of(event)
            shape = event["args"]["Input Dims"][0]
            if len(shape) > 1:
                layers.append(("x".join(map(str, shape)), event["ts"] + event["dur"], small))
                small = 0.0
    return [(f"layer {len(layers) - place}: {shape}", at, size)
            for place, (shape, at, size) in enumerate(layers)]


def _part(event: Event, start: float, end: float) -> float:
    """The part of an event from `start` to `end`, both microseconds of the trace."""
    shared = min(end, event["ts"] + event["dur"]) - max(start, event["ts"])
    return max(0.0, shared) / (event["dur"] or 1)


def in_words(intervals: Sequence[ComputeSpan]) -> str:
    """Says how many of the bytes are exposed, and for how long."""
    name, unit = unit_of(intervals)
    whole = sum(each.travelled for each in intervals) / unit
    exposed = next(each for each in intervals if each.computes == EXPOSED)
    late, long = exposed.travelled / unit, exposed.end - exposed.start
    words = f"{late:.1f}" if late >= 0.05 else f"{late:.1g}" if late else "none"
    return (f"{words} of the {whole:.1f} {name} that rank 0 sends {'is' if late == 0 else 'are'} "
            "exposed: " + ("nothing travels after the last gradient is ready" if late == 0 else
                           "they travel after the last gradient is ready, within "
                           f"{long:.{0 if long >= 10 else 1}f} ms"))


def unit_of(intervals: Sequence[ComputeSpan]) -> tuple[str, float]:
    """The name and bytes of the unit in which the total sent is at least 1."""
    whole = sum(each.travelled for each in intervals)
    return next((each for each in UNITS.items() if whole >= each[1]), ("bytes", 1.0))


def figure(intervals: Sequence[ComputeSpan], name: str) -> Figure:
    """A bar for each interval: the bytes that travel behind what is computed in it."""
    drawn, (axes,) = new_figure(f"{name}: {in_words(intervals)}", 1.8 + 0.24 * len(intervals))
    unit, size = unit_of(intervals)
    for label, is_exposed, look in (("behind computation", False, PHASES["backward"]),
                                    ("exposed", True, PHASES["sync"])):
        rows = [(place, each.travelled / size) for place, each in enumerate(intervals)
                if (each.computes == EXPOSED) == is_exposed]
        axes.barh(*zip(*rows, strict=True), label=label, **look)
    axes.set_yticks(range(len(intervals)), [each.computes for each in intervals], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} that rank 0 sends while it computes this")
    legend_below(drawn, axes)
    return drawn
