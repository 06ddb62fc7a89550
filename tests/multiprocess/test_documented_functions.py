"""The course's documented functions: exactly its keywords, on one rank and on several."""

import inspect
import re
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import common
from common.core.events import read_events
from common.core.failures import Failure, NonFiniteLoss, UsageError
from common.model.replica import unwrapped
from common.reporting.merged_steps import by_place, logs_of_runs
from common.reporting.page import Page
from common.reporting.recorded_run import find_runs
from common.reporting.run_state import describe
from common.witnessing.script_run import metrics_path
from tests.facts import says
from tests.ranks import run_ranks
from tests.small import small_model

SIGNATURES = {
    "generate_eval_report": "ground_truth prediction test_loss report_path checkpoint_path",
    "evaluate_model": "model device criterion test_loader report_path checkpoint_path",
    "get_model_parameters": "model",
    "prepare_model_for_evaluation": "model device checkpoint_path",
    "prepare_model_for_training": "model device learning_rate momentum weight_decay continue_flag "
                                  "continue_checkpoint_path distribute_flag",
    "train_model": "model device criterion optimizer start_epoch end_epoch train_loader logs_path "
                   "checkpoint_dir distribute_flag task_flag rank",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_order_of_the_parameters(name):
    parameters = inspect.signature(getattr(common, name)).parameters.values()
    plain = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert plain == SIGNATURES[name].split()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    expected = {"prepare_model_for_training": {"continue_checkpoint_path": "",
                                               "distribute_flag": False},
                "train_model": {"task_flag": "", "rank": ""}}.get(name, {})
    assert expected.items() <= defaults.items()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(24, 3, 8, 8, generator=generator, dtype=torch.float64),
                         torch.randint(0, 3, (24,), generator=generator))


def course(distribute_flag: bool, task_flag: str) -> dict[str, torch.Tensor]:
    """The course's script, with nothing but documented keywords: the weights after four epochs."""
    together = dist.get_world_size() > 1
    rank = dist.get_rank() if together else ""
    sampler = DistributedSampler(data(), shuffle=False) if together else None
    loader = DataLoader(data(), batch_size=8 // dist.get_world_size(), sampler=sampler)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, criterion, optimizer = common.prepare_model_for_training(
            model=small_model(), device=torch.device("cpu"), learning_rate=0.1, momentum=0.9,
            weight_decay=1e-4, continue_flag=False, continue_checkpoint_path="",
            distribute_flag=distribute_flag)
        assert isinstance(model, DistributedDataParallel) == distribute_flag
        model = common.train_model(
            model=model, device=torch.device("cpu"), criterion=criterion, optimizer=optimizer,
            start_epoch=1, end_epoch=4, train_loader=loader,
            logs_path=folder / f"logs_rank{rank}.txt", checkpoint_dir=folder / "checkpoints",
            distribute_flag=distribute_flag, task_flag=task_flag, rank=rank)
        first = (folder / f"logs_rank{rank}.txt").read_text().splitlines()[0]
        assert first.startswith("Batch Idx: 0" if rank == "" else f"Rank: {rank}, Batch Idx: 0")
        if rank in ("", 0):
            names = sorted(path.name for path in (folder / "checkpoints").iterdir())
            assert names == [f"Epoch_{epoch}.pt" for epoch in (1, 2, 3, 4)]
            evaluate(folder, criterion)
    return {key: tensor.detach() for key, tensor in
            unwrapped(model).state_dict().items()}


def evaluate(folder: Path, criterion: nn.Module) -> None:
    path = folder / "checkpoints" / "Epoch_4.pt"
    model = common.prepare_model_for_evaluation(
        model=small_model(), device=torch.device("cpu"), checkpoint_path=path)
    result = common.evaluate_model(
        model=model, device=torch.device("cpu"), criterion=criterion,
        test_loader=DataLoader(data(), batch_size=7), report_path=folder / "report.txt",
        checkpoint_path=path)
    inputs, targets = data().tensors
    expected = nn.functional.cross_entropy(model(inputs), targets)
    assert abs(result.loss - float(expected)) < 1e-12  # a mean over samples: 7 does not divide 24
    assert f"Metrics for the checkpoint: {path}" in (folder / "report.txt").read_text()


# Each global batch of 8 holds the same samples on 1, 2 and 4 ranks only as a set; batch norm is
# frozen, so the order does not matter.
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("flags", [(False, "PartOne"), (False, "PartTwo"), (True, "")])
def test_every_combination_of_flags_trains_what_one_node_trains(flags, world_size):
    alone, = run_ranks(1, course, False, "")
    for weights in run_ranks(world_size, course, *flags):
        for name, tensor in weights.items():
            assert torch.allclose(tensor, alone[name], rtol=0, atol=1e-12), name


def test_without_the_flags_the_ranks_would_drift_and_are_refused():
    with pytest.raises(Failure) as refused:
        run_ranks(2, course, False, "")
    assert says(refused.value, 2, "task_flag", "distribute_flag=True")


def without_rank(folder: Path) -> None:
    """A run whose script says its rank nowhere, and names its logs in its own way."""
    model, criterion, optimizer = common.prepare_model_for_training(
        small_model(), "cpu", 0.1, 0.9, 1e-4, False)
    loader = DataLoader(data(), batch_size=4, sampler=DistributedSampler(data()))
    common.train_model(model, "cpu", criterion, optimizer, 1, 2, loader,
                       folder / "logs" / f"part2_rank{dist.get_rank()}.txt", folder / "kept",
                       False, "PartTwo")


def test_the_scripts_find_a_run_of_a_users_own(tmp_path):
    run_ranks(2, without_rank, tmp_path)
    assert all(line.startswith("Rank: 1, ")
               for line in (tmp_path / "logs/part2_rank1.txt").read_text().splitlines())
    run, = find_runs([tmp_path / "logs"])
    assert (run.name, run.ranks, sorted(run.hosts), len(run.merged)) == ("part2", 2, [0, 1], 6)
    assert run.settings["batch_size"] == 8 and run.settings["momentum"] == 0.9
    text, code = describe(run, time.time())
    assert says(text, "part2", "2 ranks", "finished", "epoch 2") and code == 0
    (_, paths), = logs_of_runs([tmp_path / "logs" / "part2"])
    assert len(by_place(paths)) == 6
    assert Page.of([run], []).first_sentences()


def test_the_log_tells_why_a_run_failed(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), float("inf"))
    with pytest.raises(NonFiniteLoss):
        common.train_model(model, "cpu", nn.CrossEntropyLoss(), optimizer, 1, 2,
                           DataLoader(data(), 8), tmp_path / "logs_rank0.txt", tmp_path, False)
    text, code = describe(find_runs([tmp_path])[0], time.time())
    assert says(text, "loss") and code == 5


def test_training_continues_from_a_checkpoint(tmp_path):
    def run(start: int, end: int, continue_flag: bool):
        model, criterion, optimizer = common.prepare_model_for_training(
            small_model(), "cpu", 0.1, 0.9, 1e-4, continue_flag, tmp_path / "c" / "Epoch_1.pt")
        return common.train_model(model, "cpu", criterion, optimizer, start, end,
                                  DataLoader(data(), batch_size=8), tmp_path / "log.txt",
                                  tmp_path / "c", False)
    whole = run(1, 2, False).state_dict()
    resumed = run(2, 2, True).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    steps = [(event["epoch"], event["iteration"])
             for event in read_events(tmp_path / "log" / "metrics_rank0.jsonl", "step")]
    assert steps == [(epoch, iteration) for epoch in (1, 2) for iteration in range(3)]


def test_flags_that_mean_nothing_are_refused():
    with pytest.raises(UsageError) as refused:
        common.train_model(small_model(), "cpu", nn.CrossEntropyLoss(),
                           torch.optim.SGD(small_model().parameters(), 0.1), 1, 1, [], "log", "c",
                           True, "PartTwo")
    assert says(refused.value, "distribute_flag=True", "task_flag='PartTwo'")


@pytest.mark.parametrize("loader", [[], (batch for batch in [])], ids=["empty", "generator"])
def test_a_loader_without_batches_or_length_gets_a_sentence(loader, tmp_path):
    model = small_model()
    with pytest.raises(UsageError, match="loader"):
        common.train_model(model, "cpu", nn.CrossEntropyLoss(),
                           torch.optim.SGD(model.parameters(), 0.1), 1, 1, loader,
                           tmp_path / "log.txt", tmp_path, False)


def test_a_missing_process_group_gets_a_sentence(tmp_path, monkeypatch):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    group = re.escape("torch.distributed.init_process_group()")
    with pytest.raises(UsageError, match=f"distribute_flag=True.*{group}"):
        common.prepare_model_for_training(model, "cpu", 0.1, 0.9, 0.0, False, "", True)
    with pytest.raises(UsageError, match=f"task_flag='PartTwo'.*{group}"):
        common.train_model(model, "cpu", nn.CrossEntropyLoss(), optimizer, 1, 1,
                           DataLoader(data(), 8), tmp_path / "log.txt", tmp_path, False, "PartTwo")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=rf"WORLD_SIZE\b.*\b2\b.*{group}"):
        with common.witness(model, optimizer, [1]):
            pass


def test_preparing_tells_the_number_of_parameters(capsys):
    common.prepare_model_for_training(small_model(), "cpu", 0.1, 0.9, 0.0, False)
    number = common.get_model_parameters(small_model())
    assert says(capsys.readouterr().out, f"{number:,}")


@pytest.mark.parametrize("values, fact", [
    ((-1.0, 0.9, 0.0), "learning rate"), ((0.1, -1.0, 0.0), "momentum")])
def test_values_that_no_optimizer_takes_get_a_sentence(values, fact):
    with pytest.raises(UsageError, match=rf"{fact}.* -1\.0"):
        common.prepare_model_for_training(small_model(), "cpu", *values, False)


def test_a_star_import_and_dir_show_the_functions():
    names: dict[str, object] = {}
    exec("from common import *", names)
    assert {*SIGNATURES, "witness"} <= names.keys() & set(dir(common))
    assert all(callable(names[name]) for name in SIGNATURES)


@pytest.mark.parametrize("logs, metrics", [
    ("a/logs_rank3.txt", "a/metrics_rank3.jsonl"), ("a/rank3.log", "a/metrics_rank3.jsonl"),
    ("a/ddp_rank3.txt", "a/ddp/metrics_rank3.jsonl"), ("a/ddp3", "a/ddp/metrics_rank3.jsonl"),
    ("a/ddp-node-3.txt", "a/ddp/metrics_rank3.jsonl"), ("a/ddp.txt", "a/ddp/metrics_rank3.jsonl")])
def test_the_ranks_of_a_run_have_their_json_lines_in_one_folder(logs, metrics):
    assert metrics_path(Path(logs), 3) == Path(metrics)
