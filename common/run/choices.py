"""What a run settles at its start and then keeps: the size of buckets, and its convolutions.

Both decide in which order numbers are added, so a resumed run goes on as its checkpoint says, on
another processor too.

    python3 PartTwo/main.py --sync overlapped-all-reduce --bucket-mb auto ...
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from common.cluster.all_reduce_speed import median_seconds
from common.cluster.process_group import Node
from common.core.collectives import broadcast_bytes
from common.core.precision import Precision
from common.core.settings import FIELD_DEFAULTS, Settings
from common.model.convolutions import AUTO, LIBRARY
from common.model.tuned import is_tuned, read_tuned
from common.options.workloads import find_workload
from common.run import checkpoint_folder
from common.run.checkpoint import peek

SMALL_BYTES, LARGE_BYTES = 1 << 12, 1 << 20
KEPT = {"convolutions": str, "bucket_mb": float}
LEAST_BUCKET_MB, MOST_BUCKET_MB = 0.25, 16.0


def settle_choices(part: str, settings: Settings, node: Node) -> Settings:
    """`settings` with what "auto" leaves open as the run to be resumed has it, or buckets measured.

    `part` is the main's name. Convolutions of a fresh run stay "auto": the rule needs the model.
    Every rank must call; all get the same. Raises UsageError, on the leader, for a file of
    convolutions that is none.
    """
    if is_tuned(settings.convolutions) and node.world.is_leader:
        read_tuned(Path(settings.convolutions))
    before = _of_the_run_to_resume(part, settings, node)
    if settings.convolutions == AUTO and before:
        settings = replace(settings, convolutions=before.get("convolutions", LIBRARY))
    if not settings.bucket_mb:
        settings = replace(settings, bucket_mb=before.get("bucket_mb") or _measured_bucket_mb(
            settings, node))
    return settings


def best_bucket_mb(latency: float, seconds_per_byte: float, gradient_bytes: int) -> float:
    """The size in MB, a power of two, of the buckets that cost least beside backward.

    With buckets of b bytes the link waits for the first, or backward for the last, b * s seconds;
    and all G / b of them pay the latency. b * s + latency * G / b is least where both are equal:
    the rule for the segments of a pipelined message. Powers of two, since noise should not count.
    """
    best = math.sqrt(latency * gradient_bytes / seconds_per_byte) / 1e6
    return min(max(2.0 ** round(math.log2(best)), LEAST_BUCKET_MB), MOST_BUCKET_MB)


def _measured_bucket_mb(settings: Settings, node: Node) -> float:
    """Every rank must call; the slowest rank's times count, so all get the same."""
    if node.world.size == 1:
        return FIELD_DEFAULTS["bucket_mb"]
    latency, large = (median_seconds(size, node.device) for size in (SMALL_BYTES, LARGE_BYTES))
    seconds_per_byte = max(large - latency, latency / 10) / (LARGE_BYTES - SMALL_BYTES)
    return best_bucket_mb(latency, seconds_per_byte, _gradient_bytes(settings))


def _gradient_bytes(settings: Settings) -> int:
    """Of a model of ten classes, near enough; none of its numbers are computed."""
    with torch.device("meta"):
        model = find_workload(settings.workload).build_model(10)
    width = Precision(settings.precision).dtype.itemsize
    return width * sum(parameter.numel() for parameter in model.parameters())


def _of_the_run_to_resume(part: str, settings: Settings, node: Node) -> dict[str, Any]:
    """What its newest readable checkpoint ran on, as the leader sees it; {} for a fresh run."""
    found: dict[str, Any] = {}
    if node.world.is_leader:
        folder = settings.output_dir / part
        told = (peek(path).get("ran_on")
                for each in (settings.sync if part == "PartTwo" else ("",))
                for path in checkpoint_folder.to_resume(folder / each, settings.resume))
        found = next((each for each in told if isinstance(each, dict)), {})
        found = {name: found[name] for name, kind in KEPT.items() if type(found.get(name)) is kind}
    return json.loads(broadcast_bytes(json.dumps(found).encode(), node.device))
