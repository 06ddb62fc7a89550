"""Everything a run is told, as one frozen value.

Filled at the edge by common/options/command_line.py.
"""

from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

SYNC_NAMES = ("gather-scatter", "all-reduce", "gather-scatter-per-tensor", "all-reduce-per-tensor",
              "gather-scatter-pipelined", "reduce-scatter", "overlapped-all-reduce",
              "cross-step-all-reduce")
LOCAL_SYNC_NAMES = ("local-sgd", "diloco")  # other algorithms: they average weights, and seldom
LOCAL_WIRES = ("int8", "int4")  # formats in which nothing but local_sync's progress travels
WIRES = ("float32", "bf16", "fp16", *LOCAL_WIRES)
COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")
PRECISIONS = ("float32", "bf16", "float64")
OPTIMIZERS = ("sgd", "nesterov", "adam", "adadelta", "muon")
SCHEDULES = ("constant", "step", "one-cycle", "cosine", "linear")
ENDING_SCHEDULES = ("one-cycle", "cosine", "linear")
DECAY_ON = ("all", "weights")
FLIPS = ("random", "alternating")
INITS = ("plain", "whitened")
PARALLEL = ("ddp", "data-parallel", "model-split")

# Fields that decide what is learned: a resumed run must not change them.
TRAJECTORY_FIELDS = ("workload", "batch_size", "learning_rate", "momentum",
                     "weight_decay", "seed", "precision", "batch_norm", "optimizer", "schedule",
                     "warmup_epochs", "step_epochs", "gamma", "validation_fraction", "wire",
                     "comm_hook", "decay_on", "label_smoothing", "flips",
                     "crop_padding", "cutout", "init")
LOCAL_TRAJECTORY_FIELDS = ("sync_every", "outer_learning_rate", "outer_momentum", "max_iterations")
# Fields that a node may choose for itself: its disk, its cores, its cables.
NODE_FIELDS = ("data_dir", "output_dir", "device", "threads", "num_workers", "interface", "debug",
               "tracker")


@dataclass(frozen=True)
class Settings:
    """One field per flag; `python3 PartOne/main.py --help` says what each means, and its unit."""

    workload: str
    data_dir: Path
    output_dir: Path
    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    recipe: str = "course"
    decay_on: str = "all"
    label_smoothing: float = 0.0
    flips: str = "random"
    crop_padding: int | None = None
    cutout: int = 0
    init: str = "plain"
    max_iterations: int | None = None
    seed: int = 1
    precision: str = "float32"
    convolutions: str = "auto"
    batch_norm: str = "local"
    optimizer: str = "sgd"
    schedule: str = "constant"
    warmup_epochs: float = 0.0
    step_epochs: int = 1
    gamma: float = 0.1
    accumulate: int = 1
    validation_fraction: float = 0.0
    early_stopping: tuple[int, float] | tuple[()] = ()
    device: str = "auto"
    threads: int | None = None
    loader: str = "memory"
    num_workers: int = 2
    resume: str = "no"
    accept_changes: bool = False
    checkpoint_every: int | None = None
    checkpoint_minutes: float = 10.0
    check_every: int = 50
    log_every: int = 20
    tta: bool = False
    timeout: float = 60.0
    interface: str | None = None
    backend: str = "auto"
    sync: tuple[str, ...] = ("gather-scatter", "all-reduce")
    parallel: str = "ddp"
    bucket_mb: float = 1.0
    wire: str = "float32"
    comm_hook: str = "none"
    sync_every: int = 50
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    dry_run: bool = False
    debug: bool = False
    profile: tuple[int, int] | None = None
    tracker: str = "none"

    def as_json(self) -> dict:
        """All fields as plain str, int, float, bool, list and None."""
        return {name: str(value) if isinstance(value, Path) else value
                for name, value in asdict(self).items()}

    def shared(self) -> dict:
        """The fields in which all ranks of a run must agree."""
        return {name: value for name, value in self.as_json().items() if name not in NODE_FIELDS}

    def trajectory(self) -> dict:
        """The fields that decide what is learned.

        The number of epochs is one where the learning rate of every step depends on it, the last
        iteration where the ranks average their weights after it.
        """
        spanned = ("epochs",) if self.schedule in ENDING_SCHEDULES else ()
        local = LOCAL_TRAJECTORY_FIELDS if self.local_sync else ()
        return {name: value for name, value in self.as_json().items()
                if name in TRAJECTORY_FIELDS + spanned + local}

    @property
    def collective_timeout(self) -> float:
        """Seconds after which torch gives a collective up; the watch is there long before."""
        return 5 * self.timeout

    @property
    def local_sync(self) -> tuple[str, ...]:
        """Those of the strategies that let each rank train by itself for a while."""
        return tuple(name for name in self.sync if name in LOCAL_SYNC_NAMES)


# What a run of an older version did, which had not all of today's fields.
FIELD_DEFAULTS = {field.name: field.default for field in fields(Settings)
                  if field.default is not MISSING}


def differences(mine: dict, theirs: dict) -> list[str]:
    """The names of entries that differ between two flat dictionaries, sorted."""
    return sorted(name for name in mine.keys() | theirs.keys()
                  if _plain(mine.get(name)) != _plain(theirs.get(name)))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
