"""The curve of a proof: how far the weights are from one rank's after each step.

    python3 scripts/compare.py outputs --proof docs/proof.json
"""

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common.reporting.figure_style import MARKS, legend_below, line, new_figure
from common.reporting.proof_findings import Case, Table, held_to_bounds, most_ranks, shown
from common.reporting.words import ranks

LOCAL, FLOAT32, ALONE = ", local statistics", ", in float32", "one rank, in float32"


def by_step(table: Table) -> Figure | None:
    """Largest difference of any weight from one rank's, by step, on a logarithmic scale.

    None for a proof that has not looked after each step.
    """
    curves = [(case, label) for case, label in _curves(table) if any(case.get("by_step", ()))]
    if not curves:
        return None
    figure, (axes,) = new_figure(_title(table), 4.6)
    for index, (case, label) in enumerate(curves):
        axes.plot(table["looked_after"], [gap or float("nan") for gap in case["by_step"]],
                  label=label, marker=MARKS[index % len(MARKS)], markersize=4, **line(index))
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("largest difference of any weight")
    legend_below(figure, axes, columns=1)
    return figure


def _curves(table: Table) -> Iterator[tuple[Case, str]]:
    """The judged strategies on the most ranks, then, for contrast, what was only measured."""
    most, precision = most_ranks(table), table["settings"]["precision"]
    for case in held_to_bounds(table):
        if case["ranks"] == most:
            yield case, f"{shown(case['name'])}, {ranks(most)}, {precision}"
    contrasts = {case["name"]: case for case in table["cases"]
                 if case["ranks"] == most or case["name"] == ALONE}
    for ending, words in ((LOCAL, f"{ranks(most)}, each with its own batch statistics"),
                          (FLOAT32, f"{ranks(most)}, float32: rounding"),
                          (ALONE, "one rank, float32: the same rounding")):
        for name, case in contrasts.items():
            if name == ending or name.endswith(ending) and name != ALONE:
                yield case, words


def _title(table: Table) -> str:
    """The last differences of each kind."""
    lasts: dict[str, float] = {}
    for case, label in _curves(table):
        kind = ("with each rank's own batch statistics" if "own" in label else
                "in float32" if label.startswith(("one", ranks(most_ranks(table))))
                else f"in {table['settings']['precision']}")
        lasts[kind] = max(lasts.get(kind, 0.0), case["gaps"]["weights"]["absolute"])
    return f"Weights differ from one rank's after {table['steps']} steps by " + ", ".join(
        f"{gap:.0e} {kind}" for kind, gap in lasts.items())
