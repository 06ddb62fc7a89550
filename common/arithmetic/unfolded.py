"""Convolutions of one or two dimensions as products of unfolded maps, with defined bits.

Each output is one product of its window, by row, column and channel, and a filter; then the bias is
added. The weight's gradient adds up over samples and positions in their order; the maps' is a sum
over outputs, and then over the kernel's positions (tests/unit/test_portable.py has it as loops).

    python3 -m pytest tests/unit/test_portable.py
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from common.arithmetic.products import add_outer, times

COLUMNS = 2 ** 20  # numbers of unfolded maps at a time, which stay in the cache


class Windows:
    """The windows of maps (N, C, H, W), or (N, C, W), that each output of a convolution sees."""

    def __init__(self, maps: Tensor, weight: Tensor, stride: Sequence[int],
                 padding: Sequence[int], dilation: Sequence[int]) -> None:
        lacking = 4 - maps.dim()  # a row of W is a map of 1 x W
        self.stride, self.dilation = (([1] * lacking + list(each))
                                      for each in (stride, dilation))
        self.padding = [0] * lacking + list(padding)
        self.kernel = [1] * lacking + list(weight.shape[2:])
        height, width = [1] * lacking + list(maps.shape[2:])
        self.padded = [side + 2 * edge
                       for side, edge in zip((height, width), self.padding, strict=True)]
        self.sides = [(side - dilated * (size - 1) - 1) // step + 1 for side, dilated, size, step
                      in zip(self.padded, self.dilation, self.kernel, self.stride, strict=True)]
        self.is_row = bool(lacking)

    def forward(self, maps: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        outputs = maps.new_empty(len(maps), *self.sides, len(weight))
        filters = self._filters(weight, groups)
        for part in self._parts(maps, groups):
            for columns, filter, to in zip(self._columns(maps[part], groups), filters,
                                           outputs[part].chunk(groups, 3), strict=True):
                to.copy_(times(columns[None], filter.mT[None], ours=True).view(to.shape))
        if bias is not None:
            outputs += bias
        made = outputs.permute(0, 3, 1, 2)
        return made[:, :, 0] if self.is_row else made

    def gradients(self, gradient: Tensor, maps: Tensor, weight: Tensor, groups: int,
                 wants_maps: bool, wants_weight: bool) -> tuple[Tensor | None, Tensor | None]:
        rows = self._rows(gradient)
        filters = self._filters(weight, groups)
        of_filters: list[Tensor | None] = [None] * groups
        of_maps = torch.empty_like(maps) if wants_maps else None
        for part in self._parts(maps, groups):
            arrived = [each.reshape(1, -1, each.shape[-1]).float().contiguous()
                       for each in rows[part].chunk(groups, 3)]
            if wants_weight:
                of_filters = [add_outer(sums, each, columns[None], ours=True)
                              for sums, each, columns in
                              zip(of_filters, arrived, self._columns(maps[part], groups),
                                  strict=True)]
            if of_maps is not None:
                of_maps[part] = self._fold(
                    [times(each, filter[None], ours=True)
                     for each, filter in zip(arrived, filters, strict=True)],
                    len(of_maps[part]), of_maps)
        of_weight = None
        if wants_weight:
            of_weight = torch.cat([filters[0].new_zeros(filters[0].shape) if each is None
                                   else each[0] for each in of_filters])
            of_weight = of_weight.view(len(weight), *self.kernel, -1).permute(0, 3, 1, 2)
            of_weight = of_weight.reshape(weight.shape).to(weight.dtype)
        return of_maps, of_weight

    def _parts(self, maps: Tensor, groups: int) -> list[slice]:
        """Slices of samples; together they have about COLUMNS numbers of windows."""
        numbers = math.prod(self.sides) * maps.shape[1] // groups * math.prod(self.kernel)
        samples = max(1, COLUMNS // max(1, numbers))
        return [slice(start, start + samples) for start in range(0, len(maps), samples)]

    def _rows(self, maps: Tensor) -> Tensor:
        """(N, H, W, C)."""
        return (maps[:, :, None] if self.is_row else maps).permute(0, 2, 3, 1)

    def _filters(self, weight: Tensor, groups: int) -> list[Tensor]:
        """(K / groups, kernel height * width * C) for each group, in float32."""
        rows = self._rows(weight.float()).reshape(len(weight), -1)
        return list(rows.chunk(groups))

    def _columns(self, maps: Tensor, groups: int) -> list[Tensor]:
        """(N * H * W, kernel height * width * C / groups) for each group: each output's window."""
        rows = self._rows(maps.float())
        (down, across), (height, width) = self.padding, self.kernel
        padded = pad(rows, (0, 0, across, across, down, down)).contiguous()
        samples, channels = len(rows), rows.shape[3]
        of_sample, of_row, of_column, _ = padded.stride()
        windows = padded.as_strided(
            (samples, *self.sides, height, width, channels),
            (of_sample, of_row * self.stride[0], of_column * self.stride[1],
             of_row * self.dilation[0], of_column * self.dilation[1], 1))
        return [each.reshape(samples * math.prod(self.sides), -1).contiguous()
                for each in windows.chunk(groups, 5)]

    def _fold(self, columns: list[Tensor], samples: int, like: Tensor) -> Tensor:
        """The maps to which the windows `columns` add up, a position of the kernel at a time."""
        windows = torch.cat([each.view(samples, *self.sides, *self.kernel, -1)
                             for each in columns], 5)
        sums = windows.new_zeros(samples, *self.padded, windows.shape[5])
        for down in range(self.kernel[0]):
            for across in range(self.kernel[1]):
                first = down * self.dilation[0], across * self.dilation[1]
                rows, places = (slice(start, start + (sides - 1) * step + 1, step)
                                for start, sides, step in
                                zip(first, self.sides, self.stride, strict=True))
                sums[:, rows, places] += windows[:, :, :, down, across]
        top, left = self.padding
        inside = sums[:, top:self.padded[0] - top, left:self.padded[1] - left].permute(0, 3, 1, 2)
        return (inside[:, :, 0] if self.is_row else inside).to(like.dtype)
