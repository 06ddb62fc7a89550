"""The whole idea in one file ends with the digest of Part One, Two and Three.

Mutations that turn this red, in examples/one_file.py: forget `weight`; divide by one rank more;
drop the two passes in `ddp`; seed the order by the rank. And in common/arithmetic/pooling.py:
`pools_first` stays True in pool_last.
"""

import json
import re

import pytest

from tests.ranks import cluster, free_port, program, run_programs

SETTINGS = ["--max-iterations", "2", "--threads", "1"]
HOUSE = [*SETTINGS, "--workload", "digits-vgg11", "--convolutions", "library", "--arithmetic",
         "native"]


def of_one_file(folder, nodes: int, sync: str) -> set[str]:
    flags = [*SETTINGS, "--num-nodes", str(nodes), "--sync", sync, "--master-port",
             str(free_port())]
    outcomes = run_programs([
        program("examples/one_file.py", [*flags, "--rank", str(rank)], folder, f"one{rank}",
                {"GLOO_SOCKET_IFNAME": "lo"}) for rank in range(nodes)])
    assert all(outcome.code == 0 for outcome in outcomes), outcomes
    return set(re.findall(r"^rank 0: digest (\w+)$", outcomes[0].output, re.MULTILINE))


def of_a_part(folder, nodes: int, sync: str) -> set[str]:
    part = "PartOne" if nodes == 1 else "PartThree" if sync == "ddp" else "PartTwo"
    flags = [*HOUSE, "--output-dir", str(folder), *(["--sync", sync] * (part == "PartTwo"))]
    outcomes = run_programs([program(part, flags, folder, "part")] if nodes == 1
                            else cluster(part, nodes, flags, folder))
    assert all(outcome.code == 0 for outcome in outcomes), outcomes
    run = folder / part / sync if part == "PartTwo" else folder / part
    return {json.loads((run / "summary.json").read_text())["weights"]}


@pytest.mark.parametrize("nodes, sync", [
    (1, "all-reduce"), (3, "gather-scatter"),  # of 64 samples 22, 21 and 21
    *((nodes, sync) for nodes in (2, 4) for sync in ("gather-scatter", "all-reduce", "ddp"))])
def test_one_file_learns_what_the_parts_learn(nodes, sync, tmp_path):
    digest = of_one_file(tmp_path, nodes, sync)
    assert len(digest) == 1 and digest == of_a_part(tmp_path, nodes, sync)
