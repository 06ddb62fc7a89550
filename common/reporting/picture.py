"""A figure as the page has it: an SVG, its title, and its values.

    python3 scripts/compare.py outputs
"""

import base64
from typing import NamedTuple

from matplotlib.figure import Figure

from common.core.visible import visible
from common.reporting.figure_style import svg
from common.reporting.hover import Spot, spots


class Picture(NamedTuple):
    """A figure as SVG. `name` is a file's, `words` its title, its text alternative.

    `spots` are its values, for page.js; `width` and `height` are points.
    """

    name: str
    words: str
    svg: str
    spots: list[Spot]
    width: int
    height: int

    @classmethod
    def of(cls, name: str, figure: Figure) -> "Picture":
        text = svg(figure)
        width, height = (round(72 * inches) for inches in figure.get_size_inches())
        words = [spot._replace(words=visible(spot.words)) for spot in spots(figure)]
        return cls(name, " ".join(figure.get_suptitle().split()), text, words, width, height)

    @property
    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()
