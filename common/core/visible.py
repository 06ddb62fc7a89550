"""Text from outside, such as the name of a file, as a terminal, a page or a log may hold it.

    python3 -c "from common.core.visible import *; print(visible('cat\\x1b[2J\\u202e.png'))"
"""

from collections.abc import Collection
from unicodedata import category, normalize


def visible(text: str, keep: str = "") -> str:
    r"""`text` with every character that has no shape of its own as an escape: "\x1b", "\u202e".

    Those are control characters, line ends included, what changes the direction of writing, and
    the bytes of file names that are not UTF-8. Letters of all scripts and spaces stay, and so do
    the characters in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep or category(letter) == "Zs"
                   else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    byte = ord(letter) - 0xDC00  # as Python keeps the bytes of a name that is not UTF-8
    if 0x80 <= byte <= 0xFF:
        return f"\\x{byte:02x}"
    return letter.encode("unicode_escape").decode()


def lookalikes(names: Collection[str], others: Collection[str]) -> str:
    """A clause on the first of `names` that only looks like one of `others`, or ""."""
    looks = {_look(name): name for name in others}
    pairs = [(name, looks[_look(name)]) for name in names
             if name not in others and _look(name) in looks]
    return "; {!a} and {!a} look alike, but differ in their spaces or their Unicode form".format(
        *pairs[0]) if pairs else ""


def _look(name: str) -> str:
    """The same text for names that look alike: macOS writes letters and accents one by one."""
    return " ".join(normalize("NFC", name).split())
