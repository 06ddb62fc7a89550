"""The folder of checkpoints: their names, which is the newest, which may be deleted.

    outputs/PartOne/checkpoints/   Epoch_1.pt  Epoch_2_Iteration_40.pt  best.pt
"""

import contextlib
import re
import shutil
from pathlib import Path

from torch import nn

from common.core.failures import CheckpointError
from common.core.progress import Position

BEST = "best.pt"
_OURS = re.compile(r"Epoch_(\d+)(?:_Iteration_(\d+))?\.pt")


def newest(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, the furthest trained first.

    What has another name, a copy of the user's perhaps, or is no file, is left alone.
    """
    ours = (path for path in folder.glob("Epoch_*.pt")
            if _OURS.fullmatch(path.name) and path.is_file())
    return sorted(ours, key=_trained_to, reverse=True)


def to_resume(folder: Path, resume: str) -> list[Path]:
    """The checkpoints that --resume means for the run in `folder`, first choice first."""
    if resume in ("no", "replace"):
        return []
    return newest(folder / "checkpoints") if resume == "auto" else [Path(resume)]


def _trained_to(path: Path) -> tuple[int, float]:
    """Sorts Epoch_1_Iteration_40.pt before Epoch_1.pt, which is the whole epoch."""
    found = _OURS.fullmatch(path.name)
    assert found is not None
    epoch, iteration = found.groups()
    return int(epoch), float(iteration or "inf")


def prune(path: Path, kept: int) -> None:
    """Deletes what is older than `path` and the `kept` - 1 checkpoints before it.

    What is ahead of `path`, a damaged file or another line of training that was given up, would be
    taken for the newest: it gets `.aside` behind its name. A failing disk changes nothing.
    """
    every = newest(path.parent)
    with contextlib.suppress(OSError):
        for ahead in every[:every.index(path)]:
            ahead.rename(ahead.with_name(ahead.name + ".aside"))
    drop_older(path, kept)


def drop_older(path: Path, kept: int) -> None:
    """As `prune`, but leaves alone what is ahead of `path`."""
    every = newest(path.parent)
    with contextlib.suppress(OSError):
        for old in every[every.index(path) + kept:]:
            old.unlink()


def remove_partial_files(folder: Path) -> None:
    """Removes what a run that was killed while it wrote has left in `folder`."""
    for path in folder.glob("*.partial"):
        path.unlink(missing_ok=True)


def require_space(folder: Path, model: nn.Module, files: int) -> None:
    """Raises CheckpointError when the disk of `folder` cannot take `files` checkpoints of `model`.

    A checkpoint holds the state and, for SGD with momentum, the parameters' size once more (twice
    for Adam and Adadelta, which this leaves out); what else is in it is less than 100 kB.
    """
    state = sum(tensor.nbytes for tensor in model.state_dict().values())
    momentum = sum(parameter.nbytes for parameter in model.parameters())
    needed = files * (state + momentum + 100_000)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(f"the disk of {folder} has {free / 1e6:.0f} MB free, too little for "
                              f"{files} checkpoints of {needed / files / 1e6:.1f} MB each")


def file_name(position: Position) -> str:
    """`Epoch_N.pt` after a whole epoch N, else `Epoch_N_Iteration_K.pt`."""
    if position.iteration == 0:
        return f"Epoch_{position.epoch - 1}.pt"
    return f"Epoch_{position.epoch}_Iteration_{position.iteration}.pt"
