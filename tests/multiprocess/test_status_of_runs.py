"""The logs of a run that ends badly, for whoever looks later.

Mutations that turn this red: no "failed" event in print_failure; progress.log not set, or set to
None before the run has ended.
"""

import time
from functools import partial

from common.core.events import read_events
from common.reporting.recorded_run import find_runs
from common.reporting.run_state import describe, state_of
from tests.facts import says
from tests.ranks import cluster, run_programs
from tests.workload import SMALL, plant


def test_a_lost_peer_stands_in_the_logs_of_the_others(tmp_path):
    out = tmp_path / "out"
    outcomes = run_programs(cluster("PartThree", 2, [*SMALL, "--output-dir", str(out)], tmp_path,
                                    before={0: plant, 1: partial(plant, 3, 1)}))
    assert outcomes[0].code == 75
    run, = find_runs([out])
    text, code = describe(run, time.time())
    assert code == 75 and says(text, 75, "rank 1", "epoch 1"), text


def test_a_finished_run_says_so_on_every_rank(tmp_path):
    out = tmp_path / "out"
    outcomes = run_programs(cluster("PartThree", 2, [*SMALL, "--output-dir", str(out)], tmp_path,
                                    before={0: plant, 1: plant}))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    for rank in (0, 1):
        kinds = [event["event"] for event in read_events(
            out / "PartThree" / f"metrics_rank{rank}.jsonl")]
        assert kinds[0] == "start" and kinds.count("end") == 1 and "failed" not in kinds
    run, = find_runs([out])
    assert state_of(run, time.time()).condition == "finished"
    assert run.start["iterations_per_epoch"] == 9 and run.start["cores"] >= 1
    assert sum(map(sum, run.last("evaluation")["confusion_matrix"])) == 31


def test_one_tracker_for_all_ranks_and_none_in_a_dry_run(tmp_path):
    out = tmp_path / "out"
    for flags, files in ((["--dry-run"], 0), ([], 1)):
        outcomes = run_programs(cluster(
            "PartThree", 2, [*SMALL, "--output-dir", str(out), "--tracker", "tensorboard", *flags],
            tmp_path, before={0: plant, 1: plant}))
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
        assert len(list(out.glob("PartThree/tensorboard/*"))) == files
