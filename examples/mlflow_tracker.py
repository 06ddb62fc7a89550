"""MLflow as a tracker of your own: a run in files beside the logs, or where its variable says.

    .venv/bin/python -m pip install mlflow-skinny
    python3 PartOne/main.py --workload spiral-mlp --tracker examples/mlflow_tracker.py:MlflowTracker
"""

import os
import sys

from common.core.failures import UsageError

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which MLflow refuses otherwise

try:
    from mlflow import MlflowClient
except ImportError:
    raise UsageError(
        f"this tracker needs mlflow: {sys.executable} -m pip install mlflow-skinny") from None


class MlflowTracker:
    """A run of the experiment "training", at MLFLOW_TRACKING_URI or in `folder`/mlflow.

    A resumed run is another run. Where the server is lost, the training ends with MLflow's error.
    """

    def __init__(self, folder):
        store = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlflow").absolute().as_uri()
        self.client = MlflowClient(store)
        experiment = self.client.get_experiment_by_name("training")
        number = experiment.experiment_id if experiment else self.client.create_experiment(
            "training")
        self.run = self.client.create_run(number, run_name=folder.name).info.run_id

    def start(self, settings):
        for name, value in settings.items():
            self.client.log_param(self.run, name, value)

    def log(self, step, values):
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self):
        self.client.set_terminated(self.run)
