"""The results of benchmarks/gpu_check.py as JSON and as Markdown."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_checks.running import GpuResult
from common.core.markdown import markdown_table
from common.core.provenance import conditions

BASE = "course-float32"


def hardware() -> dict[str, str]:
    """The GPUs, their driver, and the libraries' versions; or "none" without a GPU."""
    import torch

    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpus = ""
    return {"gpus": gpus.replace("\n", "; ") or "none", "host": conditions(),
            "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


def write(outcomes: Sequence[GpuResult], path: Path, facts: dict[str, str]) -> str:
    """Writes `path` as .json and as .md, and returns the latter's text."""
    steps = [{"name": each.row.name, "command": " ".join(each.row.command), "how": each.how,
              "seconds": round(each.seconds, 1), "last_line": each.last, "found": each.found}
             for each in outcomes]
    path.with_suffix(".json").write_text(json.dumps({"on": facts, "steps": steps}, indent=2) + "\n")
    turns = {name: found for each in outcomes if each.row.name.startswith("speed")
             for name, found in each.found.items()}
    text = "\n\n".join(["; ".join(f"{name}: {fact}" for name, fact in facts.items()),
                        _steps(outcomes), _speeds(turns), _ratios(turns), _runs(outcomes)]) + "\n"
    path.with_suffix(".md").write_text(text)
    return text


def _steps(outcomes: Sequence[GpuResult]) -> str:
    return markdown_table(("step", "outcome", "last line", "seconds"), [
        (each.row.name, each.how, each.last.replace("|", "/")[:100], f"{each.seconds:.0f}")
        for each in outcomes], texts=3)


def _speeds(turns: dict[str, dict]) -> str:
    base = turns.get(BASE, {}).get("images_per_second")
    rows = []
    for name, found in turns.items():
        speed, memory = found.get("images_per_second"), found.get("device_megabytes")
        rows.append((name, found.get("settings") or f"failed: {found['failed']}",
                     f"{speed:.0f}" if speed else "",
                     f"{speed / base:.2f}" if speed and base else "",
                     f"{memory:.0f}" if memory else ""))
    return markdown_table(("loop", "settings", "images a second", f"to {BASE}", "GPU memory, MB"),
                          rows, texts=2)


def _ratios(turns: dict[str, dict]) -> str:
    """By precision, Part One's fastest loop over the fastest others; without CUDA graphs."""
    def fastest(precision: str, *loops: str) -> float:
        return max((found.get("images_per_second") or 0 for name, found in turns.items()
                    if name.partition("-")[::2] in [(loop, precision) for loop in loops]),
                   default=0)

    rows = []
    for precision in ("float32", "tf32", "bf16"):
        ours = fastest(precision, "project", "project_compiled")
        peers = (fastest(precision, "lightning", "lightning_compiled"),
                 fastest(precision, "compiled", "resident_compiled"))
        rows.append((precision, *(f"{ours / peer:.2f}" if ours and peer else ""
                                  for peer in peers)))
    return markdown_table(("Part One's fastest", "over Lightning's", "over torch.compile alone"),
                          rows)


def _runs(outcomes: Sequence[GpuResult]) -> str:
    rows = []
    for each in outcomes:
        for name, found in each.found.items():
            if "phase_seconds" not in found:
                continue
            accuracy = found.get("mirrored_test_accuracy") or found.get("test_accuracy")
            rows.append((each.row.name, name, f"{found.get('device')}, {found.get('backend')}",
                         f"{found['images_per_second']:.0f}", f"{found['training_seconds']:.1f}",
                         f"{1000 * found['phase_seconds']['sync']:.2f}",
                         found.get("bytes_per_iteration", 0),
                         "" if accuracy is None else f"{100 * accuracy:.2f}"))
    return markdown_table(("step", "run", "on", "images a second", "training, s",
                           "waiting for means, ms a step", "bytes a step", "test accuracy, %"),
                          rows, texts=3)
