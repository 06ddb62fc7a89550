"""The folder of a run is deleted, moved or swapped: that is said, and what can be is written anew.

Mutations that turn this red: no `is_lost` in RunLog._append; leave out `when_lost`, or
keep_settings or the lock in write_anew; copy what was lost into a file that is there; drop
`_refuse_anothers_folder`.
"""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from common.core.events import read_events
from common.core.world import World
from common.run import folder_lock
from common.run.folder_lock import FolderLock
from common.run.other_runs import log_paths
from common.run.run_log import RunLog
from tests.facts import says
from tests.ranks import cluster, error_lines, program, run_programs
from tests.runs import STEPS
from tests.workload import SMALL, plant


def after_step(number: int, what, rank: int = 0) -> None:
    """The small workload; `what` is called with the run's folder after so many steps."""
    from common.run import run

    plant()
    folder_lock.WAIT_SECONDS = 0.2
    finish_step = run.Run.finish_step

    def finish_step_and_disturb(self: run.Run, *arguments) -> None:
        finish_step(self, *arguments)
        if self.position.step == number and self.node.world.rank == rank:
            what(self.folder)
    run.Run.finish_step = finish_step_and_disturb


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def delete(folder: Path) -> None:
    """Deletes it at once: file by file another rank could write anew what is just being deleted."""
    move_away(folder)
    shutil.rmtree(folder.with_name("moved"))


def begin_another_run(folder: Path) -> None:
    """Begins another run in a process that has the lock until this one ends."""
    shutil.rmtree(folder)
    import multiprocessing

    taken = multiprocessing.get_context("fork").Event()
    multiprocessing.get_context("fork").Process(target=_hold, args=(folder, taken),
                                                daemon=True).start()
    assert taken.wait(30)


def _hold(folder: Path, taken) -> None:
    import time

    FolderLock(folder, 0, "").take()
    taken.set()
    time.sleep(100)


@pytest.mark.parametrize("what", [delete, move_away], ids=["deleted", "moved"])
@pytest.mark.parametrize("part, ranks", [("PartOne", 1), ("PartThree", 2)])
def test_a_folder_that_is_lost_in_mid_run_is_written_anew(what, part, ranks, tmp_path):
    flags = [*SMALL, "--output-dir", str(tmp_path / "out"), "--checkpoint-every", "4"]
    before = partial(after_step, 6, what)
    programs = ([program(part, flags, tmp_path, "one", before=before)] if ranks == 1 else
                cluster(part, ranks, flags, tmp_path, before=dict.fromkeys(range(ranks), before)))
    outcomes = run_programs(programs)
    assert [outcome.code for outcome in outcomes] == [0] * ranks, outcomes
    folder = tmp_path / "out" / part
    for rank, outcome in enumerate(outcomes):
        text, metrics = log_paths(folder, World(rank, ranks))
        for each in (outcome.output, text.read_text()):
            assert re.search(f"warning: .*{folder}", each)
        steps = [(each["epoch"], each["iteration"]) for each in read_events(metrics, "step")]
        assert len(steps) == len(set(steps)) == STEPS
    assert json.loads((folder / "settings.json").read_text())["workload"] == "small"
    assert (folder / "summary.json").exists() and (folder / "checkpoints" / "Epoch_2.pt").exists()


def test_a_run_whose_folder_another_run_has_taken_ends(tmp_path):
    flags = [*SMALL, "--output-dir", str(tmp_path / "out")]
    outcome, = run_programs([program("PartOne", flags, tmp_path, "one",
                                     before=partial(after_step, 6, begin_another_run))])
    assert outcome.code == 2
    assert re.search(r"\bprocess \d+\b", error_lines(outcome.output)[0])
    assert not (tmp_path / "out" / "PartOne" / "metrics_rank0.jsonl").exists()


def test_a_log_that_an_editor_has_saved_goes_on_without_a_second_copy(tmp_path):
    log = RunLog(*log_paths(tmp_path, World()), World())
    with log:
        log.note("first")
        log.text_path.rename(tmp_path / "old")
        log.text_path.write_text("first, edited\n")
        log.note("second")
    lines = log.text_path.read_text().splitlines()
    assert lines[0] == "first, edited" and lines[-1] == "second" and "first" not in lines
    assert [event["text"] for event in read_events(log.metrics_path, "note")][0] == "first"


def test_disks_that_were_swapped_between_ranks_are_told_of(tmp_path):
    own = {rank: ["--output-dir", str(tmp_path / str(rank))] for rank in range(2)}
    flags = [*SMALL, "--sync", "all-reduce", "--checkpoint-every", "4"]
    run_programs(cluster("PartTwo", 2, flags, tmp_path, own,
                         dict.fromkeys(range(2), partial(plant, kill_at=6))))
    swapped = {0: own[1], 1: own[0]}
    before = sorted(tmp_path.glob("[01]/**/*"))
    outcomes = run_programs(cluster("PartTwo", 2, [*flags, "--resume", "auto"], tmp_path, swapped,
                                    dict.fromkeys(range(2), plant)))
    for outcome in outcomes:
        assert outcome.code == 2
        sentence, = error_lines(outcome.output)
        assert says(sentence, "rank 0", "rank 1", "Epoch_1_Iteration_4.pt", "--output-dir")
    new = {path.name for path in set(tmp_path.glob("[01]/**/*")) - set(before)}
    assert new <= {"checkpoints", ".lock_rank0", ".lock_rank1"}
