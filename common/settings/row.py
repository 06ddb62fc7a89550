"""The row of a setting: all that the parser, the handshake, resume and the banner know of it.

A setting is a field of a Rows class, declared with `setting`; nothing else needs to name it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

ALL = ("PartOne", "PartTwo", "PartThree", "Preflight")
CLUSTER = ALL[1:]
Plain = Any  # str, int, float, bool, None, or a list of these: what JSON can hold


@dataclass(frozen=True)
class Row:
    """Description of a setting, all but its name and its default.

    `help` is what --help says of it, --help-all adds `details`; `common` ones are in --help.
    `parse` turns the text of its flag into a value; that of a switch is bool. `choices` are
    the names that the text may be, or begin with. A `learned` setting decides what is learned, or
    does under the other settings that a function is given; of its plain value `compared` gives what
    counts. `per_node` settings may differ between the nodes of a run, where they do not decide what
    is learned. A run that is started again from its settings.json takes over plain values that are
    `repeated`. Where a flag is given twice, or once in a file, `combine` makes one value of both.
    `banner` is what the start-up banner says where the value is not the default, with {} for it.
    """

    help: str
    group: str
    details: str = ""
    parse: Callable[[str], Any] = str
    choices: Sequence[str] = ()
    metavar: str = ""
    short: str = ""
    parts: Sequence[str] = ALL
    learned: bool | Callable[[Mapping[str, Plain]], bool] = False
    compared: Callable[[Plain], Plain] = lambda plain: plain
    per_node: bool = False
    repeated: Callable[[Plain], bool] = lambda plain: True
    combine: Callable[[Plain, Plain], Plain] = lambda before, after: after
    banner: str = ""
    common: bool = False

    def decides(self, settings: Mapping[str, Plain]) -> bool:
        """Returns True if the setting affects what a run with these plain settings learns."""
        return self.learned(settings) if callable(self.learned) else self.learned


def setting(default: Any, help: str, group: str, **more: Any) -> Any:
    """A field of a Rows class, with its row; `more` are fields of Row."""
    return field(default=default, metadata={"row": Row(help, group, **more)})


@dataclass(frozen=True)
class Rows:
    """Settings whose fields have rows."""

    @classmethod
    def rows(cls) -> dict[str, Row]:
        """By name, in the order in which they are declared."""
        return {each.name: each.metadata["row"] for each in fields(cls)}

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a setting, as a plain value; None for a name that there is not."""
        return next((_plain(each.default) for each in fields(cls) if each.name == name), None)

    def as_json(self) -> dict[str, Plain]:
        """All settings as plain values."""
        return {name: _plain(getattr(self, name)) for name in self.rows()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Plain], groups: Sequence[str]) -> dict[str, Any]:
        """The values that `as_json` made plain, by name, of the rows in `groups`; lists left out.

        Raises ArgumentTypeError, or ValueError, for a text that its row cannot parse.
        """
        rows = {name: row for name, row in cls.rows().items() if row.group in groups}
        return {name: rows[name].parse(value) if isinstance(value, str) else value
                for name, value in plain.items()
                if name in rows and isinstance(value, str | int | float | None)}

    def shared(self) -> dict[str, Plain]:
        """The settings in which all ranks of a run must agree, as plain values."""
        rows = self.rows()
        plain = self.as_json()
        return {name: value for name, value in plain.items()
                if rows[name].decides(plain) or not rows[name].per_node}

    def trajectory(self) -> dict[str, Plain]:
        """The settings that affect what is learned, as plain values."""
        plain = self.as_json()
        return {name: row.compared(plain[name]) for name, row in self.rows().items()
                if row.decides(plain)}

    def changes_since(self, before: Mapping[str, Plain]) -> list[str]:
        """A clause for each setting that decides what is learned and was another `before`."""
        now, rows = self.trajectory(), self.rows()
        then = {name: rows[name].compared(before[name]) for name in now if name in before}
        return [f"{name} was {then.get(name)} and is {now[name]}"
                for name in differences(then, now)]

    def said(self) -> list[str]:
        """The banner's remarks on settings that are not the default."""
        return [row.banner.format(getattr(self, name)) for name, row in self.rows().items()
                if row.banner and self.as_json()[name] != self.default(name)]


def differences(mine: Mapping[str, Plain], theirs: Mapping[str, Plain]) -> list[str]:
    """The names of entries that differ between two flat dictionaries, sorted."""
    return sorted(name for name in mine.keys() | theirs.keys()
                  if _plain(mine.get(name)) != _plain(theirs.get(name)))


def _plain(value: Any) -> Plain:
    if type(value) in (tuple, list):  # no NamedTuple, which is written as on the command line
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | str | None) else str(value)
