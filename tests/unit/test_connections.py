"""Connections that repeat in vain, from the kernel's own table, and the ranks that they point to.

Mutations that turn this red: count repeats from zero on; leave the timer out, so that a stopped
process is taken for a lost link; read an address as it stands; look before the time has come, at a
rank that moves, or while the ranks join.
"""

import os
import socket

from common.cluster import connections
from common.cluster.connections import OwnLinks, is_repeating, remote_address, unacknowledged
from common.cluster.rank_info import RankInfo
from common.core.progress import CONNECTING, Progress
from tests.facts import says

TABLE = """\
   0: 0100007F:01BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 11 1
   1: 014D4D0A:A0B1 034D4D0A:CAFE 01 00002000:00000000 01:00000E11 00000007  0  0 22 1
   2: 014D4D0A:A0B2 024D4D0A:CAFE 01 00002000:00000000 01:00000010 00000001  0  0 33 1
   3: 014D4D0A:A0B3 044D4D0A:CAFE 01 00002000:00000000 04:00000010 00000009  0  0 44 1
   4: 014D4D0A:A0B4 054D4D0A:CAFE 01 00000000:00000000 00:00000000 00000000  0  0 55 1
   5: B80D0120000000000000000001000000:A0B5 B80D0120000000000000000002000000:CAFE 01 \
00002000:00000000 01:00000E11 00000007  0  0 66 1
   6: 0000000000000000FFFF0000014D4D0A:A0B6 0000000000000000FFFF0000064D4D0A:CAFE 01 \
00002000:00000000 01:00000E11 00000007  0  0 77 1
"""


def test_only_what_is_repeated_in_vain_counts():
    rows = map(str.split, TABLE.splitlines())
    assert [(remote_address(row), row[9]) for row in rows if is_repeating(row)] == [
        ("10.77.77.3", "22"), ("2001:db8::2", "66"), ("10.77.77.6", "77")]


def test_only_this_process_own_connections_count(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as mine:
        inode, table = os.fstat(mine.fileno()).st_ino, tmp_path / "tcp"
        table.write_text("header\n" + TABLE.replace(" 22 1", f" {inode} 1"))
        monkeypatch.setattr(connections, "TABLES", (table, tmp_path / "no IPv6 here"))
        assert unacknowledged() == {"10.77.77.3"}
    assert unacknowledged() == set()


def test_the_kernels_table_is_understood():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()):
            assert unacknowledged() == set()


RANKS = [RankInfo(rank, f"node{rank}", 1, f"10.0.0.{rank + 1}", "eth0") for rank in range(3)]


def test_a_rank_that_has_waited_for_long_names_the_other_end(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(connections, "unacknowledged", lambda: {"10.0.0.3"})
    here = Progress(1, 5, "sync", has_stepped=True)
    links = OwnLinks(60, here)
    assert links.lost_link(1) is None  # before all ranks are known
    links.ranks = RANKS
    for now[0] in (1000.0, 1040.0):
        assert links.lost_link(1) is None
    here.iteration = 6  # it has moved
    for now[0] in (1050.0, 1090.0):
        assert links.lost_link(1) is None
    now[0] = 1096.0
    assert says(links.lost_link(1), "rank 2", "node2", "rank 1", "node1", "epoch 1",
                "iteration 6", "sync", "46 s", "10.0.0.2", "10.0.0.3")


def test_a_link_to_who_is_no_rank_says_nothing(monkeypatch):
    monkeypatch.setattr(connections, "unacknowledged", lambda: {"192.0.2.7"})
    links = OwnLinks(0, Progress(1, 5, "sync"))
    links.ranks = RANKS
    assert links.lost_link(1) is None


def test_ranks_that_join_do_not_look(monkeypatch):
    monkeypatch.setattr(connections, "unacknowledged", lambda: {"10.0.0.3"})
    here = Progress(phase="joining the other ranks")
    links = OwnLinks(0, here)
    links.ranks = RANKS
    assert links.lost_link(1) is None
    here.phase = CONNECTING
    assert says(links.lost_link(1), "rank 2", "node2", "10.0.0.3")
