"""C++ of this project, compiled once on a machine and kept in the user's cache folder.

Whatever is compiled torch can do too: a machine without a C++ compiler is slower, and may round
otherwise. Each file is named by a digest of its source, the compiler and the processor, and has its
own digest beside it, so what is stale, foreign or half-written is made anew.

    python3 -c "from common.arithmetic.compiled import *; print(compiled('int f() {return 1;}'))"
"""

import contextlib
import ctypes
import fcntl
import grp
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from common.core.progress import process_progress
from common.core.provenance import instruction_sets, lines_of, processor_flags

# No contraction: a*b + c is rounded twice, as torch's own a*b and then + c are.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-shared",
         "-fPIC")
ANY = "-march=x86-64-v3"  # with AVX2 and FMA
COMPILE_SECONDS = 300.0


class Compiled(NamedTuple):
    """The loaded library; None with the reason why it could not be loaded."""

    library: ctypes.CDLL | None
    why_not: str = ""


@cache
def compiled(source: str) -> Compiled:
    """`source`, compiled with OpenMP for this very processor, once a process.

    Without a compiler it is what `made_for_any` has made elsewhere, and somebody has put here.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    try:
        if compiler is None:
            path, digest = _for_any(source)
            if _is_whole(path, digest) and "avx2" in processor_flags():
                return Compiled(ctypes.CDLL(os.fspath(path)))
            return Compiled(None, "there is no C++ compiler")
        name = _digest(source, _version(compiler), *FLAGS, _march(), *_processor())
        return Compiled(ctypes.CDLL(os.fspath(_library(source, name, compiler, _march()))))
    except subprocess.SubprocessError as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return Compiled(None, f"{compiler} failed: {lines[0] if lines else 'without a word'}")
    except OSError as error:
        return Compiled(None, f"what was compiled cannot be used: {error}")


def made_for_any(source: str) -> tuple[Path, Path]:
    """Compiles `source` for any x86-64 with AVX2: the two files that a machine without a compiler
    needs in the same folder.

    Raises OSError or SubprocessError where it cannot.
    """
    path, digest = _for_any(source)
    _library(source, path.stem, os.environ.get("CXX", "c++"), ANY)
    return path, digest


def _for_any(source: str) -> tuple[Path, Path]:
    folder, name = _folder(), _digest(source, *FLAGS, ANY)
    return folder / f"{name}.so", folder / f"{name}.sha256"


def _march() -> str:
    """The flag for this processor, with vectors no wider than torch's: ATEN_CPU_CAPABILITY."""
    is_limited = instruction_sets() == "AVX2" and "avx512f" in processor_flags()
    return ANY if is_limited else "-march=native"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True,
                          timeout=COMPILE_SECONDS).stdout


def _processor() -> list[str]:
    """The CPU fields that -march=native depends on: part of the cache key, because machines of
    several kinds may share a home folder.
    """
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    lines = lines_of("/proc/cpuinfo")
    return [next((line for line in lines if line.startswith(f"{word}\t")), "") for word in wanted]


def _library(source: str, name: str, compiler: str, march: str) -> Path:
    """The compiled file; one process of this user compiles it, and the others wait."""
    folder = _folder()
    path, digest = folder / f"{name}.so", folder / f"{name}.sha256"
    with process_progress().within("compiling"), _locked(folder / "lock"):
        if not _is_whole(path, digest):
            print(f"compiling the arithmetic, once on this machine ({folder})",
                  file=sys.stderr, flush=True)
            _compile(source, path, compiler, march)
            digest.write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def _is_whole(path: Path, digest: Path) -> bool:
    """Returns True if the file is as compiled: loading a truncated one would end the process."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest.read_text()
    except OSError:
        return False


def _compile(source: str, path: Path, compiler: str, march: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, made = Path(folder) / "source.cpp", Path(folder) / "made.so"
        code.write_text(source)
        subprocess.run([compiler, *FLAGS, march, "-o", made, code], check=True,
                       capture_output=True, text=True, timeout=COMPILE_SECONDS)
        os.replace(made, path)


def _folder() -> Path:
    """A folder of this user's in whose place nobody can put another: what lies there is run."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for root in (Path(home) / "data-parallel-training",
                 Path(tempfile.gettempdir()) / f"data-parallel-training-{os.getuid()}"):
        folder = Path(os.path.realpath(root / "compiled"))
        with contextlib.suppress(OSError):
            for each in (*reversed(folder.parents), folder):
                if not each.is_dir():
                    each.mkdir(mode=0o700, exist_ok=True)
            if is_out_of_reach(folder) and os.access(folder, os.W_OK):
                return folder
    raise PermissionError("neither the user's cache folder nor a temporary one can be written by "
                          "this user and by nobody else, with all folders above it")


def is_out_of_reach(folder: Path) -> bool:
    """Returns True if no other user but root can change or replace `folder`.

    Of a folder above it that others can write, only the sticky bit keeps them from that: there
    nobody renames what is another user's. `folder` must be free of links.
    """
    mine = {0, os.getuid()}
    of_folder, *above = [each.stat() for each in (folder, *folder.parents)]
    return (of_folder.st_uid == os.getuid() and not _others_write(of_folder)
            and all(each.st_uid in mine and (each.st_mode & stat.S_ISVTX or not _others_write(each))
                    for each in above))


def _others_write(folder: os.stat_result) -> bool:
    """Returns True if other users can write; the owner's private group does not count as others."""
    if folder.st_mode & stat.S_IWGRP and not folder.st_mode & stat.S_IWOTH:
        with contextlib.suppress(KeyError):
            group, user = grp.getgrgid(folder.st_gid), pwd.getpwuid(folder.st_uid)
            return group.gr_name != user.pw_name or bool({*group.gr_mem} - {user.pw_name})
    return bool(folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
