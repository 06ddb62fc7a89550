"""Data-parallel training in one file: VGG-11 on N nodes, and three ways to average gradients.

    .venv/bin/python examples/one_file.py                       # one node, scikit-learn's digits
    .venv/bin/python examples/one_file.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 \\
        --sync all-reduce --data-dir ~/cifar10                  # ranks 1, 2 and 3 on the others

All nodes begin with the same weights, each computes the gradients of its own part of every batch,
and all take the same step with their mean. The weights at the end have the digest of PartOne,
PartTwo and PartThree with the same settings, `--arithmetic native` and `--convolutions library`.
Those survive lost nodes, write checkpoints, logs and reports, and compute faster.
"""

import argparse
import gzip
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy, max_pool2d, pad
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.functional import pil_to_tensor
except ImportError as error:
    argparse.ArgumentParser().exit(2, f"error: {sys.executable}: {error}: Python 3.10 or newer is "
                                   "needed, and pip install torch torchvision scikit-learn\n")

SEED = 1


class Task(NamedTuple):
    """A data set in memory and how to train on it; mean and std are per channel, of 0 to 1."""
    images: Tensor  # uint8 (n, height, width, 3)
    labels: Tensor  # int64 (n,)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int  # of the global batch, which all nodes share
    rate: float  # of learning
    padding: int  # pixels on each side, of which a random crop takes some
    may_flip: bool
    last_scale: float  # initial scale of the last batch norm


def cifar10(folder: Path) -> Task:
    """The images train/<class>/* of `folder`, 32x32."""
    dataset = ImageFolder(str(folder / "train"))
    images = torch.stack([pil_to_tensor(image).permute(1, 2, 0) for image, _ in dataset])
    return Task(images, torch.tensor(dataset.targets), (125.3 / 255, 123.0 / 255, 113.9 / 255),
                (63.0 / 255, 62.1 / 255, 66.7 / 255), 256, 0.1, 4, True, 0.1)


def digits() -> Task:
    """scikit-learn's 8x8 digits, enlarged to 32x32; a fixed fifth is left for testing."""
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets/data/digits.csv.gz", "rt") as file:
        rows = torch.tensor([list(map(float, line.split(","))) for line in file])
    rows = rows[epoch_order(len(rows), seed=0, epoch=1)[len(rows) // 5:]]
    grey = (rows[:, :-1].view(-1, 8, 8) * (255 / 16)).round().to(torch.uint8)
    large = grey.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
    images = large[..., None].expand(-1, -1, -1, 3)
    return Task(images, rows[:, -1].long(), (0.305,) * 3, (0.376,) * 3, 64, 0.01, 1, False, 1.0)


def splitmix64(number: int) -> int:
    """A hash of 64 bits (Steele, Lea and Flood, OOPSLA 2014)."""
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


def random_of(sample: int, purpose: int, seed: int, epoch: int) -> int:
    """A random number that depends on its arguments alone: not on ranks, nor on earlier draws."""
    key = 0
    for number in (seed, epoch, purpose):
        key = splitmix64(key ^ number)
    return splitmix64((key + sample) % 2**64)


def epoch_order(samples: int, seed: int, epoch: int) -> list[int]:
    """The order in which an epoch takes the samples; every rank computes the same one."""
    return sorted(range(samples), key=lambda sample: random_of(sample, 0, seed, epoch))


def augmented(task: Task, samples: list[int], epoch: int) -> Tensor:
    """Randomly cropped and mirrored images, normalised: float32 (n, 3, height, width)."""
    height, width = task.images.shape[1:3]
    padded, crops = pad(task.images[samples], (0, 0, *[task.padding] * 4)), []
    for image, sample in zip(padded, samples, strict=True):
        top, left, flip = (random_of(sample, purpose, SEED, epoch) for purpose in (1, 2, 3))
        top, left = (number % (2 * task.padding + 1) for number in (top, left))
        crop = image[top:top + height, left:left + width]
        crops.append(crop.flip(1) if task.may_flip and flip % 2 else crop)
    mean, std = torch.tensor([task.mean, task.std], dtype=torch.float64)
    scale, shift = (1 / (255 * std)).float(), (-mean / std).float()
    return (torch.stack(crops).float() * scale + shift).permute(0, 3, 1, 2)


def parts(task: Task, epoch: int, rank: int, nodes: int) -> Iterator[tuple[Tensor, Tensor, float]]:
    """This rank's part of each global batch: images, labels, and the weight of their mean loss.

    Parts differ by one sample at most. With the weight, which is 1 where they are equal, a plain
    mean over ranks is the mean over the global batch. A last batch of less than 16 is left out.
    """
    order = epoch_order(len(task.labels), SEED, epoch)
    for start in range(0, len(order), task.batch_size):
        batch = order[start:start + task.batch_size]
        if len(batch) < 16:
            return
        size, larger = divmod(len(batch), nodes)
        first = rank * size + min(rank, larger)
        mine = batch[first:first + size + (rank < larger)]
        yield augmented(task, mine, epoch), task.labels[mine], len(mine) * nodes / len(batch)


class PooledBatchNorm2d(nn.BatchNorm2d):
    """Batch norm and then 2x2 max-pooling, as one layer."""
    def forward(self, maps: Tensor) -> Tensor:
        return max_pool2d(super().forward(maps), 2)


class VGG11(nn.Module):
    """Simonyan and Zisserman's configuration A (arXiv:1409.1556), with batch norm, for 32x32."""

    def __init__(self, classes: int, last_scale: float) -> None:
        super().__init__()
        layers, channels = [], 3
        for width, pooled in ((64, True), (128, True), (256, False), (256, True), (512, False),
                              (512, True), (512, False), (512, True)):
            norm = PooledBatchNorm2d if pooled else nn.BatchNorm2d
            layers += [nn.Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU()]
            channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, classes)
        for convolution in layers[::3]:
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(convolution.bias)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)
        layers[-2].weight.data.fill_(last_scale)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def gather_scatter(row: Tensor) -> None:
    """Replaces `row`, in place, by its mean over ranks, which rank 0 collects and hands out."""
    nodes = dist.get_world_size()
    if dist.get_rank() == 0:
        received = [torch.empty_like(row) for _ in range(nodes)]
        dist.gather(row, received)
        for other in received[1:]:
            received[0] += other
        dist.scatter(row, [received[0] / nodes] * nodes)
    else:
        dist.gather(row)
        dist.scatter(row)


def all_reduce(row: Tensor) -> None:
    """Replaces `row`, in place, by its mean over ranks: partial sums travel around a ring."""
    dist.all_reduce(row)
    row /= dist.get_world_size()


def averaging(mean: Callable[[Tensor], None]) -> Callable[[nn.Module], None]:
    """A strategy that replaces a model's gradients by their means, all laid end to end in a row."""
    def average(model: nn.Module) -> None:
        gradients = [parameter.grad for parameter in model.parameters()]
        row = torch.cat([gradient.flatten() for gradient in gradients])
        mean(row)
        means = row.split([gradient.numel() for gradient in gradients])
        for gradient, values in zip(gradients, means, strict=True):
            gradient.copy_(values.view_as(gradient))
    return average


def ddp(model: nn.Module) -> nn.Module:
    """The model in DistributedDataParallel, which averages buckets of gradients during backward.

    After its first pass it sorts the buckets, and adds in another order: here, before training.
    """
    replica = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1, broadcast_buffers=False)
    replica.eval()
    for _ in range(2):
        replica(torch.zeros(2, 3, 32, 32)).sum().backward()
    return replica.train()


AVERAGES = {"gather-scatter": averaging(gather_scatter), "all-reduce": averaging(all_reduce),
            "ddp": lambda model: None}  # it has averaged in backward


def train(task: Task, options: argparse.Namespace) -> nn.Module:
    """Trains a new model, as one of `num_nodes` ranks; every rank returns equal weights."""
    torch.manual_seed(SEED)
    model = VGG11(int(task.labels.max()) + 1, task.last_scale).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), task.rate, 0.9, weight_decay=1e-4)
    replica = ddp(model) if options.sync == "ddp" else model
    steps = (part for epoch in range(1, options.epochs + 1)
             for part in parts(task, epoch, options.rank, options.num_nodes))
    for step, (images, labels, weight) in enumerate(islice(steps, options.max_iterations), 1):
        optimizer.zero_grad()
        loss = cross_entropy(replica(images), labels)
        (loss * weight).backward()
        AVERAGES[options.sync](model)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)
    return model


def digest_of(model: nn.Module) -> str:
    """A hash of all weights and running statistics, equal for equal models."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-M", "--master-ip", default="127.0.0.1", help="rank 0's machine")
    parser.add_argument("--master-port", type=int, default=29500, help="a free port there")
    parser.add_argument("-N", "--num-nodes", type=int, default=1, help="number of ranks")
    parser.add_argument("-R", "--rank", type=int, default=0, help="number of this rank, from 0")
    parser.add_argument("--sync", default="all-reduce", choices=AVERAGES, help="how to average")
    parser.add_argument("--data-dir", type=Path, help="images as train/<class>/*; else digits")
    parser.add_argument("--epochs", type=int, default=1, help="number of epochs")
    parser.add_argument("--max-iterations", type=int, help="number of steps to end after")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of this rank")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", f"tcp://{options.master_ip}:{options.master_port}",
                            rank=options.rank, world_size=options.num_nodes)
    model = train(cifar10(options.data_dir) if options.data_dir else digits(), options)
    print(f"rank {options.rank}: digest {digest_of(model)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
