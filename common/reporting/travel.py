"""Which bytes travel behind which computation, layer by layer: from a merged trace.

    python3 scripts/compare.py outputs        # for runs with --profile, on CPUs

Backward makes a layer's gradient, and what was ready before can travel meanwhile. The trace has the
time at which autograd hands over each gradient with its shape, and each transfer with the sizes of
its tensors. A transfer's span includes its waiting for other ranks; its bytes are spread evenly
over the span.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from common.core.trace_file import PHASE_TRACK, Event, Trace
from common.reporting.figure_style import BAR_EDGE, PHASES, legend_below, new_figure
from common.reporting.timeline import last_step, moves_bytes

RANK = 0
GRADIENT = "torch::autograd::AccumulateGrad"
BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2,
         "signed char": 1, "unsigned char": 1}
BEFORE, EXPOSED, UPDATE = "before backward", "after the last gradient", "update"
MEGABYTE, MILLISECOND = 1e6, 1e3  # of a trace's microseconds


class Interval(NamedTuple):
    """What rank 0 computes from `start` to `end`, in milliseconds of its last traced step.

    `made` are the bytes of the gradients that are ready at its end, `travelled` those that were in
    transfers meanwhile.
    """

    computes: str
    start: float
    end: float
    made: float
    travelled: float


def travel(trace: Trace) -> list[Interval]:
    """The whole step in intervals, one a layer in backward; from the last one on bytes are EXPOSED.

    Empty where nothing travels, and for a trace without shapes or of GPUs, whose host knows neither
    when a gradient is ready nor when a transfer runs.
    """
    begin, finish = last_step(trace)
    events = sorted((event for event in trace["traceEvents"] if event["ph"] == "X"
                     and event["pid"] == RANK and event["ts"] < finish
                     and event["ts"] + event["dur"] > begin), key=lambda event: event["ts"])
    transfers = [event for event in events if moves_bytes(event) and _bytes(event)]
    phases = {event["name"]: event for event in events if event["tid"] == PHASE_TRACK}  # the last
    layers = _layers(events, phases["backward"])
    if not (layers and transfers) or any(event.get("cat") == "kernel" for event in events):
        return []
    backward, update = phases["backward"]["ts"], phases["update"]["ts"]
    edges = [begin, backward, *(at for _, at, _ in layers), update, finish]
    names = [BEFORE, *(name for name, *_ in layers), EXPOSED, UPDATE]
    made = [0.0, *(size for *_, size in layers), 0.0, 0.0]
    return [Interval(name, (start - begin) / MILLISECOND, (end - begin) / MILLISECOND, size,
                     sum(_within(transfer, start, end) for transfer in transfers))
            for name, (start, end), size in zip(names, pairwise(edges), made, strict=True)]


def _layers(events: Iterable[Event], backward: Event) -> list[tuple[str, float, float]]:
    """(name, ready, bytes) of each gradient with two dimensions or more, in backward's order.

    Smaller ones, biases and batch norm's, are counted with the next of these. Of several passes
    in a step the last one counts, whose `backward` is given.
    """
    found: list[tuple[str, float, float]] = []
    small = 0.0
    for event in events:
        if event["name"] == GRADIENT and event["ts"] >= backward["ts"] and _bytes(event):
            small += _bytes(event)
            shape = event["args"]["Input Dims"][0]
            if len(shape) > 1:
                found.append(("x".join(map(str, shape)), event["ts"] + event["dur"], small))
                small = 0.0
    return [(f"layer {len(found) - place}: {shape}", at, size)
            for place, (shape, at, size) in enumerate(found)]


def _bytes(event: Event) -> float:
    """Of the tensors that an event was given; 0 where the trace has no shapes."""
    args: dict[str, Any] = event.get("args", {})
    return sum(prod(shape) * BYTES.get(kind, 0) for shape, kind in zip(
        args.get("Input Dims", ()), args.get("Input type", ()), strict=False))


def _within(transfer: Event, start: float, end: float) -> float:
    """The bytes of a transfer from `start` to `end`, both microseconds of the trace."""
    shared = min(end, transfer["ts"] + transfer["dur"]) - max(start, transfer["ts"])
    return _bytes(transfer) * max(0.0, shared) / (transfer["dur"] or 1)


def in_words(found: Sequence[Interval]) -> str:
    """How many of the bytes are exposed, and for how long."""
    whole = sum(each.travelled for each in found)
    exposed = next(each for each in found if each.computes == EXPOSED)
    return (f"{_megabytes(exposed.travelled)} of {_megabytes(whole)} MB are exposed: they travel "
            f"after the last gradient is ready, within {exposed.end - exposed.start:.0f} ms")


def _megabytes(size: float) -> str:
    return f"{size / MEGABYTE:.1f}"


def figure(found: Sequence[Interval], name: str) -> Figure:
    """A bar for each interval: the bytes that travel behind what is computed in it."""
    drawn, (axes,) = new_figure(f"{name}: {in_words(found)}", 1.8 + 0.24 * len(found))
    for label, is_exposed, look in (("behind computation", False, PHASES["backward"]),
                                    ("exposed", True, PHASES["sync"])):
        rows = [(place, each.travelled / MEGABYTE) for place, each in enumerate(found)
                if (each.computes == EXPOSED) == is_exposed]
        axes.barh(*zip(*rows, strict=True), label=label, edgecolor=BAR_EDGE, linewidth=0.5, **look)
    axes.set_yticks(range(len(found)), [each.computes for each in found], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("MB that travel while rank 0 computes this")
    legend_below(drawn, axes)
    return drawn
