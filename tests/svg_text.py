"""Where the letters of an SVG are, without a browser: as wide as matplotlib's font makes them."""

import re
from collections.abc import Iterator
from math import cos, radians, sin
from xml.etree import ElementTree

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

SLACK = 1.0  # points
ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}


def cut_off(svg: str) -> list[str]:
    """The words of which a part lies outside the view box."""
    root = ElementTree.fromstring(svg)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    return [words for words, corners in _texts(root, np.eye(3))
            if (corners < (left - SLACK, top - SLACK)).any()
            or (corners > (left + width + SLACK, top + height + SLACK)).any()]


def _texts(element: ElementTree.Element, outer: np.ndarray,
           style: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Each piece of text and its four corners, (4, 2), in the units of the view box."""
    inner = outer @ _matrix(element.attrib.get("transform", ""))
    style = element.attrib.get("style", style)
    if (words := (element.text or "").strip()) and element.tag.endswith(("text", "tspan")):
        yield words, _corners(element, words, style) @ inner[:2, :2].T + inner[:2, 2]
    for child in element:
        yield from _texts(child, inner, style)


def _corners(element: ElementTree.Element, words: str, style: str) -> np.ndarray:
    said = dict(re.findall(r"([\w-]+): ([^;]+)", style))
    font = FontProperties(family="DejaVu Sans", weight=said.get("font-weight", "normal"),
                          size=float(said["font-size"].removesuffix("px")))
    width, height, descent = TextToPath().get_text_width_height_descent(words, font, ismath=False)
    x, y = (float(element.attrib.get(name, "0").split()[0]) for name in "xy")
    x -= width * ANCHORS[said.get("text-anchor", "start")]
    return np.array([(x + right, y + down) for right in (0, width)
                     for down in (descent - height, descent)])


def _matrix(transform: str) -> np.ndarray:
    whole = np.eye(3)
    for name, inside in re.findall(r"(\w+)\(([^)]*)\)", transform):
        a, b, c = (*map(float, inside.replace(",", " ").split()), 0.0, 0.0, 0.0)[:3]
        if name == "translate":
            whole = whole @ [[1, 0, a], [0, 1, b], [0, 0, 1]]
        elif name == "scale":
            whole = whole @ np.diag([a, b or a, 1])
        elif name == "rotate":
            turn = np.array([[cos(radians(a)), -sin(radians(a)), 0],
                             [sin(radians(a)), cos(radians(a)), 0], [0, 0, 1]])
            whole = whole @ _matrix(f"translate({b} {c})") @ turn @ _matrix(
                f"translate({-b} {-c})")
    return whole
