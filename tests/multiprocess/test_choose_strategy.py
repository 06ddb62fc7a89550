"""One command from a preflight to a chosen strategy, and what scripts/predict.py needs to go on.

Mutations that turn this red: measure although the preflight has found a problem; leave out the
leader's cell; write the rate as a text, or no latency.
"""

import re
from pathlib import Path

from studies.prediction.fitting import calibrate
from studies.prediction.sources import read_source
from tests.facts import says
from tests.ranks import cluster, error_lines, run_programs
from tests.workload import SMALL, plant


def choose(folder: Path, *flags: str) -> list:
    given = [*SMALL, "--output-dir", str(folder / "out"), "--seconds", "0.2", "--strategies",
             "all-reduce; Part Three", *flags]
    return run_programs(cluster("scripts/choose_strategy.py", 2, given, folder,
                                before={0: plant, 1: plant}))


def test_it_ranks_the_strategies_and_the_prediction_goes_on_from_there(tmp_path):
    outcomes = choose(tmp_path)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    told = outcomes[0].output
    for pattern in (r"\| all-reduce \|", r"\| Part Three \|", r"\b2\b.*(--sync|PartThree/main\.py)",
                    r"\d s\b.*\b2\b.* ± ", r"\b1 machine\b"):
        assert re.search(pattern, told), (pattern, told)
    source = read_source(tmp_path / "out/strategies.json")
    assert [cell["nodes"] for cell in source.cells] == [1, 2] and source.batch == 10
    model = calibrate(source.cells, source.machine, source.batch)
    assert model.predict("all-reduce", 4, 1e9).seconds > 0
    assert 0 < source.latency < 0.1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["strategies.json"]


def test_a_problem_ends_it_before_anything_is_measured(tmp_path):
    programs = cluster("scripts/choose_strategy.py", 2, ["--workload", "digits-vgg11"], tmp_path,
                       by_rank={1: ["--workload", "mnist-mlp"]})
    outcomes = run_programs(programs)
    assert [outcome.code for outcome in outcomes] == [3, 3], outcomes
    assert says(error_lines(outcomes[0].output)[0], "rank 1", "workload")
    assert "| all-reduce |" not in outcomes[0].output
