"""Lazy layers, as nn.LazyLinear, which learn their sizes from the first samples that they see."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from common.data.augment import Preparation
from common.data.dataset import Dataset


def shape_lazy_layers(model: nn.Module, dataset: Dataset, prepare: Preparation) -> None:
    """Gives lazy layers of `model` their sizes and first weights, by one sample of `dataset`."""
    if not any(map(is_lazy, [*model.parameters(), *model.buffers()])):
        return
    inputs = prepare.normalise(dataset.take([0])[0])
    if inputs.is_floating_point():
        inputs = inputs.to(torch.get_default_dtype())
    with torch.no_grad():
        model.eval()(inputs)
    model.train()
