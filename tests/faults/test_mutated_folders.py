"""Damaged folders of runs are given to every program that reads them: a sentence, or the truth.

No hang, no traceback, and no wrong result without a word: a run that goes on to its end has the
weights of one that was never disturbed.

    python3 -m pytest -m slow tests/faults/test_mutated_folders.py      # 100 cases
"""

import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from common.core.failures import Failure
from common.run import checkpoint_file
from tests.faults.mutations import obey_permissions, spoil
from tests.faults.test_lost_folders import after_step
from tests.ranks import Outcome, cluster, program, run_programs
from tests.workload import SMALL, plant

FLAGS = [*SMALL, "--sync", "all-reduce", "--checkpoint-every", "4"]
CODES = {kind.exit_code for kind in Failure.__subclasses__() if hasattr(kind, "exit_code")}
RUN = "PartTwo/all-reduce"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The output folder of a run that was killed in its second epoch, and the weights of a whole.
    """
    folders = [tmp_path_factory.mktemp(name) for name in ("whole", "killed")]
    for folder, kill_at in zip(folders, (None, 14), strict=True):
        run_programs(cluster("PartTwo", 2, [*FLAGS, "--output-dir", str(folder / "out")], folder,
                             before=dict.fromkeys(range(2), partial(plant, kill_at))))
    whole = checkpoint_file.read(folders[0] / "out" / RUN / "checkpoints" / "Epoch_2.pt")
    return folders[1] / "out", whole["model_state_dict"]


def reader() -> None:
    plant()
    obey_permissions()


def disturbed(step: int, seed: int) -> None:
    """Does as `reader`; with a step, the folder is damaged again while the run goes on."""
    after_step(step, lambda folder: spoil(folder, random.Random(seed)))
    obey_permissions()


def check(seed: int, killed, tmp_path: Path) -> None:
    folder, weights = killed
    out, chance = tmp_path / "out", random.Random(seed)
    shutil.copytree(folder, out)
    done = spoil(out / RUN, chance)
    file = out / RUN / "checkpoints" / chance.choice(("Epoch_1.pt", "Epoch_2_Iteration_3.pt"))
    readers = [("scripts/status.py", [str(out)]),
               ("scripts/compare.py", [str(out), "--output", str(tmp_path / "page")]),
               ("scripts/report_problem.py", [str(out), "--output", str(tmp_path / "report")]),
               ("scripts/evaluate.py", [str(file), "--threads", "1"])]
    programs = [program(name, flags, tmp_path, Path(name).stem, before=reader)
                for name, flags in readers]
    for (name, _), outcome in zip(readers, run_programs(programs), strict=True):
        require_a_sentence(outcome, f"seed {seed}, {done}, {name}")
    begin = partial(disturbed, chance.choice((0, 0, 16)), seed)
    resumed = run_programs(cluster(
        "PartTwo", 2, [*FLAGS, "--output-dir", str(out), "--resume", "auto"], tmp_path,
        before=dict.fromkeys(range(2), begin)))
    for outcome in resumed:
        require_a_sentence(outcome, f"seed {seed}, {done}, --resume auto")
    if all(outcome.code == 0 for outcome in resumed):
        last = out / RUN / "checkpoints" / "Epoch_2.pt"
        if last.is_file() and begin.args[0] == 0:
            found = checkpoint_file.read(last)["model_state_dict"]
            assert all(torch.equal(found[name], weights[name]) for name in weights), done


def require_a_sentence(outcome: Outcome, what: str) -> None:
    """The program has ended by itself, with an exit code that means something."""
    assert outcome.code in {0, *CODES}, (what, outcome)
    assert "Traceback" not in outcome.output, (what, outcome.output)
    is_state = what.endswith("status.py") and RUN in outcome.output  # of a run that is silent
    assert outcome.code == 0 or "error: " in outcome.output or is_state, what


@pytest.mark.parametrize("seed", [3, 26])
def test_a_damaged_folder_is_told_of(seed, killed, tmp_path):
    check(seed, killed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_damaged_folders_are_told_of(seed, killed, tmp_path):
    check(seed, killed, tmp_path)
