"""Creates the objects that a main wires together from settings: data, loader and model."""

from copy import deepcopy
from dataclasses import replace
from hashlib import sha256

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from common.arithmetic import portable
from common.arithmetic.choice import LIBRARY, POOLED_LAST, use_fast_convolutions
from common.arithmetic.pooling import pool_last
from common.arithmetic.products import is_portable
from common.cluster.elastic import has_lost
from common.cluster.node import Node
from common.cluster.process_group import one_node
from common.core.console import console
from common.core.failures import DataError, UsageError
from common.core.metrics import ACCURACY
from common.core.precision import Precision
from common.core.random_numbers import seed_all
from common.data.dataset import Dataset, require_same_classes
from common.data.epoch_plan import EpochPlan, shard_range, validation_split
from common.data.loaders import InMemoryLoader, WorkerLoader
from common.data.resident import on_device
from common.evaluation import EVALUATION_BATCH
from common.model import whitening
from common.model.batch_norm import synchronize_batch_norm
from common.model.lazy_layers import shape_lazy_layers
from common.model.model_split import second_device, split_in_two
from common.options.command_line import complete
from common.options.workloads import create_augment, workload_of
from common.run.checksums import checksums
from common.run.kept_arithmetic import use_arithmetic
from common.run.tracing import window
from common.settings.settings import Settings
from common.settings.user_code import Place
from common.step.first_loss import examine_first_loss
from common.step.optimizers import create_criterion, create_optimizer

FIRST = 8  # samples by which data sets are told apart


def load_datasets(settings: Settings, node: Node) -> tuple[Dataset, Dataset | None, Dataset]:
    """Training, validation and test set; no validation set when none is held out.

    Every rank must call: all must hold the same data, or all stop. Raises DataError, UsageError, or
    RanksDisagree naming the rank with other data.
    """
    node.progress.phase = "loading data"
    row = workload_of(settings)
    try:
        train_set, test_set = read_datasets(settings)
        require_same_classes(train_set.class_names, test_set.class_names, settings.data_dir)
    except (DataError, UsageError) as error:
        raise type(error)(f"{node.whose}{error}") from error
    if row.metric is ACCURACY and not train_set.class_names:
        raise UsageError(f"--workload {settings.workload} reports accuracy, but its data set names "
                         "no classes: return (inputs, targets, class names), or a torch Dataset "
                         "with classes = [...], or give the workload a metric")
    node.agree("data", f"{train_set.digest} {test_set.digest}", unseeded(settings))
    trained, held_out = hold_out(train_set, settings)
    _describe_data(trained, held_out, test_set, node)
    if settings.dry_run:
        test_set = test_set.part(np.arange(min(EVALUATION_BATCH, len(test_set))))
    return trained, held_out, test_set


_read: list[tuple[Dataset, Dataset]] = []
"""What an elastic run has read before it joined, and takes in each of its groups."""


def read_datasets(settings: Settings) -> tuple[Dataset, Dataset]:
    """Training and test set as the workload gives them. Raises DataError."""
    if _read:
        return _read[0]
    row = workload_of(settings)
    train_set, test_set = (row.dataset(split, settings.data_dir) for split in ("train", "test"))
    return train_set, test_set


def rehearse(settings: Settings) -> str:
    """Reads the data of an elastic run, and builds a model that nobody trains; the data's digest.

    Before it joins, so that no rank waits for another's first time. Raises DataError, UsageError.
    """
    if not _read:
        _read.append(read_datasets(settings))
        with one_node(settings) as node:
            create_training(settings, _read[0][0], node)
    return " ".join(each.digest for each in _read[0])


def _describe_data(trained: Dataset, held_out: Dataset | None, tested: Dataset,
                   node: Node) -> None:
    """Says, on the leader, how large the data sets are, and what was noted when they were read."""
    if not node.world.is_leader or has_lost():
        return
    names = trained.class_names
    validation = f", {len(held_out):,} validation" if held_out else ""
    classes = f" of {len(names):,} class{'es' * (len(names) > 1)}" if names else ""
    lines = [f"{len(trained):,} training{validation} and {len(tested):,} test samples{classes}",
             *trained.note.split("\n"), *tested.note.split("\n")]
    if len(names) == 1:
        lines.append(f"warning: all samples are of one class, {names[0]}, so there is nothing to "
                     "tell apart")
    if _begin_alike(trained, tested):
        lines.append("warning: training and test set begin with the same samples, so the test says "
                     "nothing of other data: a load(split, data_dir) must heed its split")
    for line in filter(None, dict.fromkeys(lines)):
        console(node.world)(f"  {line}")


def _begin_alike(one: Dataset, other: Dataset) -> bool:
    """True if the first samples of both are the same, inputs and targets."""
    first = range(min(FIRST, len(one), len(other)))
    return all(torch.equal(*pair) for pair in zip(one.take(first), other.take(first), strict=True))


def unseeded(settings: Settings) -> str:
    """A clause on why equal files may give unequal data or weights; "" for a workload of ours."""
    if not (place := Place.parse(settings.workload)):
        return ""
    return (f"; where nothing else differs, {place.file.name} draws from a generator without a "
            "seed, as default_rng(): give it one")


def hold_out(train_set: Dataset, settings: Settings) -> tuple[Dataset, Dataset | None]:
    """The part of the training set that is trained on, and the part that validates, if any.

    Pure: (--seed, --validation) fix it. Raises DataError where nothing is left.
    """
    if not (fraction := settings.validation.fraction):
        return train_set, None
    trained, held_out = validation_split(len(train_set), fraction, settings.seed)
    if not (len(trained) and len(held_out)):
        raise DataError(f"--validation {fraction} leaves "
                        f"{len(trained)} of {len(train_set)} samples to train on and "
                        f"{len(held_out)} to validate on")
    return train_set.part(trained), train_set.part(held_out)


def create_loader(settings: Settings, dataset: Dataset,
                  node: Node) -> InMemoryLoader | WorkerLoader:
    """This rank's loader of the training set.

    Raises UsageError where what is known only now does not fit --profile, the ranks, or the images.
    """
    plan = EpochPlan(len(dataset), settings.batch_size, settings.seed,
                     alternating_flips=settings.flips == "alternating")
    if plan.iterations == 0:
        raise DataError(f"{len(dataset)} training sample{'s' * (len(dataset) > 1)} cannot make up "
                        f"a batch of {settings.batch_size}: give --batch-size {len(dataset)} or "
                        "less")
    window(settings, plan.iterations)
    augment = create_augment(settings)
    augment.require_images(dataset.take([0])[0], complete({"workload": settings.workload,
                                                           "recipe": settings.recipe}))
    shards = shard_range(node.world.rank, node.world.size, settings.virtual_nodes)
    _require_a_sample_for_each(plan, shards.of,
                               "virtual nodes" if settings.virtual_nodes else "ranks")
    choice = settings.loader
    if choice.name == "memory":
        return InMemoryLoader(on_device(dataset, node.device), plan, augment, shards, node.device)
    return WorkerLoader(InMemoryLoader(dataset, plan, augment, shards, node.device), choice.workers)


def _require_a_sample_for_each(plan: EpochPlan, nodes: int, kind: str) -> None:
    if (last := _last_batch(plan)) >= nodes:
        return
    larger = (replace(plan, batch_size=size) for size in range(plan.batch_size, plan.samples + 1))
    enough = next((each.batch_size for each in larger if _last_batch(each) >= nodes), None)
    advice = (f"use --batch-size {enough} in every run that you compare" if enough
              else f"use fewer {kind}")
    raise UsageError(f"the last batch of an epoch has {last} sample{'s' * (last > 1)}, too few for "
                     f"{nodes} {kind}: {advice}")


def _last_batch(plan: EpochPlan) -> int:
    """The number of samples in the last batch of an epoch."""
    return len(plan.batch(plan.iterations - 1))


def create_training(settings: Settings, dataset: Dataset, node: Node, convolutions: str = "",
                    ) -> tuple[nn.Module, nn.Module, Optimizer]:
    """Model, criterion and optimizer. Every rank must call; see create_model."""
    model = create_model(settings, dataset, node, convolutions)
    # a copy: several runs of one command share nothing
    criterion = deepcopy(create_criterion(settings, workload_of(settings).criterion))
    criterion = criterion.to(node.device)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"--workload {settings.workload}: the model has no parameter to train; "
                         "one that is frozen has requires_grad=False")
    if Place.parse(settings.workload):
        examine_first_loss(criterion, model, settings.workload)
    return model, criterion, create_optimizer(settings, model)


def create_model(settings: Settings, dataset: Dataset, node: Node,
                 convolutions: str = "") -> nn.Module:
    """The model, on the node's device. Every rank must call: initial weights must agree.

    The weights depend on the seed alone, so each call gives the same ones. `convolutions` are those
    that prepare_runs found, which has chosen the arithmetic too; the settings' otherwise.
    """
    node.progress.phase = "building the model"
    if not convolutions:
        use_arithmetic(settings, node)
    seed_all(settings.seed)
    model = workload_of(settings).build(dataset.class_names)
    shape_lazy_layers(model, dataset, create_augment(settings))
    if settings.init == "whitened":
        whitening.initialise(model, dataset)
    if settings.batch_norm == "synchronised":
        model = synchronize_batch_norm(model)
    model = model.to(node.device, Precision(settings.precision).dtype,
                     memory_format=torch.channels_last)
    state = model.state_dict()
    marks = dict(zip(state, checksums(list(state.values())).tolist(), strict=True)) if state else {}
    node.agree("initial weights", sha256(repr(marks).encode()).hexdigest()[:12],
               unseeded(settings), marks)
    if settings.convolutions == LIBRARY or convolutions == POOLED_LAST:
        pool_last(model)
    example = create_augment(settings).normalise(dataset.take([0])[0])
    if example.ndim == 4:
        use_fast_convolutions(model, example.shape[1:], settings.batch_size,
                              Precision(settings.precision), convolutions or settings.convolutions)
    if is_portable():
        _note_what_is_left(model, example[[0, 0]], node)
    if settings.parallel == "model-split":
        split_in_two(model, node.device, second_device(node.device, node.ranks_here))
    return model


_left: list[str] = []
"""What the first group's model left to torch, which the next groups of an elastic run do too."""


def _note_what_is_left(model: nn.Module, inputs: torch.Tensor, node: Node) -> None:
    """Notes, and says once, which operations of a model are not portable."""
    if not (_left and has_lost()):
        _left[:] = [portable.what_is_left(model, inputs)]
        if _left[0]:
            console(node.world)(f"  portable arithmetic, but for torch's {_left[0]}: another "
                                "processor or number of threads may change the digest")
    portable.note(_left[0])
