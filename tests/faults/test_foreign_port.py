"""The master's port belongs to another program: one sentence on every rank, before the deadline.

torch's own client would wait for ever for a silent program, and print C++ frames for any other.
Mutations that turn this red: return from wait_for_master whatever was replied (the ranks hang, or
print frames); raise nothing in _what_is_wrong (the banner is waited out); call the action itself in
`before` (the stopped store is waited for); drop `or not _greeting_is_known()`.
"""

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from common.cluster import master_port
from common.cluster.rendezvous import open_store
from common.core.failures import PeerLost
from common.core.world import World
from tests.facts import says
from tests.ranks import error_lines, free_port, program, run_programs

FLAGS = ["--workload", "digits-vgg11", "--threads", "1", "--timeout", "1"]
LONGEST = 30  # seconds: 2 until the deadline; a busy machine takes long to start three ranks


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(1024):
        pass


def say_banner(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    stay_silent(connection)


def hang_up(connection: socket.socket) -> None:
    connection.close()


def speak_http(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        http.server.BaseHTTPRequestHandler(connection, ("127.0.0.1", 0), None)


def refuse_as_http(connection: socket.socket) -> None:
    """Answers like servers that do not wait for the end of a line that cannot be a request's."""
    connection.recv(1024)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    connection.close()


@contextlib.contextmanager
def held_port(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port on loopback where each connection is treated by `answer`, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def accept() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=treat, args=(connection,), daemon=True).start()

        def treat(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                answer(connection)
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer, code, fact", [
    (stay_silent, 75, "accepted"),
    (speak_http, 75, "accepted"),  # it waits for the end of the line
    (refuse_as_http, 2, "'HTTP/1.1 400 Bad Request'"),
    (say_banner, 2, "'SSH-2.0-OpenSSH_9.6'"),
    (hang_up, 75, "closed"),
])
def test_every_rank_ends_with_one_sentence(answer, code, fact, tmp_path):
    with held_port(answer) as port:
        begun = time.monotonic()
        outcomes = run_programs([
            program("PartTwo", ["-M", "127.0.0.1", "-N", "3", "-R", str(rank), "--master-port",
                                str(port), "--output-dir", str(tmp_path / "out"), *FLAGS],
                    tmp_path, f"rank{rank}") for rank in range(3)])
        assert time.monotonic() - begun < LONGEST
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == (code if rank else 2), outcome.output
        line, = error_lines(outcome.output)
        assert f":{port}" in line if rank else f"port {port}" in line
        assert says(line, fact if rank else "--master-port")
        assert outcome.output.count("\n") <= 2, outcome.output  # at most a remark besides


@pytest.mark.parametrize("answer, code", [(stay_silent, 75), (say_banner, 2)])
def test_a_rank_under_torchrun_and_the_preflight_say_so_too(answer, code, tmp_path):
    with held_port(answer) as port:
        agent = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT":
                 str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        outcomes = run_programs([
            program("PartThree", FLAGS, tmp_path, "a", environment=agent),
            program("scripts/preflight.py", ["-M", "127.0.0.1", "-N", "2", "-R", "1",
                                             "--master-port", str(port), *FLAGS], tmp_path, "b")])
    for outcome in outcomes:
        assert outcome.code == code and len(error_lines(outcome.output)) == 1, outcome.output


def test_the_greeting_is_the_one_of_this_torch():
    assert master_port._greeting_is_known()


def test_another_torch_with_another_greeting_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(master_port, "GREETING", b"\xff" * 10)
    monkeypatch.setattr(master_port, "REPLY_SECONDS", 0.2)
    master_port._greeting_is_known.cache_clear()
    store = master_port.serve_store("127.0.0.1", 0)
    try:
        world = World(rank=1, size=2, master_port=store.port)
        master_port.wait_for_master(world, "127.0.0.1", time.monotonic() + 20, print)
    finally:
        master_port._greeting_is_known.cache_clear()


def test_a_store_that_stops_after_its_greeting_is_not_waited_for():
    def greet_once(connection: socket.socket) -> None:
        if connection.recv(1024).endswith(master_port.NONCE):
            connection.sendall(master_port.NONCE)
        stay_silent(connection)
    with held_port(greet_once) as port, pytest.raises(PeerLost) as raised:
        open_store(World(rank=1, size=2, master_port=port), "127.0.0.1", time.monotonic() + 1,
                   print)
    assert says(raised.value, f"127.0.0.1:{port}", "store")


def test_a_free_port_is_waited_for_until_the_deadline():
    with pytest.raises(PeerLost, match="Connection refused"):
        open_store(World(rank=1, size=2, master_port=free_port()), "127.0.0.1",
                   time.monotonic() + 0.5, print)


def test_the_last_instant_does_not_change_what_was_found(monkeypatch):
    """Before the deadline a reply has hardly time to come: that none came says nothing."""
    replies = iter([b""])
    monkeypatch.setattr(master_port, "reply_of", lambda *_: next(replies, None))
    monkeypatch.setattr(master_port, "_greeting_is_known", lambda: True)
    with pytest.raises(PeerLost, match="closed"):
        master_port.wait_for_master(World(rank=1, size=2, master_port=1), "127.0.0.1",
                                    time.monotonic() + 0.5, print)
