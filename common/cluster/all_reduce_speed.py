"""How fast the process group all-reduces, by message size, in the units of NVIDIA's nccl-tests."""

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from common.core.collectives import ring_bytes, world_size

GRADIENT_BYTES = 4 * 9_231_114  # VGG-11's in float32
SIZES = (1 << 16, 1 << 20, 1 << 23, GRADIENT_BYTES)
REPEATS = 3
LONGEST_SECONDS = 2.0


class AllReduceSpeed(NamedTuple):
    """The median time, in seconds, in which `ranks` ranks all-reduced `size` bytes each."""

    size: int
    seconds: float
    ranks: int

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes a second as the caller sees them: size over time."""
        return self.size / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second that a ring must carry for that out of each node: comparable to a link's.

        The factor 2*(n-1)/n is that of nccl-tests' doc/PERFORMANCE.md.
        """
        return ring_bytes(self.size, self.ranks) / self.seconds


def measure_all_reduce(device: torch.device) -> list[AllReduceSpeed]:
    """All-reduces float32 tensors of growing size on `device`. Every rank must call it.

    The slowest rank's time counts, so all get the same. Sizes that would take longer than two
    seconds are not measured.
    """
    speeds: list[AllReduceSpeed] = []
    for size in SIZES:
        if speeds and speeds[-1].seconds * size / speeds[-1].size > LONGEST_SECONDS:
            break
        tensor = torch.zeros(size // 4, device=device)
        times = torch.tensor([_seconds(tensor) for _ in range(1 + REPEATS)][1:],
                             dtype=torch.float64, device=device)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        speeds.append(AllReduceSpeed(size, times.median().item(), world_size()))
    return speeds


def _seconds(tensor: torch.Tensor) -> float:
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter() - start


def speed_table(speeds: list[AllReduceSpeed]) -> list[str]:
    """Lines of text: one for each size, with both bandwidths in Mbit/s."""
    lines = [f"  {'size':>10}  {'time':>9}  {'algorithm':>15}  {'bus':>15}"]
    for speed in speeds:
        lines.append(f"  {speed.size / 1e6:>7.2f} MB  {1000 * speed.seconds:>6.1f} ms  "
                     f"{in_megabits(speed.algorithm_bandwidth):>8} Mbit/s  "
                     f"{in_megabits(speed.bus_bandwidth):>8} Mbit/s")
    return lines


def in_megabits(bytes_per_second: float) -> str:
    """A bandwidth as text, in Mbit/s without the unit."""
    return f"{bytes_per_second * 8 / 1e6:.0f}"
