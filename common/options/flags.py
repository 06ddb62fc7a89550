"""The flags that decide what is learned, and how the rate moves. See command_line.py.

    python3 PartOne/main.py --recipe record --help
"""

import argparse

from common.core.settings import DECAY_ON, FLIPS, INITS, OPTIMIZERS, PRECISIONS, SCHEDULES
from common.options.flag_types import count, fraction, not_negative, patience, positive, whole
from common.options.recipes import RECIPES


def add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what is learned (defaults are the workload's: cifar10-vgg11 has 1 epoch, batch 256, rate "
        "0.1, momentum 0.9, decay 1e-4)")
    group.add_argument("--recipe", choices=RECIPES, default="course",
                       help="defaults by name: course is the workload's own (default: course)")
    group.add_argument("--epochs", type=count, metavar="N", help="passes over the training set")
    group.add_argument("--max-iterations", type=count, metavar="N",
                       help="stop after N iterations in all (the course's timing run: 40)")
    group.add_argument("--batch-size", type=count, metavar="N",
                       help="GLOBAL batch, in samples, shared by all ranks; an epoch's last batch "
                       "is dropped below 16 samples, or a quarter of a smaller batch")
    group.add_argument("--learning-rate", type=positive, metavar="X", help="at its peak")
    group.add_argument("--momentum", type=fraction, metavar="X",
                       help="of SGD; the first beta of Adam, the rho of Adadelta")
    group.add_argument("--weight-decay", type=not_negative, metavar="X",
                       help="added to the gradient, times the weights")
    group.add_argument("--optimizer", choices=OPTIMIZERS, metavar="NAME",
                       help=f"who takes the step: {', '.join(OPTIMIZERS)}")
    group.add_argument("--accumulate", type=count, default=1, metavar="K",
                       help="take each step in K passes over a K-th of this rank's samples, to "
                       "save memory; learns the same, but for batch norm (default: 1)")
    group.add_argument("--seed", type=whole, default=1, metavar="N",
                       help="fixes weights, order and augmentation (default: 1)")
    group.add_argument("--precision", choices=PRECISIONS, default="float32", metavar="NAME",
                       help="of the arithmetic: float32 (the default), bf16 or float64")
    group.add_argument("--batch-norm", choices=("local", "synchronised"), default="local",
                       metavar="NAME", help="statistics: local (the default) of each rank's "
                       "share, or synchronised, so that N nodes learn what one does")
    _add_beyond_the_course(group)


def _add_beyond_the_course(group: argparse._ArgumentGroup) -> None:
    """What `--recipe record` is made of: the course leaves all of it alone."""
    group.add_argument("--decay-on", choices=DECAY_ON,
                       help="decay all, or weights without biases and batch norm")
    group.add_argument("--label-smoothing", type=fraction, metavar="X",
                       help="how much of each target all classes share; not of the test loss")
    group.add_argument("--flips", choices=FLIPS,
                       help="mirror images by chance, or each in every other epoch")
    group.add_argument("--crop-padding", type=whole, metavar="N",
                       help="pixels of padding around the random crop")
    group.add_argument("--cutout", type=whole, metavar="N",
                       help="side, in pixels, of a square that each image loses, somewhere")
    group.add_argument("--init", choices=INITS, metavar="NAME",
                       help="plain, or whitened: filters that begin as patches and identities")


def add_schedule_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how the rate moves, and when to stop (defaults likewise)")
    group.add_argument("--schedule", choices=SCHEDULES, metavar="NAME",
                       help=f"of the learning rate: {', '.join(SCHEDULES)}")
    group.add_argument("--warmup-epochs", type=not_negative, metavar="X",
                       help="a linear rise at the start; of one-cycle, the rise itself")
    group.add_argument("--step-epochs", type=count, metavar="N",
                       help="epochs between the steps of --schedule step")
    group.add_argument("--gamma", type=positive, metavar="X",
                       help="what each step of --schedule step multiplies the rate by")
    group.add_argument("--validation-fraction", type=fraction, metavar="X",
                       help="of the training set, held out by --seed and evaluated every epoch; "
                       "the best epoch stays in best.pt")
    group.add_argument("--early-stopping", type=patience, metavar="N[:GAIN]",
                       help="stop after N epochs without a validation loss smaller by more "
                       "than GAIN (default 0); none turns it off")
