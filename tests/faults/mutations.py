"""Random damage to the folder of a run: what people, disks and other programs do to files.

    spoil(folder, random.Random(7))      # returns what was done, in words
"""

import ctypes
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

FOREIGN = ("checkpoints/Epoch_9.pt", "checkpoints/Epoch_\u0663.pt", "checkpoints/Epoch_03.pt",
           "checkpoints/best.pt", "metrics_rank7.jsonl", "metrics_rank\u0661.jsonl",
           "metrics_rank1 (copy).jsonl", "logs_rank7.txt", "settings.json", "summary.json",
           "report.json", ".lock_rank0", "traces", "checkpoints/x.pt.partial",
           "checkpoints/Epoch_2.pt.partial", "metrics_rank0.jsonl.partial")
LINES = ("3", "null", "[]", "{}", '{"event": "step"}', '{"event": 3}', '{"event": "start"}', '"',
         '{"event": "note"}', '{"event": "checkpoint"}', '{"event": "failed"}', "\x00\x1b]0;x\x07")


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _in_place_of_a_file(put: Callable[[Path, random.Random], None]):
    def spoil(folder: Path, chance: random.Random) -> str:
        path = chance.choice(files_in(folder))
        path.unlink()
        put(path, chance)
        return path.name
    return spoil


def truncated(folder: Path, chance: random.Random) -> str:
    path = chance.choice(files_in(folder))
    os.truncate(path, chance.randrange(path.stat().st_size + 1))
    return path.name


def flipped(folder: Path, chance: random.Random) -> str:
    path = chance.choice(files_in(folder))
    contents = bytearray(path.read_bytes() or b"\0")
    for _ in range(chance.choice((1, 20))):
        contents[chance.randrange(len(contents))] ^= 1 << chance.randrange(8)
    path.write_bytes(contents)
    return path.name


def swapped(folder: Path, chance: random.Random) -> str:
    one, other = chance.sample(files_in(folder), 2)
    contents = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(contents)
    return f"{one.name} and {other.name}"


def foreign(folder: Path, chance: random.Random) -> str:
    path = folder / chance.choice(FOREIGN)
    if path.is_dir():
        return "nothing"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(chance.choice((b"", b"mine\n", b"[]", chance.randbytes(500), b"\xff\xfe")))
    return path.name


def foreign_line(folder: Path, chance: random.Random) -> str:
    path = chance.choice(sorted(folder.glob("metrics_rank*.jsonl")))
    lines = path.read_text().splitlines()
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(LINES))
    path.write_text("\n".join(lines) + "\n")
    return f"{path.name} gets {lines}"[:60]


def without_a_key(folder: Path, chance: random.Random) -> str:
    path = chance.choice(sorted(folder.glob("metrics_rank*.jsonl")))
    lines = path.read_text().splitlines()
    number = chance.randrange(len(lines))
    event = json.loads(lines[number])
    key = chance.choice(sorted(event))
    if chance.random() < 0.5:
        del event[key]
    else:
        event[key] = chance.choice((None, "x", -1, [], {}))
    lines[number] = json.dumps(event)
    path.write_text("\n".join(lines) + "\n")
    return f"{path.name}, line {number + 1}, {key}: {event.get(key, 'gone')}"


def locked(folder: Path, chance: random.Random) -> str:
    path = chance.choice([*files_in(folder), folder, folder / "checkpoints"])
    path.chmod(chance.choice((0o000, 0o444, 0o555)))
    return f"{path.name} {path.stat().st_mode & 0o777:o}"


def no_checkpoints(folder: Path, chance: random.Random) -> str:
    shutil.rmtree(folder / "checkpoints")
    return "all"


KINDS = {
    "deleted": _in_place_of_a_file(lambda path, chance: None),
    "emptied": _in_place_of_a_file(lambda path, chance: path.touch()),
    "a folder": _in_place_of_a_file(lambda path, chance: path.mkdir()),
    "a link to nowhere": _in_place_of_a_file(lambda path, chance: path.symlink_to("nowhere")),
    "a link to itself": _in_place_of_a_file(lambda path, chance: path.symlink_to(path.name)),
    "a pipe": _in_place_of_a_file(lambda path, chance: os.mkfifo(path)),
    "a link to another": _in_place_of_a_file(
        lambda path, chance: path.symlink_to(chance.choice(files_in(path.parent)))),
    "truncated": truncated, "flipped": flipped, "swapped": swapped, "foreign": foreign,
    "a foreign line": foreign_line, "an entry": without_a_key, "permissions": locked,
    "no checkpoints": no_checkpoints}


def spoil(folder: Path, chance: random.Random) -> str:
    """Does one or two kinds of damage to the run in `folder`; says which."""
    done = []
    for kind in chance.sample(sorted(KINDS), chance.choice((1, 1, 2))):
        try:
            done.append(f"{kind}: {KINDS[kind](folder, chance)}")
        except (OSError, ValueError, IndexError) as error:  # the first damage leaves no second
            done.append(f"{kind}: not any more ({error})")
    return "; ".join(done)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def obey_permissions() -> None:
    """Makes root obey the permissions of files too, in this process (capabilities 1 and 2)."""
    libc, header = ctypes.CDLL(None, use_errno=True), _Header(0x20080522, 0)
    found = (_Capabilities * 2)()
    if libc.capget(ctypes.byref(header), found) == 0:
        found[0].effective &= ~0b110
        libc.capset(ctypes.byref(header), found)
