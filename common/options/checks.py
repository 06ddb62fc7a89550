"""Checks of settings: combinations that cannot work are refused before anything heavy is imported.

    python3 PartTwo/main.py --wire int8      # --wire int8 requires --sync local-sgd or diloco
"""

from common.core.failures import UsageError
from common.core.world import BY_HAND, WITHOUT_SRUN, World
from common.options.workloads import workload_of
from common.settings.settings import LOCAL_SYNC_NAMES, LOCAL_WIRES, Settings
from common.settings.strategies import SEAMS, VIRTUAL_SYNC_NAMES
from common.settings.user_code import Place

SMOOTHED = "cross-entropy"
CHAINS = ("vgg11", "small-cnn")  # models whose layers follow one another


def check(part: str, settings: Settings, world: World) -> None:
    """Raises UsageError, in one sentence, for settings that do not go together."""
    _check_world(part, settings, world)
    _check_model(settings)
    _check_training(settings)
    _check_wire(settings)
    _check_fp16(settings)
    _check_virtual_nodes(settings)
    _check_profile(settings)


def _check_profile(settings: Settings) -> None:
    """Refuses traces that never begin; create_loader checks the rest when the data is loaded."""
    if settings.profile is None:
        return
    epoch, limit = settings.profile.epoch, settings.max_iterations
    if epoch > settings.epochs:
        raise UsageError(f"--profile {epoch} has nothing to trace: the run ends after "
                         f"{settings.epochs} epochs")
    if limit is not None and epoch > limit:
        raise UsageError(f"--profile {epoch} has nothing to trace: --max-iterations {limit} ends "
                         f"the run before epoch {epoch} begins")


def _check_world(part: str, settings: Settings, world: World) -> None:
    if part == "PartOne" and world.size > 1:
        why = (f"{BY_HAND} say that this is one of {world.size} processes: unset them"
               if world.source == BY_HAND else
               f"{world.source} started {world.size} processes: start one")
        raise UsageError(f"Part One trains on one node, but {why}, or run PartTwo or PartThree")
    if world.source == WITHOUT_SRUN and part != "PartOne" and settings.parallel != "data-parallel":
        raise UsageError("this SLURM job has several tasks, but srun has not started this process, "
                         "which would train by itself: write srun before the command, or give "
                         "--num-nodes 1 to train on this node alone")
    nodes = settings.virtual_nodes or world.size
    if nodes < world.size:
        raise UsageError(f"--virtual-nodes {nodes} is too few for {world.size} ranks: each "
                         f"computes at least one, so give {world.size} or more")
    if world.is_elastic:
        _check_elastic(settings)
    if settings.batch_size < nodes:
        kind = "virtual nodes" if settings.virtual_nodes else "ranks"
        raise UsageError(f"--batch-size {settings.batch_size} is too small for {nodes} {kind}, "
                         "each of which computes a sample of the global batch at least")
    if settings.accumulate > (least := settings.batch_size // world.size):
        raise UsageError(f"--accumulate {settings.accumulate} asks for more micro-batches than a "
                         f"rank has samples in a batch: give {least} at most, or a larger "
                         "--batch-size, which is the global batch")
    if settings.parallel == "data-parallel" and world.size > 1:
        raise UsageError("--parallel data-parallel is one process with all GPUs of its machine, "
                         f"but there are {world.size} ranks: start one, or use --parallel ddp")


def _check_elastic(settings: Settings) -> None:
    """Raises UsageError for what cannot go on in place when a rank is lost."""
    refused = {
        "several strategies: give one with --sync": len(settings.sync) > 1,
        "--sync cross-step-all-reduce, whose updates are late":
            any(each.name == "cross-step-all-reduce" for each in settings.sync),
        "--precision fp16": settings.precision == "fp16",
        "--dry-run": settings.dry_run}
    if why := next((what for what, is_so in refused.items() if is_so), ""):
        raise UsageError(f"--num-nodes MIN:MAX does not go with {why}")


def _check_model(settings: Settings) -> None:
    workload_of(settings)
    if settings.model in (None, *CHAINS):
        return
    for flag, is_given in (("--parallel model-split", settings.parallel == "model-split"),
                           ("--init whitened", settings.init == "whitened")):
        if is_given:
            raise UsageError(f"{flag} requires a model whose layers follow one another, and "
                             f"--model {settings.model} is none: choose {' or '.join(CHAINS)}")


def _check_training(settings: Settings) -> None:
    row = workload_of(settings)
    synchronised = settings.batch_norm == "synchronised"
    if synchronised and settings.local_sync:
        raise UsageError("--batch-norm synchronised communicates in every layer of every step, "
                         f"which --sync {settings.local_sync[0].name} is there to avoid: leave "
                         "out one of the two")
    if synchronised and settings.accumulate > 1 and row.has_batch_norm:
        raise UsageError("--batch-norm synchronised requires the whole global batch in one pass, "
                         f"but --accumulate {settings.accumulate} splits it: leave out one of the "
                         "two")
    if settings.label_smoothing and row.criterion != SMOOTHED:
        raise UsageError(f"--label-smoothing requires the criterion {SMOOTHED}, but --workload "
                         f"{row.name} has {row.criterion}: leave it out")
    if settings.init == "whitened" and not (row.has_convolutions and row.mean):
        raise UsageError("--init whitened requires a model that begins with a convolution, but "
                         f"--workload {row.name} has none: leave it out")
    if settings.optimizer == "muon" and not row.has_batch_norm:
        raise UsageError("--optimizer muon is for convolutions before batch norm, and --workload "
                         f"{row.name} has none: use --optimizer nesterov")


def _check_virtual_nodes(settings: Settings) -> None:
    if settings.virtual_nodes is None:
        return
    flag = f"--virtual-nodes {settings.virtual_nodes}"
    cannot = [choice.name for choice in settings.sync
              if choice.name not in (*VIRTUAL_SYNC_NAMES, *SEAMS.values())]
    if cannot:
        raise UsageError(f"{flag} requires that gradients are added in one fixed order, and "
                         f"--sync {cannot[0]} does not do that: choose from "
                         f"{', '.join(VIRTUAL_SYNC_NAMES)}")
    if settings.wire != "float32":
        raise UsageError(f"{flag} requires --wire float32: {settings.wire} rounds what each rank "
                         "sends, and what it sends depends on the number of ranks")
    if settings.accumulate > 1:
        raise UsageError(f"{flag} already computes a rank's batch in several passes, one for each "
                         f"virtual node: leave out --accumulate {settings.accumulate}")
    if settings.parallel != "ddp":
        raise UsageError(f"{flag} requires --parallel ddp, not {settings.parallel}")


def _check_wire(settings: Settings) -> None:
    wire, names = settings.wire, [choice.name for choice in settings.sync]
    by_gradients = [name for name in names if name not in LOCAL_SYNC_NAMES]
    if wire != "float32" and settings.parallel == "data-parallel":
        raise UsageError(f"--wire {wire} requires --parallel ddp: one process sends no gradients")
    if wire != "float32" and any(name.endswith("per-tensor") for name in names):
        raise UsageError(f"--wire {wire} requires gradients in few long messages: choose a --sync "
                         "without -per-tensor")
    own = next((choice.name for choice in settings.sync if Place.parse(choice.name)), None)
    if wire != "float32" and own:
        raise UsageError(f"--wire {wire} is for strategies that come with this program, and --sync "
                         f"{own} decides itself what it sends: leave out one of the two")
    if wire in LOCAL_WIRES and by_gradients:
        raise UsageError(f"--wire {wire} requires --sync {' or '.join(LOCAL_SYNC_NAMES)}, but "
                         f"{by_gradients[0]} sends gradients: choose bf16 or fp16")


def _check_fp16(settings: Settings) -> None:
    """Refuses settings with which an overflow would not skip one whole step on all ranks."""
    if settings.precision != "fp16":
        return
    names = [choice.name for choice in settings.sync]
    if settings.local_sync:
        raise UsageError("--precision fp16 skips a step on all ranks where an averaged gradient "
                         f"overflows, and --sync {settings.local_sync[0].name} averages none: use "
                         "--precision bf16")
    if late := [name for name in names if name.startswith("cross-step")]:
        raise UsageError("--precision fp16 skips a step where any gradient overflows, and --sync "
                         f"{late[0]} updates the first layers before the others' gradients are "
                         "there: choose --sync overlapped-all-reduce, or --precision bf16")
    if settings.wire != "float32":
        raise UsageError(f"--precision fp16 requires --wire float32: --wire {settings.wire} would "
                         "carry the error of an overflow, or of another scale, into later steps")
