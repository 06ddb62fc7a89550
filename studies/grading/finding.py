"""A mistake that was found: a stable id, and a sentence that a student understands."""

from typing import NamedTuple

from studies.grading.session import Outcome

# What is wrong, by id; what was seen follows it.
HEADLINES = {
    "nothing-averaged": "nothing is averaged",
    "sum-not-divided": "the gradients are added but not divided",
    "wrong-divisor": "the sum is divided by the wrong number",
    "rounded": "gradients are rounded",
    "tensor-skipped": "a part of the gradients is skipped",
    "some-ranks-only": "only some ranks get the mean",
    "weights-averaged": "the weights are averaged instead of the gradients",
    "weighted-again": "the loss is weighted for uneven shards already, so the plain mean is right",
    "not-in-place": "the result is not written in place",
    "stale": "gradients of an earlier step are used",
    "wrong-order": "the ranks do not send their tensors in the same order",
    "mixed-shapes": "tensors or their elements are mixed up",
    "rank-left-waiting": "a rank is left waiting",
    "two-not-three": "it works for some numbers of ranks and not for others",
    "none-gradient": "it fails where a parameter has no gradient",
    "zero-gradient": "it fails where a gradient is zero on one rank",
    "not-contiguous": "it fails where a gradient is not contiguous in memory",
    "float32-arithmetic": "float64 gradients are averaged in float32",
    "nan": "a NaN of one rank is not handled as in training on one rank",
    "peer-lost": "the death of a rank is not noticed",
    "too-many-bytes": "more bytes are sent than the task allows",
    "single-rank": "it fails on a single rank",
    "changes-model": "the model itself is changed, and only gradients may be",
    "not-waited": "average() does not wait until messages have arrived",
    "zero": "gradients are lost",
    "ranks-left-out": "some ranks are left out of the mean",
    "ranks-count-unequally": "the ranks do not count equally in the mean",
    "chunks": "chunks of the tensors are not the mean",
    "another-operation": "this is no mean",
    "raises": "the strategy raises an exception",
    "ends-process": "the strategy ends its process",
    "forged": "the process of the strategy does not answer as the grader's does",
    "processes": "the strategy starts too many processes",
    "nothing-sent": "the mean is right, and too few bytes were sent for it",
    "unusable": "the strategy cannot be used",
    "time-limit": "grading was not finished in time",
    "differs": "the result differs from the mean, cause unknown",
}


class Finding(NamedTuple):
    """One mistake; `tensor` and `rank` where it belongs to one. `trace` is the user's traceback."""

    id: str
    sentence: str
    tensor: str | None = None
    rank: int | None = None
    trace: str = ""

    @classmethod
    def of(cls, outcome: Outcome, id: str, seen: str, step: int, tensor: str | None = None,
           rank: int | None = None, trace: str = "") -> "Finding":
        """With a sentence made of the headline, what was seen, and where."""
        ranks = "1 rank" if outcome.world == 1 else f"{outcome.world} ranks"
        return cls(id, f"{HEADLINES[id]}: {seen} ({ranks}, {outcome.scenario.name}, "
                   f"step {step + 1})", tensor, rank, trace)

    def because(self, id: str, told: str = "") -> "Finding":
        """The same finding as the sign of another mistake."""
        return self._replace(id=id, sentence=f"{HEADLINES[id]}{told}: {self.sentence}")
