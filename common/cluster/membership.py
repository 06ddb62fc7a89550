"""Membership: which processes are the group, and how those that are left agree on the next one.

Every process has a door: a small store that it serves, where others leave messages and read its
answers. After a loss all go to the door of the first of the last group that answers. Whoever holds
it, the host, waits until each of the last group has come or is lost; proposes a group; and decides
it once all proposed have accepted. A process that is new, or comes back, goes to the same door.

No two groups may both go on. A process is bound to its last group, and to each proposal that it has
accepted since: the proposal may have been decided without its knowing. A new group must hold each
group that one of its processes is bound to: more than half of it, or half with its first. Any two
that hold a group have a process in common, and a group trains only with all of its processes: so of
two groups one no longer does. (Accepting before deciding, and telling the next host what one has
accepted: Lamport, "The part-time parliament", 1998.) A process that was started again, or that a
later group has left out, comes as a new one, bound to nothing.

Nothing here waits or communicates: the functions are generators that yield requests. doors.py
carries them out on stores and a clock, tests/membership_simulator.py on simulated ones.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from common.core.failures import PeerLost, RanksDisagree

LOOK_SECONDS = 0.02
UNFIT = ("this rank reaches the other ranks' doors, but two groups with it could not train: open "
         "the ports between the nodes, not only the master's")


class Put(NamedTuple):
    """Leaves a value, plain and for JSON, at a door, in the place of an earlier one."""

    door: str
    key: str
    value: Any


class Get(NamedTuple):
    """Asks a door for a key's value: None where there is none."""

    door: str
    key: str


class Add(NamedTuple):
    """Adds to a counter at a door, which starts at 0, and asks for it."""

    door: str
    key: str
    more: int


class Sleep(NamedTuple):
    """Waits."""

    seconds: float


Result = TypeVar("Result")
Steps = Generator[Put | Get | Add | Sleep, Any, Result]
"""Yields requests, each answered by its value or by Unreachable; returns a result."""


class Unreachable(Exception):
    """A door does not answer; `is_gone` where its machine says that nobody is there."""

    def __init__(self, is_gone: bool) -> None:
        super().__init__("gone" if is_gone else "silent")
        self.is_gone = is_gone


class Member(NamedTuple):
    """A process: the rank that it was launched as, its door, and a word no other start of it has.
    """

    rank: int
    door: str
    start: str


class Group(NamedTuple):
    """The processes that train together, by rank. The first is the leader."""

    generation: int
    members: tuple[Member, ...]

    def is_held_by(self, present: Collection[Member]) -> bool:
        """Returns True if `present` may go on for this group: no others then can."""
        return _is_quorum(self.members, present)

    def is_held_by_ranks_of(self, present: Collection[Member]) -> bool:
        """The same, where the processes of a rank count as one, since all were started again."""
        return _is_quorum([each.rank for each in self.members], {each.rank for each in present})

    def as_json(self) -> list[Any]:
        """The group in plain values."""
        return [self.generation, [list(each) for each in self.members]]

    @classmethod
    def of_json(cls, value: Any) -> "Group":
        """The group that `as_json` returned."""
        generation, members = value
        return cls(generation, tuple(Member(*each) for each in members))


def _is_quorum(of: Sequence[Any], present: Collection[Any]) -> bool:
    there = sum(each in present for each in of)
    return 2 * there > len(of) or (2 * there == len(of) and of[0] in present)


class Limits(NamedTuple):
    """The fewest and most processes of a group; and, in seconds, how long a door may be silent, and
    how long one waits for a process whose door answers.
    """

    least: int
    most: int
    silence: float = 2.0
    patience: float = 60.0


@dataclass
class Standing:
    """Where a process stands: itself, its last group, and the proposals accepted since.

    `now` is a clock. `known` are doors of other processes, rank 0's first. `introduction`, in plain
    values, is for the host; `objection`, on a host, says why it does not take a newcomer with
    another introduction, or "". `before` is the last group of this rank's earlier start, if there
    was one: a run is founded anew only by enough of its ranks. `heard` are the numbers of the
    messages read at the own door. `is_in_vain` says that the last group could not train: then each
    tells the host whom it does not reach. A host takes none of those `unfit` into a group.
    """

    me: Member
    now: Callable[[], float]
    known: list[str] = field(default_factory=list)
    introduction: Any = None
    objection: Callable[[Any], str] = lambda introduction: ""
    before: Group | None = None
    group: Group | None = None
    accepted: list[Group] = field(default_factory=list)
    heard: set[int] = field(default_factory=set)
    is_in_vain: bool = False
    unfit: set[Member] = field(default_factory=set)

    def bound_to(self) -> list[Group]:
        """The groups that a next one must hold."""
        return ([self.group] if self.group else []) + self.accepted

    def generation(self) -> int:
        """The latest generation that this process knows of; -1 for none."""
        return max((each.generation for each in self.bound_to()), default=-1)

    def enter(self, group: Group) -> Group:
        """Makes `group` the last one, which settles what was accepted before."""
        self.group, self.accepted = group, []
        self.meet(group)
        return group

    def meet(self, group: Group) -> None:
        """Remembers the doors of a group."""
        self.known = list(dict.fromkeys([*self.known, *(each.door for each in group.members)]))

    def is_unfit(self, member: Member) -> bool:
        """Returns True for an unfit process, also where it comes as a new one."""
        return member.start.rstrip("+") in {each.start.rstrip("+") for each in self.unfit}

    def come_as_new(self, later: Group) -> None:
        """Forgets what this process is bound to, as if it had been started again after `later`,
        the group that goes on without it.
        """
        self.me = self.me._replace(start=self.me.start + "+")
        self.group, self.accepted, self.before = None, [], later


class _Guest(NamedTuple):
    """A process at a host's door: its message's number, what it is bound to, its earlier start's
    last group, and the processes that it does not reach.
    """

    number: int
    bound_to: list[Group]
    before: Group | None
    unreached: set[Member]


class _Silence:
    """Keeps the time since each door has been silent; tells those that have been for too long."""

    def __init__(self, now: Callable[[], float], limit: float) -> None:
        self._now, self._limit = now, limit
        self._since: dict[str, float] = {}

    def is_lost(self, door: str, error: Unreachable | None = None) -> bool:
        """Takes in that a door has answered, or how it has not; returns True if nobody is there."""
        if error is None:
            self._since.pop(door, None)
            return False
        return error.is_gone or (
            self._now() - self._since.setdefault(door, self._now()) > self._limit)


def next_group(standing: Standing, limits: Limits,
               lost: Collection[Member] = ()) -> Steps[Group]:
    """Agrees with the processes that are left on the next group; enters and returns it.

    Of the last group those `lost` are not waited for. A process that has not been in one tries the
    known doors; rank 0 founds a group where no other door knows of one. Raises PeerLost where too
    few are left, or the others may be going on; RanksDisagree where a group does not take this
    process.
    """
    deadline = standing.now() + 2 * limits.patience
    while standing.now() < deadline:
        yield from _show(standing)
        for host in (yield from _hosts_to_try(standing, lost)):
            found = yield from (_host(standing, limits, lost) if host == standing.me
                                else _visit(host, standing, limits))
            if found is not None:
                yield from _show(standing)
                return found
            if standing.group is None:
                break  # it comes as new, or was not yet let in: look again who leads
        yield Sleep(LOOK_SECONDS)
    raise PeerLost("no other process of the run answers")


def _show(standing: Standing) -> Steps[None]:
    """Shows who is behind the own door, and which group it is in."""
    group = standing.group and standing.group.as_json()
    yield Put(standing.me.door, "who", [list(standing.me), group])


def _look(door: str, member: Member | None = None) -> Steps[tuple[Member, Group | None] | None]:
    """The process behind a door, and its group; None where none has shown itself yet.

    Raises Unreachable, too where a `member` is sought and another start of it is there.
    """
    if (who := (yield Get(door, "who"))) is None:
        return None
    found = Member(*who[0])
    if member not in (None, found):
        raise Unreachable(is_gone=True)
    return found, who[1] and Group.of_json(who[1])


def _hosts_to_try(standing: Standing, lost: Collection[Member]) -> Steps[list[Member]]:
    if standing.group:
        return [each for each in standing.group.members if each not in lost]
    if leader := (yield from _known_leader(standing)):
        return [leader]
    if standing.me.rank == 0:
        return [standing.me]
    try:
        founder = yield from _look(standing.known[0])
    except Unreachable:
        return []
    return [founder[0]] if founder else []


def _known_leader(standing: Standing) -> Steps[Member | None]:
    """The leader of a group that a process behind one of the known doors is in."""
    for door in standing.known:
        try:
            who = yield from _look(door)
        except Unreachable:
            continue
        if who and who[1] and door != standing.me.door:
            standing.meet(who[1])
            return who[1].members[0]
    return None


def _visit(host: Member, standing: Standing, limits: Limits) -> Steps[Group | None]:
    """Waits at a door until its host has decided; None where nobody is there, or hosts nothing."""
    silence, number, offer = _Silence(standing.now, limits.silence), 0, None
    unreached: list[Member] = []
    door, deadline = host.door, standing.now() + limits.patience
    while standing.now() < deadline:
        try:
            who = yield from _look(door, host)
            if who and (group := who[1]) and group.generation > standing.generation():
                standing.meet(group)
                if standing.bound_to() and standing.me not in group.members:
                    standing.come_as_new(group)
                    return None
                if group.members[0] != host:
                    return (yield from _visit(group.members[0], standing, limits))
            if not number:
                unreached = yield from _out_of_reach(standing, who and who[1])
                if unreached and not standing.group:  # nobody can train with this process
                    yield Sleep(LOOK_SECONDS)
                    continue
                number = yield from _knock(door, standing, unreached)
            if why := (yield Get(door, f"refused/{number}")):
                raise RanksDisagree(why)
            if (latest := (yield Get(door, f"offer/{number}"))) and latest != offer:
                if offer:  # the host offers another only where it has not decided the one before
                    standing.accepted.remove(Group.of_json(offer[1]))
                offer = latest
                standing.accepted.append(Group.of_json(offer[1]))
                yield Put(door, f"accepted/{offer[0]}/{number}", True)
            if offer and (yield Get(door, f"decided/{offer[0]}")):
                return standing.enter(Group.of_json(offer[1]))
            silence.is_lost(door)
        except Unreachable as error:
            if silence.is_lost(door, error):
                return None
        yield Sleep(LOOK_SECONDS)
    if unreached and not standing.group:
        who_is_not = ", ".join(f"rank {each.rank} at {each.door}" for each in unreached)
        raise PeerLost(f"{door} answers, but of its group {who_is_not} does not: open the ports "
                       "between the nodes, not only the master's")
    return None


def _out_of_reach(standing: Standing, group: Group | None) -> Steps[list[Member]]:
    """Returns the processes whose doors are silent: of the group that a new process would join, or
    of this process's last one, if that could not train.
    """
    group = standing.group or group
    if not group or (standing.group and not standing.is_in_vain):
        return []
    silent = []
    for each in group.members:
        try:
            yield from _look(each.door, each)
        except Unreachable as error:
            if not error.is_gone:
                silent.append(each)
    return silent


def _knock(door: str, standing: Standing, unreached: Sequence[Member]) -> Steps[int]:
    number = yield Add(door, "guests", 1)
    yield Put(door, f"guest/{number}", [
        list(standing.me), [each.as_json() for each in standing.bound_to()],
        standing.introduction, standing.before and standing.before.as_json(),
        [list(each) for each in unreached]])
    return number


def is_knocking(standing: Standing) -> Steps[bool]:
    """Returns True if somebody waits at this process's own door whom it has not heard yet.

    A newcomer that the group does not take is answered here.
    """
    return bool((yield from _let_in(standing, is_only_asked=True)))


def _let_in(standing: Standing, is_only_asked: bool = False) -> Steps[dict[Member, _Guest]]:
    """The processes whose messages are new, but for those that the group does not take."""
    door, guests = standing.me.door, {}
    for number in sorted(set(range(1, (yield Add(door, "guests", 0)) + 1)) - standing.heard):
        if (message := (yield Get(door, f"guest/{number}"))) is None:
            continue  # its number is given out first
        member, bound = Member(*message[0]), [Group.of_json(each) for each in message[1]]
        why = UNFIT if standing.is_unfit(member) else standing.objection(message[2])
        if not bound and why:
            yield Put(door, f"refused/{number}", why)
            standing.heard.add(number)
            continue
        if not is_only_asked:
            standing.heard.add(number)
        guests[member] = _Guest(number, bound, message[3] and Group.of_json(message[3]),
                                {Member(*each) for each in message[4]})
    return guests


def _host(standing: Standing, limits: Limits, lost: Collection[Member]) -> Steps[Group | None]:
    """Waits at the own door for the last group's processes; proposes the next, and decides it.

    None where one of them is in a later group, without this process. Raises PeerLost.
    """
    silence, begun = _Silence(standing.now, limits.silence), standing.now()
    guests: dict[Member, _Guest] = {}
    awaited = set(standing.group.members if standing.group else ()) - {standing.me, *lost}
    while True:
        guests |= yield from _let_in(standing)
        is_late = standing.now() - begun > limits.patience
        for other in sorted(awaited - set(guests)):
            try:
                who = yield from _look(other.door, other)
                if who and who[1] and who[1].generation > standing.generation():
                    standing.meet(who[1])
                    standing.come_as_new(who[1])
                    return None
                is_lost = silence.is_lost(other.door)
            except Unreachable as error:
                is_lost = silence.is_lost(other.door, error)
            if is_lost or is_late:
                awaited.discard(other)
        if not standing.group and (yield from _known_leader(standing)):
            return None  # there is a group already
        present = _connected(_one_a_rank([standing.me, *guests], standing), guests)
        if is_late or (awaited <= set(guests) if standing.group else len(present) == limits.most):
            why = _why_not(present, guests, standing, limits)
            if not why and (group := (yield from _propose(present, guests, standing, limits))):
                return group
            if why and (is_late or standing.group) and (
                    standing.now() - begun > 2 * limits.silence):
                raise PeerLost(why)
        yield Sleep(LOOK_SECONDS)


def _one_a_rank(processes: Sequence[Member], standing: Standing) -> list[Member]:
    """By rank; of two with one rank the one of the last group, or the one that has come last."""
    chosen: dict[int, Member] = {}
    members = standing.group.members if standing.group else ()
    for each in processes:
        if not standing.is_unfit(each) and chosen.get(each.rank) not in (*members, standing.me):
            chosen[each.rank] = each
    return [chosen[rank] for rank in sorted(chosen)]


def _connected(present: list[Member], guests: dict[Member, _Guest]) -> list[Member]:
    """Leaves out processes until all that are left reach each other; the host stays.

    The one in most of the pairs that do not goes first; of several, the one of the highest rank.
    """
    while True:
        apart = [each for guest in present if guest in guests
                 for other in guests[guest].unreached if other in present
                 for each in (guest, other) if each in guests]
        if not apart:
            return present
        worst = max(apart, key=lambda each: (apart.count(each), each.rank))
        present = [each for each in present if each != worst]


def _bound(present: Sequence[Member], guests: dict[Member, _Guest],
           standing: Standing) -> list[Group]:
    """All groups that somebody present is bound to."""
    return [*standing.bound_to(), *(group for each in present if each in guests
                                    for group in guests[each].bound_to)]


def _last_before(present: Sequence[Member], guests: dict[Member, _Guest],
                 standing: Standing) -> Group | None:
    """The latest group of an earlier start of somebody present, where a run is founded anew."""
    if standing.group:
        return None
    all_before = [standing.before, *(guests[each].before for each in present if each in guests)]
    return max(filter(None, all_before), default=None, key=lambda each: each.generation)


def _why_not(present: Sequence[Member], guests: dict[Member, _Guest], standing: Standing,
             limits: Limits) -> str:
    """Why those present may not go on; "" where they may."""
    who = f"rank{'s' * (len(present) > 1)} {', '.join(str(each.rank) for each in present)}"
    if len(present) < limits.least:
        return f"only {who} of at least {limits.least} can go on"
    before = _last_before(present, guests, standing)
    for group in _bound(present, guests, standing) + ([before] if before else []):
        if not (group.is_held_by_ranks_of(present) if group is before
                else group.is_held_by(present)):
            return (f"{who} cannot go on without the other ranks of {len(group.members)}, since "
                    "those may be going on by themselves")
    return ""


def _propose(present: Sequence[Member], guests: dict[Member, _Guest], standing: Standing,
             limits: Limits) -> Steps[Group | None]:
    """Offers a group to all present; decides and enters it once all have accepted.

    None where some have not in time, who are no longer among `guests` then.
    """
    mine = standing.me.door
    before = _last_before(present, guests, standing)
    generation = 1 + max((each.generation for each in [
        *_bound(present, guests, standing), *([before] if before else [])]), default=-1)
    group, offer = Group(generation, tuple(present)), (yield Add(mine, "offers", 1))
    standing.accepted.append(group)
    asked = {each: guests[each].number for each in present if each != standing.me}
    for number in asked.values():
        yield Put(mine, f"offer/{number}", [offer, group.as_json()])
    deadline = standing.now() + limits.silence
    while True:
        for each, number in list(asked.items()):
            if (yield Get(mine, f"accepted/{offer}/{number}")):
                del asked[each]
            elif standing.now() > deadline or (yield from _is_gone(each)):
                del guests[each]
                standing.accepted.remove(group)  # nobody else can decide it
                return None
        if not asked:
            yield Put(mine, f"decided/{offer}", True)
            return standing.enter(group)
        yield Sleep(LOOK_SECONDS)


def _is_gone(member: Member) -> Steps[bool]:
    try:
        yield from _look(member.door, member)
    except Unreachable as error:
        return error.is_gone
    return False
