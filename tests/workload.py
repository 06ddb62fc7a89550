"""A tiny workload for the literal mains: `before=plant` adds `--workload small` to the table."""

import os
import signal

from tests.small import SmallNet, small_dataset

SAMPLES = 90
SMALL = ["--workload", "small", "--precision", "float32", "--threads", "1"]


def plant(kill_at: int | None = None, rank: int | None = None) -> None:
    """Adds the row; with `kill_at`, the process kills itself after so many steps.

    `rank` limits that to one rank.
    """
    from torch import nn

    from common.options import workloads
    from common.run import run

    workloads.WORKLOADS["small"] = workloads.Workload(
        name="small", load=lambda split, _: small_dataset(SAMPLES if split == "train" else 31),
        build_model=lambda classes: SmallNet(nn.BatchNorm2d), mean=(0.5,) * 3, std=(0.25,) * 3,
        defaults={"batch_size": 10, "epochs": 2, "crop_padding": 1}, flip=True)
    if kill_at is None:
        return
    finish_step = run.Run.finish_step

    def finish_step_and_die(self: run.Run, *arguments) -> None:
        finish_step(self, *arguments)
        if self.position.step == kill_at and rank in (None, self.node.world.name):
            os.kill(os.getpid(), signal.SIGKILL)
    run.Run.finish_step = finish_step_and_die
