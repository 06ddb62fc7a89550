"""From settings to the objects that a main wires together: data, loader, model, and the banner."""

from dataclasses import replace

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from common.all_reduce_speed import measure_all_reduce, speed_table
from common.batch_norm import synchronize_batch_norm
from common.collectives import digest_of
from common.console import console
from common.datasets import ImageDataset
from common.epoch_plan import EpochPlan, share_bounds
from common.evaluation import EVALUATION_BATCH
from common.failures import DataError, UsageError
from common.loaders import InMemoryLoader, WorkerLoader, create_augment
from common.precision import Precision
from common.process_group import Node
from common.settings import Settings
from common.workloads import find_workload


def announce(part: str, settings: Settings, node: Node) -> None:
    """The start-up banner, on the leader: who takes part, and with which settings.

    Every rank must call: a dry run also measures how fast they all-reduce.
    """
    speeds = measure_all_reduce(node.device) if settings.dry_run and node.world.size > 1 else []
    if not node.world.is_leader:
        return
    world, size = node.world, settings.batch_size
    shares = [share_bounds(size, rank, world.size) for rank in range(world.size)]
    each = " + ".join(str(share.stop - share.start) for share in shares)
    lines = [f"{part}, {settings.workload}: {world.size} rank{'s' * (world.size > 1)} "
             f"(told by {world.source}), backend {node.backend}"]
    lines += [f"  rank {card['rank']}: {card['host']} pid {card['pid']}, {card['address']} on "
              f"{card['interface']}" for card in node.cards]
    lines += [
        f"  device {node.device}, {node.threads} thread{'s' * (node.threads > 1)} a rank, "
        f"{settings.precision}, batch norm {settings.batch_norm}, loader {settings.loader}",
        f"  global batch {size} = {each}, learning rate {settings.learning_rate}, momentum "
        f"{settings.momentum}, weight decay {settings.weight_decay}, seed {settings.seed}",
        f"  output in {settings.output_dir / part}"]
    if speeds:
        lines += ["  all-reduce (scripts/preflight.py examines every link):", *speed_table(speeds)]
    console(world)("\n".join(lines))


def load_datasets(settings: Settings, node: Node) -> tuple[ImageDataset, ImageDataset]:
    """Training and test set. Every rank must call: all must hold the same data, or all stop.

    Raises DataError, or RanksDisagree naming the rank with other data.
    """
    node.progress.phase = "loading data"
    row = find_workload(settings.workload)
    train_set, test_set = (row.load(split, settings.data_dir) for split in ("train", "test"))
    if train_set.class_names != test_set.class_names:
        raise DataError(f"training and test set in {settings.data_dir} have different classes: "
                        f"{', '.join(train_set.class_names)} and {', '.join(test_set.class_names)}")
    node.agree("data", f"{train_set.digest} {test_set.digest}")
    if settings.dry_run:
        test_set = replace(test_set, images=test_set.images[:EVALUATION_BATCH],
                           labels=test_set.labels[:EVALUATION_BATCH])
    return train_set, test_set


def create_loader(settings: Settings, dataset: ImageDataset,
                  node: Node) -> InMemoryLoader | WorkerLoader:
    """This rank's loader of the training set."""
    plan = EpochPlan(len(dataset), settings.batch_size, settings.smallest_batch, settings.seed)
    if plan.iterations == 0:
        raise DataError(f"{len(dataset)} training samples give no batch of {settings.batch_size}")
    if (last := len(plan.batch(plan.iterations - 1))) < node.world.size:
        raise UsageError(f"the last batch of an epoch has {last} samples, too few for "
                         f"{node.world.size} ranks: leave it out with --smallest-batch "
                         f"{node.world.size}, on every cluster whose runs you compare")
    loader = InMemoryLoader(dataset, plan, create_augment(settings), node.world.rank,
                            node.world.size, node.device)
    return loader if settings.loader == "memory" else WorkerLoader(loader, settings.num_workers)


def create_training(settings: Settings, dataset: ImageDataset,
                    node: Node) -> tuple[nn.Module, nn.Module, Optimizer]:
    """Model, criterion and optimiser. Every rank must call: initial weights must agree.

    The weights depend on the seed alone, so each call gives the same ones.
    """
    torch.manual_seed(settings.seed)
    model = find_workload(settings.workload).build_model(len(dataset.class_names))
    if settings.batch_norm == "synchronised":
        model = synchronize_batch_norm(model)
    model = model.to(node.device, Precision(settings.precision).dtype,
                     memory_format=torch.channels_last)
    node.agree("initial weights", digest_of(model))
    optimizer = SGD(model.parameters(), settings.learning_rate, settings.momentum,
                    weight_decay=settings.weight_decay)
    return model, nn.CrossEntropyLoss().to(node.device), optimizer
