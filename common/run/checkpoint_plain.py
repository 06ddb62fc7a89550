"""Checkpoints of other programs: the assignment's four keys, or weights alone.

They have no seal: all that vouches for the bytes of those that torch.save wrote are the zip file's
own checksums, and safetensors has none. What a run can do without is missing too: the place within
an epoch, the settings, the data, the random numbers.

    python3 scripts/evaluate.py their_model.pt --workload cifar10-vgg11
"""

import io
import sys
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.core.failures import CheckpointError, first_line
from common.core.progress import Position

END_RECORD = b"PK\x05\x06"
SAFETENSORS_START = 9  # bytes: the length of the header, and the brace that it begins with
COMPILED = "_orig_mod."  # what torch.compile puts before the names of a module
_KEYS: dict[str, Any] = {"epoch": int, "loss": (int, float, Tensor), "optimizer_state_dict": dict}
# The settings by which torch's optimizers differ: SGD would accept Adam's state without a word.
_TELLING = {"momentum", "betas", "rho"}


def is_plain(data: bytes) -> bool:
    """Returns True if `data` ends like a file of torch.save.

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


def is_safetensors(start: bytes, size: int) -> bool:
    """Returns True for a safetensors file: its first SAFETENSORS_START bytes, and its size."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= size - 8


def from_safetensors(data: bytes, path: Path) -> dict[str, Any]:
    """The `model_state_dict` of a safetensors file.

    Raises CheckpointError where it holds no weights, or its library is not installed.
    """
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise CheckpointError(f"{path} is a safetensors file, and the package that reads it is not "
                              f"installed: {sys.executable} -m pip install safetensors") from error
    try:
        weights = load(data)
    except Exception as error:  # the library has its own, and torch others
        raise CheckpointError(f"{path} cannot be loaded: it is damaged, or not what safetensors "
                              f"writes ({first_line(error)})") from error
    return {**from_plain(weights, path), "has_checksums": False}


def why_not_loaded(data: bytes) -> str:
    """The reason why torch.load(weights_only=True) cannot read a file.

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
    names, contents = contents, _by_our_names(contents)
    weights = contents["model_state_dict"]
    if not isinstance(weights, dict) or not weights or not all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()):
        there = ", ".join(map(repr, list(names)[:6]))
        raise CheckpointError(f"{path} is not a checkpoint: it holds neither model_state_dict nor "
                              f"tensors by their names, but {there or 'nothing'}: save the model's "
                              "state_dict()")
    return {"model_state_dict": weights,
            **{name: contents[name] for name, kind in _KEYS.items()
               if isinstance(contents.get(name), kind)}}


def _by_our_names(contents: dict[Any, Any]) -> dict[Any, Any]:
    """`contents` by the names of the four keys, of which pytorch/examples calls two otherwise.

    torchvision's scripts call the weights "model". Their epochs, and Lightning's, begin at 0 and
    are left out.
    """
    if "model_state_dict" in contents:
        return contents
    weights = contents.get("state_dict", contents.get("model"))
    if not isinstance(weights, dict):
        return {"model_state_dict": contents}
    if "optimizer" not in contents:
        return {"model_state_dict": weights}
    epoch = {"epoch": contents.get("epoch")} if "state_dict" in contents else {}
    return {"model_state_dict": weights, "optimizer_state_dict": contents["optimizer"], **epoch}


def remarks_on(contents: Mapping[str, Any], path: Path | str) -> list[str]:
    """Remarks on a file without a seal, and on what it is read without; [] for a sealed one."""
    if contents["sealed"]:
        return []
    needed = {"epoch": "epoch", "optimizer_state_dict": "optimizer state"}
    lacking = [words for name, words in needed.items() if name not in contents]
    wrote = ("plain torch.save wrote it, and all that vouches for it are the zip file's checksums"
             if contents.get("has_checksums", True) else
             "safetensors wrote it, and nothing vouches for its bytes")
    return [f"{path} carries no seal: {wrote}"
            + f"; it is read without {' and '.join(lacking)}" * bool(lacking)]


def renamed(weights: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """`weights` by the names that `model` has, whatever was around the model that was saved.

    DistributedDataParallel, torch.compile and a LightningModule put words before the names. Weights
    that differ from the model's in more are returned as they are.
    """
    names, theirs = model.state_dict().keys(), _bare(weights)
    mine = _bare(model.state_dict())
    around = _around(theirs, mine)
    if weights.keys() == names or theirs.keys() != {around + name for name in mine}:
        return weights
    return {name: theirs[around + bare] for name, bare in zip(names, mine, strict=True)}


def mismatch(weights: Mapping[Any, Any], model: nn.Module) -> str:
    """The reason why `weights` do not fit `model`: extra tensors, other names or architecture."""
    kind, theirs, mine = type(model).__name__, _shapes(weights), _shapes(model.state_dict())
    around = _around(theirs, mine)
    inner = {name.removeprefix(around): shape for name, shape in theirs.items()
             if name.startswith(around)}
    if around and inner == mine:
        return (f"holds the weights of this run's {kind} as {around[:-1]}, and other tensors "
                f"beside them: save the state_dict() of {around[:-1]} alone")
    if theirs.keys() != mine.keys() and [*theirs.values()] == [*mine.values()]:
        other, own = next(pair for pair in zip(theirs, mine, strict=True) if len({*pair}) == 2)
        return (f"has the shapes of this run's {kind} by other names: {other} where {own} is "
                "expected; rename them")
    odd = next((name for name in [*mine, *inner] if mine.get(name) != inner.get(name)), None)
    return f"holds another architecture than this run's {kind}" + (
        f": {odd} is {inner.get(odd, 'missing')}, and here it is {mine.get(odd, 'missing')}"
        if odd else "")


def _bare(weights: Mapping[Any, Any]) -> dict[str, Any]:
    """`weights` by their names without torch.compile's word."""
    return {str(name).replace(COMPILED, ""): value for name, value in weights.items()}


def _shapes(weights: Mapping[Any, Any]) -> dict[str, str]:
    return {name: "x".join(map(str, getattr(value, "shape", ()))) or "one number"
            for name, value in _bare(weights).items()}


def _around(theirs: Iterable[str], mine: Collection[str]) -> str:
    """The words, with a dot behind each, that most of the names `mine` have before them."""
    prefixes = Counter(name.removesuffix(inner) for name in theirs for inner in mine
                       if name == inner or name.endswith(f".{inner}"))
    return max(prefixes, key=prefixes.__getitem__, default="")


def is_state_of(groups: Any, mine: Mapping[str, Any]) -> bool:
    """Returns True if saved parameter groups are of an optimizer with the settings `mine`."""
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
            f"{path} is read for its weights, and a run goes on from an epoch, counted from 1, and "
            "the optimizer's state too: it is good for scripts/evaluate.py and for "
            "prepare_model_for_training")
    return Position(epoch + 1, 0, epoch * iterations_per_epoch)
