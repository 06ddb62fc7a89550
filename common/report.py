"""The results of a run as files: classification report, summary in JSON, and the comparison.

    cat outputs/PartOne/report.txt
"""

import json
import socket
import statistics
import warnings
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from torch import nn

from common.arithmetic.choice import algorithms
from common.arithmetic.products import PORTABLE, arithmetic
from common.core.events import read_events
from common.core.failures import writing
from common.core.metrics import Metric
from common.core.provenance import versions
from common.core.spread import times_as_fast
from common.core.visible import visible
from common.data.dataset import is_repeatable
from common.evaluation import Evaluation
from common.model.batch_norm import has_batch_norm
from common.model.replica import digest_of
from common.run import known_digests
from common.run.run import Run
from common.settings.causes import Learned, sentences, told_apart
from common.settings.user_code import Place

# So many of the weights' digest two people can compare by eye.
DIGEST_CHARACTERS = 8


def generate_eval_report(ground_truth: Sequence[int] | np.ndarray,
                         prediction: Sequence[int] | np.ndarray, test_loss: float,
                         report_path: str | Path, checkpoint_path: str | Path,
                         *, class_names: Sequence[str] | None = None) -> None:
    """Writes accuracy, classification report and confusion matrix to `report_path`, and as JSON.

    Classes are whole numbers, one per sample. The JSON goes beside it, with the suffix .json.
    Raises UsageError where a file cannot be written.
    """
    text, plain = eval_report(ground_truth, prediction, test_loss, checkpoint_path, class_names)
    path = Path(report_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, text)
    _write(path.with_suffix(".json"), json.dumps(plain, indent=2) + "\n")


def eval_report(ground_truth: Sequence[int] | np.ndarray, prediction: Sequence[int] | np.ndarray,
                test_loss: float, checkpoint_path: str | Path,
                class_names: Sequence[str] | None = None) -> tuple[str, dict]:
    """The report as text and as plain values."""
    from sklearn import metrics  # 0.8 s that no run need wait for before its first iteration

    labels = list(range(len(class_names))) if class_names else sorted(
        {int(label) for label in [*ground_truth, *prediction]})
    names = list(map(visible, class_names)) if class_names else list(map(str, labels))
    accuracy = metrics.accuracy_score(ground_truth, prediction)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that of one class the matrix is 1 x 1
        matrix = metrics.confusion_matrix(ground_truth, prediction, labels=labels)

    def tabulate(as_dict: bool):
        return metrics.classification_report(ground_truth, prediction, labels=labels, digits=4,
                                             target_names=names, output_dict=as_dict,
                                             zero_division=0)
    text = (f"Metrics for the checkpoint: {visible(str(checkpoint_path))}\n"
            f"Test Loss: {test_loss:.3f}, Test Accuracy: {accuracy:.3f}\n\n"
            f"Classification Report\n{tabulate(False)}\nConfusion Matrix\n{matrix}\n")
    if absent := [name for name, row in zip(names, matrix, strict=True) if not row.any()]:
        text += (f"\nThe test set has no sample of {', '.join(absent)}: the macro average counts "
                 "0 for each such class\n")
    return text, {
        "checkpoint": str(checkpoint_path), "test_loss": test_loss, "test_accuracy": accuracy,
        "classification_report": tabulate(True), "confusion_matrix": matrix.tolist(),
        "class_names": names}


def report_of(result: Evaluation, metric: Metric, checkpoint_path: str | Path) -> str:
    """The report on an evaluation, as text, whatever its metric."""
    if result.totals:
        return (f"Metrics for the checkpoint: {visible(str(checkpoint_path))}\n"
                f"Test Loss: {result.loss:.3f}, Test {metric.title}: {result.score:.3f}\n")
    return eval_report(result.truth, result.predictions, result.loss, checkpoint_path,
                       result.class_names)[0]


def finish_run(run: Run, result: Evaluation) -> None:
    """Writes report and summary, on the leader, and says how it went. Every rank may call.

    Raises UsageError where a file cannot be written.
    """
    weights = digest_of(run.model)[:DIGEST_CHARACTERS]
    classes = {} if result.totals else {"class_names": result.class_names,
                                        "confusion_matrix": confusion_matrix(result).tolist()}
    run.log.evaluation(result.loss, result.score, **classes, weights=weights)
    if not run.node.world.is_leader:
        return
    if run.settings.dry_run:
        run.log.say(_dry_run_sentence(run))
        return
    metric, path = run.metric, run.folder / "report.txt"
    if result.totals:
        _write(path, report_of(result, metric, str(run.checkpoints.last)))
    else:
        generate_eval_report(result.truth, result.predictions, result.loss, path,
                             str(run.checkpoints.last), class_names=result.class_names)
    summary = {**summarise(run, result), "weights": weights}
    _write(run.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    run.log.note(f"Test Loss: {result.loss:.3f}, Test {metric.title}: {result.score:.3f} ({path})")
    if result.mirrored_accuracy is not None:
        run.log.note("Test Accuracy with mirror images (--tta): "
                     f"{result.mirrored_accuracy:.3f}")
    run.log.note(f"Weights: {weights} ({_who_gives_the_same(run)})")
    if known := known_digests.remark(run, weights):
        run.log.note(known)


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text)


def _who_gives_the_same(run: Run) -> str:
    nodes, threads = run.settings.virtual_nodes, run.node.threads
    if not is_repeatable(run.checkpoints.constants["data"]):
        return "nothing is sure to give the same, because a sample differs when it is read again"
    everywhere = arithmetic() == PORTABLE
    of_threads = "" if everywhere else f" with {threads} thread{'s' * (threads > 1)} a rank"
    processor = "on every x86-64 processor with AVX2" if everywhere else "on such a processor"
    if place := Place.parse(run.settings.workload):
        processor += (f", if {place.file.name} draws from torch, numpy.random and random alone, "
                      "and has no generator of its own without a seed")
    if nodes:
        return (f"with {nodes} virtual node{'s' * (nodes > 1)} every part, strategy and number of "
                f"ranks{of_threads} gives the same {processor}")
    return f"the same command{of_threads} gives the same {processor}"


def confusion_matrix(result: Evaluation) -> np.ndarray:
    """Counts of samples by true class (rows) and predicted class (columns), int64.

    scikit-learn's is the same; importing it takes each rank a second.
    """
    classes = len(result.class_names)
    pairs = result.truth * classes + result.predictions
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def _dry_run_sentence(run: Run) -> str:
    step = next(read_events(run.log.metrics_path, "step"))
    settings, ranks = run.settings, run.node.world.size
    return (f"dry run: {ranks} rank{'s agree' if ranks > 1 else ' is ready'}, and the first step "
            f"took {step['duration']:.2f} s; a real run would train "
            f"{settings.epochs} epoch{'s' * (settings.epochs > 1)} of {run.iterations_per_epoch} "
            f"iteration{'s' * (run.iterations_per_epoch > 1)}"
            + (f", at most {settings.max_iterations} in all" if settings.max_iterations else "")
            + "; nothing was kept")


def summarise(run: Run, result: Evaluation) -> dict:
    """The figures of a run, from its own log: durations in seconds, without the first iteration."""
    steps = list(read_events(run.log.metrics_path, "step"))
    durations = [step["duration"] for step in steps[1:]]
    mean = statistics.fmean(durations) if durations else None
    stalled = sum(each["seconds"] for each in read_events(run.log.metrics_path, "regrouped"))
    return {
        "useful_time": sum(durations) / (sum(durations) + stalled) if durations else None,
        "test_loss": result.loss, f"test_{run.metric.key}": result.score,
        "mirrored_test_accuracy": result.mirrored_accuracy,
        "test_samples": result.samples, "iterations": len(steps), "mean_iteration_seconds": mean,
        "median_iteration_seconds": statistics.median(durations) if durations else None,
        "stdev_iteration_seconds": statistics.stdev(durations) if len(durations) > 1 else 0.0,
        "images_per_second": run.settings.batch_size / mean if mean else None,
        "phase_seconds": _mean_phases(steps[1:]), "parameters": count_parameters(run.model),
        "bytes_per_iteration": _mean_bytes(steps),
        "world_size": run.node.world.size, "threads": run.node.threads,
        "device": str(run.node.device), "backend": run.node.backend,
        "host": socket.gethostname(), "batch_size": run.settings.batch_size,
        "precision": run.settings.precision, "workload": run.settings.workload,
        "convolutions": algorithms(run.model), "versions": versions(),
        "checkpoint": str(run.checkpoints.last),
    }


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _mean_phases(steps: list[dict]) -> dict[str, float]:
    if not steps:
        return {}
    return {phase: statistics.fmean(step["seconds"][phase] for step in steps)
            for phase in steps[0]["seconds"]}


def _mean_bytes(steps: list[dict]) -> int:
    return round(statistics.fmean(step["bytes_sent"] for step in steps)) if steps else 0


def _steps_by_place(run: Run) -> dict[tuple[int, int], dict]:
    return {(step["epoch"], step["iteration"]): step
            for step in read_events(run.log.metrics_path, "step")}


def compare_runs(runs: Sequence[Run]) -> None:
    """Says how this rank's losses and times in `runs` compare, each with the one before it."""
    for before, after in pairwise(run for run in runs if not run.settings.dry_run):
        old, new = (_steps_by_place(run) for run in (before, after))
        places = sorted(old.keys() & new.keys())
        if not places:
            continue
        names = before.folder.name, after.folder.name
        seconds = [[steps[place]["duration"] for place in places[1:] or places]
                   for steps in (old, new)]
        world = after.node.world
        who = f"rank {world.rank}'s" if world.size > 1 else "their"
        learned = sentences([_learned(before, old), _learned(after, new)], f"{who} losses")
        after.log.say(f"{names[0]} against {names[1]}, from the same weights, by {who} log:\n"
                      f"  {compare_seconds(names, *seconds)}\n"
                      f"  {'; '.join(learned)}")


def compare_seconds(names: tuple[str, str], before: Sequence[float],
                    after: Sequence[float]) -> str:
    """Mean seconds an iteration of two runs, and how much faster one is, beyond the spread."""
    means = told_apart(statistics.fmean(before), statistics.fmean(after), "#", 3)
    text = f"{means[0]} and {means[1]} seconds an iteration"
    if times := times_as_fast(before, after):
        fast, slow = names if times < 1 else names[::-1]
        return f"{text}: {fast} is {max(times, 1 / times):.2f} times as fast as {slow}"
    return text + ", no difference beyond the spread" * (len(before) > 1)


def _learned(run: Run, steps: dict[tuple[int, int], dict]) -> Learned:
    tested = deque(read_events(run.log.metrics_path, "evaluation"), 1)
    return Learned(run.folder.name, run.node.world.size, run.settings.as_json(),
                   {place: step["loss"] for place, step in steps.items()},
                   has_batch_norm(run.model), tested[0].get("weights", "") if tested else "")
