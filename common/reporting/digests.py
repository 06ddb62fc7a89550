"""Whether runs ended with the same weights, to the bit: with --virtual-nodes they must.

    python3 scripts/compare.py outputs/quickstart --one-digest
"""

from collections.abc import Sequence

from common.reporting.proof_findings import number, ranks
from common.reporting.recorded_run import RecordedRun, short

NOT_ENDED = "-"


def have_one_digest(runs: Sequence[RecordedRun]) -> bool:
    """Whether all runs have ended, and with the same weights."""
    return NOT_ENDED not in (found := set(_digests(runs))) and len(found) == 1


def digests_as_text(runs: Sequence[RecordedRun]) -> str:
    """Each run's digest on a line of its own, and last whether they are one."""
    digests = _digests(runs)
    lines = [f"{digest:<8}  {short(run.name)} on {ranks(run.ranks)}"
             for digest, run in zip(digests, runs, strict=True)]
    return "\n".join([*lines, _verdict(digests)])


def _digests(runs: Sequence[RecordedRun]) -> list[str]:
    return [run.last("evaluation").get("weights", NOT_ENDED) for run in runs]


def _verdict(digests: Sequence[str]) -> str:
    runs = f"{number(len(digests))} run{'s' * (len(digests) > 1)}".capitalize()
    found = len(set(digests))
    if NOT_ENDED in digests:
        return f"{runs}, of which {number(digests.count(NOT_ENDED))} did not end: run them again."
    if found == 1:
        return f"{runs}, one digest: {digests[0]}. They learned the same weights, bit for bit."
    return (f"{runs}, {number(found)} digests: they did NOT learn the same weights. With the same "
            "settings, --virtual-nodes among them, that is a fault: scripts/prove.py --bits names "
            "the first tensor that differs.")
