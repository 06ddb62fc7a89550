"""The digests that commands are known to end with, on every processor.

The table is known_digests.json: the command, the key of its run, and by torch's version (another
one draws other random numbers) the digest of its weights. A change that must move a digest changes
that file.

    python3 -m pytest tests/multiprocess/test_known_digests.py
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from common.arithmetic.products import PORTABLE, arithmetic
from common.core.provenance import versions
from common.run.run import Run

TABLE = Path(__file__).with_suffix(".json")


def key_of(run: Run) -> str:
    """The digest of all that decides a run's weights, but for the code and torch's version."""
    settings, constants = run.settings, run.checkpoints.constants
    ranks = {} if settings.virtual_nodes else {"ranks": run.node.world.size}
    return hashlib.sha256(json.dumps(
        {**settings.trajectory(), **ranks, "convolutions": settings.convolutions,
         "data": constants["data"], "end": list(run.position)}, sort_keys=True).encode(),
    ).hexdigest()[:16]


def remark(run: Run, weights: str) -> str:
    """A sentence on the digest `weights` of a run, if its command is one of the table; else ""."""
    row = _table().get(key_of(run), {})
    version = f"torch {versions()['torch'].partition('+')[0]}"
    known = row.get(version)
    if not row or arithmetic() != PORTABLE:
        return ""
    if known is None:
        return f"this command's digest is not known for {version}"
    if known == weights:
        return f"{weights} is the digest that this command is known to end with"
    return (f"WARNING: this command ends with {known} elsewhere, and here with {weights}. "
            "Something computes differently: please report it with scripts/report_problem.py, and "
            "name the processor")


@cache
def _table() -> dict[str, dict[str, Any]]:
    return json.loads(TABLE.read_text())
