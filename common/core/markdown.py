"""Tables as text, and tables and words in Markdown.

    python3 -c "from common.core.markdown import *; print(markdown_table(['a', 'b'], [['x', 1]]))"
"""

import re
from collections.abc import Iterable, Sequence

from common.core.visible import visible

# What begins emphasis, code, a link, a cell, a formula, a deletion; in front a heading, a quote.
_MARKUP = re.compile(r"([\\`*\[\]|$]|~(?=~)|(?<!\w)_|\A[#>])")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 1) -> str:
    """The table's lines; the first `texts` columns hold text, the others numbers."""
    ruler = "|---" * texts + "|--:" * (len(head) - texts) + "|"
    first, *lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([first, ruler, *lines])


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """A line of text for each row, the columns aligned."""
    cells = [list(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
            for row in cells]


def as_markdown(words: object) -> str:
    """Words as they stand, whatever markup or HTML is in them: for text, not for a code block."""
    text = _MARKUP.sub(r"\\\1", visible(str(words)))
    return text.replace("&", "&amp;").replace("<", "&lt;")
