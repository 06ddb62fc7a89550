"""Whatever a rank sends is an answer, or a finding: nothing is run, believed or waited for.

Mutations that turn this red: pickle.loads for json.loads in _parsed; no limit on the header, or on
the body, in _complete; recv(_AT_ONCE) in go_on; no check of `order` in read; bool for a number in
_number; no look for what has come before in put; no visible() in _text.
"""

import pickle
import random
import socket
import struct
import time

import numpy as np
import pytest

from studies.grading.channel import MOST_HEADER, Channel, Malformed, frame, receive, wait
from studies.grading.messages import Order, Raised, Ready, Seen, _text, as_frame, most_bytes, read
from studies.grading.scenarios import BASIC, EVERYWHERE

ORDER = Order(0, 1)
ODD = EVERYWHERE[2]


def shaped(scenario=BASIC):
    return [each.detach().numpy().copy() for each in scenario.model(0).parameters()]


def seen(scenario=BASIC) -> Seen:
    return Seen([*shaped(scenario)[:-1], None], "", False,
                (shaped(scenario), shaped(scenario), shaped(scenario)), False)


def arrived(data: bytes, most: int = 1 << 20):
    """The grader's reading of these bytes and the end of the stream."""
    theirs, ours = socket.socketpair()
    channel = Channel(ours)
    with ours, theirs:
        theirs.settimeout(1)
        sent = 0
        while sent < len(data):
            sent += theirs.send(data[sent:sent + 50_000])
            if (found := channel.go_on(most)) is not None:
                return found
        theirs.close()
        while (found := channel.go_on(most)) is None:
            pass
        return found


def answer(data: bytes, kind=Seen, order=ORDER, scenario=BASIC):
    header, body = arrived(data, most_bytes(scenario))
    return read(header, body, kind, order, scenario)


@pytest.mark.parametrize("scenario", [BASIC, ODD])
def test_an_honest_answer_arrives_as_it_was_sent(scenario):
    sent = seen(scenario)
    found = answer(frame(*as_frame(sent, ORDER)), scenario=scenario)
    assert [each is None for each in found.gradients] == [each is None for each in sent.gradients]
    for one, other in zip([*found.gradients[:-1], *found.weights[2]],
                          [*sent.gradients[:-1], *sent.weights[2]], strict=True):
        assert one.shape == other.shape and (one == other).all() and one.dtype == np.float64
    assert found[1:3] == sent[1:3] and found[4:] == sent[4:]
    told = Raised("no", "line", True, 2.0, "ends-process")
    assert answer(frame(*as_frame(told, ORDER))) == told


def forged() -> dict[str, bytes]:
    """Frames that are not an answer to ORDER."""
    header, body = as_frame(seen(), ORDER)
    pickled = pickle.dumps(seen())
    deep = b"[" * 60_000
    found = {
        "a pickle": pickled, "no bytes": b"", "a pickle of the old length": struct.pack(
            "!i", len(pickled)) + pickled,
        "a huge header": struct.pack("<IQ", MOST_HEADER + 1, 0) + bytes(1000),
        "a huge body": struct.pack("<IQ", 2, 1 << 60) + b"{}",
        "a body of the wrong size": frame(header, body[8:]),
        "a longer one": frame(header, body * 2),
        "deep JSON": struct.pack("<IQ", len(deep), 0) + deep,
        "no JSON": struct.pack("<IQ", 3, 0) + b"\xff{}", "a JSON list": frame([1, 2]),
        "half of one": frame(header, body)[:-9],
        "a long number": struct.pack("<IQ", 9004, 0) + b'{"":' + b"9" * 8999 + b"}",
    }
    for name, value in (("order", [0, 2]), ("order", None), ("message", "Ready"), ("given", [True]),
                        ("message", 5), ("given", [1] * 5), ("returned", 3), ("replaced", 0),
                        ("buffers_changed", None)):
        found[f"{name} {str(value)[:9]}"] = frame({**header, name: value}, body)
    broken = as_frame(Raised("no", "line", True, 2.0, "raises"), ORDER)[0]
    for name, value in (("kind", "right"), ("sentence", None), ("when", float("inf")),
                        ("when", float("nan")), ("when", -1), ("when", "1"), ("when", True),
                        ("when", 10 ** 400)):
        found[f"{name} {str(value)[:9]}"] = frame({**broken, name: value})
    return found


def test_frames_that_arrive_together_are_read_one_after_the_other():
    """A rank's first two arrive so on a busy machine; further ones wait for the next order."""
    theirs, ours = socket.socketpair()
    channel = Channel(ours)
    with ours, theirs:
        theirs.sendall(frame({"message": 1}, b"ab") + frame({"message": 2}) + frame({}))
        for expected in (({"message": 1}, b"ab"), ({"message": 2}, b"")):
            while (found := channel.go_on(2)) is None:
                assert wait({0: channel}, time.monotonic() + 1) == [0]
            assert found == expected
        with pytest.raises(Malformed):
            channel.put(frame({}))


@pytest.mark.parametrize("name", forged())
def test_a_forged_answer_is_found_out(name):
    with pytest.raises((Malformed, EOFError)):
        answer(forged()[name])


@pytest.mark.parametrize("seed", range(300))
def test_random_damage_is_an_answer_or_found_out(seed):
    draw = random.Random(seed)
    data = bytearray(frame(*as_frame(seen(), ORDER)))
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(min(len(data), draw.choice([12, 400, len(data)])))
        data[place:place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
    try:
        found = answer(bytes(data))
    except (Malformed, EOFError):
        return
    assert isinstance(found, Seen) and len(found.gradients) == len(shaped())


def test_a_tolerance_is_a_share():
    for declared in (2, -0.1, "0", None):
        with pytest.raises(Malformed):
            read({**as_frame(Ready(0.1))[0], "tolerance": declared}, b"", Ready, None, None)


def test_what_was_sent_too_early_is_found_out():
    theirs, ours = socket.socketpair()
    with theirs, ours:
        channel = Channel(ours)
        channel.put(b"")
        theirs.send(b"x")
        with pytest.raises(Malformed):
            channel.put(b"")


def test_a_rank_that_reads_nothing_does_not_stop_the_grader():
    theirs, ours = socket.socketpair()
    with theirs, ours:
        channel = Channel(ours)
        channel.put(frame({}, bytes(10_000_000)))
        while wait({3: channel}, time.monotonic() + 0.05):
            channel.go_on(0)
        theirs.setblocking(True)


def test_an_order_arrives():
    theirs, ours = socket.socketpair()
    with theirs, ours:
        channel = Channel(ours)
        channel.put(frame({"order": ORDER}, b"12345678"))
        channel.go_on(0)
        assert receive(theirs) == ({"order": [0, 1, 0.0, False]}, b"12345678")


def test_escape_sequences_are_shown():
    told = _text({"sentence": "a\x1b[2Jb\n\té\x9b\u202e"}, "sentence")
    assert told == "a\\x1b[2Jb\n\té\\x9b\\u202e"
