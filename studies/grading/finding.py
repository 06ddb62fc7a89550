"""A mistake that was found: a stable id, and a sentence that a student understands."""

from typing import NamedTuple

from studies.grading.session import Outcome, ranks_in_words

CHEATS = ("forged", "nothing-sent", "processes")
# Of the numbers that a gradient holds; each says that they are not the mean.
WRONG_NUMBERS = {
    "nothing-averaged": "nothing is averaged",
    "sum-not-divided": "the gradients are added but not divided",
    "wrong-divisor": "the sum is divided by the wrong number",
    "some-ranks-only": "only some ranks get the mean",
    "ranks-left-out": "some ranks are left out of the mean",
    "ranks-count-unequally": "the ranks do not count equally in the mean",
    "weighted-again": "the loss is weighted for uneven shards already, so the plain mean is right",
    "stale": "gradients of an earlier step are used",
    "zero": "gradients are lost",
    "wrong-order": "the ranks do not send their tensors in the same order",
    "mixed-shapes": "tensors or their elements are mixed up",
    "another-operation": "this is no mean",
    "tensor-skipped": "a part of the gradients is skipped",
    "chunks": "chunks of the tensors are not the mean",
    "ranks-differ": "the ranks hold different means",
    "differs": "the result differs from the mean, cause unknown",
}
# Where plain training shows one of these, that other scenarios show another is no news.
NO_MEANS = (*WRONG_NUMBERS, "not-in-place", "weights-averaged")
# It is chance which scenarios show a race, and which of the others they show beside it.
RACES = ("not-waited", "changed-under-way")
BY_CHANCE = (*WRONG_NUMBERS, "not-in-place", "nan", "peer-lost")
# What is wrong, by id; what was seen follows it. The gravest come first: what cheats, what ends or
# stops a training, what makes it wrong always, with some ranks, in some cases, and what costs.
HEADLINES = {
    "forged": "the process of the strategy does not answer as the grader's does",
    "nothing-sent": "the mean is right, and too few bytes were sent for it",
    "processes": "the strategy starts too many processes",
    "unusable": "the strategy cannot be used",
    "rank-left-waiting": "a rank is left waiting",
    "ends-process": "the strategy ends its process",
    "raises": "the strategy raises an exception",
    "changes-model": "the model itself is changed, and only gradients may be",
    "weights-averaged": "the weights are averaged instead of the gradients",
    "not-in-place": "the result is not written in place",
    "not-waited": "average() does not wait until messages have arrived",
    "changed-under-way": "a gradient is changed while its sum is still under way",
    **WRONG_NUMBERS,
    "two-not-three": "it works for some numbers of ranks and not for others",
    "none-gradient": "it fails where a parameter has no gradient",
    "zero-gradient": "it fails where a gradient is zero on one rank",
    "not-contiguous": "it fails where a gradient is not contiguous in memory",
    "single-rank": "it fails on a single rank",
    "rounded": "gradients are rounded",
    "float32-arithmetic": "float64 gradients are averaged in float32",
    "nan": "a NaN of one rank is not handled as in training on one rank",
    "peer-lost": "the death of a rank is not noticed",
    "too-many-bytes": "more bytes are sent than the task allows",
    "time-limit": "grading was not finished in time",
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
        """A finding whose sentence has the headline, the observation, and the place."""
        return cls(id, f"{HEADLINES[id]}: {seen} ({ranks_in_words(outcome.world)}, "
                   f"{outcome.scenario.name}, step {step + 1})", tensor, rank, trace)

    def because(self, id: str, where: str = "") -> "Finding":
        """The same finding as the sign of another mistake."""
        return self._replace(id=id, sentence=f"{HEADLINES[id]}{where}: {self.sentence}")
