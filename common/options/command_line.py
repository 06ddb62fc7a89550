"""Flags to frozen Settings and World. Imports nothing heavy: --help and a mistake answer at once.

    python3 PartTwo/main.py --help
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.core.failures import UsageError
from common.core.settings import Settings
from common.core.world import World, detect_world
from common.options.flag_parser import FlagParser
from common.options.flag_types import (
    convolutions,
    count,
    epoch_and_iterations,
    integer,
    not_negative,
    positive,
    whole,
)
from common.options.flags import add_recipe_flags, add_schedule_flags
from common.options.recipes import find_recipe
from common.options.seam_flags import add_seam_flags, check_seam, settle_local_flags
from common.options.workloads import WORKLOADS, find_workload

EXAMPLES = """examples:
  python3 PartOne/main.py --workload digits-vgg11
  python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0     (and 1, 2, 3 elsewhere)
  .venv/bin/torchrun --nproc-per-node 4 PartThree/main.py --data-dir ~/cifar10 --max-iterations 40
exit codes: 0 done, 2 usage, 3 ranks disagree, 4 data or checkpoint, 5 loss not finite,
  75 lost a peer, 130 and 143 interrupted"""


def parse_command_line(part: str, arguments: Sequence[str] | None = None) -> tuple[Settings, World]:
    """The settings and the world of `part` ("PartOne", "PartTwo", "PartThree", "Preflight").

    Raises UsageError, in one sentence, for whatever cannot be meant.
    """
    parser = _parser(part)
    flags = vars(parser.parse_args(arguments))
    cluster = {name: flags.pop(name, None) for name in ("master_ip", "num_nodes", "rank",
                                                        "master_port", "token")}
    world = detect_world(**cluster)
    if part == "PartOne" and world.size > 1:
        raise UsageError(f"Part One trains on one node, but {world.source} started {world.size} "
                         "processes: start one, or run PartTwo or PartThree")
    settings = _settings(flags)
    if world.attempt and settings.resume in ("no", "replace"):
        settings = replace(settings, resume="auto")  # a launcher's restart goes on by itself
    if settings.batch_size < world.size:
        raise UsageError(f"--batch-size is the global batch: {settings.batch_size} samples are too "
                         f"few for {world.size} ranks")
    check_seam(settings)
    if settings.parallel == "data-parallel" and world.size > 1:
        raise UsageError("--parallel data-parallel is one process with all GPUs of its machine, "
                         f"but there are {world.size} ranks: start one, or use --parallel ddp")
    return settings, world


def _settings(flags: dict[str, Any]) -> Settings:
    """Fills what was not given from the recipe, and what that leaves open from the workload."""
    row, recipe = find_workload(flags["workload"]), find_recipe(flags["recipe"])
    for name in WORKLOAD_FLAGS:
        if flags[name] is None:
            flags[name] = recipe.get(name, getattr(row, name))
    settle_local_flags(flags)
    settings = Settings(**flags)
    if settings.early_stopping and not settings.validation_fraction:
        raise UsageError("--early-stopping watches the loss on held-out training samples: say how "
                         "many with --validation-fraction")
    return replace(settings, data_dir=settings.data_dir.expanduser(),
                   output_dir=settings.output_dir.expanduser())


# Flags whose defaults stand in the workload's row, under the same names.
WORKLOAD_FLAGS = ("epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "decay_on",
                  "optimizer", "schedule", "warmup_epochs", "step_epochs", "gamma",
                  "label_smoothing", "flips", "crop_padding", "cutout", "init",
                  "validation_fraction", "early_stopping", "log_every")


def _parser(part: str) -> FlagParser:
    parser = FlagParser(PROGRAMS.get(part, f"{part}/main.py"), PARTS[part], EXAMPLES, _parts_with)
    if part != "PartOne":
        _add_cluster_flags(parser)
    _add_what_flags(parser)
    add_recipe_flags(parser)
    add_schedule_flags(parser)
    _add_machine_flags(parser)
    _add_run_flags(parser)
    parser.set_defaults(sync=(SEAMS.get(part, ""),))
    if part != "PartOne":
        add_seam_flags(parser, part)
    return parser


def _parts_with(flag: str) -> list[str]:
    """The names, in words, of the parts that have the flag."""
    names = {"PartOne": "Part One", "PartTwo": "Part Two", "PartThree": "Part Three"}
    return [name for part, name in names.items() if flag in _parser(part).flags]


PARTS = {
    "PartOne": "Part One: trains on one node.",
    "PartTwo": "Part Two: trains on N nodes and averages gradients by hand.",
    "PartThree": "Part Three: trains on N nodes with DistributedDataParallel.",
    "Preflight": "Checks N nodes before a run of Part Two or Three; takes the flags of the run.",
}
# What stands in the seam where there is nothing to choose.
SEAMS = {"PartOne": "none", "PartThree": "ddp"}
PROGRAMS = {"Preflight": "scripts/preflight.py"}


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster (not needed under torchrun or srun)")
    group.add_argument("-M", "--master-ip", metavar="IP", help="address of rank 0's machine")
    group.add_argument("-N", "--num-nodes", type=integer, metavar="N", help="number of ranks")
    group.add_argument("-R", "--rank", type=integer, metavar="R", help="this rank, 0 to N-1")
    group.add_argument("--master-port", type=integer, metavar="PORT",
                       help="port of the rendezvous on rank 0 (default: MASTER_PORT or 29500)")
    group.add_argument("--token", metavar="WORD",
                       help="any word that tells this job's ranks from another's on the same "
                       "port; no password (default: RUN_TOKEN, or none)")
    group.add_argument("--interface", metavar="NAME",
                       help="of the network (default: the one that reaches the master)")
    group.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto",
                       help="auto is nccl when every rank has a GPU of its own, else gloo")
    group.add_argument("--timeout", type=positive, default=60.0, metavar="SECONDS",
                       help="how long a rank may stay in one place before it counts as stuck; "
                       "twice that for all ranks to join, five times for the first step "
                       "(default: 60)")


def _add_what_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to train on, and where results go")
    group.add_argument("--workload", choices=tuple(WORKLOADS), default="cifar10-vgg11",
                       help="data set and model (default: cifar10-vgg11)")
    group.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR",
                       help="image folder or archive of the workload (default: data)")
    group.add_argument("--output-dir", type=Path, default=Path("outputs"), metavar="DIR",
                       help="logs, checkpoints and reports (default: outputs)")


def _add_machine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this machine")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="auto takes a GPU when this rank can have one of its own")
    group.add_argument("--threads", type=count, metavar="N",
                       help="of arithmetic (default: the machine's cores over its ranks)")
    group.add_argument("--convolutions", type=convolutions, default="auto", metavar="HOW",
                       help="algorithms of 3x3 layers on a CPU: auto chooses by a rule (the "
                       "default), library leaves them to torch, FILE.json takes those that "
                       "scripts/tune.py measured")
    group.add_argument("--loader", choices=("memory", "workers"), default="memory",
                       help="whole batches in memory, or torch's DataLoader (default: memory)")
    group.add_argument("--num-workers", type=whole, default=2, metavar="N",
                       help="processes of the worker loader (default: 2)")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run")
    group.add_argument("--resume", default="no", metavar="no|auto|replace|FILE",
                       help="a run in the output folder: refuse (no, the default), go on (auto) "
                       "or delete it (replace); or start from a checkpoint FILE")
    group.add_argument("--accept-changes", action="store_true",
                       help="resume although settings that matter have changed")
    group.add_argument("--checkpoint-every", type=count, metavar="N",
                       help="also save every N iterations (default: at epoch ends)")
    group.add_argument("--checkpoint-minutes", type=not_negative, default=10.0, metavar="X",
                       help="also save X minutes after the last time; 0 is never (default: 10)")
    group.add_argument("--check-every", type=whole, default=50, metavar="N",
                       help="compare the replicas and count the samples every N iterations; 0 is "
                       "never (default: 50)")
    group.add_argument("--log-every", type=count, metavar="N",
                       help="iterations between log lines (default: the workload's, mostly 20)")
    group.add_argument("--tta", action="store_true",
                       help="also evaluate with each image's mirror image: a second figure")
    group.add_argument("--profile", type=epoch_and_iterations, metavar="EPOCH[:ITERATIONS]",
                       help="trace that epoch's first iterations (5), for Perfetto")
    group.add_argument("--tracker", choices=("none", "tensorboard"), default="none",
                       help="send losses there too, from the leader (default: none)")
    group.add_argument("--dry-run", action="store_true",
                       help="join, compare, take one step, report, leave nothing behind")
    group.add_argument("--debug", action="store_true", help="show tracebacks")
