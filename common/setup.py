"""From settings to the objects that a main wires together: data, loader, model, and the banner."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from common.cluster.all_reduce_speed import measure_all_reduce, speed_table
from common.cluster.devices import count_gpus
from common.cluster.process_group import Node
from common.core.collectives import digest_of
from common.core.console import console
from common.core.failures import DataError, UsageError
from common.core.precision import Precision
from common.core.settings import FIELD_DEFAULTS, Settings
from common.data.datasets import ImageDataset
from common.data.epoch_plan import EpochPlan, share_bounds, validation_split
from common.data.loaders import InMemoryLoader, WorkerLoader, create_augment
from common.evaluation import EVALUATION_BATCH
from common.model import whitening
from common.model.batch_norm import synchronize_batch_norm
from common.model.convolutions import AUTO, by_rule, rule_in_words, use_fast_convolutions
from common.model.model_split import second_device, split_in_two
from common.model.tuned import choose_tuned, is_tuned, read_tuned
from common.options.workloads import find_workload
from common.step.optimizers import create_criterion, create_optimizer


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
        *_convolutions(settings, node), *_what_is_special(settings, node),
        f"  output in {settings.output_dir / part}"]
    if speeds:
        lines += ["  all-reduce (scripts/preflight.py examines every link):", *speed_table(speeds)]
    console(world)("\n".join(lines))


def _convolutions(settings: Settings, node: Node) -> list[str]:
    """How 3x3 convolutions are computed, on a CPU: it decides how they round."""
    how = settings.convolutions
    if node.device.type != "cpu":
        return []
    if how == AUTO:
        how = rule_in_words(settings.precision, settings.batch_size)
    elif is_tuned(how):
        how += f", {read_tuned(Path(how))}"
    return [f"  3x3 convolutions: {how}"]


def _what_is_special(settings: Settings, node: Node) -> list[str]:
    """What the banner says of settings that are not the assignment's."""
    lines = _what_the_recipe_adds(settings)
    if settings.optimizer != "sgd" or settings.schedule != "constant" or settings.warmup_epochs:
        lines.append(f"  optimiser {settings.optimizer}, rate {settings.schedule}"
                     + f" after {settings.warmup_epochs} epochs of warm-up"
                     * (settings.warmup_epochs > 0))
    if settings.bucket_mb != FIELD_DEFAULTS["bucket_mb"]:
        lines.append(f"  buckets of {settings.bucket_mb:g} MB")
    if settings.accumulate > 1:
        lines.append(f"  each step in {settings.accumulate} passes; batch norm, if any, takes the "
                     "statistics of each pass by itself")
    if settings.local_sync:
        lines.append(f"  {' and '.join(settings.local_sync)}: another algorithm than averaging "
                     f"gradients; every {settings.sync_every} steps or more, and at the end of an "
                     "epoch, the ranks average their weights"
                     + f": their progress, rounded to {settings.wire}" * (
                         settings.wire != "float32"))
    if settings.validation_fraction:
        lines.append(f"  {settings.validation_fraction:.3g} of the training set validates"
                     + (", early stopping after {} epochs without a gain of {}".format(
                         *settings.early_stopping) if settings.early_stopping else ""))
    gpus = count_gpus() if node.device.type == "cuda" else 0
    if settings.parallel == "data-parallel" and gpus < 2:
        lines.append(f"  DataParallel over {gpus} GPUs only calls the model: this run shows that "
                     "it learns the same, and nothing of its speed")
    if settings.parallel == "model-split":
        other = second_device(node.device, node.ranks_here)
        lines.append(f"  model split over {node.device} and {other}" + (
            ": one device, so this shows the mechanism, and no gain of memory or time"
            if other == node.device else ", which take turns"))
    return lines


def _what_the_recipe_adds(settings: Settings) -> list[str]:
    added = [f"decay on {settings.decay_on}"] * (settings.decay_on != "all")
    added += [f"label smoothing {settings.label_smoothing}"] * (settings.label_smoothing > 0)
    added += [f"weight average {settings.weight_average}"] * (settings.weight_average > 0)
    added += [f"{settings.flips} flips"] * (settings.flips != "random")
    added += [f"crop padding {settings.crop_padding}"] * (settings.crop_padding is not None)
    added += [f"cutout {settings.cutout}"] * (settings.cutout > 0)
    added += [f"{settings.init} filters"] * (settings.init != "plain")
    added += [f"biases at {settings.bias_rate} times the rate"] * (settings.bias_rate != 1)
    if settings.recipe != "course" or added:
        return [f"  recipe {settings.recipe}, {settings.epochs} epochs: "
                + (", ".join(added) or "nothing else")]
    return []


def load_datasets(settings: Settings, node: Node) -> tuple[ImageDataset, ImageDataset | None,
                                                           ImageDataset]:
    """Training, validation and test set; no validation set when none is held out.

    Every rank must call: all must hold the same data, or all stop. Raises DataError, or
    RanksDisagree naming the rank with other data.
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
    return *hold_out(train_set, settings), test_set


def hold_out(train_set: ImageDataset,
             settings: Settings) -> tuple[ImageDataset, ImageDataset | None]:
    """The part of the training set that is trained on, and the part that validates, if any.

    Pure: (--seed, --validation-fraction) fix it. Raises DataError where nothing is left.
    """
    if not settings.validation_fraction:
        return train_set, None
    trained, held_out = validation_split(len(train_set), settings.validation_fraction,
                                         settings.seed)
    if not (len(trained) and len(held_out)):
        raise DataError(f"--validation-fraction {settings.validation_fraction} leaves "
                        f"{len(trained)} of {len(train_set)} samples to train on and "
                        f"{len(held_out)} to validate on")
    return train_set.part(trained), train_set.part(held_out)


def create_loader(settings: Settings, dataset: ImageDataset,
                  node: Node) -> InMemoryLoader | WorkerLoader:
    """This rank's loader of the training set."""
    plan = EpochPlan(len(dataset), settings.batch_size, settings.smallest_batch, settings.seed,
                     alternating_flips=settings.flips == "alternating")
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

    The weights depend on the seed alone, so each call gives the same ones. Raises UsageError for
    batch statistics that cannot be had.
    """
    node.progress.phase = "building the model"
    torch.manual_seed(settings.seed)
    row = find_workload(settings.workload)
    model = row.build_model(len(dataset.class_names))
    if settings.init == "whitened":
        whitening.initialise(model, dataset)
    if settings.batch_norm == "synchronised":
        _require_one_pass(model, settings)
        model = synchronize_batch_norm(model)
    model = model.to(node.device, Precision(settings.precision).dtype,
                     memory_format=torch.channels_last)
    node.agree("initial weights", digest_of(model))
    height, width, channels = dataset.images.shape[1:]
    how = settings.convolutions
    use_fast_convolutions(model, (channels, height, width), settings.batch_size,
                          Precision(settings.precision), AUTO if is_tuned(how) else how,
                          partial(choose_tuned, Path(how)) if is_tuned(how) else by_rule)
    if settings.parallel == "model-split":
        split_in_two(model, node.device, second_device(node.device, node.ranks_here))
    criterion = create_criterion(settings, row.criterion).to(node.device)
    return model, criterion, create_optimizer(settings, model)


def _require_one_pass(model: nn.Module, settings: Settings) -> None:
    if settings.accumulate > 1 and any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        raise UsageError("--batch-norm synchronised takes statistics of the whole global batch, "
                         f"which --accumulate {settings.accumulate} never has in one pass: leave "
                         "out one of the two")
