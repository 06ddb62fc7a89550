"""Provenance of results besides the settings: code, versions, processor.

    python3 -c "from common.core.provenance import *; print(code_digest(), versions())"
"""

import hashlib
import os
import platform
from collections.abc import Iterable
from datetime import date
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("common", "PartOne", "PartTwo", "PartThree", "scripts", "studies")
# Of all languages that the project is written in: the C++ decides bits, the scripts start ranks.
SOURCES = (".py", ".cpp", ".h", ".sh", ".sbatch", ".j2", ".css", ".js", ".json")


def processor() -> str:
    """The model name of the processor."""
    return next((line.partition(":")[2].strip() for line in lines_of("/proc/cpuinfo")
                 if line.startswith("model name")), platform.machine())


def instruction_sets() -> str:
    """The vector instructions that torch uses here: "AVX512", "AVX512 AMX", "AVX2", …"""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    return capability + " AMX" * (capability == "AVX512" and "amx_bf16" in processor_flags())


@cache
def processor_flags() -> set[str]:
    """The vendor and the features of the processor, as Linux names them: "AuthenticAMD", "avx2", …

    Empty where it does not tell.
    """
    lines = [line.split() for line in lines_of("/proc/cpuinfo")
             if line.startswith(("vendor_id", "flags"))]
    return {word for line in lines for word in line[2:]}


def lines_of(path: str) -> list[str]:
    """The lines of a file of Linux's /proc or /sys; [] if it cannot be read."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__),
            "numpy": str(numpy.__version__)}


def conditions() -> str:
    """Conditions of a benchmark in one line: processor, cores, versions, date, load at its end."""
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (f"{processor()}, {os.cpu_count()} cores, {packages}, {date.today()}, "
            f"load {os.getloadavg()[0]:.1f} at the end")


@cache
def code_digest() -> str:
    """A hash of this program's source files, equal on nodes that run the same code.

    As they are when it is first asked: a program that goes on runs what it has read.
    """
    return digest_of_sources()


def digest_of_sources(root: Path = ROOT, folders: Iterable[str] = FOLDERS) -> str:
    """A hash of the names and contents of the source files in `folders`, as they are now."""
    digest = hashlib.sha256()
    for path in source_files(root, folders):
        contents = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()} {contents}\n".encode())
    return digest.hexdigest()[:12]


def source_files(root: Path = ROOT, folders: Iterable[str] = FOLDERS) -> list[Path]:
    """The sources in `folders`, sorted; without hidden files, which editors leave beside them."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*")
                  if path.suffix in SOURCES and path.is_file() and path.name[0] != ".")
