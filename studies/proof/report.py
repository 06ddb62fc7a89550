"""The proof in words: a Markdown table while it runs, and files to keep."""

import json
import os
from collections.abc import Sequence
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

from common.core.markdown import markdown_table
from common.core.provenance import code_digest, processor, versions
from common.model.dropout import torchs_dropout
from common.options.workloads import workload_of
from studies.proof.comparison import QUANTITIES, Gap, Gaps
from studies.proof.experiment import Case, Reference
from studies.proof.trajectory import Problem

HEAD = (f"| ranks | gradients averaged by | {' | '.join(QUANTITIES)} | verdict |\n"
        f"|--:|---|{'--:|' * len(QUANTITIES)}---|")
NOTE = """Each row is one training, compared with one rank's. The rows above a bound compare one
rank with itself where nothing but rounding changes; the bound follows from them, and is derived in
studies/proof/comparison.py. Where a bound is not small beside 1 in its brackets, training has
amplified rounding to the size of the numbers themselves: there agreement proves nothing, and
float64, or fewer steps, must do it. Local statistics cannot agree, and are measured only."""


def title(problem: Problem) -> str:
    """The heading of one precision's table, and the table's."""
    settings = problem.settings
    return "\n".join([
        "", f"## {settings.precision}", "",
        f"{settings.workload}, {settings.max_iterations} steps of {settings.batch_size} samples "
        f"out of {problem.samples or 'all'}, batch-norm statistics {settings.batch_norm}. Cells: "
        "largest absolute difference from one rank, and in brackets its ratio to the largest "
        "element.", "", HEAD])


def bounds(reference: Reference) -> str:
    """The rows that say where the bounds come from, and the bounds."""
    allowed = " | ".join(_cell(reference.allowed[name]) for name in QUANTITIES)
    return "\n".join([*map(row, reference.perturbed), f"| | **bound** | {allowed} | |"])


def row(case: Case) -> str:
    """One line of the table."""
    cells = " | ".join(_cell(case.gaps[name]) for name in QUANTITIES)
    return f"| {case.world_size} | {case.name} | {cells} | {case.verdict} |"


def _cell(gap: Gap) -> str:
    return "0" if gap.absolute == 0 else f"{gap.absolute:.1e} ({gap.relative:.0e})"


def conclusion(cases: Sequence[Case]) -> str:
    """The conclusion from all cases together."""
    failed = sum(case.has_failed for case in cases)
    if failed:
        return f"{failed} of {len(cases)} cases FAILED"
    others = sum(case.verdict == "not equivalent" for case in cases)
    return "all cases agree with one rank" + (
        f", but for {others} of other algorithms, which are not equivalent" if others else "")


def advice(problem: Problem) -> str:
    """Advice on layers that drop other units on another number of ranks; "" without such layers."""
    classes = problem.load().class_names
    model = workload_of(problem.settings).build(classes)
    if not (names := torchs_dropout(model)):
        return ""
    return (f"{', '.join(names)}: torch's dropout drops other units on another number of ranks; "
            "common.model.dropout.SampleDropout drops the same")


def write_report(output: Path, tables: Sequence[tuple[Reference, list[Case]]],
                 arguments: Sequence[str]) -> None:
    """Writes `output`.md and `output`.json: all tables, and what they depend on."""
    made_on: dict[str, Any] = {
        "processor": processor(), "cores": len(os.sched_getaffinity(0)), **versions(),
        "code": code_digest(), "date": date.today().isoformat()}
    source = {"command": " ".join(["python3 scripts/prove.py", *arguments]), **made_on}
    shown = conclusion(list(chain.from_iterable(cases for _, cases in tables)))
    markdown = [_head(shown, source["command"], made_on)]
    for reference, cases in tables:
        markdown += [title(reference.problem), bounds(reference), *map(row, cases)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_name(output.name + ".md").write_text("\n".join(markdown) + "\n")
    data = {**source, "tables": [_as_json(reference, cases) for reference, cases in tables]}
    output.with_name(output.name + ".json").write_text(json.dumps(data, indent=1) + "\n")


def _head(shown: str, command: str, made_on: dict[str, Any]) -> str:
    """The text above the tables: the answer, the command, what it ran on, how to read it."""
    return "\n\n".join([
        "# Do N ranks learn what one rank learns?", f"{shown[0].upper()}{shown[1:]}.",
        f"    {command}",
        markdown_table(list(made_on), [list(made_on.values())], texts=len(made_on)), NOTE])


def _as_json(reference: Reference, cases: Sequence[Case]) -> dict[str, Any]:
    problem = reference.problem
    return {"settings": problem.settings.trajectory(), "steps": problem.steps,
            "samples": problem.samples, "bounds": _gaps_as_json(reference.allowed),
            "cases": [{"ranks": case.world_size, "name": case.name, "verdict": case.verdict,
                       "gaps": _gaps_as_json(case.gaps)}
                      for case in (*reference.perturbed, *cases)]}


def _gaps_as_json(gaps: Gaps) -> dict[str, dict[str, float]]:
    return {name: gap._asdict() for name, gap in gaps.items()}
