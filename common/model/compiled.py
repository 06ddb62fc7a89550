"""C++ of this project, compiled once on a machine and kept in the user's cache folder.

Whatever is compiled torch can do too: a machine without a C++ compiler is slower, and may round
otherwise. Each file is named by a digest of its source, the compiler and the processor, and has its
own digest beside it, so what is stale, foreign or half-written is made anew.

    python3 -c "from common.model.compiled import compiled; print(compiled('int f() {return 1;}'))"
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from common.core.provenance import lines_of

# No contraction: a*b + c is rounded twice, as torch's own a*b and then + c are.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fopenmp",
         "-shared", "-fPIC")
COMPILE_SECONDS = 300.0


class Compiled(NamedTuple):
    """The loaded library; None with the reason why there is none."""

    library: ctypes.CDLL | None
    why_not: str = ""


@cache
def compiled(source: str) -> Compiled:
    """`source`, compiled with OpenMP for this very processor, once a process."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return Compiled(None, "there is no C++ compiler")
    try:
        name = _digest(source, _version(compiler), *FLAGS, *_processor())
        return Compiled(ctypes.CDLL(os.fspath(_library(source, name, compiler))))
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return Compiled(None, f"{compiler} failed: {said[0] if said else 'without a word'}")
    except OSError as error:
        return Compiled(None, f"what was compiled cannot be used: {error}")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True,
                          timeout=COMPILE_SECONDS).stdout


def _processor() -> list[str]:
    """What -march=native goes by; a home folder may be shared by machines of several kinds."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    lines = lines_of("/proc/cpuinfo")
    return [next((line for line in lines if line.startswith(f"{word}\t")), "") for word in wanted]


def _library(source: str, name: str, compiler: str) -> Path:
    """The compiled file; one process of this user compiles it, and the others wait."""
    folder = _folder()
    path, digest = folder / f"{name}.so", folder / f"{name}.sha256"
    with _locked(folder / "lock"):
        if not _is_whole(path, digest):
            print(f"compiling the fast convolutions, once on this machine ({folder})",
                  file=sys.stderr, flush=True)
            _compile(source, path, compiler)
            digest.write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def _is_whole(path: Path, digest: Path) -> bool:
    """Whether the file is what was compiled: a cut one would end the process when it is read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest.read_text()
    except OSError:
        return False


def _compile(source: str, path: Path, compiler: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, made = Path(folder) / "source.cpp", Path(folder) / "made.so"
        code.write_text(source)
        subprocess.run([compiler, *FLAGS, "-o", made, code], check=True, capture_output=True,
                       text=True, timeout=COMPILE_SECONDS)
        os.replace(made, path)


def _folder() -> Path:
    """A folder of this user's that nobody else can write: what lies there is run."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for root in (Path(home) / "data-parallel-training",
                 Path(tempfile.gettempdir()) / f"data-parallel-training-{os.getuid()}"):
        folder = root / "compiled"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.stat()
            if found.st_uid == os.getuid() and not found.st_mode & 0o022 and os.access(
                    folder, os.W_OK):
                return folder
    raise PermissionError("no cache folder of this user's can be written")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
