"""The start-up banner: which ranks take part, and with which settings."""

import textwrap
from collections import Counter

from common.arithmetic import kernels
from common.arithmetic.choice import AUTO, LIBRARY, POOLED_LAST, rule_in_words
from common.arithmetic.products import arithmetic, is_portable
from common.cluster.all_reduce_speed import measure_all_reduce, speed_table
from common.cluster.devices import count_gpus
from common.cluster.elastic import has_lost
from common.cluster.node import Node
from common.cluster.rank_info import own_gpus
from common.core.console import console
from common.data.epoch_plan import shard_bounds
from common.model.model_split import second_device
from common.options.workloads import find_workload
from common.settings.settings import Settings
from common.settings.user_code import Place


def announce(part: str, settings: Settings, node: Node, convolutions: str = "") -> None:
    """Prints the start-up banner, on the leader: which ranks take part, and with which settings.

    Every rank must call: a dry run also measures how fast they all-reduce. `convolutions` are those
    that prepare_runs found; the settings' otherwise.
    """
    speeds = measure_all_reduce(node.device) if settings.dry_run and node.world.size > 1 else []
    if not node.world.is_leader or has_lost():
        return
    lines = [*_ranks(part, settings, node), *_numbers(settings, node),
             *_shared_gpus(node),
             *_convolutions(convolutions or settings.convolutions, settings, node),
             *_not_the_default(settings, node),
             *_alternatives(settings, node), f"  output in {settings.output_dir / part}"]
    if speeds:
        lines += ["  all-reduce (scripts/preflight.py examines every link):", *speed_table(speeds)]
    console(node.world)("\n".join(lines))


def _ranks(part: str, settings: Settings, node: Node) -> list[str]:
    world = node.world
    return [f"{part}, {settings.workload}: {world.size} rank{'s' * (world.size > 1)} "
            f"(launched by: {world.source}), backend {node.backend}",
            *(f"  rank {info.rank}: {info.host} pid {info.pid}, {info.address} on {info.interface}"
              for info in node.ranks)]


def _numbers(settings: Settings, node: Node) -> list[str]:
    size, ranks = settings.batch_size, settings.virtual_nodes or node.world.size
    shards = [shard_bounds(size, rank, ranks) for rank in range(ranks)]
    each = " + ".join(str(shard.stop - shard.start) for shard in shards)
    return [f"  device {node.device}, {node.threads} thread{'s' * (node.threads > 1)} a rank, "
            f"{settings.precision}{_arithmetic(settings, node)}, batch norm {settings.batch_norm}, "
            f"loader {settings.loader}",
            f"  global batch {size} = {each}, {settings.epochs} epoch"
            f"{'s' * (settings.epochs > 1)}, learning rate "
            f"{settings.learning_rate}, momentum {settings.momentum}, weight decay "
            f"{settings.weight_decay}, seed {settings.seed}"]


def _arithmetic(settings: Settings, node: Node) -> str:
    if node.device.type != "cpu":
        return ""
    refused = settings.is_portable and not is_portable()
    return f" in {arithmetic()} arithmetic" + refused * " (another processor, another digest)"


def _shared_gpus(node: Node) -> list[str]:
    """A line for the banner if ranks of this machine share GPUs."""
    seen = [info.gpus for info in node.ranks
            if info.machine == node.ranks[node.world.rank].machine and info.gpus]
    if node.device.type != "cuda" or not seen or own_gpus(seen):
        return []
    gpus = len(set().union(*seen))
    return [f"  {len(seen)} ranks share {gpus} GPU{'s' * (gpus > 1)} here: they learn the "
            "same, and gain no time"]


def _convolutions(how: str, settings: Settings, node: Node) -> list[str]:
    """The algorithm of 3x3 convolutions on a CPU, which decides how they round.

    The model is not built yet: of a user's own, and of --model, nobody knows whether it has any.
    """
    row = find_workload(settings.workload)
    if node.device.type != "cpu" or not row.has_convolutions:
        return []
    is_known = not row.takes_any_model and Place.parse(settings.workload) is None
    kept = " (kept from the run that is resumed)" * (how != settings.convolutions)
    if how == AUTO:
        how = rule_in_words(settings.precision, settings.batch_size)
    elif how not in (LIBRARY, POOLED_LAST):  # an algorithm a layer, out of a checkpoint
        how = ", ".join(f"{count} {name}" for name, count in Counter(how.split()).items())
    lines = [f"  3x3 convolutions{'' if is_known else ', if the model has any'}: {how}{kept}"]
    if reason := kernels.why_not():
        lines.append(f"  slower than they could be: {reason}")
    return lines


def _not_the_default(settings: Settings, node: Node) -> list[str]:
    """The settings that are not the default, as their rows word them."""
    lines = textwrap.wrap(", ".join(settings.said()), 96)
    if settings.virtual_nodes:
        lines += _virtual_nodes(settings, node)
    if settings.local_sync:
        lines.append(f"{' and '.join(map(str, settings.local_sync))}: another algorithm than "
                     "averaging gradients; the ranks average their weights every so many steps or "
                     "more, and at the end of an epoch")
    return ["  " + line for line in lines]


def _alternatives(settings: Settings, node: Node) -> list[str]:
    """Says which gains an alternative to DistributedDataParallel cannot show on these devices."""
    gpus = count_gpus() if node.device.type == "cuda" else 0
    if settings.parallel == "data-parallel" and gpus < 2:
        return [f"  DataParallel over {gpus} GPUs only calls the model: this run shows that "
                "it learns the same, and nothing of its speed"]
    if settings.parallel == "model-split":
        other = second_device(node.device, node.ranks_here)
        return [f"  model split over {node.device} and {other}" + (
            ": one device, so this shows the mechanism, and no gain of memory or time"
            if other == node.device else ", which take turns")]
    return []


def _virtual_nodes(settings: Settings, node: Node) -> list[str]:
    """The effect of --virtual-nodes, and a warning for ranks that may still round differently."""
    lines = []
    if any("all-reduce" in choice.name or choice.name == "ddp" for choice in settings.sync):
        lines.append("all-reduces are carried out as reduce-scatter and all-gather, because a ring "
                     "adds in an order that depends on the number of ranks")
    for other in node.ranks[1:] if not is_portable() else ():
        if other.instructions != node.ranks[0].instructions:
            lines.append(f"warning: {other} computes with {other.instructions} and {node.ranks[0]} "
                         f"with {node.ranks[0].instructions}: they may round differently, and then "
                         "the bits depend on which rank computes which shard")
    return lines
