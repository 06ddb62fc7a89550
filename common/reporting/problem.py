"""A text on a run that went wrong, for its maintainers: to be read before it is sent.

    python3 scripts/report_problem.py outputs
"""

import json
import os
import platform
import resource
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.core.events import read_events
from common.core.failures import DataError, UsageError, first_line
from common.core.files import read_bytes
from common.core.provenance import ROOT, code_digest, processor
from common.core.visible import visible

LAST_LINES = 40  # of a log
LAST_STEPS = 5  # of a rank's metrics, beside every other event
MOST_FILES = 200
LONGEST = 1000  # characters of a line
WHOLE = ("settings.json", "summary.json")
LOGS = ("logs_rank*.txt", "*.out")
METRICS = "metrics_rank*.jsonl"
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "pillow", "matplotlib", "jinja2")
# Beginnings of the variables that a report may hold: no credential is kept in any of them.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
             "MASTER_PORT", "TORCHELASTIC_", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_",
             "SLURM_JOB_NUM_NODES", "SLURM_NODELIST", "SLURM_RESTART_COUNT", "OMPI_COMM_WORLD_",
             "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "TORCH_", "CUDA_", "NCCL_", "GLOO_", "OMP_",
             "MKL_", "KMP_", "GOMP_", "MALLOC_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH",
             "VIRTUAL_ENV", "CONDA_PREFIX", "ONEDNN_", "DNNL_")
QUESTIONS = """What did you do?

What did you expect, and what happened instead?
"""


def problem_report(folders: Iterable[Path], facts: Mapping[str, Any],
                   environment: Mapping[str, str] = os.environ) -> str:
    """The report on what lies in these folders and below, and on this node.

    It holds the files of WHOLE, LOGS and METRICS and the VARIABLES, and no others; the home folder
    is "~" in it. `facts` are more to know of the node, by name, as plain values. Raises UsageError
    for a folder that is not there.
    """
    sections = [("questions", QUESTIONS), ("versions", _lines(_versions())),
                ("this node", _lines(facts)),
                ("environment", _lines(dict(sorted(
                    (name, value) for name, value in environment.items()
                    if name.startswith(VARIABLES)))))]
    sections += [(str(path), text) for folder in folders for path, text in _files(folder)]
    text = "\n".join(f"===== {title}\n{body.rstrip()}\n" for title, body in sections)
    if home := environment.get("HOME", "").rstrip("/"):
        text = text.replace(home, "~")
    return visible(text, "\n\t")


def _lines(entries: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in entries.items())


def _versions() -> dict[str, Any]:
    """Versions of the code, of Python and its packages, and of the system."""
    return {"code": code_digest(), "commit": _git("rev-parse", "HEAD") or "no git",
            "changed files": len(_git("status", "--porcelain").splitlines()),
            "python": platform.python_version(), **{name: _installed(name) for name in PACKAGES},
            "system": platform.platform(), "processor": processor(), "cores": os.cpu_count(),
            "cores allowed": len(os.sched_getaffinity(0)),
            "open files": resource.getrlimit(resource.RLIMIT_NOFILE)}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _git(*words: str) -> str:
    try:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True,
                              timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each file that tells of a run in `folder` and below, with what it tells."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    paths = sorted({path for name in (*WHOLE, *LOGS, METRICS) for path in folder.rglob(name)
                    if os.path.isfile(path) or not os.path.exists(path)})
    for path in paths[:MOST_FILES]:
        yield path, _contents(path)
    if len(paths) > MOST_FILES:
        yield folder, f"and {len(paths) - MOST_FILES} more files"


def _contents(path: Path) -> str:
    try:
        if path.match(METRICS):
            return _cut(_telling_events(path))
        lines = read_bytes(path).decode(errors="replace").splitlines()
        return _cut(lines if path.name in WHOLE else lines[-LAST_LINES:])
    except (OSError, ValueError, KeyError, DataError) as error:
        return f"cannot be read: {first_line(error)}"


def _telling_events(path: Path) -> list[str]:
    """All events but steps, of which the last ones; one a line."""
    events = list(read_events(path))
    steps = [number for number, event in enumerate(events) if event["event"] == "step"]
    passed_over = set(steps[:-LAST_STEPS])
    return [json.dumps(event) for number, event in enumerate(events) if number not in passed_over]


def _cut(lines: Iterable[str]) -> str:
    return "\n".join(line[:LONGEST] + " …" * (len(line) > LONGEST) for line in lines)
