"""One step of all ranks, drawn from a merged trace: phases above, communication below them.

    python3 scripts/compare.py outputs        # for runs with --profile
"""

from collections.abc import Callable, Iterable

from matplotlib.figure import Figure

from common.core.trace_file import PHASE_TRACK, Event, Trace, is_communication
from common.reporting.figure_style import (
    BAR_EDGE,
    INK,
    PHASES,
    legend_below,
    new_figure,
    unlisted,
)

Span = tuple[float, float]
Choice = Callable[[Event], bool]
NOTABLE = 0.1  # gather/scatter's root computes a mean between its two transfers
MICROSECONDS = 1e-3  # in milliseconds


def last_step(trace: Trace) -> Span:
    """From rank 0's last "data" to the end of its "update", in microseconds."""
    leaders = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    data, update = (list(filter(phase_is(phase), leaders))[-1] for phase in ("data", "update"))
    return data["ts"], update["ts"] + update["dur"]


def spans(trace: Trace, rank: int, step: Span, chosen: Choice) -> list[Span]:
    """(start, length) within `step` of a rank's chosen events; milliseconds."""
    found = []
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == rank and chosen(event):
            start, end = max(event["ts"], step[0]), min(event["ts"] + event["dur"], step[1])
            if end > start:
                found.append((MICROSECONDS * (start - step[0]), MICROSECONDS * (end - start)))
    return found


def phase_is(phase: str) -> Choice:
    """Chooses the spans of a phase, as the host saw it."""
    return lambda event: event["tid"] == PHASE_TRACK and event["name"] == phase


def moves_bytes(event: Event) -> bool:
    """Chooses communication."""
    return is_communication(event["name"])


def computes(event: Event) -> bool:
    """Chooses arithmetic: a GPU's kernels, or the host's operators. Waiting is neither."""
    return not moves_bytes(event) and (event.get("cat") == "kernel"
                                       or event["name"].startswith("aten::"))


def overlap(trace: Trace, other: Choice = computes) -> float:
    """The fraction of all ranks' communication time, in the last step, in which `other` goes on."""
    step = last_step(trace)
    moving = overlapped = 0.0
    for rank in _ranks(trace):
        under = _joined(spans(trace, rank, step, other))
        for start, length in _joined(spans(trace, rank, step, moves_bytes)):
            moving += length
            overlapped += sum(max(0.0, min(start + length, begin + long) - max(start, begin))
                              for begin, long in under)
    return overlapped / moving if moving else 0.0


def _joined(pieces: Iterable[Span]) -> list[Span]:
    """Pieces that overlap count once."""
    joined: list[Span] = []
    for start, length in sorted(pieces):
        if joined and start <= sum(joined[-1]):
            first, long = joined[-1]
            joined[-1] = first, max(long, start + length - first)
        else:
            joined.append((start, length))
    return joined


def _ranks(trace: Trace) -> list[int]:
    return sorted({event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"})


def timeline(trace: Trace, name: str) -> Figure:
    """The last traced step: a row of phases for each rank, its communication in a row beneath."""
    step, ranks, fraction = last_step(trace), _ranks(trace), overlap(trace)
    says = ("one step of one rank" if len(ranks) == 1 else
            f"{100 * fraction:.0f} % of the time that bytes move, the ranks compute"
            if fraction > NOTABLE else "bytes move while the ranks compute nothing")
    figure, (axes,) = new_figure(f"{name}: {says}", 1.8 + 0.55 * len(ranks))
    for place, rank in enumerate(ranks):
        for phase, look in PHASES.items():
            axes.broken_barh(spans(trace, rank, step, phase_is(phase)), (place - 0.4, 0.45),
                             edgecolor=BAR_EDGE, linewidth=0.4, label=_once(phase, place), **look)
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
    """The label of the first row's is in the legend."""
    return unlisted(name) if place else name
