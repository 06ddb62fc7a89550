"""Compares the weights of runs by digest, to the bit: with --virtual-nodes they must be equal.

    python3 scripts/compare.py outputs/quickstart --one-digest
"""

from collections.abc import Sequence

from common.reporting.proof_findings import number, ranks
from common.reporting.recorded_run import RecordedRun, short

NOT_ENDED = "-"


def have_one_digest(runs: Sequence[RecordedRun]) -> bool:
    """True if all runs, two or more, have ended with the same weights."""
    digests = _digests(runs)
    return len(digests) > 1 and NOT_ENDED not in digests and len(set(digests)) == 1


def digests_as_text(runs: Sequence[RecordedRun]) -> str:
    """Each run's digest on a line of its own, and last the verdict on them."""
    digests = _digests(runs)
    lines = [f"{digest:<8}  {short(run.name)} on {ranks(run.ranks)}"
             for digest, run in zip(digests, runs, strict=True)]
    return "\n".join([*lines, _verdict(digests)])


def _digests(runs: Sequence[RecordedRun]) -> list[str]:
    return [run.last("evaluation").get("weights", NOT_ENDED) for run in runs]


def _verdict(digests: Sequence[str]) -> str:
    runs = f"{number(len(digests))} run{'s' * (len(digests) > 1)}".capitalize()
    kinds = len(set(digests))
    if missing := digests.count(NOT_ENDED):
        return f"{runs}, {number(missing)} not ended: run again what did not end."
    if len(digests) == 1:
        return f"{runs}, digest {digests[0]}: there is no other to compare it with."
    if kinds == 1:
        return f"{runs}, one digest: {digests[0]}. They learned the same weights, bit for bit."
    return (f"{runs}, {number(kinds)} digests: they did NOT learn the same weights. With the same "
            "settings, --virtual-nodes among them, that is a fault: scripts/prove.py --bits names "
            "the first tensor that differs.")
