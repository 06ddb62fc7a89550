"""An initialisation for few epochs: the first convolution whitens patches, the others pass through.

The first filters are the principal components of the training images' patches, each with its
negative, so that after batch norm every direction counts alike; the deeper ones begin as the
identity on as many channels as they have (Jordan, arXiv:2404.00498, after Page; Zagoruyko and
Komodakis, arXiv:1706.00388). What is left over keeps the model's own initialisation.

    python3 PartOne/main.py --workload digits-vgg11 --init whitened
"""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

from common.core.failures import UsageError
from common.data.dataset import Dataset

IMAGES, STRIDE, DIGITS = 5000, 5, 6


def initialise(model: nn.Module, dataset: Dataset) -> None:
    """Sets the convolutions of `model`, in place, from the first 5,000 images of `dataset`.

    Pure: the same on every rank. Raises UsageError if the first layer with weights is not a square
    convolution of the images' channels.
    """
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    images = dataset.take(np.arange(min(IMAGES, len(dataset))))[0].numpy()
    channels = images.shape[-1]
    if not convolutions or convolutions[0].in_channels != channels:
        raise UsageError("--init whitened needs a model that begins with a convolution of the "
                         f"images' {channels} channels: leave it out")
    first, *others = convolutions
    filters = principal_patches(images, first.kernel_size[0])[:first.out_channels // 2]
    both = torch.from_numpy(np.concatenate([filters, -filters]))
    first.weight.data[:len(both)] = both.to(first.weight).view(-1, *first.weight.shape[1:])
    for layer in others:
        passed = min(layer.in_channels, layer.out_channels)
        nn.init.dirac_(layer.weight.data[:passed])


def principal_patches(images: np.ndarray, size: int) -> np.ndarray:
    """Unit vectors, float64 (k, k) with k = channels * size * size, of most variance first.

    Elements are in a convolution's order: channel, row, column. Every fifth place of the first
    5,000 images counts. Rounded, and with the largest element positive, since libraries differ in
    the last bit and in the sign, and nodes compare their weights.
    """
    patches = sliding_window_view(images[:IMAGES], (size, size), axis=(1, 2))
    rows = patches[:, ::STRIDE, ::STRIDE].reshape(-1, images.shape[-1] * size * size)
    _, vectors = np.linalg.eigh(np.cov(rows.astype(np.float64), rowvar=False))
    vectors = vectors.T[::-1]
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1)
    return np.round(vectors * np.sign(largest), DIGITS)
