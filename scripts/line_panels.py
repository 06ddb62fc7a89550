"""Line charts side by side as one SVG, with nothing but text: panels share the vertical scale.

Readable in grey and where lines cover each other: the first is broad and light, later ones thinner,
darker and dashed.
"""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 35, 45
# colour, width in pixels, dashes
STYLES = (("#b0b0b0", 5.0, "none"), ("#0060a0", 2.2, "7 3"), ("#000000", 1.0, "none"),
          ("#a04000", 1.0, "2 2"))


class Line(NamedTuple):
    """Values at 1, 2, 3, ..."""

    label: str
    values: Sequence[float]


class Panel(NamedTuple):
    """Lines over one another, under a title."""

    title: str
    lines: Sequence[Line]


def svg(panels: Sequence[Panel], horizontal: str, vertical: str) -> str:
    """The figure; `horizontal` and `vertical` name the axes."""
    values = [value for panel in panels for line in panel.lines for value in line.values]
    ticks = nice_ticks(min(values), max(values))
    drawn = [f'<g transform="translate({index * WIDTH} 0)">'
             f"{_panel(panel, ticks, horizontal, vertical)}</g>"
             for index, panel in enumerate(panels)]
    width = WIDTH * len(panels)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
                      f'width="{width}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
                      f'<rect width="{width}" height="{HEIGHT}" fill="white"/>', *drawn, "</svg>",
                      ""])


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, evenly spaced, the first at or below `low` and the last at or above `high`."""
    rough = (high - low or abs(high) or 1.0) / about
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = floor(low / step), ceil(high / step)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def _panel(panel: Panel, ticks: Sequence[float], horizontal: str, vertical: str) -> str:
    count = max(len(line.values) for line in panel.lines)
    marks = [mark for mark in nice_ticks(0, count) if 0 < mark <= count]

    def x(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place - 1) / max(count - 1, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - ticks[0]) / (
            ticks[-1] - ticks[0])

    middle = f"{(LEFT + WIDTH - RIGHT) / 2:.0f}"
    parts = [_text(middle, 18, panel.title), _text(middle, HEIGHT - 8, horizontal),
             f'<g transform="rotate(-90 14 {HEIGHT / 2})">{_text(14, HEIGHT / 2, vertical)}</g>']
    parts += [f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
              + _text(LEFT - 6, y(tick) + 4, f"{tick:g}", "end") for tick in ticks]
    parts += [_text(f"{x(mark):.1f}", HEIGHT - BOTTOM + 16, f"{mark:g}") for mark in marks]
    for index, line in enumerate(panel.lines):
        points = " ".join(f"{x(place):.1f},{y(value):.1f}"
                          for place, value in enumerate(line.values, 1))
        height = TOP + 12 + 16 * index
        parts += [f'<polyline points="{points}" {_stroke(index)}/>',
                  f'<path d="M{WIDTH - 105} {height}h30" {_stroke(index)}/>',
                  _text(WIDTH - 70, height + 4, line.label, "start")]
    return "\n".join(parts)


def _stroke(index: int) -> str:
    colour, width, dashes = STYLES[index % len(STYLES)]
    return (f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" '
            f'stroke-dasharray="{dashes}"')


def _text(x: float | str, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
