"""Everything a run is told, as one frozen value: a setting is one row, here or in its base class.

Filled at the edge by common/options/command_line.py.

    python3 PartTwo/main.py --help-all
"""

from dataclasses import dataclass
from pathlib import Path

from common.core.world import Nodes
from common.settings import types
from common.settings.learning import DATA, LEARN, LearningSettings, is_local, local_choices
from common.settings.resume import RESUMES, Resume
from common.settings.row import CLUSTER, Rows, setting
from common.settings.strategies import LOCAL_SYNC_NAMES, SYNC_NAMES
from common.settings.types import LOADERS, Interval, SyncChoice

LOCAL_WIRES = ("int8", "int4")  # formats of the strategies that average weights, not gradients
WIRES = ("float32", "bf16", "fp16", *LOCAL_WIRES)
PARALLEL = ("ddp", "data-parallel", "model-split")
JOIN = "cluster (torchrun, srun and mpirun set these themselves)"
NODE = "this machine"
RUN = "the run"
SEAM = "gradient synchronisation"
GROUPS = (DATA, LEARN, SEAM, JOIN, NODE, RUN)


def is_portable(arithmetic: str, precision: str) -> bool:
    """Returns True if these settings ask for portable arithmetic."""
    return arithmetic == "portable" or (arithmetic == "auto" and precision == "float32")


@dataclass(frozen=True)
class Launch(Rows):
    """How this process joins the others: known before there is a run."""

    master_ip: str | None = setting(
        None, "address of rank 0's machine", JOIN, metavar="IP", short="-M", parts=CLUSTER,
        common=True)
    num_nodes: Nodes | None = setting(
        None, "number of ranks; with MIN:MAX the run goes on as long as MIN are left", JOIN,
        details="; the ranks that are left of MAX compute the lost ones' virtual nodes, and a rank "
        "that is started again joins: see docs/going_on.md", parse=types.nodes, metavar="N",
        short="-N", parts=CLUSTER, common=True)
    rank: int | None = setting(
        None, "rank of this process, from 0 to N-1", JOIN, parse=types.integer, metavar="R",
        short="-R", parts=CLUSTER, common=True)
    master_port: int | None = setting(
        None, "port of the rendezvous on rank 0 (default: MASTER_PORT or 29500)", JOIN,
        parse=types.integer, metavar="PORT", parts=CLUSTER)
    debug: bool = setting(False, "print the traceback of an error", RUN, parse=bool)
    settings: Path | None = setting(
        None, "take the settings in a .toml file, or of a run's settings.json; flags override "
        "them", RUN, parse=Path, metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class Settings(LearningSettings):
    """One field a setting; `python3 PartTwo/main.py --help-all` says what each means."""

    device: str = setting(
        "auto", "compute device: auto (default), cpu or cuda", NODE,
        choices=("auto", "cpu", "cuda"), per_node=True, common=True)
    threads: int | None = setting(
        None, "intra-op threads (default: cores / ranks here)", NODE,
        details="; with --virtual-nodes and native arithmetic, 1", parse=types.threads,
        per_node=True, learned=lambda plain: plain["virtual_nodes"] is not None and not is_portable(
            plain["arithmetic"], plain["precision"]), common=True)
    arithmetic: str = setting(
        "auto", "arithmetic on a CPU: portable (default for float32) gives the same bits on every "
        "processor, native (default otherwise) is PyTorch's own", NODE,
        choices=("auto", "portable", "native"), banner="{} arithmetic")
    convolutions: str = setting(
        "auto", "algorithms of 3x3 convolutions on a CPU: auto chooses by a rule (default), "
        "library leaves these, batch norm and pooling to PyTorch", NODE,
        choices=("auto", "library"))
    loader: types.LoaderChoice = setting(
        types.LoaderChoice("memory"), "data loader: memory (default), or workers:N, PyTorch's "
        "DataLoader with N processes (default: 2)", NODE, parse=types.LoaderChoice.parse,
        choices=LOADERS, metavar="NAME[:N]", per_node=True)
    interface: str | None = setting(
        None, "network interface (default: the one that reaches rank 0)", JOIN, parts=CLUSTER,
        per_node=True, repeated=lambda name: False)
    backend: str = setting(
        "auto", "torch.distributed backend: auto (default) is nccl when every rank has a GPU of "
        "its own, else gloo", JOIN, choices=("auto", "gloo", "nccl"), parts=CLUSTER)
    timeout: float = setting(
        60.0, "seconds without progress after which a rank counts as stuck; twice as many for "
        "joining, five times for the first step (default: 60)", JOIN, parse=types.seconds,
        metavar="SECONDS", parts=CLUSTER)
    resume: Resume = setting(
        Resume(), "run in the output folder: no (default: refuse), auto (continue) or replace; or "
        "start from a checkpoint FILE", RUN, details="; auto:FILE continues the run that began "
        "with FILE, from FILE if it has saved nothing yet, and so does auto behind --resume FILE; "
        "auto:changed and FILE:changed continue although settings have changed", metavar="HOW",
        parse=Resume.parse, choices=RESUMES, combine=Resume.then, common=True,
        # a checkpoint to start from is a part of what is repeated
        repeated=lambda plain: bool(Resume.read(plain).file))
    checkpoint_every: Interval = setting(
        Interval(minutes=10.0), "checkpoint every N iterations (N) or minutes (Nmin) besides an "
        "epoch's end, 0: none (default: 10min)", RUN, parse=Interval.parse,
        metavar="HOW", common=True)
    check_every: int = setting(
        50, "iterations between checks that all replicas agree, 0 is never (default: 50)", RUN,
        parse=types.whole)
    log_every: int = setting(
        20, "iterations between log lines (default: the workload's, mostly 20)", RUN,
        parse=types.count)
    tta: bool = setting(
        False, "test-time augmentation: evaluate again, by the mean scores of each image and its "
        "mirror image", RUN, parse=bool)
    profile: types.Profile | None = setting(
        None, "trace the first N iterations (default: 5) of an epoch, for Perfetto", RUN,
        details="; EPOCH:N:stacks also traces Python's calls", parse=types.Profile.parse,
        metavar="EPOCH[:N]")
    tracker: str = setting(
        "none", "experiment tracker of rank 0: none (default), page (comparison.html, renewed as "
        "the run goes on), tensorboard or wandb", RUN,
        details="; FILE.py:NAME is one of your own", parse=types.tracker, choices=types.TRACKERS,
        metavar="NAME", per_node=True)
    dry_run: bool = setting(
        False, "take one step to test, and leave nothing behind", RUN, parse=bool, common=True)
    sync: tuple[SyncChoice, ...] = setting(
        (SyncChoice("gather-scatter"), SyncChoice("all-reduce")), "strategies to run one after the "
        "other (default: gather-scatter,all-reduce)", SEAM, details=". They average gradients: "
        f"{', '.join(SYNC_NAMES)}; or, less often, weights: local-sgd:H with H "
        "steps or more between two averages (default: 50), diloco:H:RATE:MOMENTUM with an outer "
        "Nesterov optimizer (default: 50:0.7:0.9); FILE.py:NAME is a class or function of your own",
        parse=types.sync_list, choices=SYNC_NAMES + LOCAL_SYNC_NAMES,
        metavar="NAME[,NAME]", parts=("PartTwo", "Preflight"), learned=is_local,
        compared=local_choices, common=True)
    parallel: str = setting(
        "ddp", "parallelism: ddp (default); to compare with: data-parallel, model-split", SEAM,
        details="; data-parallel is one process with all GPUs of its machine, model-split puts "
        "each rank's model on two devices", choices=PARALLEL, parts=("PartThree",))
    wire: str = setting(
        "float32", "gradient wire format: float32 (default), bf16, fp16", SEAM, details="; int8 "
        "and int4 with --sync local-sgd or diloco", choices=WIRES,
        parts=CLUSTER, learned=True, banner="gradients sent in {}", common=True)
    bucket_mb: float = setting(
        1.0, "bucket size of all-reduces that overlap with backward, in MB (default: 1)", SEAM,
        parse=types.positive, metavar="MB", parts=CLUSTER, banner="buckets of {:g} MB")

    @property
    def is_portable(self) -> bool:
        """True if portable arithmetic is asked for; a GPU, or no compiler, overrules it."""
        return is_portable(self.arithmetic, self.precision)

    @property
    def collective_timeout(self) -> float:
        """Seconds after which torch gives a collective up; the watch is there long before."""
        return 5 * self.timeout

    @property
    def local_sync(self) -> tuple[SyncChoice, ...]:
        return tuple(choice for choice in self.sync if choice.name in LOCAL_SYNC_NAMES)
