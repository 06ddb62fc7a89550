"""Ranks strategies by speed, as far as the spread of the turns allows; does not import torch.

    python3 scripts/choose_strategy.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from common.core.markdown import markdown_table
from common.core.spread import half_interval
from common.settings.strategies import SYNC_NAMES
from studies.prediction.grid import PART_THREE

BF16 = ", bf16 wire"
# Per tensor they only cost more, and other DDP buckets are a flag.
CANDIDATES = (*(name for name in SYNC_NAMES if "per-tensor" not in name),
              f"overlapped-all-reduce{BF16}", f"cross-step-all-reduce{BF16}", PART_THREE)


class RankedStrategy(NamedTuple):
    """A strategy's place: seconds a step and how many times the fastest one's, each with half of
    its 95 % interval. A ratio is taken within a round, whose turns follow one another."""

    name: str
    seconds: float
    seconds_error: float
    times: float
    times_error: float

    @property
    def is_as_fast(self) -> bool:
        """True if the fastest strategy is not faster than this one beyond the spread."""
        return self.times - self.times_error <= 1


def ranking(steps: Mapping[str, Sequence[float]]) -> list[RankedStrategy]:
    """The strategies, fastest first, from the steps of each in every round."""
    order = sorted(steps, key=lambda name: fmean(steps[name]))
    best = steps[order[0]]
    places = []
    for name in order:
        ratios = [mine / its for mine, its in zip(steps[name], best, strict=True)]
        places.append(RankedStrategy(
            name, fmean(steps[name]), half_interval(steps[name]), fmean(ratios),
            0.0 if name == order[0] else half_interval(ratios)))
    return places


def ranking_table(places: Sequence[RankedStrategy], batch: int) -> str:
    """Markdown: each strategy's step, and how many times the fastest one's."""
    rows = [(place.name, f"{place.seconds:.3f} ± {place.seconds_error:.3f}",
             f"{place.times:.2f}" + f" ± {place.times_error:.2f}" * (place is not places[0]),
             f"{batch / place.seconds:.0f}") for place in places]
    return markdown_table(("strategy", "seconds a step", "of the fastest", "samples/s"), rows)


def verdict(places: Sequence[RankedStrategy], ranks: int) -> str:
    """Recommends a strategy, and names those that are as fast within the spread."""
    best, *others = places
    equal = [place.name for place in others if place.is_as_fast]
    text = f"On these {ranks} hosts take {best.name}: {command(best.name)}."
    if equal:
        text += f" As fast within the spread: {'; '.join(equal)}."
    if best.name.endswith(BF16):
        exact = next((place for place in others if not place.name.endswith(BF16)), None)
        text += " It rounds what is sent to bf16" + (
            f"; of those that round nothing take {exact.name}, {exact.times:.2f} times as long."
            if exact else ".")
    return text


def command(name: str) -> str:
    """The command of a run with the strategy, without the flags of the cluster and of the run."""
    if name == PART_THREE:
        return "PartThree/main.py"
    wire = " --wire bf16" * name.endswith(BF16)
    return f"PartTwo/main.py --sync {name.removesuffix(BF16)}{wire}"


def whether_hosts_pay(alone: Sequence[float], best: Sequence[float], ranks: int) -> str:
    """One host with the whole batch against all of them with the best strategy, by round."""
    ratios = [one / all_of_them for one, all_of_them in zip(alone, best, strict=True)]
    ratio, error = fmean(ratios), half_interval(ratios)
    text = (f"One host alone takes {fmean(alone):.3f} s for the same batch: {ranks} hosts are "
            f"{ratio:.2f} ± {error:.2f} times as fast")
    return text + (", and pay." if ratio - error > 1 else ", and do NOT pay."
                   if ratio + error < 1 else ": whether they pay lies within the spread.")
