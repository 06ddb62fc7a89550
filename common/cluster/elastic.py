"""This process in an elastic run: it joins the group, leaves a broken one, and joins the next.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 2:4 --rank 0

After a loss nothing is restarted: the program's main begins again in the same process, with another
World, and finds the run where it stands in memory instead of on disk (common/run/in_memory.py).
"""

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common.cluster import addresses
from common.cluster.board import is_broken_collective
from common.cluster.connections import end_connections
from common.cluster.doors import Doors, address_of
from common.cluster.membership import Group, Limits, Member, Standing, is_knocking, next_group
from common.cluster.rank_info import RankInfo, require_one_run
from common.cluster.stopping import process_stop
from common.core.failures import Failure, PeerLost, RanksDisagree, Verdict
from common.core.files import replace_file
from common.core.progress import process_progress
from common.core.world import World
from common.settings.settings import Settings

FORMING_SECONDS = 2.0
MOST_IN_VAIN = 5  # groups in a row that are formed and take no step
RECORDS = ".group_rank*.json"
UNFIT_AFTER = 2  # such groups, one does without its newcomers
Result = TypeVar("Result")
_processes: list["Elastic"] = []


class Change(NamedTuple):
    """The ranks that the last group had and this one lacks, and those that are new; why, as far as
    a watch has said so; and the seconds from the first sign of it.
    """

    lost: list[int]
    came: list[int]
    why: str
    seconds: float = 0.0

    def __str__(self) -> str:
        """One clause."""
        who = [f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} {what}"
               for ranks, what in ((self.lost, "lost"), (self.came, "came")) if ranks]
        return f"{' and '.join(who) or 'the same ranks'}{self.why and f' ({self.why})'}"


class Elastic:
    """One a process: its door, and where it stands.

    `data` is a digest of its data. `record` is a file in which each start of this rank notes its
    group: where rank 0 was replaced, the next start finds the group by it, or by another rank's.
    """

    def __init__(self, world: World, settings: Settings, data: str, record: Path) -> None:
        master = addresses.resolve(world.master_address)
        interface, address = addresses.choose_interface(settings.interface, master,
                                                        world.master_port)
        address = address.partition("%")[0]
        if world.is_leader:
            self._doors = Doors(master, world.master_port, must=True)
        else:  # on rank 0's machine its port is not for others
            self._doors = Doors(address, 0 if address == master else world.master_port, must=False)
        self._info = RankInfo.of_this_process(world, settings, interface, address)
        self._record = record
        before = None if settings.resume.replaces else _read(record)
        token = hashlib.sha256(f"token {world.token}".encode()).hexdigest()
        self._standing = Standing(
            Member(world.rank, self._doors.mine, uuid.uuid4().hex[:8]), time.monotonic,
            [addresses.place(master, world.master_port)], [asdict(self._info), data, token],
            self._objection, before)
        others = [] if settings.resume.replaces else record.parent.glob(RECORDS)
        for group in filter(None, map(_read, others)):  # on a disk that ranks share
            self._standing.meet(group)
        self.patience = settings.timeout
        self._limits = Limits(world.least, world.size, patience=settings.timeout)
        self._trained: Sequence[Member] = ()
        self._why, self._left = "", 0.0
        self._silent: set[int] = set()
        self._in_vain, self._is_over = 0, False
        self.broken: Future[None] = Future()

    @property
    def group(self) -> Group | None:
        """The group that this process is in, or was in last."""
        return self._standing.group

    @property
    def has_lost(self) -> bool:
        """True once this process may have been in a group that has ended, or joins a later one."""
        return self.group is not None and self.group.generation > 0

    def next_world(self, world: World) -> World:
        """Joins a group, the first or the next one; `world` as it was launched, in that group.

        Raises PeerLost or RanksDisagree where this process cannot go on.
        """
        progress, before = process_progress(), self.group
        self._in_vain = 0 if progress.has_stepped else self._in_vain + 1
        progress.has_stepped, progress.phase = False, "joining the other ranks"
        process_stop().reset()
        self._left = self._left or time.monotonic()
        if before:
            self.break_off()  # who waits for this rank is woken too
        self.broken = Future()
        try:
            if self._in_vain > MOST_IN_VAIN:
                raise PeerLost(f"{MOST_IN_VAIN} groups in a row could not train: {self._why}")
            self._standing.is_in_vain = self._in_vain > 0
            if self._in_vain >= UNFIT_AFTER and before and self._trained:
                self._standing.unfit |= set(before.members) - set(self._trained)
            lost = [before.members[rank] for rank in self._silent] if before else []
            group = self._doors.carry_out(next_group(self._standing, self._limits, lost))
        except Failure:
            self._is_over = True
            raise
        self._write(group)
        self._silent, self._left = set(), self._left if self.has_lost else 0.0
        address, port = address_of(group.members[0].door)
        return replace(world, rank=group.members.index(self._standing.me), size=len(group.members),
                       master_address=address, master_port=port, store_is_served=True,
                       attempt=group.generation, launched_rank=world.rank)

    @property
    def forming_seconds(self) -> float:
        """How long connecting to ranks that have just agreed may take; longer after each failure.

        A rank that is lost meanwhile wakes nobody who waits for it to connect.
        """
        return FORMING_SECONDS * 2 ** self._in_vain

    def has_changed(self) -> PeerLost | None:
        """On the leader: the reason to form a group anew, if a rank has ended or a new one waits.

        Call it from one thread.
        """
        for member in self.group.members[1:] if self.group else ():
            if self._doors.has_ended(member.door):
                return PeerLost(f"rank {member.rank}: its process has ended")
        is_there = self._doors.carry_out(is_knocking(self._standing))
        return PeerLost("") if is_there else None  # who it is, the next group says

    def change(self) -> "Change":
        """Returns who was lost and who came since the last call, and the seconds until now.

        Call it once in each group, as it begins to train.
        """
        there, self._trained = self._trained, self.group.members if self.group else ()
        seconds, self._left = time.monotonic() - self._left, 0.0
        why, self._why = self._why, ""
        return Change([each.rank for each in there if each not in self._trained],
                      [each.rank for each in self._trained if each not in there],
                      why, round(seconds, 3))

    def _objection(self, introduction: Any) -> str:
        """Why the group does not take a newcomer of this introduction; "" where it does."""
        info, data, token = introduction
        if token != self._standing.introduction[2]:
            return (f"{RankInfo(**info)} has another RUN_TOKEN than the job at "
                    f"{self._doors.mine}: give all ranks of a job the same")
        try:
            require_one_run([self._info, RankInfo(**info)])
        except RanksDisagree as error:
            return str(error)
        mine = self._standing.introduction[1]
        return "" if data == mine else (f"{RankInfo(**info)} has other data ({data}) than "
                                        f"{self._info} ({mine})")

    def _write(self, group: Group) -> None:
        with contextlib.suppress(OSError):  # a full disk: the group goes on without
            self._record.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._record, json.dumps(group.as_json()).encode())

    def forget(self) -> None:
        """Call when the run is done: no later run is to look for its group."""
        self._record.unlink(missing_ok=True)

    def note_silent(self, ranks: set[int]) -> None:
        """Keeps which ranks of the group have been silent for long: nobody waits for them again."""
        members = self.group.members if self.group else ()
        self._silent = {rank for rank in ranks if members[rank] != self._standing.me}

    def break_off(self) -> None:
        """Ends this process's connections, which wakes the main thread where it waits for others.

        Ranks that wait for a stopped one, or for one whose other threads still hold the group, are
        woken by nothing else. Nor is a thread that has received part of a message, before gloo's
        timeout: in_background leaves it alone.
        """
        with contextlib.suppress(InvalidStateError):  # another thread has
            self.broken.set_result(None)
        self._doors.hang_up()
        _, port = address_of(self._doors.mine)
        end_connections(but_port=port)

    def goes_on_after(self, error: BaseException) -> bool:
        """Returns True if `error` means that the group has lost a rank, and no more."""
        is_loss = (is_broken_collective(error) or isinstance(error, PeerLost)
                   or isinstance(error, Verdict) and error.exit_code == PeerLost.exit_code)
        if not is_loss or self._is_over or process_stop().is_stopping:
            return False
        self._left = self._left or time.monotonic()
        if isinstance(error, Failure):  # gloo's own errors name nobody
            self._why = self._why or str(error)
        return True


def elastic() -> Elastic | None:
    """This process's, if its run is elastic."""
    return _processes[0] if _processes else None


def has_lost() -> bool:
    """Returns True in an elastic run that has lost or got ranks since it began."""
    return bool(_processes) and _processes[0].has_lost


def unless_broken(future: Future[Result]) -> Result:
    """The result of a future; raises PeerLost once the group of an elastic run is broken off."""
    if member := elastic():
        either: list[Future[Any]] = [future, member.broken]
        wait(either, return_when=FIRST_COMPLETED)
        if not future.done():
            raise PeerLost("")  # why, is known to who has broken it off
    return future.result()


def in_background(action: Callable[..., Result], *arguments: Any) -> Result:
    """Calls an action that sends or receives much, in a thread that an elastic run can leave alone.

    Raises what it raises, and PeerLost once the group is broken off.
    """
    if not elastic():
        return action(*arguments)
    threads = ThreadPoolExecutor(1, "messages")
    try:
        return unless_broken(threads.submit(action, *arguments))
    finally:
        threads.shutdown(wait=False)


def _read(record: Path) -> Group | None:
    """The group that an earlier start of this rank has noted."""
    try:
        return Group.of_json(json.loads(record.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def next_world(world: World, settings: Settings, data: str, record: Path) -> World:
    """This process's world in its first or next group; the rest is as for Elastic."""
    if not _processes:
        _processes.append(Elastic(world, settings, data, record))
    return _processes[0].next_world(world)


def goes_on_after(error: BaseException) -> bool:
    """Returns True if main is to begin again: the run is elastic, and a rank is lost."""
    return bool(_processes) and _processes[0].goes_on_after(error)
