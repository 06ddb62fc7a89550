"""A figure as the page has it: an SVG and its title.

    python3 scripts/compare.py outputs
"""

import base64
from typing import NamedTuple

from matplotlib.figure import Figure

from common.reporting.figure_style import svg


class Picture(NamedTuple):
    """A figure as SVG. `name` is a file's, `words` its title, its text alternative.

    `width` and `height` are points.
    """

    name: str
    words: str
    svg: str
    width: int
    height: int

    @classmethod
    def of(cls, name: str, figure: Figure) -> "Picture":
        width, height = (round(72 * inches) for inches in figure.get_size_inches())
        return cls(name, " ".join(figure.get_suptitle().split()), svg(figure), width, height)

    @property
    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()
