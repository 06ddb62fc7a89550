"""The real protocol of common/cluster/membership.py on a simulated network, driven by a seed.

    python3 -m tests.membership_simulator 100000        # so many seeds; a failing one replays
    python3 -m tests.membership_simulator --seed 17     # tells what happens

Every request takes time, and may be the last thing that its process does. Processes are killed,
stopped, cut off, started again. What must hold is checked as it happens:

- of two groups one never trains again once the other has;
- processes of one generation that train have the same members;
- when all faults are over, every process soon trains, in one group, or has ended.
"""

import heapq
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from common.cluster.membership import (
    Add,
    Get,
    Group,
    Limits,
    Member,
    Put,
    Sleep,
    Standing,
    Steps,
    Unreachable,
    is_knocking,
    next_group,
)
from common.core.failures import Failure
from common.run import in_memory

STEP_SECONDS = 0.3
SILENT_SECONDS = 1.0  # after which a request without an answer is given up
FORM_SECONDS = 10.0
PATIENCE = 20.0


class Broken(AssertionError):
    """Something that must always hold does not."""


@dataclass(eq=False)
class Process:
    """One start of a rank: its door's store, and what it does."""

    rank: int
    start: int
    standing: Standing
    store: dict[str, Any] = field(default_factory=dict)
    alive: bool = True
    stopped: bool = False
    state: str = "regrouping"
    learned: tuple[int, ...] | None = None  # the steps that its weights have had
    steps: Steps | None = None
    postponed: list[Callable[[], None]] = field(default_factory=list)
    ended: str = ""

    @property
    def runs(self) -> bool:
        return self.alive and self.state != "ended"


class World:
    """All processes, their clock and their network."""

    def __init__(self, seed: int, ranks: int, least: int, tell: bool = False) -> None:
        self.random, self.now, self.tell = random.Random(seed), 0.0, tell
        self.limits = Limits(least, ranks, silence=2.0, patience=PATIENCE)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.processes: dict[int, Process] = {}
        self.cuts: set[frozenset[int]] = set()
        self.slow = 0.0
        self.trained: list[Group] = []  # by their first step
        self.kill_after: dict[int, int] = {}  # a rank, and after how many more of its requests
        self.starts = itertools.count()

    # -- time

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), what))

    def run_until(self, time: float) -> None:
        while self.events and self.events[0][0] <= time:
            self.now, _, what = heapq.heappop(self.events)
            what()
        self.now = time

    def say(self, text: str) -> None:
        if self.tell:
            print(f"{self.now:8.3f} {text}")

    # -- faults

    def start(self, rank: int) -> None:
        number = next(self.starts)
        me = Member(rank, f"door{rank}", str(number))
        earlier = self.processes.get(rank)  # whose file on disk is left
        known = earlier.standing.known if earlier else ["door0"]
        before = earlier and (earlier.standing.group or earlier.standing.before)
        process = Process(rank, number, Standing(me, lambda: self.now, known, before=before))
        self.processes[rank] = process
        self.say(f"start {rank}")
        self.regroup(process)

    def kill(self, rank: int) -> None:
        process = self.processes[rank]
        if process.alive:
            self.say(f"kill {rank}")
            process.alive, process.steps = False, None

    def stop(self, rank: int) -> None:
        self.say(f"stop {rank}")
        self.processes[rank].stopped = True

    def wake(self, rank: int) -> None:
        process = self.processes[rank]
        if process.stopped:
            self.say(f"continue {rank}")
            process.stopped, waiting = False, process.postponed
            process.postponed = []
            for each in waiting:
                self.at(self.random.random() * 0.01, each)

    def cut(self, one: set[int]) -> None:
        self.say(f"cut {sorted(one)} off")
        self.cuts |= {frozenset((a, b)) for a in one for b in range(self.limits.most)
                      if b not in one}

    def cut_link(self, one: int, other: int) -> None:
        self.say(f"cut {one} from {other}")
        self.cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self.say("heal")
        self.cuts.clear()

    # -- requests

    def when_awake(self, process: Process, what: Callable[[], None]) -> None:
        if process.stopped:
            process.postponed.append(what)
        elif process.alive:
            what()

    def advance(self, process: Process, steps: Steps, answer: Any, then: Callable[[Any], None],
                ) -> None:
        """Goes on with a process's `steps`, and with `then` after its result."""
        if not process.alive or steps is not process.steps:
            return
        try:
            request = (steps.throw(answer) if isinstance(answer, Exception)
                       else steps.send(answer))
        except StopIteration as end:
            then(end.value)
            return
        except Failure as failure:
            process.state, process.ended = "ended", str(failure)
            process.alive = False
            self.say(f"{process.rank} ends: {failure}")
            return
        self.carry_out(process, request, lambda value: self.when_awake(
            process, lambda: self.advance(process, steps, value, then)))

    def carry_out(self, process: Process, request: Any, answer: Callable[[Any], None]) -> None:
        if isinstance(request, Sleep):
            self.at(request.seconds * self.random.uniform(1, 1.5), lambda: answer(None))
            return
        if self.kill_after.get(process.rank) is not None:
            self.kill_after[process.rank] -= 1
            if self.kill_after[process.rank] < 0:
                del self.kill_after[process.rank]
                if self.random.random() < 0.5:
                    self.reach(process, request)
                self.kill(process.rank)
                return
        there = self.random.uniform(0.0001, 0.002)
        if self.random.random() < self.slow and request.door != process.standing.me.door:
            there = self.random.uniform(0.2, 2.5)

        def arrive() -> None:
            value = self.reach(process, request)
            if isinstance(value, Unreachable) and not value.is_gone or there > SILENT_SECONDS:
                self.at(max(0.0, SILENT_SECONDS - there), lambda: answer(Unreachable(False)))
            else:
                self.at(there, lambda: answer(value))

        is_own = request.door == process.standing.me.door
        self.at(there, (lambda: self.when_awake(process, arrive)) if is_own else arrive)

    def reach(self, process: Process, request: Any) -> Any:
        rank = int(request.door.removeprefix("door"))
        if rank != process.rank and not self.connected(process.rank, rank):
            return Unreachable(False)
        owner = self.processes.get(rank)
        if owner is None or not owner.alive:
            return Unreachable(True)
        if owner.stopped:
            return Unreachable(False)
        if isinstance(request, Put):
            owner.store[request.key] = request.value
            return None
        if isinstance(request, Get):
            return owner.store.get(request.key)
        assert isinstance(request, Add)
        owner.store[request.key] = owner.store.get(request.key, 0) + request.more
        return owner.store[request.key]

    def connected(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self.cuts

    # -- what a process does

    def regroup(self, process: Process) -> None:
        if not process.alive:
            return
        process.state = "regrouping"
        process.standing.is_in_vain = process.standing.group not in self.trained
        process.steps = next_group(process.standing, self.limits)
        self.advance(process, process.steps, None, lambda group: self.enter(process, group))

    def enter(self, process: Process, group: Group) -> None:
        self.say(f"{process.rank} enters {group.generation}: "
                 f"{[each.rank for each in group.members]}")
        process.state, process.steps = "training", None
        self.look(process, group, self.now + FORM_SECONDS)
        if group.members[0] == process.standing.me:
            self.at(STEP_SECONDS, lambda: self.train(group))
            self.at(0.5, lambda: self.listen(process, group))

    def look(self, process: Process, group: Group, until: float) -> None:
        """Notices, as a watch does, that the group cannot train; then looks for the next one."""
        def again() -> None:
            if not (process.runs and process.state == "training"
                    and process.standing.group == group):
                return
            wrong = self.what_is_wrong(group, process)
            if not wrong or (wrong == "absent" and self.now < until):
                self.look(process, group, until)
                return
            delay = (self.random.uniform(3, 6) if wrong == "silent"
                     else self.random.uniform(0.01, 0.6))
            self.at(delay, lambda: self.when_awake(process, lambda: self.leave(process, group)))

        self.at(self.random.uniform(0.05, 0.4), lambda: self.when_awake(process, again))

    def leave(self, process: Process, group: Group) -> None:
        if process.state == "training" and process.standing.group == group:
            self.regroup(process)

    def what_is_wrong(self, group: Group, process: Process) -> str:
        members = [self.member(each) for each in group.members]
        if any(each is None for each in members):
            return "gone"
        if any(each.stopped or not self.connected(each.rank, process.rank) for each in members):
            return "silent"
        others = [each.standing.group for each in members if each.state == "training"]
        if len(others) < len(members) or any(each != group for each in others):
            formed = group in self.trained
            return "gone" if formed else "absent"
        return ""

    def member(self, member: Member) -> Process | None:
        process = self.processes[member.rank]
        return process if process.alive and process.standing.me == member else None

    def listen(self, process: Process, group: Group) -> None:
        """The leader's watch: somebody at the door makes all look for the next group."""
        if not (process.alive and process.state == "training" and process.standing.group == group):
            return

        def heard(knocks: bool) -> None:
            if knocks:
                self.leave(process, group)
            else:
                self.at(0.5, lambda: self.when_awake(process, lambda: self.listen(process, group)))

        steps = is_knocking(process.standing)
        process.steps = steps
        self.advance(process, steps, None, heard)

    def train(self, group: Group) -> None:
        """One step, if all of the group take part; a kill may leave some a step behind."""
        members = [self.member(each) for each in group.members]
        here = [each for each in members if each and each.runs]
        if not here or not any(each.standing.group == group for each in here):
            return
        if all(each and each.state == "training" and each.standing.group == group
               and not each.stopped for each in members) and all(
                   self.connected(a.rank, b.rank) for a in here for b in here):
            self.check(group)
            self.share(here)
            for each in here:
                self.at(self.random.uniform(0, 0.05), lambda each=each, then=each.learned: (
                    self.when_awake(each, lambda: self.apply(each, group, then))))
        self.at(STEP_SECONDS, lambda: self.train(group))

    def share(self, here: list[Process]) -> None:
        """Gives ranks that are behind the state of the furthest, as happens when a group begins."""
        places = [(-1,) if each.learned is None else (len(each.learned),) for each in here]
        if max(places)[0] < 0:
            for each in here:
                each.learned = ()
        source, behind = in_memory.furthest(places)
        for rank in behind:
            here[rank].learned = here[source].learned
        if len({each.learned for each in here}) > 1 or here[0].learned is None:
            raise Broken(f"ranks train on with other weights: {[each.learned for each in here]}")

    def apply(self, process: Process, group: Group, then: tuple[int, ...]) -> None:
        if process.standing.group == group and process.learned == then:
            process.learned = (*then, len(then))

    def check(self, group: Group) -> None:
        if group not in self.trained:
            if any(each.generation == group.generation for each in self.trained):
                raise Broken(f"generation {group.generation} has trained with other members")
            self.trained.append(group)
            self.say(f"trains {group.generation}: {[each.rank for each in group.members]}")
        elif group != self.trained[-1]:
            raise Broken(f"{group.generation} goes on after {self.trained[-1].generation} has")

    def check_end(self) -> None:
        """All faults are over, for longer than anybody waits."""
        left = [each for each in self.processes.values() if each.runs]
        groups = {each.standing.group if each.state == "training" else None for each in left}
        if len(groups) > 1 or None in groups:
            raise Broken(f"not all train: {[(each.rank, each.state) for each in left]}")
        if left and {each.rank for each in left} != {
                each.rank for each in next(iter(groups)).members}:
            raise Broken("a process trains in a group that it is not in")


def disturb(world: World, faults: int) -> Iterator[float]:
    """Faults at random moments; yields the seconds until the next one."""
    choose, ranks = world.random, world.limits.most
    for _ in range(faults):
        rank = choose.randrange(ranks)
        kind = choose.choice(["kill", "kill", "kill later", "stop", "cut", "link", "slow",
                              "return"])
        if kind == "kill":
            world.kill(rank)
        elif kind == "kill later":
            world.kill_after[rank] = choose.randrange(40)
        elif kind == "stop" and world.processes[rank].alive:
            world.stop(rank)
            world.at(choose.uniform(0.5, 15), lambda rank=rank: world.wake(rank))
        elif kind == "cut":
            world.cut(set(choose.sample(range(ranks), choose.randrange(1, ranks))))
            world.at(choose.uniform(0.5, 15), world.heal)
        elif kind == "link":
            world.cut_link(*choose.sample(range(ranks), 2))
            world.at(choose.uniform(0.5, 30), world.heal)
        elif kind == "slow":
            world.slow = 0.1
            world.at(3, lambda: setattr(world, "slow", 0.0))
        elif not world.processes[rank].alive:
            world.start(rank)
        yield choose.choice([0.0, 0.01, 0.1, 0.5, 2, 8])


def simulate(seed: int, tell: bool = False) -> World:
    """One run of 2 to 8 ranks with up to 12 faults. Raises Broken."""
    choose = random.Random(seed)
    ranks = choose.randint(2, 8)
    world = World(seed, ranks, choose.randint(1, ranks), tell)
    for rank in range(ranks):
        world.at(choose.uniform(0, 1), lambda rank=rank: world.start(rank))
    world.run_until(choose.uniform(1.1, 4))
    for pause in disturb(world, choose.randint(1, 12)):
        world.run_until(world.now + pause)
    world.run_until(world.now + 20)
    world.kill_after.clear()
    world.heal()
    world.run_until(world.now + 6 * PATIENCE)
    world.check_end()
    return world


def _begun(seed: int, tell: bool) -> tuple[random.Random, int, World]:
    """A generator, a number of ranks from 3 to 8, and a world in which all of them train."""
    choose = random.Random(seed)
    ranks = choose.randint(3, 8)
    world = World(seed, ranks, 2, tell)
    for rank in range(ranks):
        world.at(choose.uniform(0, 1), lambda rank=rank: world.start(rank))
    world.run_until(3)
    return choose, ranks, world


def simulate_orderly(seed: int, tell: bool = False) -> World:
    """Ranks are killed and started again, one after the other: all must train at the end.

    Raises Broken.
    """
    choose, ranks, world = _begun(seed, tell)
    for _ in range(10):
        alive = [rank for rank in range(ranks) if world.processes[rank].alive]
        rank = choose.randrange(ranks)
        if rank not in alive:
            world.start(rank)
        elif len(alive) > 2 and (rank != alive[0] or len(alive) > 3):
            world.kill(rank)
        world.run_until(world.now + choose.choice([0.02, 0.5, 3, 8]) + 5)
    for rank in range(ranks):
        if not world.processes[rank].alive:
            world.start(rank)
        world.run_until(world.now + 6)
    world.run_until(world.now + 2 * PATIENCE)
    world.check_end()
    if not all(each.runs for each in world.processes.values()):
        raise Broken(f"not all train: {[each.ended for each in world.processes.values()]}")
    return world


def simulate_lost_link(seed: int, tell: bool = False) -> World:
    """The link between two ranks is lost for long: all but one of them must train meanwhile.

    Raises Broken.
    """
    choose, ranks, world = _begun(seed, tell)
    world.cut_link(*choose.sample(range(ranks), 2))
    world.run_until(3 + 1.5 * PATIENCE)
    group, training = world.trained[-1], [
        each for each in world.processes.values() if each.state == "training"]
    if len(group.members) != ranks - 1 or any(each.standing.group != group for each in training):
        raise Broken(f"{len(group.members)} of {ranks} ranks train")
    world.run_until(world.now + PATIENCE / 4)
    if world.trained[-1] != group:
        raise Broken("who does not reach all of a group disturbs it")
    world.heal()
    world.run_until(world.now + 6 * PATIENCE)
    world.check_end()
    return world


def main() -> None:
    if sys.argv[1] == "--seed":
        simulate(int(sys.argv[2]), tell=True)
        return
    going_on = 0
    for seed in range(int(sys.argv[1])):
        try:
            world = simulate(seed)
            if seed % 10 == 0:
                simulate_orderly(seed)
                simulate_lost_link(seed)
        except Exception as error:
            print(f"seed {seed}: {error!r}")
            sys.exit(1)
        going_on += any(each.runs for each in world.processes.values())
    print(f"{sys.argv[1]} seeds; {going_on} still trained at the end")


if __name__ == "__main__":
    main()
