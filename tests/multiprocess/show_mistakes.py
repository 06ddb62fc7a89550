"""How each classic mistake shows itself in the proof: the table of docs/mistakes.md.

    python3 -m tests.multiprocess.show_mistakes
"""

from common.core.interpreter import use_environment

use_environment(__name__)

import tempfile
from pathlib import Path

from studies.proof.experiment import create_reference, judged
from studies.proof.ranks import preload
from studies.proof.report import row, title
from studies.proof.strategies import STRATEGIES
from tests.multiprocess.prove_cases import BROKEN, small_problem

RANKS = 3  # with two, a+b commutes and some mistakes hide


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        reference = create_reference(small_problem("float64"), Path(folder) / "reference.pt")
        print(title(reference.problem), flush=True)
        right = {"all-reduce": STRATEGIES["all-reduce"]}
        for case in judged(reference, {**right, **BROKEN}, [RANKS]):
            print(row(case), flush=True)


if __name__ == "__main__":
    # or each rank of each training would import them by itself
    preload("torch._dynamo", "tests.multiprocess.prove_cases")
    main()
