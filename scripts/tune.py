#!/usr/bin/env python3
"""Measures which algorithm computes each 3x3 convolution of a run fastest on this processor.

    python3 scripts/tune.py tuned.json --workload digits-vgg11           # on a quiet machine
    python3 PartOne/main.py --workload digits-vgg11 --convolutions tuned.json

Takes the flags of the run, and --ranks for how many ranks will share its batch. Copy the file to
all nodes, or to another cluster: runs with the same file round alike.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__)  # .venv's Python, if this one has no torch

import argparse
import json
from collections.abc import Sequence

from common.cluster.program import run_program
from common.core.failures import UsageError, writing
from common.options.command_line import parse_command_line
from common.options.flag_parser import SentenceParser
from common.settings.settings import Settings
from common.settings.types import count


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Settings]:
    """This program's own flags, and the settings of the run. Raises UsageError."""
    parser = SentenceParser(description=__doc__.split("\n", 1)[0], epilog=__doc__.split(
        "\n", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("file", type=Path, metavar="FILE.json", help="where to write the choices")
    parser.add_argument("--ranks", type=count, default=1, metavar="N",
                        help="ranks that will share the batch (default: 1)")
    parser.add_argument("--rounds", type=count, default=3, metavar="N",
                        help="turns of each algorithm that count (default: 3)")
    options, rest = parser.parse_known_args(arguments)
    if options.file.suffix != ".json":
        raise UsageError(f"the choices go to a .json file, and {options.file} is none")
    return options, parse_command_line("PartOne", rest)[0]


def main() -> None:
    options, settings = parse(sys.argv[1:])
    print("loading torch and the data set", flush=True)
    # torch is imported only now: --help and a mistyped flag have been answered already
    from common.arithmetic.choice import Shape, convolution_shapes
    from common.arithmetic.tuned import Tuned, fastest, is_quiet, measure
    from common.cluster.devices import keep_freed_memory, use_threads
    from common.core.precision import Precision
    from common.options.workloads import workload_of

    keep_freed_memory()
    use_threads(settings.threads, options.ranks)
    row, precision = workload_of(settings), Precision(settings.precision)
    dataset = row.load("test", settings.data_dir)
    height, width, channels = dataset.inputs.shape[1:]
    model = row.build(dataset.class_names).to(precision.dtype)
    found = convolution_shapes(model, (channels, height, width), settings.batch_size, precision)
    shapes: list[Shape] = list(dict.fromkeys(found.values()))
    shard = -(-settings.batch_size // options.ranks // settings.accumulate)
    choices, quiet = {}, True
    for place, shape in enumerate(shapes, 1):
        print(f"{place} of {len(shapes)}: {shape}", end=": ", flush=True)
        seconds = measure(shape._replace(samples=shard), options.rounds)
        choices[str(shape)], quiet = fastest(seconds), quiet and is_quiet(seconds)
        times = ", ".join(f"{name} {1000 * min(each):.1f} ms" for name, each in seconds.items())
        print(f"{choices[str(shape)]} ({times})", flush=True)
    with writing(options.file):
        options.file.write_text(json.dumps(Tuned.here(choices)._asdict(), indent=1) + "\n")
    if not quiet:
        print("warning: turns of the same algorithm differ by half and more, so something else "
              "kept this machine busy: measure again when it is quiet")
    print(f"wrote {options.file}; use it with --convolutions {options.file}" if choices else
          f"wrote {options.file}, which is empty: {settings.workload} has no such convolutions")


if __name__ == "__main__":
    run_program(main)
