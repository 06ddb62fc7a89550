"""A small workload to prove on, and six ways of getting data-parallel training wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.collectives import sum_over_ranks
from common.data.dataset import ArrayDataset
from common.data.loaders import Batch, Loader
from common.options.workloads import Workload
from common.settings.settings import Settings
from common.step.gradient_sync import GradientSync
from PartTwo.strategies import create_strategy
from studies.proof.strategies import Wiring
from studies.proof.trajectory import Problem
from tests.small import SmallNet, small_dataset


def load(split: str, data_dir: Path) -> ArrayDataset:
    return small_dataset()


def build_model(classes: int) -> nn.Module:
    return SmallNet(nn.BatchNorm2d)


ROW = Workload("small", load, build_model, (0.5,) * 3, (0.25,) * 3, flip=True)


def small_problem(precision: str, batch_norm: str = "synchronised", steps: int = 7) -> Problem:
    """Seven batches of an epoch and a half: nine times 10 samples, and the fifth batch of 5.

    Shards are uneven on 3 and 4 ranks, and in the fifth batch on 2.
    """
    return Problem(Settings(workload="small", epochs=steps, batch_size=10, crop_padding=1,
                            max_iterations=steps, precision=precision, batch_norm=batch_norm,
                            threads=1),
                   row=ROW)


class SumInsteadOfMean(GradientSync):
    def average(self, gradients: Sequence[Tensor]) -> None:
        for gradient in gradients:
            sum_over_ranks(gradient)


class OneTensorSkipped(GradientSync):
    def average(self, gradients: Sequence[Tensor]) -> None:
        create_strategy("all-reduce").average(gradients[:-1])


class ParametersAveraged(GradientSync):
    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._parameters = list(model.parameters())

    def average(self, gradients: Sequence[Tensor]) -> None:
        create_strategy("all-reduce").average([p.data for p in self._parameters])


class MeanForTheLeaderOnly(GradientSync):
    def average(self, gradients: Sequence[Tensor]) -> None:
        leader = dist.get_rank() == 0
        create_strategy("all-reduce").average(
            gradients if leader else [gradient.clone() for gradient in gradients])


class EveryShardCountsAlike:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def batches(self, epoch: int, first_iteration: int = 0) -> Iterator[Batch]:
        for batch in self._loader.batches(epoch, first_iteration):
            yield batch._replace(weight=1.0)


def no_synchronisation(model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, loader, GradientSync())


def sum_not_divided(model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, loader, SumInsteadOfMean())


def one_tensor_skipped(model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, loader, OneTensorSkipped())


def parameters_averaged(model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, loader, ParametersAveraged())


def mean_for_the_leader_only(model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, loader, MeanForTheLeaderOnly())


def weights_forced_to_one(model: nn.Module, loader: Loader) -> Wiring:
    return Wiring(model, EveryShardCountsAlike(loader), create_strategy("all-reduce"))


BROKEN = {function.__name__: function for function in (
    no_synchronisation, sum_not_divided, one_tensor_skipped, parameters_averaged,
    mean_for_the_leader_only, weights_forced_to_one)}
