"""From samples to the model's inputs, a whole batch at once; images are augmented on the way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.core.failures import UsageError
from common.core.precision import Precision
from common.settings.settings import Settings


@dataclass(frozen=True)
class Preparation:
    """Hands samples on as they are, floating-point ones in the settings' precision.

    Those of four dimensions, which are images (n, channels, height, width), become channels last.
    """

    settings: Settings

    def require_images(self, samples: Tensor, usual: Settings) -> None:
        """Raises UsageError for settings that change images if `samples` (n, ...) are not images.

        Settings equal to `usual`, the workload's own, are accepted.
        """
        mirrored = [] if samples.ndim == 4 and samples.shape[2] > 1 else ["tta"]
        for name in ("crop_padding", "cutout", "flips", *mirrored):
            if getattr(self.settings, name) != getattr(usual, name):
                raise UsageError(f"--{name.replace('_', '-')} changes images, and --workload "
                                 f"{self.settings.workload} has other samples: leave it out")

    def __call__(self, inputs: Tensor, *how: Tensor) -> Tensor:
        """Augments training samples; `how` is the samples' EpochPlan.augmentation."""
        return self.normalise(inputs)

    def normalise(self, inputs: Tensor) -> Tensor:
        """Converts samples to the run's dtype, images also to channels_last."""
        if inputs.is_floating_point():
            inputs = inputs.to(Precision(self.settings.precision).dtype)
        return inputs.to(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


@dataclass(frozen=True)
class Augment(Preparation):
    """Crop, flip, normalise, cut out, as `settings` say: uint8 (n, h, w, c) to (n, c, h, w).

    `mean` and `std` are per channel, in units of 0 to 1; without `may_flip` no image is mirrored.
    Padding is black, as torchvision pads. Float32 points are not scaled to 0 to 1. The square of
    Cutout takes the mean colour (DeVries and Taylor, arXiv:1708.04552); part of it may lie outside.
    The result is channels last, in the settings' precision.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    may_flip: bool = False

    def require_images(self, samples: Tensor, usual: Settings) -> None:
        """Raises UsageError also for a Cutout that is as large as the images (n, h, w, c)."""
        self._require_channels(samples)
        height, width = samples.shape[1:3]
        if (height, width) == (1, 1):  # points
            super().require_images(samples, usual)
        elif self.settings.cutout >= min(height, width):
            raise UsageError(f"--cutout {self.settings.cutout} is no smaller than the images, "
                             f"which have {height}x{width} pixels: choose a square that leaves "
                             "something of them")

    def __call__(self, images: Tensor, *how: Tensor) -> Tensor:
        """Augments each image by its own entries, as EpochPlan.augmentation has them."""
        top, left, flip, row, column = how
        count, height, width, _ = images.shape
        pad = self.settings.crop_padding
        padded = torch.nn.functional.pad(images, (0, 0, pad, pad, pad, pad))
        # All windows of all images, as a view: taking one an image copies whole rows of pixels.
        windows = padded.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
        cropped = windows[torch.arange(count, device=images.device), top, left]
        mirrored = (flip & self.may_flip)[:, None, None, None]
        augmented = self.normalise(torch.where(mirrored, cropped.flip(2), cropped))
        if self.settings.cutout:
            hole = self._cut(row, height)[:, :, None] & self._cut(column, width)[:, None, :]
            augmented.masked_fill_(hole[:, None], 0)
        return augmented

    def _cut(self, places: Tensor, size: int) -> Tensor:
        """Mask of the rows or columns that are cut out around each of `places`, bool (n, size)."""
        side = self.settings.cutout
        first = (places % size - side // 2)[:, None]
        lines = torch.arange(size, device=places.device)
        return (first <= lines) & (lines < first + side)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (n, h, w, c) to (pixels / 255 - mean) / std, (n, c, h, w), channels last."""
        self._require_channels(images)
        dtype = Precision(self.settings.precision).dtype
        white = 255 if images.dtype == torch.uint8 else 1
        mean = torch.tensor(self.mean, dtype=torch.float64)
        std = torch.tensor(self.std, dtype=torch.float64)
        # A row of pixels at a time: over the three channels alone no vector unit has work.
        count, height, width, _ = images.shape
        scale = (1 / (white * std)).repeat(width).to(images.device, dtype)
        shift = (-mean / std).repeat(width).to(images.device, dtype)
        # In place: memory that is new in every batch costs more than the arithmetic.
        rows = images.reshape(count, height, -1).to(dtype, copy=True).mul_(scale).add_(shift)
        return rows.view(images.shape).permute(0, 3, 1, 2)

    def _require_channels(self, samples: Tensor) -> None:
        """Raises UsageError for samples that are not images (n, h, w, c) of as many channels."""
        if samples.ndim != 4 or samples.shape[3] != len(self.mean):
            raise UsageError(f"--workload {self.settings.workload} normalises images (height, "
                             f"width, {len(self.mean)}), and these samples are "
                             f"{tuple(samples.shape[1:])}: give the workload that the data or the "
                             "checkpoint is of, and one without mean for other samples")
