"""Digests of models' steps and of torch's operations, for test_portable.py, which compares them.

    ATEN_CPU_CAPABILITY=avx2 python3 -m tests.portable_cases portable 1
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from common.arithmetic import portable
from common.arithmetic.pooling import PooledBatchNorm2d
from common.core.provenance import processor_flags
from common.model.batch_norm import over_shards, synchronize_batch_norm

aten = torch.ops.aten
# A processor with AVX2, of another maker than this one.
EMULATED = ("qemu-x86_64-static", "-cpu",
            "EPYC-Rome" if "GenuineIntel" in processor_flags() else "Haswell")
needs_emulator = pytest.mark.skipif(not shutil.which(EMULATED[0]),
                                    reason="qemu-x86_64-static (qemu-user-static) is missing")
IMAGES, CLASSES, WORDS = (40, 3, 32, 32), 10, (64, 16)
SHARES = (1, 1.25, 0.5, 3, 1, 2)  # what stands for the other shards, of a shard


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 5, stride=2, padding=2, groups=4, dilation=2), nn.GroupNorm(3, 12),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, CLASSES))


def rows() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(2), nn.Conv1d(3, 8, 3, padding=1, stride=2), nn.BatchNorm1d(8),
        nn.GELU("tanh"), nn.Flatten(), nn.Linear(4096, CLASSES))


def gates() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 33), nn.Tanh(), nn.Linear(33, 33),
                         nn.Sigmoid(), nn.Linear(33, 33), nn.ELU(0.7), nn.Linear(33, 33),
                         nn.Softplus(), nn.Linear(33, CLASSES))


def attention() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoderLayer(
        32, 4, 64, batch_first=True, dropout=0.0), nn.Flatten(), nn.Linear(512, CLASSES))


def global_statistics() -> nn.Module:
    return synchronize_batch_norm(nn.Sequential(
        nn.Conv2d(3, 33, 3), nn.BatchNorm2d(33), nn.ReLU(), PooledBatchNorm2d(33), nn.Flatten(),
        nn.Linear(7425, 19), nn.BatchNorm1d(19), nn.Linear(19, CLASSES)))


MODELS = {"convolutions": (convolutions, nn.CrossEntropyLoss()),
          "rows": (rows, nn.CrossEntropyLoss(label_smoothing=0.1)),
          "gates": (gates, nn.MSELoss()), "one of two": (gates, nn.BCEWithLogitsLoss()),
          "attention": (attention, nn.CrossEntropyLoss()),
          "global statistics": (global_statistics, nn.CrossEntropyLoss())}


def after_two_steps(name: str) -> Iterator[Tensor]:
    """Loss, gradients, weights and buffers of a model of MODELS after two steps of SGD."""
    torch.manual_seed(0)
    build, criterion = MODELS[name]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    inputs = torch.randint(0, 50, WORDS) if name == "attention" else torch.randn(IMAGES)
    targets = torch.arange(len(inputs)) % CLASSES
    wanted = (targets if isinstance(criterion, nn.CrossEntropyLoss)
              else functional.one_hot(targets, CLASSES).float())
    for _ in range(2):
        optimizer.zero_grad()
        with over_shards(lambda mine: torch.stack([mine * share for share in SHARES])):
            loss = criterion(model(inputs), wanted)
            loss.backward()
        optimizer.step()
    yield loss.detach()
    yield from (parameter.grad for parameter in model.parameters())
    yield from (value for value in model.state_dict().values())


Each = Callable[[Tensor, Tensor, Tensor], Tensor]
OF_EACH: dict[str, Each] = {
    "add": lambda a, b, c: torch.add(a, b, alpha=0.37), "mul": lambda a, b, c: a * b - c,
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.3),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=-0.3),
    "lerp": lambda a, b, c: torch.lerp(a, b, c), "div": lambda a, b, c: a / b + a / 3.7,
    "sqrt": lambda a, b, c: a.abs().sqrt(), "rsqrt": lambda a, b, c: a.abs().rsqrt(),
    "pow": lambda a, b, c: a ** 2 + a ** 3 + a ** -1,
    "relu": lambda a, b, c: a.relu(), "leaky_relu": lambda a, b, c: functional.leaky_relu(a),
    "hardswish": lambda a, b, c: functional.hardswish(a),
    "clamp": lambda a, b, c: a.clamp(-1, 1), "maximum": lambda a, b, c: torch.maximum(a, b),
    "mse": lambda a, b, c: functional.mse_loss(a, b),
    "l1": lambda a, b, c: functional.l1_loss(a, b),
    "smooth l1": lambda a, b, c: functional.smooth_l1_loss(a, b),
    "huber": lambda a, b, c: functional.huber_loss(a, b),
    "sum": lambda a, b, c: a.sum() + a.sum(dtype=torch.float64), "mean": lambda a, b, c: a.mean(),
    "norm": lambda a, b, c: a.norm(), "cumsum": lambda a, b, c: a.cumsum(0),
    "var": lambda a, b, c: a.var(), "logsumexp": lambda a, b, c: a.logsumexp(0),
    "exp": lambda a, b, c: a.exp(), "log": lambda a, b, c: a.abs().log(),
    "tanh": lambda a, b, c: a.tanh(), "sigmoid": lambda a, b, c: a.sigmoid(),
    "silu": lambda a, b, c: functional.silu(a),
    "log_sigmoid": lambda a, b, c: functional.logsigmoid(a),
    "tanh_backward": lambda a, b, c: aten.tanh_backward(a, b),
    "sigmoid_backward": lambda a, b, c: aten.sigmoid_backward(a, b),
    "elu": lambda a, b, c: functional.elu(a, 0.7) + functional.selu(b),
    "elu_backward": lambda a, b, c: aten.elu_backward(a, 0.7, 1, 1, False, b),
    "softplus": lambda a, b, c: functional.softplus(a, 2, 1),
    "softplus_backward": lambda a, b, c: aten.softplus_backward(a, b, 2, 1),
    "silu_backward": lambda a, b, c: aten.silu_backward(a, b),
    "mse_backward": lambda a, b, c: aten.mse_loss_backward(c[0], a, b, 1)}
# Whole vectors of either length and what is left of them, and enough for several threads.
COUNTS = (*range(1, 41), 1000, 4097, 33333, 100003, 300007)
OF_ROWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda a, d: a.sum(d), "mean": lambda a, d: a.mean(d), "var": lambda a, d: a.var(d),
    "norm": lambda a, d: a.norm(dim=d), "cumsum": lambda a, d: a.cumsum(d),
    "logsumexp": lambda a, d: a.logsumexp(d), "softmax": lambda a, d: a.softmax(d),
    "log_softmax": lambda a, d: a.log_softmax(d), "max": lambda a, d: a.amax(d)}
SHAPES = ((3, 5), (64, 10), (256, 37), (1000, 64), (33, 2048), (5, 100, 7), (65536, 3))
OF_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool2d": lambda a: functional.max_pool2d(a, 3, 2, 1),
    "avg_pool2d": lambda a: functional.avg_pool2d(a, 3, 2, 1),
    "group norm": lambda a: functional.group_norm(a, 4),
    "adaptive": lambda a: functional.adaptive_avg_pool2d(a, (3, 2)),
    "sum of channels": lambda a: a.sum((0, 2, 3)), "mean of maps": lambda a: a.mean((2, 3))}
MAPS = ((4, 8, 7, 9), (16, 64, 16, 16), (32, 24, 33, 31))


def of_operations() -> Iterator[tuple[str, list[Tensor]]]:
    """Results of torch's operations on random numbers, by name."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    numbers = [(random(n), random(n), random(n)) for n in COUNTS]
    for name, each in OF_EACH.items():
        yield name, [each(*some) for some in numbers]
    tables = [random(*shape) for shape in SHAPES]
    for name, along in OF_ROWS.items():
        yield f"{name} of rows", [along(table, dim) for table in tables
                                  for dim in range(table.dim())]
    yield "layer norm", [functional.layer_norm(table, table.shape[-1:]) for table in tables]
    maps = [random(*shape).contiguous(memory_format=layout).requires_grad_()
            for shape in MAPS for layout in (torch.contiguous_format, torch.channels_last)]
    for name, of in OF_MAPS.items():
        made = [of(each) for each in maps]
        yield name, [*made, *torch.autograd.grad(made, maps, [random(*m.shape) for m in made])]
    table = random(50, 33).requires_grad_()
    words = torch.randint(0, 50, (64, 40), generator=generator)
    yield "embedding", list(torch.autograd.grad(functional.embedding(words, table).square().sum(),
                                                table))
    yield "random", [random(100003), torch.empty(100003).bernoulli_(0.3, generator=generator)]


def digest(tensors: Iterable[Tensor]) -> str:
    whole = hashlib.sha256()
    for each in tensors:
        whole.update(each.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    portable.use(sys.argv[1])
    print(json.dumps({**{name: digest(after_two_steps(name)) for name in MODELS},
                      **{name: digest(made) for name, made in of_operations()}}))
