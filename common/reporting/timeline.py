"""One step of all ranks, drawn from a merged trace: phases above, communication below them.

    python3 scripts/compare.py outputs        # for runs with --profile
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable

from matplotlib.figure import Figure

from common.core.trace_file import PHASE_TRACK, Event, Trace, is_communication
from common.reporting.figure_style import (
    INK,
    PHASES,
    legend_below,
    new_figure,
    unlisted,
)

Span = tuple[float, float]
Choice = Callable[[Event], bool]
MICROSECONDS = 1e-3  # in milliseconds
ENGINE = "autograd::engine::evaluate_function: "


def last_step(trace: Trace) -> Span:
    """The time from rank 0's last "data" to the end of its "update", in microseconds."""
    leaders = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    data, update = (list(filter(phase_is(phase), leaders))[-1] for phase in ("data", "update"))
    return data["ts"], update["ts"] + update["dur"]


def phase_is(phase: str) -> Choice:
    """Returns a filter for the spans of a phase, as the host saw it."""
    return lambda event: event["tid"] == PHASE_TRACK and event["name"] == phase


def moves_bytes(event: Event) -> bool:
    """True for messages."""
    return is_communication(event["name"])


def ranks_of(trace: Trace) -> list[int]:
    """The ranks that were traced."""
    return sorted({event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"})


def spans(trace: Trace, rank: int, step: Span, chosen: Choice) -> list[Span]:
    """(start, length) within `step` of a rank's chosen events; milliseconds."""
    return _within(step, (event for event in trace["traceEvents"] if event["ph"] == "X"
                          and event["pid"] == rank and chosen(event)))


def _within(step: Span, events: Iterable[Event]) -> list[Span]:
    parts = []
    for event in events:
        start, end = max(event["ts"], step[0]), min(event["ts"] + event["dur"], step[1])
        if end > start:
            parts.append((MICROSECONDS * (start - step[0]), MICROSECONDS * (end - start)))
    return parts


def computing(trace: Trace, rank: int) -> list[Event]:
    """A rank's arithmetic: its GPU's kernels, or the operators of the threads that run backward.

    An autograd function counts as a whole, since what is compiled for it shows no operators; but
    one that sends within, and so may wait, only by its operators, as what takes a gradient over
    does, where hooks run.
    """
    mine = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == rank]
    if any(event.get("cat") == "kernel" for event in trace["traceEvents"]):
        return [event for event in mine if event.get("cat") == "kernel" and not moves_bytes(event)]
    threads = {event["tid"] for event in mine if event["name"].startswith(ENGINE)}
    operators = [event for event in mine if event["tid"] in threads
                 and event.get("cat") == "cpu_op"]
    sends = sorted(event["ts"] for event in operators if event["name"].startswith("c10d::"))
    # c10d's own operators contain the moment at which they begin
    return [event for event in operators if event["name"].startswith("aten::")
            or not ("AccumulateGrad" in event["name"] or _contains(event, sends))]


def _contains(event: Event, moments: list[float]) -> bool:
    place = bisect_left(moments, event["ts"])
    return place < len(moments) and moments[place] <= event["ts"] + event["dur"]


def overlap(trace: Trace, other: Choice | None = None) -> float:
    """The fraction of all ranks' communication time, in the last step, in which they also compute.

    With `other`, the fraction in which the events that it chooses go on.
    """
    step = last_step(trace)
    moving = overlapped = 0.0
    for rank in ranks_of(trace):
        under = _joined(spans(trace, rank, step, other) if other
                        else _within(step, computing(trace, rank)))
        for start, length in _joined(spans(trace, rank, step, moves_bytes)):
            moving += length
            overlapped += sum(max(0.0, min(start + length, begin + long) - max(start, begin))
                              for begin, long in under)
    return overlapped / moving if moving else 0.0


def _joined(pieces: Iterable[Span]) -> list[Span]:
    """Joins pieces that overlap, so that they count once."""
    joined: list[Span] = []
    for start, length in sorted(pieces):
        if joined and start <= sum(joined[-1]):
            first, long = joined[-1]
            joined[-1] = first, max(long, start + length - first)
        else:
            joined.append((start, length))
    return joined


def title(trace: Trace) -> str:
    """A title for the last step of a trace."""
    ranks = ranks_of(trace)
    if len(ranks) == 1:
        return "one step of one rank"
    if not spans(trace, ranks[0], last_step(trace), moves_bytes):
        return f"one step of {len(ranks)} ranks; no message is in the trace"
    fraction = f"{100 * overlap(trace):.0f} %"
    return ("messages are under way while the ranks compute nothing" if fraction == "0 %" else
            f"{fraction} of the time that messages are under way, the ranks compute")


def timeline(trace: Trace, name: str) -> Figure:
    """The last traced step: a row of phases for each rank, its communication in a row beneath."""
    step, ranks = last_step(trace), ranks_of(trace)
    figure, (axes,) = new_figure(f"{name}: {title(trace)}", 1.8 + 0.55 * len(ranks))
    for place, rank in enumerate(ranks):
        for phase, look in PHASES.items():
            axes.broken_barh(spans(trace, rank, step, phase_is(phase)), (place - 0.4, 0.45),
                             label=_once(phase, place), **look)
        if moving := _joined(spans(trace, rank, step, moves_bytes)):
            axes.broken_barh(moving, (place + 0.08, 0.25), color=INK,
                             label=_once("communication", place))
    axes.set_ylim(-0.6, len(ranks) - 0.4)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of one traced step")
    legend_below(figure, axes)
    return figure


def _once(name: str, place: int) -> str:
    """The label for the first row only, so that the legend has it once."""
    return unlisted(name) if place else name
