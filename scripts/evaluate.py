#!/usr/bin/env python3
"""Evaluates a checkpoint of any part: prints its report, on any number of ranks.

    python3 scripts/evaluate.py outputs/PartOne/checkpoints/Epoch_1.pt
    .venv/bin/torchrun --nproc-per-node 4 scripts/evaluate.py Epoch_1.pt --data-dir ~/cifar10
    python3 scripts/evaluate.py Epoch_1.pt cat.jpg dog.png       # classes of your own pictures
    python3 scripts/evaluate.py Epoch_1.pt --export model.pt2    # for torch.export.load

Data, model and arithmetic are the checkpoint's own, unless flags say otherwise; a file that plain
torch.save wrote (the four keys of the assignment, or a state_dict) needs --workload. Where pictures
or --export are given no report is made, and the data set is not needed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)  # .venv's Python, if this one has no torch

from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common.cluster.program import run_program
from common.core.console import tell_long_waits
from common.core.visible import visible
from common.options.command_line import add_rows, complete, launched
from common.options.flag_parser import FlagParser
from common.settings.settings import GROUPS, Launch

if TYPE_CHECKING:
    from common.saved_model import SavedModel

SETTINGS = ("workload", "model", "image_size", "data_dir", "precision", "tta", "device", "threads",
            "interface", "backend", "timeout")
SHOWN_CLASSES = 3


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Parses the command line into values by name. Raises UsageError."""
    title, _, rest = __doc__.partition("\n")
    parser = FlagParser("scripts/evaluate.py", title, rest, GROUPS)
    parser.usage = "scripts/evaluate.py CHECKPOINT [IMAGE ...] [flags]"
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="file, on rank 0")
    parser.add_argument("images", type=Path, nargs="*", default=[], metavar="IMAGE",
                        help="image files to classify")
    parser.add_argument("--export", type=_exported, metavar="FILE.pt2",
                        help="write the model for torch.export.load")
    add_rows(parser, lambda name, row: name in {*SETTINGS, *Launch.rows()} - {"settings"})
    parser.show_all()
    return vars(parser.parse_args(arguments))


def _exported(text: str) -> Path:
    if not text.endswith(".pt2"):
        raise ArgumentTypeError(f"{text!r} is no .pt2 file, as torch.export names them")
    return Path(text).expanduser()


def main() -> None:
    flags = parse(sys.argv[1:])
    path, images, export = (flags.pop(name) for name in ("checkpoint", "images", "export"))
    world = launched(flags)
    settings = complete(flags)
    tell_long_waits(world)
    # torch is imported only now: --help and a mistyped flag have been answered already
    from common.cluster.process_group import one_node, process_group
    from common.saved_model import load_saved_model

    with one_node(settings) if world.size == 1 else process_group(world, settings) as node:
        saved = load_saved_model(path, flags, node)
        if images and world.is_leader:
            classify(saved, images)
        if export and world.is_leader:
            saved.export(export)
            print(f"wrote {export}; load it with torch.export.load", flush=True)
        if not (images or export):
            print_report(saved)


def classify(saved: "SavedModel", images: list[Path]) -> None:
    """Prints a line for each image: its likeliest classes."""
    names = saved.form["classes"]
    for path, row in zip(images, saved.probabilities(images), strict=True):
        best = row.topk(min(SHOWN_CLASSES, len(names)))
        shares = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        print(f"{visible(str(path))}: " + ", ".join(
            f"{names[place]} {100 * share:.1f} %" for share, place in shares), flush=True)


def print_report(saved: "SavedModel") -> None:
    """Evaluates, with all ranks, and prints the report on the leader."""
    from common.report import report_of

    result = saved.evaluate()
    if saved.node.world.is_leader:
        print(report_of(result, saved.metric, saved.path), end="", flush=True)
        if result.mirrored_accuracy is not None:
            print(f"Test Accuracy with mirror images (--tta): {result.mirrored_accuracy:.3f}")


if __name__ == "__main__":
    run_program(main)
