"""Files of benchmark results, which README and documents are tested against.

    python3 benchmarks/detection.py --runs 10 --json docs/results/detection.json
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

from common.core.failures import writing
from common.core.provenance import conditions, processor


def write_record(path: Path, found: dict[str, Any]) -> None:
    """Writes `found` as JSON, with what it ran on and when. Raises UsageError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"conditions": conditions(), "processor": processor(),
                                    "date": str(date.today()), **found}, indent=1) + "\n")
