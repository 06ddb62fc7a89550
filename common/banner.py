"""The start-up banner: the ranks, their machines, and the settings of the run."""

from pathlib import Path

from common.cluster.all_reduce_speed import measure_all_reduce, speed_table
from common.cluster.devices import count_gpus
from common.cluster.process_group import Node
from common.core.console import console
from common.core.settings import FIELD_DEFAULTS, Settings
from common.data.epoch_plan import shard_bounds
from common.model.convolutions import AUTO, rule_in_words
from common.model.model_split import second_device
from common.model.tuned import is_tuned, read_tuned


def announce(part: str, settings: Settings, node: Node) -> None:
    """The start-up banner, on the leader: who takes part, and with which settings.

    Every rank must call: a dry run also measures how fast they all-reduce.
    """
    speeds = measure_all_reduce(node.device) if settings.dry_run and node.world.size > 1 else []
    if not node.world.is_leader:
        return
    world, size = node.world, settings.batch_size
    shards = [shard_bounds(size, rank, world.size) for rank in range(world.size)]
    each = " + ".join(str(shard.stop - shard.start) for shard in shards)
    lines = [f"{part}, {settings.workload}: {world.size} rank{'s' * (world.size > 1)} "
             f"(told by {world.source}), backend {node.backend}"]
    lines += [f"  rank {info.rank}: {info.host} pid {info.pid}, {info.address} on {info.interface}"
              for info in node.ranks]
    lines += [
        f"  device {node.device}, {node.threads} thread{'s' * (node.threads > 1)} a rank, "
        f"{settings.precision}, batch norm {settings.batch_norm}, loader {settings.loader}",
        f"  global batch {size} = {each}, learning rate {settings.learning_rate}, momentum "
        f"{settings.momentum}, weight decay {settings.weight_decay}, seed {settings.seed}",
        *_convolutions(settings, node), *_what_is_special(settings, node),
        f"  output in {settings.output_dir / part}"]
    if speeds:
        lines += ["  all-reduce (scripts/preflight.py examines every link):", *speed_table(speeds)]
    console(world)("\n".join(lines))


def _convolutions(settings: Settings, node: Node) -> list[str]:
    """How 3x3 convolutions are computed, on a CPU: it decides how they round."""
    how = settings.convolutions
    if node.device.type != "cpu":
        return []
    if how == AUTO:
        how = rule_in_words(settings.precision, settings.batch_size)
    elif is_tuned(how):
        how += f", {read_tuned(Path(how))}"
    return [f"  3x3 convolutions: {how}"]


def _what_is_special(settings: Settings, node: Node) -> list[str]:
    """What the banner says of settings that are not the assignment's."""
    lines = _what_the_recipe_adds(settings)
    if settings.optimizer != "sgd" or settings.schedule != "constant" or settings.warmup_epochs:
        lines.append(f"  optimiser {settings.optimizer}, rate {settings.schedule}"
                     + f" after {settings.warmup_epochs} epochs of warm-up"
                     * (settings.warmup_epochs > 0))
    if settings.bucket_mb != FIELD_DEFAULTS["bucket_mb"]:
        lines.append(f"  buckets of {settings.bucket_mb:g} MB")
    if settings.accumulate > 1:
        lines.append(f"  each step in {settings.accumulate} passes; batch norm, if any, takes the "
                     "statistics of each pass by itself")
    if settings.local_sync:
        lines.append(f"  {' and '.join(settings.local_sync)}: another algorithm than averaging "
                     f"gradients; every {settings.sync_every} steps or more, and at the end of an "
                     "epoch, the ranks average their weights"
                     + f": their progress, rounded to {settings.wire}" * (
                         settings.wire != "float32"))
    if settings.validation_fraction:
        lines.append(f"  {settings.validation_fraction:.3g} of the training set validates"
                     + (", early stopping after {} epochs without a gain of {}".format(
                         *settings.early_stopping) if settings.early_stopping else ""))
    gpus = count_gpus() if node.device.type == "cuda" else 0
    if settings.parallel == "data-parallel" and gpus < 2:
        lines.append(f"  DataParallel over {gpus} GPUs only calls the model: this run shows that "
                     "it learns the same, and nothing of its speed")
    if settings.parallel == "model-split":
        other = second_device(node.device, node.ranks_here)
        lines.append(f"  model split over {node.device} and {other}" + (
            ": one device, so this shows the mechanism, and no gain of memory or time"
            if other == node.device else ", which take turns"))
    return lines


def _what_the_recipe_adds(settings: Settings) -> list[str]:
    added = [f"decay on {settings.decay_on}"] * (settings.decay_on != "all")
    added += [f"label smoothing {settings.label_smoothing}"] * (settings.label_smoothing > 0)
    added += [f"{settings.flips} flips"] * (settings.flips != "random")
    added += [f"crop padding {settings.crop_padding}"] * (settings.crop_padding is not None)
    added += [f"cutout {settings.cutout}"] * (settings.cutout > 0)
    added += [f"{settings.init} filters"] * (settings.init != "plain")
    if settings.recipe != "course" or added:
        return [f"  recipe {settings.recipe}, {settings.epochs} epochs: "
                + (", ".join(added) or "nothing else")]
    return []
