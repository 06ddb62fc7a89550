"""Damaged and hostile files: random changes of sound ones, by bytes and by their values.

    damage_bytes(path, random.Random(7))
"""

import copy
import io
import json
import os
import pickle
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common.run import checkpoint_file

Chance = random.Random
ODD_TEXT = "x\x1b]0;title\x07\u202e\n\ud800<b>&$_$"
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10 ** 400, 1e308, float("nan"), float("inf"), -0.5, "", ODD_TEXT, "9" * 30,
    "a" * 100_000, [], [[]], {}, {"a": {"b": 1}}, [None], [-1, 0], "../../etc/passwd")


class RunsCode:
    """Unpickling it writes to the file MARK of the environment."""

    def __reduce__(self) -> tuple:
        return os.system, ("echo ran > \"$MARK\"",)


def _flip(data: bytes, chance: Chance) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 8))):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _insert(what: bytes) -> Callable[[bytes, Chance], bytes]:
    def insert(data: bytes, chance: Chance) -> bytes:
        at = chance.randrange(len(data))
        return data[:at] + what + data[at:]
    return insert


BYTES: tuple[Callable[[bytes, Chance], bytes], ...] = (
    _flip, _flip, _flip,
    lambda data, chance: data[:chance.randrange(len(data))],
    lambda data, chance: data[chance.randrange(len(data)):],
    lambda data, chance: b"",
    lambda data, chance: bytes(len(data)),
    lambda data, chance: chance.randbytes(1000),
    lambda data, chance: b"[" * 200_000,
    lambda data, chance: b'{"a":' * 200_000,
    lambda data, chance: b"1" * 10_000,
    lambda data, chance: b"[]", lambda data, chance: b"null", lambda data, chance: b'"text"',
    lambda data, chance: b"{}", lambda data, chance: b"NaN",
    lambda data, chance: "{}".encode("utf-16"),
    lambda data, chance: pickle.dumps(RunsCode()),
    _insert(b"\xff\xfe"), _insert(b"\0"), _insert(b"\x1b]0;title\x07"), _insert(b"\n"))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.open(path.parent, os.O_RDONLY)
        unix.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)


IN_PLACE: tuple[Callable[[Path], object], ...] = (
    os.mkfifo, os.mkfifo, os.mkdir, _socket, _sparse,
    lambda path: path.symlink_to(path), lambda path: path.symlink_to("nothing"),
    lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/dev/tty"))


def put_in_place(path: Path, chance: Chance) -> None:
    """Puts something that is not a file, or an endless one, in the place of the file."""
    path.unlink()
    chance.choice(IN_PLACE)(path)


def damage_bytes(path: Path, chance: Chance) -> None:
    """Changes the file's bytes; the file is another one then."""
    before = path.read_bytes()
    while (after := chance.choice(BYTES)(before, chance)) == before:
        pass
    path.write_bytes(after)


def with_an_odd_value(value: Any, chance: Chance) -> Any:
    """A copy of plain values in which one, somewhere, is another, or is left out."""
    value = copy.deepcopy(value)
    inner, key = value, None
    while isinstance(inner, dict | list) and inner:
        holder, key = inner, chance.choice(list(inner) if isinstance(inner, dict)
                                           else range(len(inner)))
        inner = holder[key]
        if chance.random() < 0.2:
            break
    if key is None:
        return chance.choice(ODD_VALUES)
    if chance.random() < 0.2:
        del holder[key]
    else:
        holder[key] = chance.choice(ODD_VALUES)
    return value


def damage_json(path: Path, chance: Chance) -> None:
    """One value in a JSON file, or in one line of a JSONL file, becomes another."""
    if path.suffix == ".json":
        path.write_text(json.dumps(with_an_odd_value(json.loads(path.read_text()), chance)))
        return
    lines = path.read_text().splitlines()
    at = chance.randrange(len(lines))
    lines[at] = json.dumps(with_an_odd_value(json.loads(lines[at]), chance))
    path.write_text("\n".join(lines) + "\n")


def damage_contents(path: Path, chance: Chance) -> None:
    """One value in a checkpoint becomes another; its seal is right."""
    contents = {name: value for name, value in checkpoint_file.read(path).items()
                if name != "sealed"}
    odd = with_an_odd_value(contents, chance)
    path.unlink()
    checkpoint_file.write(path, odd if isinstance(odd, dict) else {"format": odd})


def bomb(path: Path, chance: Chance) -> None:
    """A file of plain torch.save whose entries unpack to 200 times their size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + b"N0" * 50_000_000 + b".")
        file.writestr("archive/version", b"3\n")


def runs_code(path: Path, chance: Chance) -> None:
    """A checkpoint that runs code when it is unpickled: sealed, or as torch.save writes it."""
    contents = {"epoch": 1, "loss": 0.5, "model_state_dict": RunsCode(),
                "optimizer_state_dict": {}}
    if chance.random() < 0.5:
        buffer = io.BytesIO()
        torch.save(contents, buffer, _use_new_zipfile_serialization=chance.random() < 0.5)
        path.write_bytes(buffer.getvalue())
    else:
        path.unlink()
        checkpoint_file.write(path, contents)


def huge_tensors(path: Path, chance: Chance) -> None:
    """Weights that are one number each, stretched over petabytes."""
    contents = checkpoint_file.read(path)
    contents.pop("sealed")
    weights = contents["model_state_dict"]
    name = chance.choice(list(weights))
    weights[name] = torch.zeros(1).expand(1 << 50)
    path.unlink()
    checkpoint_file.write(path, contents)


def fresh_copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target
