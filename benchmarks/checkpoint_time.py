"""What a checkpoint of VGG-11 costs: seconds to write, to verify and load, and size.

    python3 benchmarks/checkpoint_time.py --folder outputs
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import checkpoint
from common.checkpoint import Position
from common.vgg11 import VGG11


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    model = VGG11(10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    model(torch.ones(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    writes, reads = [], []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path = Path(name) / "Epoch_1.pt"
        for _ in range(arguments.runs):
            begun = time.perf_counter()
            checkpoint.write(path, checkpoint.pack(model, optimizer, Position(2, 0, 1), 1.0))
            written = time.perf_counter()
            checkpoint.read(path)
            writes.append(written - begun)
            reads.append(time.perf_counter() - written)
        size = path.stat().st_size
    write = statistics.median(writes)
    print(f"{size / 1e6:.1f} MB, {arguments.runs} runs: write {write:.2f} s (longest "
          f"{max(writes):.2f}), verify and load {statistics.median(reads):.2f} s")
    print(f"below 3.5 % of the time when saved every {write / 0.035:.0f} s or less often; every "
          f"10 minutes costs {write / 600:.2%}")


if __name__ == "__main__":
    main()
