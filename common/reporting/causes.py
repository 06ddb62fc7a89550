"""Why two runs learn different things: the one rule, from their settings and early losses alone.

    python3 scripts/compare.py outputs       # and what Part Two says at its end

Settings decide first: another algorithm, another setting, statistics of each rank's own shard.
Where they explain nothing, only the order of summation differs, and what is larger is a fault.

How large rounding may be. Before the first update only sums differ. A sum of n terms is off by
about u * sqrt(n), u the unit roundoff (Higham and Mary, 2019); the longest has n = 256 * 32 * 32
terms, and nine layers add such errors: 9 * 512 * u of the loss, 3e-4 in float32 (u = 2^-24), 5e-13
in float64 (2^-53). bf16 rounds each layer's output by u = 2^-9 and sums in float32: 3 * u for nine
layers of random signs, a quarter of it in the mean over 16 samples, 1.5e-3. A difference of 5e-3 is
never rounding there. Each step may multiply what is allowed by 4. Measured with VGG-11 on the
digits, batches of 32, the first five losses of one rank against four:

    float32   2.9e-6  1.1e-4  4.3e-4  2.5e-3  8.7e-3    allowed 7e-4  3e-3  1e-2  4e-2  2e-1
    bf16      5.2e-4  3.8e-3  2.3e-3  5.5e-3  1.3e-2    allowed 3e-3  1e-2  6e-2  2e-1  9e-1

Four ranks that do not average are 0.7 apart in the second. A fault smaller than rounding, such as
a bias that is not averaged, shows in no loss; the sentinel (--check-every) and scripts/prove.py
find it.

How large statistics may be. Mean and deviation of n samples are off by 1 / sqrt(n), with both signs
alike, so that the mean loss is off by the square: 1 / n of it. (Measured so: 2.9e-3 of 0.3.)
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from common.core.settings import LOCAL_SYNC_NAMES, Settings

EARLY = 10  # iterations in which rounding and faults can be distinguished
FIRST = {"float32": 3e-4, "float64": 5e-13, "bf16": 1.5e-3}  # of the loss, before any update
MOST_AT_FIRST = 4e-3
GROWTH = 4.0  # a step
# What makes a run another algorithm, and the value that makes it the usual one.
ALGORITHMS = {"wire": "float32", "accumulate": 1}
ROWS = Settings.rows()
EQUAL, ROUNDING, STATISTICS, ALGORITHM, SETTING, FAULT = range(6)


class Learned(NamedTuple):
    """What a run's log holds: its losses by (epoch, iteration); `settings` as JSON has them."""

    name: str
    ranks: int
    settings: Mapping[str, Any]
    losses: Mapping[tuple[int, int], float]
    has_batch_norm: bool = True


class Difference(NamedTuple):
    """Of two runs: the cause (one of the constants above), how far they are apart, and what to do.

    `gaps` are the differences of their first common losses, `allowed` the largest that the cause
    explains at each; infinite where it may explain any.
    """

    cause: int
    gaps: Sequence[float]
    allowed: Sequence[float]
    flags: tuple[str, ...] = ()


def difference(one: Learned, other: Learned) -> Difference:
    """Why, and how far, `other` learns something else than `one`."""
    places = sorted(one.losses.keys() & other.losses.keys())[:EARLY]
    gaps = [abs(one.losses[place] - other.losses[place]) for place in places]
    loss = abs(one.losses[places[0]]) if places else 0.0
    cause, flags = explanation(one, other)
    allowed = [_largest_at_first(cause, loss, one, other) * GROWTH**step
               for step in range(len(gaps))]
    if not all(gap <= most for gap, most in zip(gaps, allowed, strict=True)):
        return Difference(FAULT, gaps, allowed)
    if cause == ROUNDING and not any(gaps):
        return Difference(EQUAL, gaps, allowed)
    return Difference(cause, gaps, allowed, flags)


def explanation(one: Learned, other: Learned) -> tuple[int, tuple[str, ...]]:
    """What the settings say of two runs: the cause of their difference, and flags to remove it."""
    if algorithms := _algorithms(one, other):
        return ALGORITHM, algorithms
    if changed := [name for name, row in ROWS.items() if row.learned is True
                   and name not in (*ALGORITHMS, "batch_norm")
                   and _value(one, name) != _value(other, name)]:
        return SETTING, tuple(map(_flag, changed))
    if one.has_batch_norm and _normalised_by(one) != _normalised_by(other):
        return STATISTICS, ("--batch-norm synchronised",)
    return ROUNDING, ("--precision float64",) * (_value(one, "precision") != "float64")


def _largest_at_first(cause: int, loss: float, one: Learned, other: Learned) -> float:
    """The largest difference of the first losses that a cause explains."""
    if cause == ROUNDING:
        return min(FIRST[_value(one, "precision")] * loss, MOST_AT_FIRST)
    if cause == STATISTICS:
        return loss / max(1, min(_value(run, "batch_size") // run.ranks for run in (one, other)))
    return inf


def _algorithms(one: Learned, other: Learned) -> tuple[str, ...]:
    local = {run.name.rsplit("/", 1)[-1] for run in (one, other)} & set(LOCAL_SYNC_NAMES)
    if local and (one.name.rsplit("/", 1)[-1], one.ranks) != (other.name.rsplit("/", 1)[-1],
                                                              other.ranks):
        return ("--sync all-reduce",)
    return tuple(f"{_flag(name)} {usual}" for name, usual in ALGORITHMS.items()
                 if _value(one, name) != _value(other, name)
                 and (name != "accumulate" or one.has_batch_norm))


def _normalised_by(run: Learned) -> tuple[int, str]:
    if _value(run, "batch_norm") != "local":
        return 1, ""
    nodes = _value(run, "virtual_nodes") or run.ranks
    return nodes, "parallel" * (_value(run, "parallel") == "data-parallel")


def _value(run: Learned, name: str) -> Any:
    value = run.settings.get(name, Settings.default(name))
    return ROWS[name].compared(value) if name in ROWS else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def sentences(runs: Sequence[Learned]) -> list[str]:
    """Whether the runs learn the same, and why not: one cause a sentence, the gravest first.

    Runs between which only the order of summation differs are compared with the first of them, and
    this one with the first of all. Nothing for a single run, or for runs without a common step.
    """
    alike = _alike(runs)
    found = [(head, difference(head, run), [run.name]) for head, *others in alike for run in others]
    found += [(runs[0], difference(runs[0], group[0]), [run.name for run in group])
              for group in alike[1:]]
    merged: dict[tuple, tuple[Difference, list[str]]] = {}
    for head, each, names in found:
        if each.gaps:
            key = (-each.cause, head.name, each.flags)
            before, known = merged.get(key, (each, []))
            merged[key] = max(before, each, key=lambda one: max(one.gaps)), known + names
    return [_sentence(each, head, names, runs[0])
            for (_, head, _), (each, names) in sorted(merged.items(), key=lambda item: item[0][0])]


def _alike(runs: Sequence[Learned]) -> list[list[Learned]]:
    groups: list[list[Learned]] = []
    for run in runs:
        for group in groups:
            if explanation(group[0], run)[0] == ROUNDING:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def join(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _sentence(found: Difference, head: str, names: Sequence[str], base: Learned) -> str:
    they, s = join(names), "s" * (len(names) == 1)
    does, flags = "does" if s else "do", join(found.flags)
    apart = f"their losses differ by {found.gaps[0]:.1g} in the first iteration"
    if len(found.gaps) > 1:
        apart += f" and {max(found.gaps):.1g} at most in the first {len(found.gaps)}"
    if found.cause == EQUAL:
        return f"{they} learn{s} what {head} learns: in the first {len(found.gaps)} iterations " \
               "their losses are equal, bit for bit"
    if found.cause == ROUNDING:
        return (f"{they} learn{s} what {head} learns but for rounding in "
                f"{_value(base, 'precision')}, which grows from step to step as it does for one "
                f"rank that adds in another order: {apart}"
                + f"; {flags} makes it vanish" * bool(flags))
    if found.cause == STATISTICS:
        return (f"{they} {does} not learn quite what {head} learns, because each rank normalises "
                f"by the batch statistics of its own shard: {apart}; {flags} removes the cause")
    if found.cause == ALGORITHM:
        return (f"{they} train{s} by another algorithm than {head}: {apart}; "
                f"{flags} on both removes the cause")
    if found.cause == SETTING:
        return f"{they} {does} not have {head}'s {flags}: {apart}; equal values remove the cause"
    step = next(step for step, gap in enumerate(found.gaps) if not gap <= found.allowed[step])
    return (f"FAULT: {they} {does} not learn what {head} learns, and nothing that is known of them "
            f"explains it: their losses differ by {found.gaps[step]:.1g} in iteration {step + 1}, "
            f"and their settings leave room for {found.allowed[step]:.1g}; "
            "scripts/prove.py finds which way of averaging is wrong")
