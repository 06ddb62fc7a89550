"""Tables in Markdown.

    python3 -c "from common.core.markdown import *; print(markdown_table(['a', 'b'], [['x', 1]]))"
"""

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]], texts: int = 1) -> str:
    """The table's lines; the first `texts` columns hold text, the others numbers."""
    ruler = "|---" * texts + "|--:" * (len(head) - texts) + "|"
    first, *lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([first, ruler, *lines])
