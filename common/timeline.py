"""One step of all ranks, drawn from a merged trace: phases above, bytes on the move below them.

    python3 scripts/compare.py outputs        # for runs with --profile
"""

from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure

from common.figure_style import PHASES, legend_below, new_figure
from common.trace_file import PHASE_TRACK, Trace, is_communication

Span = tuple[float, float]
MICROSECONDS = 1e-3  # in milliseconds


def last_step(trace: Trace) -> Span:
    """From rank 0's last "data" to the end of its "update", in microseconds."""
    data = [event for event in trace["traceEvents"] if _is_phase(event, 0, "data")]
    update = [event for event in trace["traceEvents"] if _is_phase(event, 0, "update")]
    return data[-1]["ts"], update[-1]["ts"] + update[-1]["dur"]


def _is_phase(event: dict[str, Any], rank: int, phase: str) -> bool:
    return (event["ph"] == "X" and event["pid"] == rank and event["tid"] == PHASE_TRACK
            and event["name"] == phase)


def spans(trace: Trace, rank: int, step: Span, phase: str | None = None) -> list[Span]:
    """(start, length) within `step` of a rank's phase, or of its communication; milliseconds."""
    found = []
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["pid"] != rank:
            continue
        if _is_phase(event, rank, phase) if phase else is_communication(event["name"]):
            start, end = max(event["ts"], step[0]), min(event["ts"] + event["dur"], step[1])
            if end > start:
                found.append((MICROSECONDS * (start - step[0]), MICROSECONDS * (end - start)))
    return found


def overlap(trace: Trace) -> float:
    """The share of all ranks' communication, in the last step, that runs under backward."""
    step, ranks = last_step(trace), _ranks(trace)
    moving = hidden = 0.0
    for rank in ranks:
        backward = spans(trace, rank, step, "backward")
        for start, length in _joined(spans(trace, rank, step)):
            moving += length
            hidden += sum(max(0.0, min(start + length, begin + long) - max(start, begin))
                          for begin, long in backward)
    return hidden / moving if moving else 0.0


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
    step, ranks = last_step(trace), _ranks(trace)
    figure, (axes,) = new_figure(_title(trace, name, len(ranks)), 1.8 + 0.55 * len(ranks))
    for place, rank in enumerate(ranks):
        for phase, look in PHASES.items():
            axes.broken_barh(spans(trace, rank, step, phase), (place - 0.4, 0.45),
                             edgecolor="black", linewidth=0.4, label=phase if not place else None,
                             **look)
        if moving := _joined(spans(trace, rank, step)):
            axes.broken_barh(moving, (place + 0.08, 0.25), color="black",
                             label="bytes on the move" if not place else None)
    axes.set_ylim(-0.6, len(ranks) - 0.4)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of one traced step")
    legend_below(figure, axes)
    return figure


def _title(trace: Trace, name: str, ranks: int) -> str:
    if ranks == 1:
        return f"{name}: one step of one rank"
    share = overlap(trace)
    return (f"{name}: {100 * share:.0f} % of the time that bytes move, backward goes on"
            if share > 0.05 else f"{name}: bytes move only when backward has ended")
