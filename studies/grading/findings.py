"""Finds the mistakes in one scenario: sentences with the tensor and the rank."""

from collections.abc import Iterator, Sequence

import numpy as np

from studies.grading.accidents import of_a_lost_peer, of_a_nan
from studies.grading.cells import EXACT, Cell, cells, truth_of
from studies.grading.costs import least_bytes
from studies.grading.finding import WRONG_NUMBERS, Finding
from studies.grading.hypotheses import HYPOTHESES
from studies.grading.messages import Seen
from studies.grading.session import Outcome
from studies.grading.training import RATE

# These say what is wrong on whichever ranks they are seen; of others, that some have the mean.
ON_ANY_RANK = ("weighted-again", "stale", "wrong-order", "mixed-shapes")


def findings(outcome: Outcome) -> list[Finding]:
    """The trouble that ended the scenario, and the first mistake in the steps before it, if any."""
    if outcome.scenario.loses_a_peer:
        causes = [of_a_lost_peer(outcome)]
    elif outcome.scenario.has_nan:
        causes = [of_a_nan(outcome)]
    else:
        looks = (_under_way, _not_waited, _weights, _not_in_place, _numbers, _nothing_sent)
        seen = filter(None, (look(outcome) for look in looks))
        causes = [_trouble(outcome), next(seen, None)]
    return [each for each in causes if each]


def _trouble(outcome: Outcome) -> Finding | None:
    trouble = outcome.trouble
    if trouble is None:
        return None
    if trouble.kind == "hangs":
        done = [f"rank {rank} has returned" for rank in sorted(trouble.answers)]
        states = ", ".join([*map(str, trouble.waiting), *done])
        return Finding.of(outcome, "rank-left-waiting", f"{states}: it does not go on",
                          len(outcome.steps), rank=trouble.rank)
    if trouble.kind == "time-limit":
        return Finding.of(outcome, trouble.kind, trouble.sentence or "nothing stood still, and "
                          "the machine may be busy: more --seconds decide", len(outcome.steps))
    return Finding.of(outcome, trouble.kind, f"rank {trouble.rank}: {trouble.sentence}",
                      len(outcome.steps), rank=trouble.rank, trace=trouble.trace)


def _looks(outcome: Outcome) -> Iterator[tuple[int, int, Seen]]:
    """(step, rank, what it has seen), in the order in which they were."""
    for number, step in enumerate(outcome.steps):
        for rank, seen in enumerate(step.seen):
            yield number, rank, seen


def _under_way(outcome: Outcome) -> Finding | None:
    facts = truth_of(outcome)
    for number, rank, seen in _looks(outcome):
        if seen.under_way:
            is_known = seen.under_way in facts.names
            which = facts.told(facts.names.index(seen.under_way)) if is_known else "a tensor"
            return Finding.of(outcome, "changed-under-way", f"{which} on rank {rank} is written to "
                              "after its asynchronous all-reduce has started and before wait() has "
                              "returned", number, seen.under_way if is_known else None, rank)
    return None


def _not_waited(outcome: Outcome) -> Finding | None:
    facts = truth_of(outcome)
    for number, step in enumerate(outcome.steps):
        for rank, (seen, settled) in enumerate(zip(step.seen, step.settled, strict=True)):
            if seen.unwaited in facts.names:
                place = facts.names.index(seen.unwaited)
                return Finding.of(outcome, "not-waited", "nothing waits for the asynchronous "
                                  f"all-reduce of {facts.told(place)} on rank {rank}", number,
                                  seen.unwaited, rank)
            late = [place for place, pair in enumerate(zip(seen.gradients, settled.gradients,
                                                           strict=True)) if not _same(*pair)]
            if late:
                return Finding.of(outcome, "not-waited", f"{facts.told(late[0])} on rank {rank} "
                                  "still changes after average() has returned", number,
                                  facts.names[late[0]], rank)
    return None


def _same(before: np.ndarray | None, now: np.ndarray | None) -> bool:
    if before is None or now is None:
        return before is None
    return np.array_equal(before, now, equal_nan=True)


def _weights(outcome: Outcome) -> Finding | None:
    """Finds a change of anything but the gradients, in `average` or by the optimizer's step."""
    for number, rank, seen in _looks(outcome):
        before, after, stepped = seen.weights
        planned = [weight if gradient is None else weight - RATE * gradient
                   for weight, gradient in zip(after, seen.gradients, strict=True)]
        if (changed := _first_other([*before, *planned], [*after, *stepped])) is not None:
            return _changed_weight(outcome, number, rank, changed % len(before))
        if seen.buffers_changed:
            return Finding.of(outcome, "changes-model", f"a buffer of the model on rank {rank} is "
                              "not what it was before average()", number, rank=rank)
    return None


def _first_other(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> int | None:
    return next((place for place, pair in enumerate(zip(some, others, strict=True))
                 if not np.allclose(*pair, rtol=1e-12, atol=1e-12, equal_nan=True)), None)


def _changed_weight(outcome: Outcome, number: int, rank: int, place: int) -> Finding:
    step = outcome.steps[number]
    name, which = truth_of(outcome).names[place], truth_of(outcome).told(place)
    gradients = [seen.gradients[place] for seen in step.seen]
    for moment in (1, 2):
        now = [seen.weights[moment][place] for seen in step.seen]
        if _are_equal(now) and not _are_equal(gradients):
            return Finding.of(outcome, "weights-averaged", f"the weights of {which} on rank {rank} "
                              "become those of all ranks, and its gradient does not", number,
                              name, rank)
    return Finding.of(outcome, "changes-model", f"the weights of {which} on rank {rank} are not "
                      "what the optimizer alone makes of them", number, name, rank)


def _are_equal(rows: Sequence[np.ndarray | None]) -> bool:
    return all(row is not None and rows[0] is not None and np.allclose(row, rows[0], rtol=EXACT)
               for row in rows)


def _not_in_place(outcome: Outcome) -> Finding | None:
    name = truth_of(outcome).names[0]
    for number, rank, seen in _looks(outcome):
        what = (f"returns {seen.returned}" if seen.returned else
                "puts new tensors into its list" if seen.replaced else "")
        if what:
            return Finding.of(outcome, "not-in-place", f"average() {what} on rank {rank}, where it "
                              f"must write into {name!r} and the others, and return nothing",
                              number, name, rank)
    return None


def _numbers(outcome: Outcome) -> Finding | None:
    every = list(cells(outcome))
    wrong = [cell for cell in every if cell.wrong.any()]
    if not wrong:
        return _unlike(outcome, every)
    id, text, first = _explanation([cell for cell in wrong if cell.is_large] or wrong)
    ranks = {cell.rank for cell in wrong}
    right = sorted(set(range(outcome.world)) - ranks)
    if right and id in WRONG_NUMBERS and id not in ON_ANY_RANK:
        id = "some-ranks-only"
        text += f", while rank {right[0]} " + (
            "alone has the mean, as after dist.reduce" if len(right) == 1 and outcome.world > 2
            else "has the mean")
    elif id == "nothing-averaged" and _is_part(wrong, every):
        id, text = "tensor-skipped", text + _which_part(wrong, first)
    elif id == "nothing-averaged" and _least_sent(outcome) >= least_bytes(outcome):
        id, text = "not-in-place", f"{text}, although messages were sent"
    return Finding.of(outcome, id, f"{first.truth.told(first.tensor)} on rank {first.rank} {text}",
                      first.step, first.name, first.rank)


def _explanation(wrong: Sequence[Cell]) -> tuple[str, str, Cell]:
    """The first hypothesis that explains all its cells, its sentence, and the first such cell."""
    for hypothesis in HYPOTHESES:
        about = [cell for cell in wrong if cell.step >= hypothesis.first_step]
        texts = [hypothesis.explains(cell) for cell in about[:1]]
        if about and texts[0] and all(map(hypothesis.explains, about[1:])):
            return hypothesis.id, texts[0], about[0]
    for hypothesis in HYPOTHESES:
        if wrong[0].step >= hypothesis.first_step and (seen := hypothesis.explains(wrong[0])):
            return hypothesis.id, f"{seen}, and others hold something else", wrong[0]
    element = int(np.flatnonzero(wrong[0].wrong)[0])
    return ("differs", f"holds {wrong[0].found[element]:.6g} in element {element}, and the mean is "
            f"{wrong[0].expected[element]:.6g}", wrong[0])


def _is_part(wrong: Sequence[Cell], every: Sequence[Cell]) -> bool:
    """True if other tensors, or other elements, are averaged."""
    return (len({cell.tensor for cell in wrong}) < len({cell.tensor for cell in every})
            or any(not cell.wrong.all() for cell in wrong))


def _which_part(wrong: Sequence[Cell], first: Cell) -> str:
    places = np.flatnonzero(first.wrong)
    if len(places) < first.found.size:
        return f" in elements {places[0]} to {places[-1]} of {first.found.size}"
    names = dict.fromkeys(cell.name for cell in wrong)
    return f", as do {', '.join(list(names)[1:])}" if len(names) > 1 else ""


def _least_sent(outcome: Outcome) -> int:
    """The bytes that all steps would send, were each rank in each step the one that sent least."""
    return len(outcome.steps) * min(each.sent for step in outcome.steps for each in step.traffic)


def _unlike(outcome: Outcome, every: Sequence[Cell]) -> Finding | None:
    """A tensor that a tolerance lets pass on every rank, and of which ranks hold different means.

    Replicas that take different steps drift apart.
    """
    first: dict[tuple[int, int], Cell] = {}
    for cell in every:
        other = first.setdefault((cell.step, cell.tensor), cell)
        if not np.allclose(cell.found, other.found, rtol=0, atol=EXACT * cell.scale,
                           equal_nan=True):
            return Finding.of(outcome, "ranks-differ", f"{cell.truth.told(cell.tensor)} on rank "
                              f"{cell.rank} is not the one on rank {other.rank}", cell.step,
                              cell.name, cell.rank)
    return None


def _nothing_sent(outcome: Outcome) -> Finding | None:
    """Finds ranks with the right mean that cannot have got it through the observed connections."""
    least = least_bytes(outcome) if outcome.world > 1 else 0
    for rank in range(outcome.world):
        sent, received = (sum(step.traffic[rank][way] for step in outcome.steps) for way in (0, 1))
        if min(sent, received) < least:
            return Finding.of(outcome, "nothing-sent", f"rank {rank} has sent {sent:,} bytes and "
                              f"received {received:,} through its open connections, and {least:,} "
                              "are the least that its gradients take",
                              len(outcome.steps) - 1, rank=rank)
    return None
