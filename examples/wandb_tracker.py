"""Weights & Biases as a tracker of your own: a run of the project "training", offline at first.

    .venv/bin/python -m pip install wandb
    python3 PartOne/main.py --workload spiral-mlp --tracker examples/wandb_tracker.py:WandbTracker
"""

import os
import secrets

# Otherwise wandb asks for an account, copies the terminal, and tells its makers of errors.
VARIABLES = {"WANDB_MODE": "offline", "WANDB_PROJECT": "training", "WANDB_CONSOLE": "off",
             "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
for variable, value in VARIABLES.items():
    os.environ.setdefault(variable, value)

import wandb


class WandbTracker:
    """Files in `folder`/wandb, which `wandb sync` sends; or at once, where WANDB_MODE says so.

    A resumed run goes on in the same one, whose id stands in `folder`/wandb/run.txt. A run without
    a result on the test set ends as failed.
    """

    def __init__(self, folder):
        number = folder / "wandb" / "run.txt"
        number.parent.mkdir(parents=True, exist_ok=True)
        if not number.exists():
            number.write_text(secrets.token_hex(4))
        self.has_result = False
        self.run = wandb.init(dir=folder, id=number.read_text(), resume="allow",
                              name=os.environ.get("WANDB_NAME") or folder.name)

    def start(self, settings):
        self.run.config.update(dict(settings), allow_val_change=True)

    def log(self, step, values):
        self.run.log(dict(values), step=step)
        self.has_result |= any(name.startswith("test/") for name in values)

    def close(self):
        self.run.finish(exit_code=0 if self.has_result else 1)
        wandb.teardown()  # ends its process
