"""A run that was killed and resumed is the run that was never stopped: bit for bit.

Mutations that turn this red: leave the momentum out of restore; start the epoch anew in
InMemoryLoader.batches; forget `totals`; do not call rebuild_buckets in PartThree/main.py; save no
rank_state, or the leader's for all; drop `_restore_ranks`; drop `settle` from Checkpoints.save; let
auto:FILE be auto, or FILE; drop `is_done` from `_restore`; drop `leave_other_line` or `_has_begun`.
"""

import random
import re
from functools import partial
from pathlib import Path

import pytest
import torch

from common.core.events import append_event, read_events
from common.run import checkpoint_folder
from common.settings.resume import Resume
from tests.facts import says
from tests.ranks import error_lines, program, run_programs
from tests.runs import RUNS, STEPS, Case, end_of, launch, same_bits
from tests.small import SmallNet
from tests.workload import SMALL, plant

KILLED = -9


def random_cases(count: int, seed: int) -> list[Case]:
    """Kill points spread over parts, world sizes, loaders and checkpoint intervals."""
    generator = random.Random(seed)
    runs = [("PartOne", 1)] + [(run, size) for run in list(RUNS)[1:] for size in (1, 2, 3, 4)]
    cases = []
    for number in range(count):
        run, size = runs[number % len(runs)]
        cases.append(Case(run, size, generator.choice(["memory", "memory", "workers"]),
                          generator.randint(1, 5), generator.randint(1, STEPS - 1)))
    return cases


def last_save(case: Case) -> int:
    """The steps in the last checkpoint before the kill; a kill after step 9 precedes the save."""
    return max((step for step in range(1, case.kill_at + 1)
                if (step < case.kill_at if step % 9 == 0 else step % case.every == 0)), default=0)


def check_case(case: Case, tmp_path: Path, undisturbed) -> None:
    launch(case, tmp_path, "no", before=partial(plant, kill_at=case.kill_at), code=KILLED)
    launch(case, tmp_path, "auto")
    assert same_bits(end_of(case, tmp_path), undisturbed(case))
    text = (tmp_path / RUNS[case.run] / "logs_rank0.txt").read_text()
    if saved := last_save(case):
        line, = (line for line in text.splitlines() if "bit-exact: " in line)
        assert says(line, f"epoch {saved // 9 + 1}", f"iteration {saved % 9}", "bit-exact: yes")
    assert not says(text, "nothing is left")


@pytest.mark.parametrize("case", random_cases(20, seed=1), ids=str)
def test_a_killed_run_resumes_bit_for_bit(case, tmp_path, undisturbed):
    check_case(case, tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("case", random_cases(100, seed=2), ids=str)
def test_many_killed_runs_resume_bit_for_bit(case, tmp_path, undisturbed):
    check_case(case, tmp_path, undisturbed)


@pytest.mark.parametrize("run, wire", [
    ("overlapped-all-reduce", "bf16"), ("overlapped-all-reduce", "float32"),
    ("cross-step-all-reduce", "bf16"), ("cross-step-all-reduce", "float32"),
    ("gather-scatter-pipelined", "fp16"), ("reduce-scatter", "float32")])
def test_other_strategies_resume_bit_for_bit_with_what_their_wire_still_owes(run, wire, tmp_path):
    case, flags = Case(run, 3, "memory", 4, 6), ["--wire", wire, "--bucket-mb", "0.0004"]
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    launch(case, folders[0], "no", more=flags)
    launch(case, folders[1], "no", before=partial(plant, kill_at=6), code=KILLED, more=flags)
    launch(case, folders[1], "auto", more=flags)
    assert same_bits(*(end_of(case, folder) for folder in folders))


def plant_unsettled(kill_at: int | None = None) -> None:
    from PartThree import ddp

    plant(kill_at)
    ddp.rebuild_buckets = lambda *given: None


def test_without_settled_buckets_ddp_drifts_on_three_ranks(tmp_path):
    case = Case("PartThree", 3, "memory", 4, 6)
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    launch(case, folders[0], "no", before=plant_unsettled)
    launch(case, folders[1], "no", before=partial(plant_unsettled, 6), code=KILLED)
    launch(case, folders[1], "auto", before=plant_unsettled)
    whole, resumed = (end_of(case, folder) for folder in folders)
    assert not same_bits(whole, resumed)


@pytest.mark.parametrize("sizes", [(4, 1), (1, 3), (2, 4)])
def test_another_world_size_continues_the_same_run_to_rounding(sizes, tmp_path):
    run = "all-reduce"
    case = Case(run, sizes[0], "memory", 4, 6)
    exact = ["--precision", "float64", "--batch-norm", "synchronised"]
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    launch(case, tmp_path / "whole", "no", more=exact)
    launch(case, tmp_path / "resumed", "no", before=partial(plant, kill_at=6), code=KILLED,
           more=exact)
    launch(case, tmp_path / "resumed", "auto", sizes[1], more=exact)
    whole, resumed = end_of(case, tmp_path / "whole"), end_of(case, tmp_path / "resumed")
    for name, tensor in whole.weights.items():
        assert torch.allclose(tensor.double(), resumed.weights[name].double(), rtol=0, atol=1e-12)
    for before, after in zip(whole.epochs, resumed.epochs, strict=True):
        assert before == pytest.approx(after, abs=1e-12)
    text = (tmp_path / "resumed" / RUNS[run] / "logs_rank0.txt").read_text()
    line, = (line for line in text.splitlines() if "bit-exact: " in line)
    assert says(line, "bit-exact: no", "world_size", *sizes)


def test_changed_settings_are_refused_with_their_names_or_accepted_by_a_flag(tmp_path):
    case = Case("PartOne", 1, "memory", 4, 6)
    launch(case, tmp_path, "no", before=partial(plant, kill_at=6), code=KILLED)
    changed = [*SMALL, "--output-dir", str(tmp_path), "--resume", "auto", "--learning-rate", "0.2"]
    outcome, = run_programs([program("PartOne", changed, tmp_path, "rank0", before=plant)])
    assert outcome.code == 2
    assert says(error_lines(outcome.output)[0], "learning_rate", 0.1, 0.2, "--resume auto:changed")
    changed += ["--resume", "auto:changed"]
    outcome, = run_programs([program("PartOne", changed, tmp_path, "rank0", before=plant)])
    assert outcome.code == 0 and says(outcome.output, "learning_rate", 0.1, 0.2)


@pytest.mark.parametrize("fewer", [["--epochs", "1"], ["--max-iterations", "12"]])
def test_a_run_without_an_iteration_left_says_so(fewer, tmp_path):
    launch(Case("PartOne", 1, "memory", 4, 0), tmp_path, "no")
    again = [*SMALL, "--output-dir", str(tmp_path), "--resume", "auto", *fewer]
    outcome, = run_programs([program("PartOne", again, tmp_path, "rank0", before=plant)])
    assert outcome.code == 0 and says(outcome.output, "nothing is left", " ".join(fewer))


def test_any_part_continues_any_parts_checkpoint(tmp_path):
    (tmp_path / "one").mkdir()
    first = Case("PartOne", 1, "memory", 4, 9)
    launch(first, tmp_path / "one", "no", before=partial(plant, kill_at=10), code=KILLED)
    path = str(tmp_path / "one" / "PartOne" / "checkpoints" / "Epoch_1.pt")
    for run in list(RUNS)[1:]:
        (tmp_path / run).mkdir()
        case = Case(run, 2, "memory", 4, 0)
        launch(case, tmp_path / run, path)
        steps = end_of(case, tmp_path / run).losses[0]
        assert [step[:2] for step in steps] == [(2, iteration) for iteration in range(9)]


@pytest.mark.parametrize("run", ["PartOne", "all-reduce"])
@pytest.mark.parametrize("kill_at", [10, 14])  # before its first save and after
def test_a_run_from_a_file_that_is_killed_goes_on(kill_at, run, tmp_path):
    """Part One goes back in its own folder, whose newest is Epoch_2.pt; the other begins a new."""
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
        launch(Case("PartOne", 1, "memory", 0, 0), folder, "no")
    case, more = Case(run, 1, "memory", 4, kill_at), ["--learning-rate", "0.05"]
    files = [f"{folder}/PartOne/checkpoints/Epoch_1.pt" for folder in folders]
    launch(case, folders[0], f"{files[0]}:changed", more=more)
    launch(case, folders[1], f"{files[1]}:changed", more=more, code=KILLED,
           before=partial(plant, kill_at=kill_at))
    launch(case, folders[1], f"auto:{files[1]}:changed", more=more)
    assert same_bits(*(end_of(case, folder) for folder in folders))
    steps = end_of(case, folders[1]).losses[0][-9:]
    assert [step[:2] for step in steps] == [(2, iteration) for iteration in range(9)]
    *_, start = read_events(folders[1] / RUNS[run] / "metrics_rank0.jsonl", "start")
    assert start["position"][:2] == [2, 0 if kill_at == 10 else 3]


def test_a_run_that_has_not_yet_gone_back_does_so_at_the_next_start(tmp_path):
    """Killed before its log says from where it goes on, with the newer checkpoints in their place.
    """
    file = tmp_path / "checkpoints" / "Epoch_1.pt"
    file.parent.mkdir()
    for path in (file, file.with_name("Epoch_2.pt")):
        path.touch()
    log = tmp_path / "metrics_rank0.jsonl"
    append_event(log, "start", settings={"resume": "no"})
    assert checkpoint_folder.to_resume(tmp_path, Resume.read(f"auto:{file}")) == [file]
    append_event(log, "start", settings={"resume": f"{file}:changed"})
    append_event(log, "start", settings={"resume": "auto"})
    newest, *_ = checkpoint_folder.to_resume(tmp_path, Resume.read(f"auto:{file}"))
    assert newest.name == "Epoch_2.pt"


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, undisturbed):
    case = Case("all-reduce", 2, "memory", 4, 14)
    launch(case, tmp_path, "no", before=partial(plant, kill_at=14), code=KILLED)
    newest = checkpoint_folder.newest(tmp_path / RUNS[case.run] / "checkpoints")
    assert len(newest) == 2
    newest[0].write_bytes(newest[0].read_bytes()[:-1])
    launch(case, tmp_path, "auto")
    assert same_bits(end_of(case, tmp_path), undisturbed(case))
    said = (tmp_path / "rank0.out").read_text()
    assert re.search(f"^warning: .*{newest[0]} ", said, re.MULTILINE)


def test_a_folder_with_a_run_takes_no_other_runs_checkpoint(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        launch(Case("PartOne", 1, "memory", 4, 9), tmp_path / name, "no")
    path = str(tmp_path / "one" / "PartOne" / "checkpoints" / "Epoch_1_Iteration_7.pt")
    launch(Case("PartOne", 1, "memory", 4, 9), tmp_path / "other", path, code=2)
    line, = error_lines((tmp_path / "other" / "rank0.out").read_text())
    assert says(line, tmp_path / "other/PartOne", "--resume auto")


def test_a_plain_torch_save_of_the_four_keys_goes_on_at_the_next_epoch(tmp_path):
    """A write-up's script leaves such a file, with DistributedDataParallel's prefix."""
    torch.manual_seed(3)
    model = SmallNet(torch.nn.BatchNorm2d)
    weights = {"module." + name: tensor for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    path = tmp_path / "theirs.pt"
    torch.save({"epoch": 1, "loss": 0.5, "model_state_dict": weights,
                "optimizer_state_dict": optimizer.state_dict()}, path)
    case = Case("all-reduce", 2, "memory", 4, 0)
    launch(case, tmp_path, str(path))
    steps = end_of(case, tmp_path).losses[0]
    assert [step[:2] for step in steps] == [(2, iteration) for iteration in range(9)]
    text = (tmp_path / RUNS[case.run] / "logs_rank0.txt").read_text()
    about = [line for line in text.splitlines() if str(path) in line]
    assert len(about) == 2 and says(about[-1], "epoch 2", "iteration 0", "bit-exact: no")
