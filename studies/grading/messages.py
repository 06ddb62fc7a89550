"""Messages from a rank under test to the grader, and their checks: a rank may send anything."""

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from common.core.visible import visible
from studies.grading.channel import Malformed
from studies.grading.scenarios import Scenario

Arrays = list[np.ndarray]
Header = Mapping[str, Any]
Shapes = list[tuple[int, ...]]
MOST_SECONDS = 1e12
NUMBER_BYTES = 8
KINDS = ("raises", "mixed-shapes", "ends-process")


class Order(NamedTuple):
    """The next step for a rank, to begin at `start` on the machine's monotonic clock.

    It is the step of a scenario, by their numbers; with `is_settling` the step is over on every
    rank, and the rank looks at its gradients again.
    """

    scenario: int
    step: int
    start: float = 0.0
    is_settling: bool = False


class Started(NamedTuple):
    """Says that the rank's process runs, and has not yet run a line of the user's."""

    process: int


class Ready(NamedTuple):
    """Says that the strategy could be made. `tolerance` is the declared one, 0 for exact."""

    tolerance: float


class Seen(NamedTuple):
    """The state of one rank after `average`; gradients by parameter, None for one without.

    `returned` describes the value that `average` has returned, "" for None; `replaced` says whether
    it has put other tensors into the list. Weights are those before `average`, after it, and after
    the optimizer's step. `under_way` names a tensor that was changed while it was being summed, and
    `unwaited` one whose sum nothing has waited for; each may be "".
    """

    gradients: list[np.ndarray | None]
    returned: str
    replaced: bool
    weights: tuple[Arrays, Arrays, Arrays]
    buffers_changed: bool
    under_way: str = ""
    unwaited: str = ""


class Settled(NamedTuple):
    """The gradients of the same step when it is over on every rank."""

    gradients: list[np.ndarray | None]


class Raised(NamedTuple):
    """Says that an exception has ended the rank, `when` on the machine's monotonic clock.

    `kind` is the diagnosis, one of KINDS; `trace` is cut to the user's own lines; `is_broken` says
    that a connection broke.
    """

    sentence: str
    trace: str
    is_broken: bool
    when: float
    kind: str = "raises"


Message = Started | Ready | Seen | Settled | Raised


def as_frame(message: Message, order: Order | None = None) -> tuple[dict[str, Any], bytes]:
    """Header and numbers of a message, for a rank to send."""
    header: dict[str, Any] = {"message": type(message).__name__, "order": order and order[:2]}
    arrays: list[np.ndarray] = []
    for name, value in message._asdict().items():
        if name == "gradients":
            header["given"] = [each is not None for each in value]
            arrays += [each for each in value if each is not None]
        elif name == "weights":
            arrays += [each for moment in value for each in moment]
        else:
            header[name] = value
    return header, b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)


def most_bytes(scenario: Scenario) -> int:
    """Bytes of the longest answer's numbers: gradients, and weights at three moments."""
    return 4 * NUMBER_BYTES * sum(map(prod, _shapes(scenario)))


def read(header: Header, body: bytes, kind: type, order: Order | None,
         scenario: Scenario | None) -> Message:
    """The `kind` of message that was asked for, or a Raised. Raises Malformed for anything else."""
    name = header.get("message")
    if name == "Raised":
        return _raised(header)
    if name != kind.__name__ or header.get("order") != (order and list(order[:2])):
        raise Malformed("its answer is not to what it was asked")
    if kind is Started:
        return Started(int(_number(header, "process", 1 << 31)))
    if kind is Ready:
        return Ready(_number(header, "tolerance", 1))
    assert scenario is not None
    return _looked(header, body, kind is Seen, _shapes(scenario))


def _raised(header: Header) -> Raised:
    if header.get("kind") not in KINDS:
        raise Malformed("its answer is of an unknown kind")
    return Raised(_text(header, "sentence"), _text(header, "trace"), _flag(header, "is_broken"),
                  _number(header, "when", MOST_SECONDS), header["kind"])


def _looked(header: Header, body: bytes, is_seen: bool, shapes: Shapes) -> Seen | Settled:
    given = header.get("given")
    if not isinstance(given, list) or [type(each) for each in given] != [bool] * len(shapes):
        raise Malformed("its answer does not say which gradients there are")
    present = [shape for shape, is_there in zip(shapes, given, strict=True) if is_there]
    arrays = iter(_arrays(body, [*present, *(shapes * 3 if is_seen else [])]))
    gradients = [next(arrays) if is_there else None for is_there in given]
    if not is_seen:
        return Settled(gradients)
    before, after, stepped = ([next(arrays) for _ in shapes] for _ in range(3))
    return Seen(gradients, _text(header, "returned"), _flag(header, "replaced"),
                (before, after, stepped), _flag(header, "buffers_changed"),
                _text(header, "under_way"), _text(header, "unwaited"))


@cache
def _shapes(scenario: Scenario) -> Shapes:
    """The shapes of the gradients, in the order of the model's parameters."""
    return [tuple(each.shape) for each in scenario.model(0).parameters()]


def _arrays(body: bytes, shapes: Shapes) -> Arrays:
    sizes = [prod(shape) for shape in shapes]
    if len(body) != NUMBER_BYTES * sum(sizes):
        raise Malformed(f"its answer has {len(body):,} bytes of numbers instead of "
                        f"{NUMBER_BYTES * sum(sizes):,}")
    rows = np.split(np.frombuffer(body), np.cumsum(sizes)[:-1])
    return [row.reshape(shape) for row, shape in zip(rows, shapes, strict=True)]


def _text(header: Header, name: str) -> str:
    """A text without what moves a terminal's cursor."""
    value = header.get(name)
    if not isinstance(value, str):
        raise Malformed(f"its answer has no text {name!r}")
    return visible(value, "\n\t")


def _flag(header: Header, name: str) -> bool:
    value = header.get(name)
    if not isinstance(value, bool):
        raise Malformed(f"its answer has no yes or no for {name!r}")
    return value


def _number(header: Header, name: str, most: float) -> float:
    value = header.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise Malformed(f"its answer has no number from 0 to {most:g} for {name!r}")
    return float(value)
