"""Training loops that are right, each in its own way: the witness must be silent about them.

Each gets a context for its loop and returns what it has learned.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset

from common import prepare_model_for_training, train_model
from PartTwo.strategies import SyncOptions, create_strategy
from tests.multiprocess.own_loops import average_gradients, data, small

Guard = Callable[..., AbstractContextManager]
RIGHT: dict[str, Callable[[Guard], nn.Module]] = {}


def right(function: Callable[[Guard], nn.Module]) -> Callable[[Guard], nn.Module]:
    RIGHT[function.__name__] = function
    return function


def sharded(dataset: Any = None, batch: int = 2) -> DataLoader:
    dataset = dataset or data()
    return DataLoader(dataset, batch, sampler=DistributedSampler(dataset))


def uneven() -> DataLoader:
    return DataLoader(Subset(data(), range(dist.get_rank(), 15, 2)), 2, drop_last=True)


def sgd(model: nn.Module, **more: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **more)


def epochs(loader: Any, count: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in range(count):
        if hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        yield from loader


def by_ddp(guard: Guard, inner: nn.Module, make: Callable[[nn.Module], Any] = sgd,
           loader: Any = None) -> nn.Module:
    model, loader = DistributedDataParallel(inner), loader or sharded()
    optimizer = make(model)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return inner


def by_hand(guard: Guard, average: Callable[[nn.Module], None], loader: Any = None,
            model: nn.Module | None = None, after: Callable[[nn.Module], None] | None = None,
            count: int = 3) -> nn.Module:
    model, loader = model or small(), sharded() if loader is None else loader
    optimizer = sgd(model)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader, count):
            cross_entropy(model(inputs), targets).backward()
            average(model)
            optimizer.step()
            if after is not None:
                after(model)
            optimizer.zero_grad()
    return model


def average_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter /= dist.get_world_size()


@right
def ddp(guard):
    return by_ddp(guard, small())


@right
def ddp_from_other_weights_which_it_broadcasts(guard):
    return by_ddp(guard, small(dist.get_rank()))


@right
def ddp_with_zero_redundancy(guard):
    return by_ddp(guard, small(), lambda model: ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=0.01))


@right
def ddp_with_frozen_layer(guard):
    model = small()
    model[0].requires_grad_(False)
    return by_ddp(guard, model)


@right
def ddp_with_batch_norm_and_dropout(guard):
    return by_ddp(guard, nn.Sequential(small(), nn.BatchNorm1d(3), nn.Dropout(0.5)))


@right
def ddp_on_a_plain_list(guard):
    return by_ddp(guard, small(), loader=list(sharded()))


@right
def ddp_without_shuffling(guard):
    return by_ddp(guard, small(), loader=DataLoader(
        data(), 2, sampler=DistributedSampler(data(), shuffle=False)))


@right
def ddp_on_full_batches(guard):
    return by_ddp(guard, small(), loader=sharded(batch=8))


@right
def ddp_on_few_different_inputs(guard):
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2))).repeat(8, 3)
    return by_ddp(guard, small(), loader=sharded(TensorDataset(corners, corners[:, 0].long())))


@right
def ddp_on_tokens(guard):
    words = torch.randint(0, 50, (16, 4), generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Embedding(50, 6), nn.Flatten(), nn.Linear(24, 3))
    return by_ddp(guard, model, loader=sharded(TensorDataset(words, words[:, 0] % 3)))


@right
def ddp_with_a_short_wire(guard):
    inner, loader = small(), sharded()
    model = DistributedDataParallel(inner)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader):
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return inner


@right
def ddp_with_accumulation_and_evaluation(guard):
    inner, loader = small(), sharded()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with guard(model, optimizer, loader):
        for index, (inputs, targets) in enumerate(epochs(loader)):
            with nullcontext() if index % 2 else model.no_sync():
                cross_entropy(model(inputs), targets).backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
            if index % 4 == 3:
                model.eval()
                with torch.no_grad():
                    model(data().tensors[0])
                model.train()
                if dist.get_rank() == 0:
                    with tempfile.TemporaryFile() as file:
                        torch.save(inner.state_dict(), file)
    return inner


@right
def ddp_joins_uneven_loaders(guard):
    inner, loader = small(), uneven()
    model = DistributedDataParallel(inner)
    optimizer = sgd(model)
    with guard(model, optimizer, loader):
        with model.join():
            for inputs, targets in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    return inner


@right
def equal_steps_over_uneven_loaders(guard):
    loader = uneven()
    batches = itertools.islice(itertools.cycle(loader), 7)
    return by_hand(guard, average_gradients, model=small(), loader=list(batches), count=1)


@right
def two_views_of_a_batch(guard):
    model, loader = small(), sharded()
    optimizer = sgd(model)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader):
            optimizer.zero_grad()
            outputs = model(inputs) + model(inputs.flip(1))
            cross_entropy(outputs, targets).backward()
            average_gradients(model)
            optimizer.step()
    return model


@right
def two_steps_a_batch(guard):
    model, loader = small(), sharded()
    optimizer = sgd(model)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader):
            for _ in range(2):
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                average_gradients(model)
                optimizer.step()
    return model


@right
def hand_made(guard):
    return by_hand(guard, average_gradients)


@right
def hand_made_gather_and_scatter(guard):
    return by_hand(guard, lambda model: create_strategy("gather-scatter").average(
        [each.grad for each in model.parameters()]))


@right
def leaders_weights_after_each_step(guard):
    def broadcast(model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    return by_hand(guard, lambda model: None, after=broadcast)


@right
def local_sgd(guard):
    steps = itertools.count(1)
    return by_hand(guard, lambda model: None, after=lambda model: (
        None if next(steps) % 3 else average_weights(model)))


@right
def an_endless_stream_without_length(guard):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([data()[index] for index in range(dist.get_rank(), 16, 2)])
    return by_hand(guard, average_gradients, DataLoader(Stream(), 2))


@right
def one_step(guard):
    return by_hand(guard, average_gradients, list(sharded())[:1], count=1)


@right
def closures(guard):
    model, loader = small(), sharded()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader, 2):
            def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), targets)
                loss.backward()
                average_gradients(model)
                dist.all_reduce(loss.data)
                return loss
            optimizer.step(closure)
    return model


@right
def overlapped_across_steps(guard):
    model, loader = small(), sharded()
    optimizer = sgd(model)
    sync = create_strategy("cross-step-all-reduce", SyncOptions())
    sync.prepare(model, optimizer)
    with guard(model, optimizer, loader):
        for inputs, targets in epochs(loader):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            sync.average([each.grad for each in model.parameters() if each.grad is not None])
            optimizer.step()
        sync.settle()
    return model


def documented(flags: tuple[bool, str]) -> nn.Module:
    """The three ways of the course; train_model has its witness built in."""
    inner = small()
    model, criterion, optimizer = prepare_model_for_training(
        inner, "cpu", 0.05, 0.9, 0.0, False, distribute_flag=flags[0])
    with tempfile.TemporaryDirectory() as folder:
        train_model(model, "cpu", criterion, optimizer, 1, 3, sharded(), f"{folder}/log.txt",
                    folder, *flags)
    return inner


@right
def documented_by_gathering(guard):
    return documented((False, "PartOne"))


@right
def documented_by_all_reduce(guard):
    return documented((False, "PartTwo"))


@right
def documented_by_ddp(guard):
    return documented((True, ""))
