"""The messages in a merged trace: which events they are, and how many bytes a rank sends by them.

    python3 scripts/compare.py outputs        # for runs with --profile

gloo's events have the shapes of an operation's tensors, which are more than a rank sends: a root
that scatters has a tensor for each rank, its own among them.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from common.core.trace_file import PHASE_TRACK, Event, Trace, is_communication

Span = tuple[float, float]
SIZES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2,
         "signed char": 1, "unsigned char": 1}
# The part of an operation's tensors that a rank sends, by the number of ranks. What a root only
# gathers is not sent, and a gathering root has more tensors than one.
SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: ranks - 1,
    **dict.fromkeys(("all_to_all", "reduce_scatter", "scatter"), lambda ranks: (ranks - 1) / ranks),
    **dict.fromkeys(("recv", "recvAnySource", "barrier"), lambda ranks: 0.0)}
CLOSE = 0.05  # of the bytes that the log counts: padding, and messages about messages
LEAST = 0.001  # of the gradients' bytes: no average travels in fewer, whatever its format


def moves_bytes(event: Event) -> bool:
    """True for messages."""
    return is_communication(event["name"])


def bytes_of(event: Event) -> float:
    """The size of the tensors that an event was given; 0 where the trace has no shapes."""
    args: dict[str, Any] = event.get("args", {})
    return sum(prod(shape) * SIZES.get(kind, 0) for shape, kind in zip(
        args.get("Input Dims", ()), args.get("Input type", ()), strict=False))


def bytes_sent(event: Event, ranks: int) -> float:
    """Returns the bytes that a rank sends for a message."""
    kind = event["name"].partition(":")[2]
    if kind == "gather" and len(event["args"].get("Input Dims", ())) > 1:
        return 0.0
    return SENT.get(kind, lambda ranks: 1.0)(ranks) * bytes_of(event)


def last_step(trace: Trace) -> Span:
    """The time from rank 0's last "data" to the end of its "update", in microseconds."""
    leaders = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    data, update = (list(filter(phase_is(phase), leaders))[-1] for phase in ("data", "update"))
    return data["ts"], update["ts"] + update["dur"]


def phase_is(phase: str) -> Callable[[Event], bool]:
    """Returns a filter for the spans of a phase, as the host saw it."""
    return lambda event: event["tid"] == PHASE_TRACK and event["name"] == phase


def ranks_of(trace: Trace) -> list[int]:
    """The ranks that were traced."""
    return sorted({event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"})


def is_of_gpus(trace: Trace) -> bool:
    """True if kernels ran: then the host's events do not tell when the work was done."""
    return any(event.get("cat") == "kernel" for event in trace["traceEvents"])


def are_all_there(trace: Trace, counted: float, rank: int = 0) -> bool:
    """True if the trace has the last step's messages: a rank sends what its log has counted.

    If the strategy does not count, `counted` is 0, and they must be enough for gradients. On GPUs,
    True if there are any.
    """
    begin, finish = last_step(trace)
    mine = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == rank
            and begin <= event["ts"] < finish]
    messages = list(filter(moves_bytes, mine))
    if is_of_gpus(trace):
        return bool(messages)
    sent = sum(bytes_sent(event, len(ranks_of(trace))) for event in messages)
    if counted:
        return abs(sent - counted) <= CLOSE * counted
    gradients = sum(map(bytes_of, filter(is_gradient, mine)))
    return sent > LEAST * gradients


def is_gradient(event: Event) -> bool:
    """True for the moments at which autograd has a parameter's gradient."""
    return event["name"] == "torch::autograd::AccumulateGrad"
