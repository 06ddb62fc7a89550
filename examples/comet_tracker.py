"""Comet as a tracker of your own, offline: an archive a start, which `comet upload` sends.

    python3 -m pip install comet_ml
    python3 PartOne/main.py --workload spiral-mlp --tracker examples/comet_tracker.py:CometTracker
"""

import sys

from common.core.failures import UsageError

try:
    from comet_ml import ExperimentConfig, start
except ImportError:
    raise UsageError(
        f"this tracker needs comet_ml: {sys.executable} -m pip install comet_ml") from None


class CometTracker:
    """An experiment in `folder`/comet; Comet's own variables, such as COMET_PROJECT_NAME, count.

    A resumed run is another experiment.
    """

    def __init__(self, folder):
        (folder / "comet").mkdir(parents=True, exist_ok=True)
        self.experiment = start(online=False, experiment_config=ExperimentConfig(
            offline_directory=str(folder / "comet"), name=folder.name, auto_metric_logging=False,
            auto_param_logging=False, auto_output_logging=False, parse_args=False))

    def start(self, settings):
        self.experiment.log_parameters(settings)

    def log(self, step, values):
        self.experiment.log_metrics(values, step=step)

    def close(self):
        self.experiment.end()
