"""Checkpoints: written whole or not at all, verified before they are loaded, never executed.

A checkpoint is what torch.save writes, with a SHA-256 of the whole file in the zip comment at its
end: one file, one rename, and plain torch.load reads it too.

    python3 -c "from common.run.checkpoint_file import read; print(read('Epoch_1.pt').keys())"
"""

import contextlib
import hashlib
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.core.failures import CheckpointError
from common.core.files import open_file
from common.core.progress import Position
from common.run import checkpoint_plain
from common.run.checkpoint_plain import END_RECORD

FORMAT = 3
_LAYOUT = {"position": list, "model_state_dict": dict, "optimizer": str,
           "optimizer_state_dict": dict}
_MAY_HOLD = {"settings": dict, "ran_on": dict, "samples": dict, "totals": list, "data": str,
             "rank_state": list, "validation_losses": list, "loss_scale": dict, "loss": float | int,
             "epoch": int, "closed": list}
_SCALE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_MARK = b"sha256:"
_TRAILER = len(_MARK) + 64


def pack(model: nn.Module, optimizer: Optimizer, position: Position, loss: float,
         **more: Any) -> dict[str, Any]:
    """The contents of a checkpoint. `more` may hold plain str, int, float, bool, list and dict.

    `epoch` is the last epoch that has been trained on at least in part, `loss` its mean loss.
    """
    trained = position.epoch if position.iteration else position.epoch - 1
    return {
        "format": FORMAT, "epoch": trained, "loss": loss,
        "position": list(position),
        "model_state_dict": model.state_dict(),
        "optimizer": type(optimizer).__name__,
        "optimizer_state_dict": optimizer.state_dict(), **more,
    }


def write(path: Path, contents: dict[str, Any]) -> None:
    """Writes atomically and durably: temporary file, fsync, verify, rename, fsync the folder.

    A crash at any instant leaves the file as it was before, or whole and new. Leader only. Raises
    CheckpointError when the disk does not take it; then no temporary file stays behind.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(_sealed(contents))
            file.flush()
            os.fsync(file.fileno())
        _verify(partial.read_bytes(), partial)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except (OSError, CheckpointError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise CheckpointError(f"the checkpoint {path} cannot be written: "
                              f"{getattr(error, 'strerror', None) or error}") from error


def _sealed(contents: dict[str, Any]) -> memoryview:
    """The bytes of the file. They are as many as the model's and the optimizer's: no copies."""
    buffer = io.BytesIO()
    torch.save(contents, buffer)
    if buffer.getbuffer()[-22:-18] != END_RECORD:
        raise CheckpointError("torch.save wrote an unknown format; this is a fault of the program")
    buffer.seek(-2, io.SEEK_END)
    buffer.write(struct.pack("<H", _TRAILER) + _MARK)
    buffer.write(hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
    return buffer.getbuffer()


def _verify(data: bytes, path: Path | str) -> None:
    _require_mark(data, path)
    if hashlib.sha256(memoryview(data)[:-64]).hexdigest().encode() != data[-64:]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its contents")


def _require_mark(end: bytes, path: Path | str) -> None:
    if end[-_TRAILER:-64] != _MARK:
        raise CheckpointError(f"{path} is not a checkpoint of this project, or it was cut short")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path | str, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The verified contents of a checkpoint, on the CPU. Runs no code from the file.

    Of a file of another program, what there is of the assignment's four keys; `say` is told so.
    Raises CheckpointError when it is missing, damaged, foreign or of a newer format.
    """
    contents = parse(read_bytes(path), Path(path))
    for remark in checkpoint_plain.remarks_on(contents, path):
        say(remark)
    return contents


def read_bytes(path: Path | str) -> bytes:
    """The file as it is. Raises CheckpointError when it cannot be read, or ends as none does."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(checkpoint_plain.SAFETENSORS_START)
            file.seek(-min(_TRAILER, size), io.SEEK_END)
            end = file.read()
            if not (checkpoint_plain.is_plain(end)
                    or checkpoint_plain.is_safetensors(start, size)):
                _require_mark(end, path)  # a foreign file may be larger than the memory
            file.seek(0)
            return file.read()
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: "
                              f"{error.strerror}") from error
    except MemoryError as error:
        raise CheckpointError(f"the checkpoint {path} is larger than the memory") from error


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Parses a checkpoint as `read` does; `path` is for messages. `sealed`: it has a seal."""
    if checkpoint_plain.is_safetensors(data[:checkpoint_plain.SAFETENSORS_START], len(data)):
        return {**checkpoint_plain.from_safetensors(data, path), "sealed": False}
    if sealed := not checkpoint_plain.is_plain(data):
        _verify(data, path)
    else:
        checkpoint_plain.require_sound(data, path)
    try:
        contents = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be loaded: "
                              f"{checkpoint_plain.why_not_loaded(data)}") from error
    if sealed or (isinstance(contents, dict) and {"format", "position"} <= contents.keys()):
        _require_layout(contents, path)
    else:
        contents = checkpoint_plain.from_plain(contents, path)
    return {**contents, "sealed": sealed}


def _require_layout(contents: Any, path: Path) -> None:
    """Raises CheckpointError for another format, or naming the first entry that is not usable."""
    if not isinstance(contents, dict) or not isinstance(contents.get("format"), int):
        raise CheckpointError(f"{path} is not a checkpoint of this project")
    if contents["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {contents['format']}, and this version of the "
                              f"program needs {FORMAT}: use the version that wrote it")
    there = {name: kind for name, kind in _MAY_HOLD.items() if name in contents}
    for name, kind in {**_LAYOUT, **there}.items():
        if not isinstance(contents.get(name), kind):
            raise CheckpointError(f"{path} has no usable entry {name!r}: it is not a checkpoint of "
                                  "this project")
    position = contents["position"]
    if len(position) != 3 or not all(type(n) is int and n >= 0 for n in position):
        raise CheckpointError(f"{path} says it was saved at {position}, which is no position")
    if not all(type(loss) in (int, float) for loss in contents.get("validation_losses", [])):
        raise CheckpointError(f"{path} has validation losses that are not numbers")
    scale = contents.get("loss_scale", {})
    if scale and not all(type(scale.get(name)) in (int, float) for name in _SCALE):
        raise CheckpointError(f"{path} has a loss scale that cannot be")


def peek(path: Path | str) -> dict[str, Any]:
    """The contents, unverified, of a checkpoint that may be damaged; {} if they cannot be had.

    Quick: tensors are not read before they are used. Runs no code from the file.
    """
    try:
        open_file(path).close()  # torch would wait at a named pipe
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # a damaged file can make the reader stumble anywhere
        return {}
    return contents if isinstance(contents, dict) else {}


def restore(contents: dict[str, Any], path: Path | str, model: nn.Module,
            optimizer: Optimizer | None = None) -> None:
    """Puts a checkpoint's weights, buffers and optimizer state into `model` and `optimizer`.

    The optimizer keeps its own learning rate, momentum and weight decay: those are settings.
    One without a state of the optimizer leaves it as it is. Raises CheckpointError when the
    checkpoint belongs to another architecture.
    """
    weights = contents["model_state_dict"]
    try:
        weights = checkpoint_plain.renamed(weights, model)
        model.load_state_dict(weights)
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} {checkpoint_plain.mismatch(weights, model)}") from error
    if optimizer is not None and "optimizer_state_dict" in contents:
        _restore_optimizer(contents, path, optimizer)


def _restore_optimizer(contents: dict[str, Any], path: Path | str, optimizer: Optimizer) -> None:
    mine, saved = type(optimizer).__name__, contents["optimizer_state_dict"]
    theirs = contents.get("optimizer") or (mine if checkpoint_plain.is_state_of(
        saved.get("param_groups"), optimizer.param_groups[0]) else "another optimizer")
    if theirs != mine:  # SGD would accept Adam's state, and train on without a momentum
        raise CheckpointError(f"{path} holds the state of {theirs}, and this run's optimizer is "
                              f"{mine}")
    chosen = [{k: v for k, v in group.items() if k != "params"}
              for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(saved)
        if not all(_is_state(name, value, parameter) for parameter, state in optimizer.state.items()
                   for name, value in state.items()):
            raise ValueError("no state of these parameters")
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path} holds the state of another {mine} than this run's, with "
                              "other parameters") from error
    for group, settings in zip(optimizer.param_groups, chosen, strict=True):
        group.update(settings)


def _is_state(name: str, value: Any, parameter: Tensor) -> bool:
    """Returns True for possible optimizer state of `parameter`: its shape, a scalar, a count."""
    if isinstance(value, Tensor):
        return value.shape in (parameter.shape, ())
    return value is None or name == "step" and isinstance(value, int | float)
