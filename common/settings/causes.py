"""Why two runs learn different things: the one rule, from their settings and early losses alone.

    python3 scripts/compare.py outputs       # and what Part Two says at its end

Data and settings decide first: other data, another algorithm, another setting, statistics of each
rank's own shard. Where they explain nothing, only the order of summation differs, and what is
larger is a fault.

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
from decimal import ROUND_CEILING, Decimal
from math import inf, isfinite
from typing import Any, NamedTuple

from common.settings.settings import LOCAL_SYNC_NAMES, Settings

EARLY = 10  # iterations in which rounding and faults can be distinguished
# Of the loss, before any update. fp16 rounds less than bf16, and is allowed as much.
FIRST = {"float32": 3e-4, "float64": 5e-13, "bf16": 1.5e-3, "fp16": 1.5e-3}
MOST_AT_FIRST = 4e-3
GROWTH = 4.0  # a step
# What makes a run another algorithm, and the value that makes it the usual one.
ALGORITHMS = {"wire": "float32", "accumulate": 1}
ROWS = Settings.rows()
EQUAL, ROUNDING, STATISTICS, ALGORITHM, SETTING, DATA, FAULT = range(7)


class Learned(NamedTuple):
    """Contents of a run's log: its losses by (epoch, iteration); `settings` as in JSON.

    `digest` is that of its weights at the end, "" where it has not ended; `data` that of the
    training data, "" where the log does not have it.
    """

    name: str
    ranks: int
    settings: Mapping[str, Any]
    losses: Mapping[tuple[int, int], float]
    has_batch_norm: bool = True
    digest: str = ""
    data: str = ""


class Difference(NamedTuple):
    """Difference of two runs: its cause (a constant above), its size, and the flags that remove it.

    `gaps` are the differences of their first common losses, `allowed` the largest that the cause
    explains at each; infinite where it may explain any. `weights` are the digests at their ends,
    where both have trained the same iterations to an end: one digest, two, or none.
    """

    cause: int
    gaps: Sequence[float]
    allowed: Sequence[float]
    flags: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()

    @property
    def excess(self) -> int:
        """The first step at which they are further apart than the cause explains."""
        return next(step for step, gap in enumerate(self.gaps) if not gap <= self.allowed[step])


def difference(one: Learned, other: Learned) -> Difference:
    """Why, and how far, `other` learns something else than `one`."""
    places = sorted(one.losses.keys() & other.losses.keys())[:EARLY]
    gaps = [abs(one.losses[place] - other.losses[place]) for place in places]
    loss = abs(one.losses[places[0]]) if places else 0.0
    cause, flags = explanation(one, other)
    allowed = [_largest_at_first(cause, loss, one, other) * GROWTH**step
               for step in range(len(gaps))]
    weights = _digests(one, other)
    if cause in (ROUNDING, STATISTICS) and (len(weights) == 1 or not any(gaps)):
        return Difference(EQUAL, gaps, allowed, weights=weights)
    if not all(gap <= most for gap, most in zip(gaps, allowed, strict=True)):
        return Difference(FAULT, gaps, allowed, weights=weights)
    return Difference(cause, gaps, allowed, flags, weights)


def _digests(one: Learned, other: Learned) -> tuple[str, ...]:
    digests = one.digest, other.digest
    return tuple(dict.fromkeys(digests)) if all(digests) and \
        one.losses.keys() == other.losses.keys() else ()


def explanation(one: Learned, other: Learned) -> tuple[int, tuple[str, ...]]:
    """The cause of two runs' difference, from their settings, and the flags that remove it."""
    if _have_other_data(one, other):
        return DATA, ()
    if algorithms := _algorithms(one, other):
        return ALGORITHM, algorithms
    if changed := [name for name, row in ROWS.items() if row.learned is True
                   and name not in (*ALGORITHMS, "batch_norm")
                   and _value(one, name) != _value(other, name)]:
        return SETTING, tuple(map(_flag, changed))
    if one.has_batch_norm and _normalised_by(one) != _normalised_by(other):
        return STATISTICS, ("--batch-norm synchronised",)
    return ROUNDING, ("--precision float64",) * (_value(one, "precision") != "float64")


def _have_other_data(one: Learned, other: Learned) -> bool:
    """True if the data differ although no setting that `explanation` would name chooses them."""
    chosen = ["workload", "image_size", "validation"]
    chosen += ["seed"] * (_value(one, "validation") != Settings.default("validation"))
    return bool(one.data and other.data) and one.data != other.data and all(
        _value(one, name) == _value(other, name) for name in chosen)


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


def sentences(runs: Sequence[Learned], losses: str = "their losses") -> list[str]:
    """Sentences on whether the runs learn the same, one for each cause, the gravest first.

    Runs between which only the order of summation differs are compared with the first of them, and
    this one with the first of all. Nothing for a single run, or for runs without a common step.
    `losses` says which are compared.
    """
    alike = _alike(runs)
    differences = [(head, difference(head, run), run) for head, *others in alike for run in others]
    differences += [(runs[0], difference(runs[0], run), run)
                    for group in alike[1:] for run in group]
    merged: dict[tuple, tuple[Learned, dict[str, Difference]]] = {}
    for head, each, run in differences:
        if each.gaps:
            key = (-each.cause, head.name, each.flags, each.weights[:1] == each.weights,
                   bool(each.weights), len(each.gaps))
            merged.setdefault(key, (head, {}))[1][run.name] = each
    return [_sentence(head, by_name, losses)
            for _, (head, by_name) in sorted(merged.items(), key=lambda item: item[0][0])]


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


def at_most(value: float) -> str:
    """A bound in one digit, rounded up, so that it holds."""
    if not value or not isfinite(value):
        return f"{value:.1g}"
    exact = Decimal(f"{value:.12g}")
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted()), ROUND_CEILING)):.1g}"


def told_apart(one: float, other: float, form: str = "", digits: int = 1) -> tuple[str, str]:
    """Both in as few digits as still show that they differ; `form` goes before their number."""
    while True:
        words = f"{one:{form}.{digits}g}", f"{other:{form}.{digits}g}"
        if one == other or words[0] != words[1] or digits > 16:
            return words
        digits += 1


def iterations(count: int) -> str:
    """The first so many that both runs have, in words."""
    return f"the first {count} common iterations" if count > 1 else "the first common iteration"


def _sentence(head: Learned, by_name: Mapping[str, Difference], losses: str) -> str:
    """One for runs that differ from `head` by the same cause."""
    they, s = join(list(by_name)), "s" * (len(by_name) == 1)
    does, one = "does" if s else "do", next(iter(by_name.values()))
    flags, apart = join(one.flags), _apart(list(by_name.values()), losses)
    if one.cause == EQUAL and len(one.weights) == 1:
        return (f"{they} learn{s} what {head.name} learns, bit for bit: the weights at the end "
                f"have one digest, {one.weights[0]}; {apart}")
    if one.cause == EQUAL:
        return f"{join([*by_name, head.name])}: {apart}" + (
            ", and the weights at the end differ" * bool(one.weights))
    if one.cause == ROUNDING:
        return (f"{they} differ{s} from {head.name} by no more than rounding in "
                f"{_value(head, 'precision')} explains, which grows from step to step as it does "
                f"for one rank that adds in another order: {apart}"
                + f"; {flags} leaves next to nothing of it" * bool(flags))
    if one.cause == STATISTICS:
        return (f"{they} {does} not learn quite what {head.name} learns, because each rank "
                f"normalises by the batch statistics of its own shard: {apart}; {flags} removes "
                "the cause")
    if one.cause == ALGORITHM:
        return (f"{they} train{s} by another algorithm than {head.name}: {apart}; "
                f"{flags} on both removes the cause")
    if one.cause == SETTING:
        return f"{they} {does} not have {head.name}'s {flags}: {apart}; equal values remove the " \
               "cause"
    if one.cause == DATA:
        return (f"{they} train{s} on other data than {head.name}, so that nothing else tells why "
                f"they learn something else: {apart}")
    worst, one = min(by_name.items(), key=lambda item: item[1].excess)
    room, gap = told_apart(one.allowed[one.excess], one.gaps[one.excess])
    return (f"FAULT: {they} {does} not learn what {head.name} learns, and nothing that is known of "
            f"them explains it: {losses} differ by {gap} in common iteration {one.excess + 1}"
            + f" of {worst}" * (not s) + f", and their settings leave room for {room}; "
            "scripts/prove.py finds which way of averaging is wrong")


def _apart(differences: Sequence[Difference], losses: str) -> str:
    """How far the losses are apart, of equally many iterations in all."""
    gaps = [max(at) for at in zip(*(each.gaps for each in differences), strict=True)]
    if not any(gaps):
        return f"{losses} are equal, bit for bit, in {iterations(len(gaps))}"
    text = f"{losses} differ by {at_most(gaps[0])}{' at most' * (len(differences) > 1)} in " \
           f"{iterations(1)}"
    return text + f" and by {at_most(max(gaps))} at most in {iterations(len(gaps))}" * (
        len(gaps) > 1)
