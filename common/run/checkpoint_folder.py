"""The folder of checkpoints: their names, which is the newest, which may be deleted.

    outputs/PartOne/checkpoints/   Epoch_1.pt  Epoch_2_Iteration_40.pt  best.pt
"""

import contextlib
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from common.core.events import read_events
from common.core.failures import CheckpointError
from common.core.progress import Position
from common.core.world import World
from common.run.other_runs import log_paths
from common.settings.resume import Resume

BEST = "best.pt"
# As file_name writes them: \d would also be a digit of another script, and 03 is a user's own name.
_OURS = re.compile(r"Epoch_(0|[1-9][0-9]*)(?:_Iteration_([1-9][0-9]*))?\.pt")


def newest(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, the furthest trained first.

    Anything with another name, such as a user's copy, or that is not a file, is ignored. Raises
    CheckpointError where the folder may not be read.
    """
    try:
        ours = [path for path in folder.glob("Epoch_*.pt")
                if _OURS.fullmatch(path.name) and path.is_file()]
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder} cannot be read: "
                              f"{error.strerror}") from error
    return sorted(ours, key=_trained_to, reverse=True)


def to_resume(folder: Path, resume: Resume) -> list[Path]:
    """The checkpoints that --resume means for the run in `folder`, first choice first."""
    files = [Path(resume.file)] if resume.file else []
    continues = resume.is_auto and all(_has_begun(folder, file) for file in files)
    return [*(newest(folder / "checkpoints") if continues else []), *files]


def _has_begun(folder: Path, file: Path) -> bool:
    """Returns True if the checkpoints in `folder` are of a run that began with `file`.

    Another run's folder takes no `file` from elsewhere, but a run may go back to a file of its own:
    until the leader's log says that it did, what is ahead of that is not yet put aside.
    """
    if folder.resolve() not in file.resolve().parents:
        return True
    starts = read_events(log_paths(folder, World())[1], "start")
    return any(Path(Resume.read(start["settings"]["resume"]).file) == file for start in starts)


def _trained_to(path: Path) -> tuple[int, float]:
    """Sorts Epoch_1_Iteration_40.pt before Epoch_1.pt, which is the whole epoch."""
    match = _OURS.fullmatch(path.name)
    assert match is not None
    epoch, iteration = match.groups()
    return int(epoch), float(iteration or "inf")


def prune(path: Path, kept: int) -> None:
    """Deletes what is older than `path` and the `kept` - 1 checkpoints before it.

    What is ahead of `path`, a damaged file or another line of training that was given up, would be
    taken for the newest: it gets `.aside` behind its name. A failing disk changes nothing.
    """
    put_aside(ahead_of(path))
    drop_older(path, kept)


def ahead_of(path: Path) -> list[Path]:
    """The checkpoints beside `path`, which need not be there, that are trained further."""
    return [each for each in newest(path.parent) if _trained_to(each) > _trained_to(path)]


def put_aside(paths: Iterable[Path]) -> None:
    """Adds `.aside` to the names of files, so that no run takes them for its own."""
    with contextlib.suppress(OSError):
        for path in paths:
            path.rename(path.with_name(path.name + ".aside"))


def drop_older(path: Path, kept: int) -> None:
    """Deletes old checkpoints like `prune`, but leaves those ahead of `path`."""
    every = newest(path.parent)
    with contextlib.suppress(OSError):
        for old in every[every.index(path) + kept:]:
            old.unlink()


def remove_partial_files(folder: Path) -> None:
    """Removes what a run that was killed while it wrote has left in `folder`."""
    for path in folder.glob("*.pt.partial"):
        name = path.name.removesuffix(".partial")
        if (name == BEST or _OURS.fullmatch(name)) and not path.is_dir():
            path.unlink(missing_ok=True)


def up_to_resumed(folder: Path, resume: Resume) -> list[Path]:
    """The checkpoints of the run in `folder`, without those ahead of where --resume goes on."""
    every = [path.resolve() for path in newest(folder / "checkpoints")]
    first = next(iter(to_resume(folder, resume)), folder).resolve()
    return every[every.index(first):] if first in every else []


def require_space(folder: Path, model: nn.Module, files: int, held: Iterable[Path] = ()) -> None:
    """Raises CheckpointError when the disk of `folder` cannot take `files` checkpoints of `model`.

    Those that it has `held` count as room, for the run deletes them as it writes others; but the
    first to be written needs space of its own. A checkpoint holds the state and, for SGD with
    momentum, the parameters' size once more (twice for Adam and Adadelta, which this leaves out);
    what else is in it is less than 100 kB.
    """
    state = sum(tensor.nbytes for tensor in model.state_dict().values())
    momentum = sum(parameter.nbytes for parameter in model.parameters())
    size, free = state + momentum + 100_000, shutil.disk_usage(folder).free
    room = sum(min(size, path.stat().st_size) for path in held if path.is_file())
    if free < max(files * size - room, size):
        raise CheckpointError(f"the disk of {folder} has {free / 1e6:.0f} MB free, too little for "
                              f"{files} checkpoints of {size / 1e6:.1f} MB each"
                              + f", of which it holds {room / 1e6:.1f} MB" * bool(room))


def file_name(position: Position) -> str:
    """`Epoch_N.pt` after a whole epoch N, else `Epoch_N_Iteration_K.pt`."""
    if position.iteration == 0:
        return f"Epoch_{position.epoch - 1}.pt"
    return f"Epoch_{position.epoch}_Iteration_{position.iteration}.pt"
