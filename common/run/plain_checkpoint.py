"""Checkpoints that plain torch.save wrote: the assignment's four keys, or weights alone.

They have no seal: all that vouches for their bytes are the zip file's own checksums. What a run can
do without is missing too: the place within an epoch, the settings, the data, the random numbers.

    python3 scripts/evaluate.py their_model.pt --workload cifar10-vgg11
"""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.core.failures import CheckpointError
from common.core.progress import Position

END_RECORD = b"PK\x05\x06"
PREFIX = "module."  # what DistributedDataParallel and DataParallel put before every name
_KEYS: dict[str, Any] = {"epoch": int, "loss": (int, float, Tensor), "optimizer_state_dict": dict}
# The settings by which torch's optimizers differ: SGD would accept Adam's state without a word.
_TELLING = {"momentum", "betas", "rho"}


def is_plain(data: bytes) -> bool:
    """Whether `data` ends where torch.save ends a file.

    A sealed file, also one that was cut short or altered in one place, does not.
    """
    return data[-22:-18] == END_RECORD and data[-2:] == b"\0\0"


def require_sound(data: bytes, path: Path) -> None:
    """Raises CheckpointError where an entry's own checksum does not match."""
    try:
        broken = zipfile.ZipFile(io.BytesIO(data)).testzip()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or it is damaged ({error})") from error
    if broken is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {broken} does not match")


def why_not_loaded(data: bytes) -> str:
    """What keeps torch.load(weights_only=True) from a file.

    Never in torch's own words: they advise to run the code that is in the file.
    """
    try:
        strange = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    except Exception:  # whatever has stopped the loader may stop this too
        strange = []
    if not strange:
        return "it is damaged, or not what torch.save writes"
    return (f"it holds {' and '.join(strange)}, and only tensors, numbers, texts, lists and "
            "dictionaries can be read without running code; of a whole model save the state_dict()")


def from_plain(contents: Any, path: Path) -> dict[str, Any]:
    """The `model_state_dict` of a file without seal, and what else of the four keys it has.

    Raises CheckpointError where it holds no weights.
    """
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path} is not a checkpoint: it holds {type(contents).__name__}")
    if "model_state_dict" not in contents:
        contents = {"model_state_dict": contents}
    weights = contents["model_state_dict"]
    if not isinstance(weights, dict) or not weights or not all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()):
        raise CheckpointError(f"{path} is not a checkpoint: it holds neither model_state_dict nor "
                              "tensors by their names")
    return {"model_state_dict": weights,
            **{name: contents[name] for name, kind in _KEYS.items()
               if isinstance(contents.get(name), kind)}}


def remarks_on(contents: Mapping[str, Any], path: Path | str) -> list[str]:
    """That a file carries no seal, and what it lacks; nothing on one that has its seal."""
    if contents["sealed"]:
        return []
    needed = {"epoch": "epoch", "optimizer_state_dict": "optimizer state"}
    lacking = [words for name, words in needed.items() if name not in contents]
    return [f"{path} carries no seal: plain torch.save wrote it, and all that vouches for it are "
            "the zip file's checksums" + f"; it has no {' and no '.join(lacking)}" * bool(lacking)]


def without_prefix(weights: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """`weights` without the wrapper's "module." before each name, which `model` does not have."""
    if weights.keys() & model.state_dict().keys() or not all(
            str(name).startswith(PREFIX) for name in weights):
        return weights
    return {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}


def is_state_of(groups: Any, mine: Mapping[str, Any]) -> bool:
    """Whether saved parameter groups are of an optimizer that has the settings `mine`."""
    return isinstance(groups, list) and all(
        isinstance(group, dict) and group.keys() & _TELLING == mine.keys() & _TELLING
        for group in groups)


def position_after(contents: Mapping[str, Any], path: Path, iterations_per_epoch: int) -> Position:
    """Where a run goes on after a file with the four keys: at the epoch after its own.

    Raises CheckpointError for weights alone, with which no run can go on.
    """
    epoch = contents.get("epoch", -1)
    if epoch < 0 or "optimizer_state_dict" not in contents:
        raise CheckpointError(
            f"{path} holds weights alone, and a run goes on from an epoch and the optimizer's "
            "state too: it is good for scripts/evaluate.py and for prepare_model_for_training")
    return Position(epoch + 1, 0, epoch * iterations_per_epoch)
