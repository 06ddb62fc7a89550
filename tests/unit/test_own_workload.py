"""A workload of one's own: what can be meant is accepted, and each mistake is one sentence.

Each case runs as Part One does, in this process. Mutations that turn this red: leave out a check of
Workload.__post_init__, or one of examine_first_loss; `_call_impl` or `autograd` left out of
failed_call; as_targets that returns them as they are; shape_lazy_layers that does
nothing; a DataError for a wrong label; seed_all that seeds torch alone; ItemDataset.take without
its seeds, or with those of the place instead of the sample's number; `_begin_alike` always False;
own_errors left out of _data; `_has_begun` that takes any log for a run; ItemDataset.take that looks
at no shapes (from a worker, an odd sample comes alone), or lets collate fail; as_dataset without
its split; own_errors left out of _fetch; `_is_sum` always False, or without its bounds.
"""

import json
import random
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from common.cluster.node import Node
from common.core.failures import Failure, NonFiniteLoss, UsageError
from common.core.world import World
from common.data.dataset import as_dataset
from common.evaluation import evaluate
from common.model.replica import digest_of
from common.options.command_line import parse_command_line
from common.preflight.examine import _data
from common.report import finish_run
from common.run.opening import open_run
from common.settings.user_code import UserCodeError, own_errors
from common.setup import create_loader, create_training, load_datasets
from common.step.gradient_sync import GradientSync
from common.training import train
from tests.facts import says

HEAD = """import random
from functools import partial
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from common.core.metrics import Metric
from common.options.workloads import Workload

class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, classes)
    def forward(self, x):
        return self.two(torch.relu(self.one(x)))

def load(split, data_dir):
    rows = np.random.default_rng(split == "train").standard_normal((50, 4), np.float32)
    return rows, (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0), ["a", "b", "c"]

def numbers(split, data_dir):
    return load(split, data_dir)[0], load(split, data_dir)[0][:, :1]

def distance(outputs, targets):
    return (outputs - targets).abs().flatten()

class Items(torch.utils.data.Dataset):
    classes = ["a", "b", "c"]
    def __init__(self, split, data_dir=None):
        self.rows, self.labels, _ = load(split, data_dir)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, number):
        return self.rows[number], int(self.labels[number])
"""
NETS = {name: f"class {name}(Net):\n    def {text}\n" for name, text in {
    "Frozen": "__init__(self, classes):\n        super().__init__()\n"
              "        self.requires_grad_(False)",
    "Lazy": "__init__(self, classes):\n        super().__init__()\n"
            "        self.one = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d())",
    "Drawn": "__init__(self, classes):\n        super().__init__()\n"
             "        self.one.weight.data.mul_(random.random() * np.random.rand())",
    "Noisy": "forward(self, x):\n"
             "        return super().forward(x * random.random() + np.random.rand())",
    "InPlace": "forward(self, x):\n        hidden = torch.sigmoid(self.one(x))\n"
               "        scores = self.two(hidden)\n        hidden += 1\n        return scores",
    "Detached": "forward(self, x):\n        return super().forward(x).detach()",
    "TwoInputs": "forward(self, x, mask):\n        return super().forward(x)",
    "NoInput": "forward(self):\n        return 0",
    "Makes": "forward(self, x):\n        return super().forward(nn.Linear(4, 4)(x))",
    "Listed": "__init__(self, classes):\n        super().__init__()\n"
              "        self.more = [nn.Linear(4, 4)]\n"
              "    def forward(self, x):\n        return super().forward(self.more[0](x))",
    "Bug": "forward(self, x):\n        return super().forward(x.no_such_name)"}.items()}
ITEMS = {name: f"class {name}(Items):\n    def {text}\n" for name, text in {
    "Augmented": "__getitem__(self, number):\n        noise = random.random() + np.random.rand()"
                 "\n        noise = np.float32(noise) + torch.rand(4).numpy()"
                 "\n        return self.rows[number] + noise, int(self.labels[number])",
    "Anew": "__getitem__(self, number):\n        noise = np.random.default_rng().random()\n"
            "        return self.rows[number] + np.float32(noise), int(self.labels[number])",
    "OfHalves": "__len__(self):\n        return len(self.rows) / 2",
    "Label7": "__getitem__(self, number):\n        return self.rows[number], 7 * (number == 33)",
    "Broken": "__getitem__(self, number):\n        assert number != 33\n"
              "        return super().__getitem__(number)",
    "Odd": "__init__(self, odd, split, data_dir):\n        super().__init__(split)\n"
           "        self.odd = 37 * (split == odd)\n    def __len__(self):\n        return 200\n"
           "    def __getitem__(self, number):\n        row, label = self.rows[number % 50], 1\n"
           "        return row[:3] if number and number == self.odd else row, label",
}.items()}


def trained(folder: Path, text: str, *flags: str) -> str:
    """Trains Workload(`text`) as Part One does, and returns the digest of its weights."""
    names = [name for name in NETS | ITEMS if f"{name}" in text]
    (folder / "mine.py").write_text(HEAD + "".join((NETS | ITEMS)[name] for name in names)
                                    + f"TASK = Workload('mine', {text})\n")
    workload, node = f"{folder}/mine.py:TASK", Node(World(), torch.device("cpu"), 1)
    with own_errors(lambda error: False, workload=workload):
        settings, _ = parse_command_line("PartOne", [
            "--workload", workload, "--batch-size", "20", "--arithmetic", "native", "--output-dir",
            str(folder), *flags])
        train_set, _, test_set = load_datasets(settings, node)
        loader = create_loader(settings, train_set, node)
        model, criterion, optimizer = create_training(settings, train_set, node)
        sync = GradientSync()
        with open_run("PartOne", "", settings, node, loader, model, optimizer, sync) as run:
            train(model, criterion, optimizer, loader, sync, run)
            finish_run(run, evaluate(run, criterion, test_set))
    return digest_of(model)


@pytest.mark.parametrize("text", [
    "load, Net", "load, lambda: Net(3)", "load, Lazy", "load, Net, criterion=F.cross_entropy",
    "load, Net, criterion=nn.CrossEntropyLoss", "Items, Net",
    "load, Net, criterion=lambda scores, labels: F.cross_entropy(scores, labels)",
    "numbers, lambda: Net(1), criterion=F.mse_loss, metric=distance",
    *(f"lambda split, _: (load(split, _)[0], {labels}, list('abc')), Net" for labels in (
        "np.eye(3)[load(split, _)[1]]", "load(split, _)[1].astype(np.int32)"))])
def test_what_can_be_meant_is_accepted(text, tmp_path):
    trained(tmp_path, text)
    assert (tmp_path / "PartOne" / "summary.json").exists()


def test_one_hot_labels_teach_what_class_numbers_teach(tmp_path):
    one_hot = "lambda split, _: (load(split, _)[0], np.eye(3)[load(split, _)[1]], list('abc')), Net"
    (tmp_path / "other").mkdir()
    trained(tmp_path, one_hot)
    trained(tmp_path / "other", "load, Net")
    one, other = (json.loads((folder / "PartOne" / "report.json").read_text())
                  for folder in (tmp_path, tmp_path / "other"))
    assert one["confusion_matrix"] == other["confusion_matrix"]
    assert one["test_loss"] == pytest.approx(other["test_loss"])


LINE = HEAD.count("\n")


@pytest.mark.parametrize("text, facts", [
    ("load, Frozen", ["mine.py:TASK", "requires_grad=False"]),
    ("load, lambda n: nn.Flatten()", ["mine.py:TASK", "no parameter"]),
    ("load, Detached", ["mine.py:TASK", "detach()", "argmax()"]),
    ("Items, Net, defaults={'lr': 0.1}", ["lr", "learning_rate"]),
    ("Items, Net, defaults={'batchsize': 20}", ["batchsize", "batch_size"]),
    ("type('Bare', (Items,), {'classes': ()}), Net", ["Dataset", "classes"]),
    ("load, InPlace", ["mine.py:TASK", "backward", "x = x + y"]),
    ("load, TwoInputs", ["mine.py:TASK", "TwoInputs", "(20, 4)", "mask"]),
    ("load, NoInput", ["mine.py:TASK", "NoInput", "(20, 4)"]),
    ("load, Makes", ["mine.py:TASK", "(4, 4)", "__init__"]),
    ("load, Listed", ["mine.py:TASK", "nn.ModuleList"]),
    ("load, Net, criterion='mse'", ["mse", "cross-entropy"]),
    ("load, Net, criterion=nn.GaussianNLLLoss", ["mine.py:TASK", "GaussianNLLLoss"]),
    ("load, Net, criterion=Bug", ["mine.py:TASK"]),
    ("load, Net, criterion=lambda scores: scores.mean()", ["mine.py:TASK", "(20, 3)"]),
    ("load, Net, criterion=lambda scores, labels: F.cross_entropy(scores, labels, "
     "reduction='none')", ["mine.py:TASK", "(20,)", "mean"]),
    ("load, Net, criterion=lambda scores, labels: F.cross_entropy(scores, labels, "
     "reduction='sum')", ["mine.py:TASK", "sum", "mean"]),
    ("numbers, lambda: Net(1), metric=distance, criterion=lambda o, t: (o - t).square().sum()",
     ["mine.py:TASK", "sum", "mean"]),
    ("load, Net, criterion=lambda scores, labels: 0.5", ["mine.py:TASK", "float"]),
    ("load, Net, metric='accuracy'", ["mine.py", f"line {LINE + 1}", "Metric(name, function)"]),
    ("load, Net, metric=Metric(distance)", ["mine.py", "Metric(name, function)"]),
    ("load, Net, metric=lambda scores: scores", ["mine.py:TASK", "metric", "lambda"]),
    ("load, Net, metric=lambda scores, labels: 0.5", ["metric", "float"]),
    ("load, Net(3)", ["mine.py", f"line {LINE + 1}", "build_model", "module"]),
    ("load, Net, mean=0.5, std=0.5", ["mine.py", f"line {LINE + 1}", "mean", "float"]),
    ("load, Net, mean=(0.5,), std=(0.5,)", ["mine.py:TASK", "(4,)", "mean"]),
    ("load(1, 2), Net", ["mine.py", f"line {LINE + 1}", "load"]),
    ("lambda split: 0, Net", ["mine.py", f"line {LINE + 1}", "load(split, data_dir)"]),
    ("lambda data_dir, split: 0, Net", ["mine.py", f"line {LINE + 1}", "load(split, data_dir)"]),
    ("load, lambda classes, width: 0", ["mine.py", f"line {LINE + 1}", "build_model(classes)",
                                        "width"]),
    ("load, lambda classes: None", ["mine.py", f"line {LINE + 1}", "NoneType", "torch.nn.Module"]),
    ("numbers, Bug, metric=distance, criterion=F.mse_loss", ["mine.py", "no_such_name"]),
    ("numbers, lambda classes: Net(1), metric=distance", ["mine.py", "build_model()", "classes"]),
    ("OfHalves, Net", ["__len__", "float"]),
    ("lambda split, _: (*load(split, _)[:2], 3), Net", ["mine.py", "class names", "3"])])
def test_each_mistake_is_one_sentence(text, facts, tmp_path):
    with pytest.raises(Failure) as raised:
        trained(tmp_path, text)
    assert raised.value.exit_code == 2
    assert says(str(raised.value).replace(f"{tmp_path}/", ""), *facts), raised.value


@pytest.mark.parametrize("factor", ["inf", "0"])
def test_a_mean_that_twice_the_batch_does_not_tell_from_a_sum_is_no_mistake(factor, tmp_path):
    with pytest.raises(NonFiniteLoss) if factor == "inf" else nullcontext():
        trained(tmp_path, "load, Net, criterion=lambda scores, labels: "
                          f"F.cross_entropy(scores, labels) * float({factor!r})")


@pytest.mark.parametrize("text, facts", [
    ("lambda split: 0", ["mine.py", "load(split, data_dir)"]),
    ("lambda split, data_dir: data_dir.no_such_name", ["mine.py", "no_such_name"])])
def test_the_preflight_tells_a_mistake_in_load(text, facts, tmp_path):
    (tmp_path / "mine.py").write_text(f"{HEAD}TASK = Workload('mine', {text}, Net)\n")
    settings, _ = parse_command_line("Preflight", ["--workload", f"{tmp_path}/mine.py:TASK"])
    _, sentence, code = _data(settings)
    assert code == 2 and says(sentence, *facts)


@pytest.mark.parametrize("load, loader", [
    ("Label7", "memory"), ("Label7", "workers:1"),
    ("lambda split, _: (load(split, _)[0], np.where(np.arange(50) == 33, 7, 0), list('abc'))",
     "memory")])
def test_a_label_that_no_class_has_is_told_by_its_sample(load, loader, tmp_path):
    with pytest.raises(Failure) as raised:
        trained(tmp_path, f"{load}, Net", "--loader", loader)
    assert raised.value.exit_code == 2
    assert says(raised.value, "sample 33 of the training set", 7, "0 to 2")


@pytest.mark.parametrize("loader", ["memory", "workers:1"])
@pytest.mark.parametrize("split, name", [("train", "training"), ("test", "test")])
def test_a_sample_of_another_size_ends_the_run_with_its_number(split, name, loader, tmp_path):
    with pytest.raises(UsageError) as raised:
        trained(tmp_path, f"partial(Odd, {split!r}), Net", "--loader", loader)
    assert says(raised.value, f"sample 37 of the {name} set", "(3,)", "(4,)")


def test_a_sample_whose_reading_fails_is_named(tmp_path):
    with pytest.raises(UserCodeError) as raised:
        trained(tmp_path, "Broken, Net")
    assert says(raised.value, "sample 33 of the training set", "mine.py", "AssertionError")
    assert str(raised.value).count("AssertionError") == 1


@pytest.mark.parametrize("nothing", ["None", "([], [])", "[]"])
def test_a_load_that_fails_is_told_with_its_split(nothing, tmp_path):
    with pytest.raises(UsageError) as raised:
        trained(tmp_path, f"lambda split, _: load(split, _) if split == 'train' else {nothing}, "
                          "Net")
    assert says(str(raised.value), 'load("test"', "mine.py")


@pytest.mark.parametrize("text", [
    "load, Drawn", "load, Noisy", "Augmented, Net",
    "lambda split, _: (np.random.rand(50, 4), np.random.rand(50, 1)), lambda: Net(1), "
    "criterion=F.mse_loss, metric=distance"], ids=["weights", "steps", "samples", "data"])
def test_what_is_drawn_from_numpy_and_random_is_the_same_again(text, tmp_path):
    found = set()
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        found.add(trained(tmp_path / run, text))
    assert len(found) == 1


def test_samples_are_drawn_alike_by_any_loader_and_after_a_resume(tmp_path):
    end = trained(tmp_path, "Augmented, Net")
    assert trained(tmp_path, "Augmented, Net", "--resume", "replace", "--loader",
                   "workers:2") == end
    begun = trained(tmp_path, "Augmented, Net", "--resume", "replace", "--max-iterations", "1")
    assert begun != end == trained(tmp_path, "Augmented, Net", "--resume", "auto")


def test_each_sample_draws_numbers_of_its_own_by_its_number_and_the_epoch():
    class Drawn(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
            return torch.tensor(drawn), number

    dataset = as_dataset(Drawn())
    state = torch.get_rng_state()
    first, swapped, later = (dataset.take(chosen, draw)[0] for chosen, draw in (
        ([3, 7], 1), ([7, 3], 1), ([3, 7], 2)))
    assert torch.equal(first, swapped.flip(0)) and torch.equal(state, torch.get_rng_state())
    assert len({*first.flatten().tolist(), *later.flatten().tolist()}) == 12
    assert torch.equal(dataset.part(np.array([7])).take([0], 1)[0][0], first[1])


def test_samples_that_are_drawn_anew_are_warned_of_and_nothing_is_promised(tmp_path, capsys):
    trained(tmp_path, "Anew, Net")
    said = capsys.readouterr().out
    assert says(said, "warning: sample 0", "counter", "nothing is sure") and (
        "gives the same" not in said)
    (tmp_path / "other").mkdir()
    trained(tmp_path / "other", "load, Net")
    said = capsys.readouterr().out
    assert "warning" not in said and says(said, "the same command", "mine.py", "without a seed")


def test_a_run_that_failed_before_its_first_step_does_not_block_the_next_one(tmp_path):
    with pytest.raises(UsageError):
        trained(tmp_path, "load, Detached")
    (tmp_path / "next").mkdir()
    trained(tmp_path / "next", "load, Net", "--output-dir", str(tmp_path))
    with pytest.raises(UsageError) as raised:
        trained(tmp_path / "next", "load, Net", "--output-dir", str(tmp_path))
    assert says(raised.value, tmp_path / "PartOne", "--resume auto")


@pytest.mark.parametrize("of, warned", [
    ("load('train', _)", True), ("load(split, _)", False),
    ("(*(each[:9 * len(split)] for each in load('train', _)[:2]), list('abc'))", True)])
def test_a_test_set_that_begins_like_the_training_set_is_warned_of(of, warned, tmp_path, capsys):
    trained(tmp_path, f"lambda split, _: {of}, Net")
    assert ("warning: training and test set" in capsys.readouterr().out) is warned
