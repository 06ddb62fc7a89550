"""The witness's verdicts on the ranks' rows and batches, without a process.

Mutations that turn this red: return no failure for a second equal batch; count every call of the
model as a batch; hash tensors of every layout; leave out resolve_conj; keep all batches of ranks
that are not in step; sum(place * each) for the second checksum of _numbers; any() in place of all()
for the ranks' is_wrapped.
"""

import pytest
import torch
from torch import nn
from torch.distributed import HashStore
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.core.world import World
from common.witnessing import observer
from common.witnessing.observer import Observer
from common.witnessing.rows import Comparison, RankRow, odd_one, uneven
from common.witnessing.seen_samples import SKETCH_SIZE, SeenSamples, fingerprints
from tests.facts import says

NAMES = ("first.weight", "second.weight")


def row(steps: int = 1, weights=(1, 2), gradients=(5, 6), batches=(), sizes=(),
        first=()) -> RankRow:
    return RankRow(steps, list(weights), list(gradients), list(batches), list(sizes), 10,
                   list(first))


def told(comparison: Comparison, *rows: RankRow, is_last: bool = False) -> str:
    return comparison.answer(rows, is_last).failure


def test_equal_rows_are_right():
    assert Comparison(NAMES, 3).answer([row(), row()]) == ("", "", False)


def test_other_weights_before_the_first_step():
    sentence = told(Comparison(NAMES, 3), row(0), row(0), row(0, weights=(1, 3)))
    assert says(sentence, "rank 2", "rank 0", 1, "2 tensors", "second.weight", "dist.broadcast")


def test_drift_is_told_when_it_is_known_which_tensor():
    comparison = Comparison(NAMES, 3)
    assert comparison.answer([row(weights=[3]), row(weights=[4])]) == ("", "", True)
    assert says(told(comparison, row(2), row(2, weights=(7, 8))), "rank 1", "rank 0", "2 steps",
                "2 tensors", "first.weight", "drift")


def test_gradients_that_are_gone_at_the_end_were_equal_before():
    comparison = Comparison(NAMES, 3)
    assert not told(comparison, row(), row())
    sentence = told(comparison, row(4, gradients=()), row(4, weights=(1, 9), gradients=()),
                    is_last=True)
    assert says(sentence, "rank 1", "rank 0", "4 steps", "second.weight", "drift")


def apart(steps: int) -> tuple[RankRow, RankRow]:
    return row(steps), row(steps, weights=(8, 9), gradients=(7, 7))


def test_weights_may_be_averaged_now_and_then():
    comparison = Comparison(NAMES, 3)
    for start in (1, 11):
        assert not any(told(comparison, *apart(start + step)) for step in range(3))
        assert not told(comparison, row(start + 3), row(start + 3, gradients=(7, 7)))
    assert not told(comparison, *apart(20), is_last=True)  # the last round was not full


@pytest.mark.parametrize("steps, is_last", [(4, False), (1, True)])
def test_weights_that_are_never_equal_are_averaged_by_nobody(steps, is_last):
    comparison = Comparison(NAMES, 3)
    said = [told(comparison, *apart(1 + step), is_last=is_last) for step in range(steps)]
    assert says(said[-1], f"{steps} steps", "rank 1", "rank 0", "optimizer.step()")
    assert not any(said[:-1])


@pytest.mark.parametrize("wrapped, advice", [
    ((True, True), "no_sync()"), ((True, False), "optimizer.step()")])
def test_who_wraps_the_model_is_not_told_to_wrap_it(wrapped, advice):
    rows = [row._replace(is_wrapped=is_wrapped)
            for row, is_wrapped in zip(apart(3), wrapped, strict=True)]
    said = told(Comparison(NAMES, 3), *rows, is_last=True)
    assert says(said, "rank 1", "rank 0", "3 steps", "DistributedDataParallel", advice)
    assert says(said, "optimizer.step()") == (not all(wrapped))


def test_equal_batches_twice_are_no_chance():
    comparison = Comparison(NAMES, 3)
    assert not told(comparison, row(batches=[4]), row(batches=[5]), row(batches=[5]))
    assert not told(comparison, row(), row(), row())
    sentence = told(comparison, row(batches=[6, 7]), row(batches=[8, 9]), row(batches=[8, 9]))
    assert says(sentence, "rank 2", "rank 1", "DistributedSampler(dataset)")


@pytest.mark.parametrize("shared, is_told", [(8, True), (4, False)])
def test_a_first_epoch_of_the_same_samples_is_a_warning_and_for_the_strict_a_failure(shared,
                                                                                     is_told):
    rows = [row(first=range(10)), row(first=range(10 - shared, 20 - shared))]
    answer = Comparison(NAMES, 3).answer(rows)
    assert not answer.failure and bool(answer.warning) == is_told
    assert says(answer.warning, "rank 1", "rank 0", "DistributedSampler(dataset)") == is_told
    assert bool(told(Comparison(NAMES, 3, strict=True), *rows)) == is_told


def test_batches_of_other_sizes_fail_the_strict_alone():
    rows = [row(sizes=[4, 4]), row(sizes=[4, 3])]
    assert not told(Comparison(NAMES, 3), *rows)
    assert says(told(Comparison(NAMES, 3, strict=True), *rows), "batch 9", "rank 1", 3, "rank 0", 4)


def test_the_odd_one_is_the_one_that_most_are_not():
    assert odd_one([[1], [1], [1]]) == (0, 0)
    assert odd_one([[1], [2], [2]]) == (0, 1)
    assert odd_one([[1], [2]]) == (1, 0)


def test_uneven_loaders():
    assert says(uneven([4, 3, 5]), "rank 1", 3, "rank 2", 5, "DistributedSampler")
    assert uneven([4, 4]) == uneven([4, None]) == ""


def batches_of(seen: SeenSamples, *batches: torch.Tensor) -> list[int]:
    for batch in batches:
        seen.note([(batch,), {}], 0)
    return seen.take()[0]


def test_fingerprints_know_samples_whatever_their_kind_and_layout():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, 3, 8, 8, generator=generator)
    before = torch.get_rng_state()
    rows = fingerprints([(images,), {}])
    assert len(set(rows.tolist())) == 4 and torch.equal(torch.get_rng_state(), before)
    assert torch.equal(rows, fingerprints(images.to(memory_format=torch.channels_last)))
    assert not torch.equal(rows, fingerprints({"images": images, "mask": torch.ones(4, 2)}))
    for kind in (torch.bool, torch.bfloat16, torch.int64, torch.complex64):
        assert len(fingerprints(torch.zeros(5, 2).to(kind))) == 5
    assert fingerprints(["text", 3, torch.zeros(())]) is None


def special(rows: torch.Tensor) -> list[torch.Tensor]:
    """Tensors whose rows' bytes cannot be read."""
    return [rows.to_sparse(), rows.to_sparse_csr(), rows.to_mkldnn(),
            torch.quantize_per_tensor(rows, 0.1, 0, torch.qint8),
            *(torch.nested.nested_tensor([rows[0], rows[1, :2]], layout=layout)
              for layout in (torch.strided, torch.jagged))]


@pytest.mark.filterwarnings("ignore")  # torch's, of prototypes
def test_tensors_that_cannot_be_hashed_are_skipped():
    rows = torch.randn(4, 3)
    for each in special(rows):
        assert fingerprints([(each,), {}]) is None
        assert torch.equal(fingerprints([each, rows]), fingerprints(rows))


def test_views_that_are_conjugate_or_negative_count_by_their_values():
    numbers = torch.randn(4, 3, dtype=torch.complex64)
    for view in (numbers.conj(), torch._neg_view(numbers), numbers.conj().imag):
        assert torch.equal(fingerprints(view), fingerprints(view.resolve_conj().resolve_neg()))


def test_a_batch_counts_once_however_often_the_model_is_called():
    seen, (one, other) = SeenSamples(), torch.randn(2, 4, 3)
    assert len(batches_of(seen, one, one, other)) == 2
    assert batches_of(seen, other) == [] and seen.batches == 2
    assert len(batches_of(seen, one)) == 1


@pytest.mark.parametrize("steps", [19, 20, 21])
def test_a_rank_that_waits_in_vain_keeps_its_last_batches_alone(steps, monkeypatch):
    monkeypatch.setattr(observer, "ANSWER_SECONDS", 0.01)
    model, every = nn.Linear(3, 1), 5
    optimizer, held = torch.optim.SGD(model.parameters(), 0.1), []
    with Observer(model, optimizer, None, HashStore(), World(1, 2), every, False, print) as here:
        for _ in range(steps):
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            held.append(len(here.seen._new))
        last = here._row(True)
    assert max(held) <= every and 1 <= len(last.batches) <= every and last.seen == steps


def first_epoch(samples: torch.Tensor) -> set[int]:
    seen = SeenSamples(list(samples.split(10)))
    batches_of(seen, *seen.loader, *seen.loader)
    return set(seen.first_epoch())


def test_the_sketch_of_an_epoch_tells_its_samples_and_not_their_order():
    samples = torch.randn(1000, 3, generator=torch.Generator().manual_seed(1))
    one, other = first_epoch(samples[:500]), first_epoch(samples[500:])
    assert len(one) == SKETCH_SIZE and not one & other
    assert one == first_epoch(samples[:500].flip(0))
    assert not first_epoch(torch.ones(500, 3)) and not first_epoch(samples[:100].repeat(5, 1))


@pytest.mark.parametrize("tells, shuffle, expected", [
    (False, True, True), (True, True, False), (False, False, False)])
def test_a_sampler_that_is_not_told_the_epoch(tells, shuffle, expected):
    dataset = TensorDataset(torch.randn(16, 3))
    sampler = DistributedSampler(dataset, 2, 0, shuffle=shuffle)
    seen = SeenSamples(loader := DataLoader(dataset, 2, sampler=sampler))
    steps, found = 0, []
    for epoch in range(2):
        if tells:
            sampler.set_epoch(epoch)
        for inputs, in loader:
            seen.note(inputs, steps)
            steps += 1
            seen.take()
            found.append(seen.forgotten_set_epoch(steps))
    assert not any(found[:4]) and found[-1] == expected


def test_one_number_for_all_tensors_knows_their_order():
    """Three small tensors of zeros, of which the last, or the first two, have changed alike."""
    zeros, changed = torch.zeros(3), torch.ones(3)
    one = observer._numbers([zeros, zeros, changed], in_detail=False)
    assert one != observer._numbers([changed, changed, zeros], in_detail=False)
    assert len(one) == 1 and not observer._numbers([], in_detail=False)
