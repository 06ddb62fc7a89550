"""Files of benchmark results, which README and documents are tested against.

    python3 benchmarks/detection.py --runs 10 --json docs/results/detection.json
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

from common.core.failures import writing
from common.core.provenance import conditions, processor


def write_record(path: Path, figures: dict[str, Any]) -> None:
    """Writes `figures` as JSON, with processor, conditions and date. Raises UsageError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"conditions": conditions(), "processor": processor(),
                                    "date": str(date.today()), **figures}, indent=1) + "\n")
