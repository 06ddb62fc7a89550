"""The values in a figure and where they stand, for whoever points at them or steps through them.

page.js shows the nearest one. A figure's own labels say what a value is; those that its legend
leaves out come from figure_style.unlisted.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

MOST = 200  # of a line's points


class Spot(NamedTuple):
    """A value's place, from the left and from the top, as fractions of the figure; and its words.
    """

    x: float
    y: float
    words: str


def spots(figure: Figure) -> list[Spot]:
    """All values with a label, in the order drawn. Call when the figure has been laid out."""
    width, height = figure.bbox.size
    shown = []
    for axes in figure.axes:
        for x, y, words in _values(axes, figure.axes[-1].get_xlabel()):
            right, up = axes.transData.transform((x, y))
            if axes.bbox.padded(1).contains(right, up):
                shown.append(Spot(round(right / width, 4), round(1 - up / height, 4), words))
    return shown


def _values(axes: Axes, x_label: str) -> Iterator[tuple[float, float, str]]:
    unit = x_label.replace("\n", " ").partition(" (")[0]
    yield from _points(axes, unit)
    yield from _bars(axes, unit)
    for patch in axes.patches:
        if name := _name(patch):
            (left, bottom), (right, top) = patch.get_bbox().get_points()  # type: ignore[attr-defined]
            yield (left + right) / 2, (bottom + top) / 2, name
    for collection in axes.collections:  # of broken bars
        for path in collection.get_paths() if _name(collection) else ():
            (left, bottom), (right, top) = path.get_extents().get_points()
            yield ((left + right) / 2, (bottom + top) / 2,
                   f"{_row(axes, (bottom + top) / 2)}: {_name(collection)} {left:.4g} to "
                   f"{right:.4g} {unit}")


def _points(axes: Axes, unit: str) -> Iterator[tuple[float, float, str]]:
    y_label = axes.get_ylabel().replace("\n", " ")
    for line in filter(_name, axes.lines):
        points = list(zip(*map(np.asarray, line.get_data()), strict=True))
        for x, y in points[::max(1, ceil(len(points) / MOST))]:
            yield x, y, f"{_name(line)}: {y_label} {y:.4g}, {unit} {x:g}"


def _bars(axes: Axes, unit: str) -> Iterator[tuple[float, float, str]]:
    for container in filter(_name, axes.containers):
        for bar in container.patches if isinstance(container, BarContainer) else ():
            middle = bar.get_y() + bar.get_height() / 2
            if bar.get_width():
                yield (bar.get_x() + bar.get_width() / 2, middle,
                       f"{_row(axes, middle)}: {_name(container)} {bar.get_width():.4g} {unit}")


def _row(axes: Axes, y: float) -> str:
    """The name beside the axis that is nearest to a place."""
    at, names = axes.get_yticks(), [tick.get_text() for tick in axes.get_yticklabels()]
    return names[min(range(len(names)), key=lambda place: abs(at[place] - y))].replace("\n", " ")


def _name(artist: Any) -> str:
    """An artist's label, in the legend or not; "" for labels made by matplotlib."""
    label = str(artist.get_label() or "")
    return "" if label.startswith(("_child", "_nolegend_")) else label.removeprefix("_")
