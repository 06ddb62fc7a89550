"""Loaders: exact augmentation, and the same batches from memory and from worker processes.

Mutations that turn this red: cut out rows for columns, one pixel more, from the middle on, before
normalising, or in every batch; take the middle modulo a fixed size; drop require_images from
create_loader, or Augment's.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from common.cluster.node import Node
from common.core.failures import UsageError
from common.core.world import World
from common.data.augment import Augment
from common.data.dataset import ArrayDataset
from common.data.epoch_plan import shard_range
from common.data.loaders import InMemoryLoader, PlainLoader, WorkerLoader
from common.options.command_line import parse_command_line
from common.settings.settings import Settings
from common.setup import create_loader
from tests.facts import says
from tests.small import small_dataset, small_loader

NODE = Node(World(), torch.device("cpu"), 1)


def reference(image: np.ndarray, top: int, left: int, flip: bool, row: int, column: int,
              padding: int, cutout: int = 0) -> np.ndarray:
    """One sample as torchvision does it: pad with black, crop, mirror, scale, normalise.

    Then the square around (row, column), pixel by pixel.
    """
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    height, width, _ = image.shape
    cropped = padded[top:top + height, left:left + width]
    cropped = cropped[:, ::-1] if flip else cropped
    normal = ((cropped / 255 - 0.5) / 0.25).transpose(2, 0, 1)
    for y in range(row % height - cutout // 2, row % height - cutout // 2 + cutout):
        for x in range(column % width - cutout // 2, column % width - cutout // 2 + cutout):
            if 0 <= y < height and 0 <= x < width:
                normal[:, y, x] = 0
    return normal


def with_cutout(loader: InMemoryLoader, side: int) -> InMemoryLoader:
    settings = replace(loader.augment.settings, cutout=side)
    return replace(loader, augment=replace(loader.augment, settings=settings))


@pytest.mark.parametrize("cutout", [0, 1, 4, 5, 20])
def test_batches_are_what_the_plan_says(cutout):
    loader = with_cutout(small_loader(rank=1, world_size=3), cutout)
    plan = loader.plan
    for iteration, batch in enumerate(loader.batches(epoch=1)):
        indices = plan.samples_of(iteration, shard_range(1, 3))
        how = plan.augmentation(indices, padding=1)
        expected = [reference(loader.dataset.inputs[i], *(part[n] for part in how), padding=1,
                              cutout=cutout)
                    for n, i in enumerate(indices)]
        np.testing.assert_allclose(batch.inputs.numpy(), expected, atol=1e-14)
        assert batch.targets.tolist() == loader.dataset.targets[indices].tolist()
        assert batch.weight == Fraction(len(indices) * 3, len(plan.batch(iteration)))


def test_weights_make_a_plain_mean_over_ranks_the_mean_over_the_global_batch():
    for batches in zip(*(small_loader(rank, 4).batches(1) for rank in range(4)), strict=True):
        sizes = [len(batch.targets) for batch in batches]
        for size, batch in zip(sizes, batches, strict=True):
            assert batch.weight / 4 == pytest.approx(size / sum(sizes), rel=1e-15)


def test_normalising_leaves_the_points_themselves_alone():
    points = torch.ones(3, 1, 1, 2)
    Augment(Settings(), (0.5, 0.5), (2.0, 2.0)).normalise(points)
    assert torch.equal(points, torch.ones(3, 1, 1, 2))


def test_no_flip_where_the_workload_has_none():
    images = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).view(2, 4, 4, 3)
    augment = Augment(Settings(crop_padding=0), (0.0,) * 3, (1.0,) * 3)
    zero, flip = torch.zeros(2, dtype=torch.int64), torch.tensor([True, False])
    assert torch.equal(augment(images, zero, zero, flip, zero, zero), augment.normalise(images))


def test_what_is_cut_out_takes_its_place_from_height_and_width():
    images = torch.zeros(1, 4, 6, 1, dtype=torch.uint8)
    augment = Augment(Settings(crop_padding=0, cutout=1), (0.5,), (1.0,))
    zero, flip = torch.zeros(1, dtype=torch.int64), torch.tensor([False])
    for row, column in ((0, 0), (2, 5), (7, 6), (2**31 - 1, 2**31 - 2)):
        found = augment(images, zero, zero, flip, torch.tensor([row]), torch.tensor([column]))
        assert (found[0, 0] == 0).nonzero().tolist() == [[row % 4, column % 6]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worker_processes_give_the_same_batches_bit_for_bit(workers, first, dtype):
    memory = small_loader(rank=1, world_size=2, dtype=dtype)
    memory = with_cutout(memory, 3)
    worker = WorkerLoader(memory, workers)
    pairs = list(zip(memory.batches(2, first), worker.batches(2, first), strict=True))
    assert len(pairs) == memory.plan.iterations - first
    for ours, theirs in pairs:
        assert torch.equal(ours.inputs, theirs.inputs) and ours.inputs.dtype == dtype
        assert torch.equal(ours.targets, theirs.targets) and ours.weight == theirs.weight
        for batch in (ours, theirs):
            assert batch.inputs.is_contiguous(memory_format=torch.channels_last)


def points_of(shape: tuple[int, ...]) -> ArrayDataset:
    return ArrayDataset(np.zeros((40, *shape), dtype=np.float32), np.arange(40) % 3,
                        ("a", "b", "c"), "points")


@pytest.mark.parametrize("flags", [
    ["--crop-padding", "2"], ["--cutout", "1"], ["--flips", "alternating"], ["--tta"]])
@pytest.mark.parametrize("workload, shape", [
    ("spiral-mlp", (1, 1, 2)), ("examples/own_task.py:TABLE", (8,))])
def test_what_changes_images_is_refused_where_samples_are_none(flags, workload, shape):
    settings, _ = parse_command_line("PartOne", ["--workload", workload, *flags])
    with pytest.raises(UsageError) as refused:
        create_loader(settings, points_of(shape), NODE)
    assert says(refused.value, flags[0], workload)
    create_loader(parse_command_line("PartOne", ["--workload", workload])[0], points_of(shape),
                  NODE)


def test_a_cutout_as_large_as_the_images_is_refused():
    create_loader(Settings(cutout=7, batch_size=9), small_dataset(), NODE)
    for side in (8, 64):
        with pytest.raises(UsageError) as refused:
            create_loader(Settings(cutout=side, batch_size=9), small_dataset(), NODE)
        assert says(refused.value, "--cutout", side, "8x8")


def test_epochs_differ():
    loader = small_loader(0, 1)
    one, two = (torch.cat([batch.inputs for batch in loader.batches(epoch)]) for epoch in (1, 2))
    assert one.shape == two.shape and not torch.equal(one, two)


def test_a_plain_dataloader_serves_too():
    pairs = [(torch.full((2, 1), float(n)), torch.tensor([n, n])) for n in range(4)]
    loader = PlainLoader(pairs, torch.device("cpu"))
    assert [int(batch.targets[0]) for batch in loader.batches(1, 2)] == [2, 3]
    assert loader.iterations == 4 and next(loader.batches(1)).weight == 1.0


def test_a_batch_size_is_named_that_gives_each_rank_a_sample_of_the_last_batch():
    settings = Settings(workload="digits-vgg11", batch_size=5)
    node = Node(World(rank=0, size=3), torch.device("cpu"), threads=1)
    with pytest.raises(UsageError) as refused:
        create_loader(settings, small_dataset(11), node)
    assert says(refused.value, "1 sample", 3, "--batch-size", 6)
    with pytest.raises(UsageError) as refused:
        create_loader(settings, small_dataset(2), node)
    assert says(refused.value, "2 samples", 3)
    assert "--batch-size" not in str(refused.value)  # none will do
