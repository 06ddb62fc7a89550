"""The verdict of a preflight's page, by the number of ranks.

Mutation that turns this red: say the number of ranks of one rank too.
"""

import pytest

from common.cluster.rank_info import RankInfo
from common.core.world import World
from common.preflight.findings import Findings
from common.preflight.node_facts import NodeFacts
from common.preflight.page import page
from common.settings.settings import Settings
from tests.facts import says

FACTS = NodeFacts(1, "1-2", None, None, 1, 1, 1, 0.0, [])


@pytest.mark.parametrize("size", [1, 2])
def test_the_verdict_names_the_ranks_where_there_are_several(size):
    ranks = [RankInfo(rank, "node", 1, "10.0.0.1", "lo") for rank in range(size)]
    findings = Findings(World(size=size), Settings(), ranks, facts=[FACTS] * size)
    verdict = page(findings).splitlines()[-1]
    assert says(verdict, "ready") and says(verdict, "ranks") is says(verdict, size) is (size > 1)
