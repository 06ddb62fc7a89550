"""A run is a file: settings by name, written by hand as TOML, or a run's own settings.json.

    python3 PartOne/main.py --settings outputs/PartOne/settings.json --output-dir outputs/again

A file holds flags: each name is a flag's, each value what is written behind it. One that says what
it `ran_on` is the record of a run: it holds every setting, and passes on none that says where and
how that one start was made.
"""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from common.core.failures import UsageError
from common.core.files import parse_json, read_text
from common.options.flag_parser import FlagParser
from common.settings.row import Plain, Row
from common.settings.settings import Launch, Settings

RAN_ON = "ran_on"  # the entry of a record that is not a setting
FORMS = {".json": "JSON", ".toml": "TOML"}


class InFile(NamedTuple):
    """The settings in a file, by name, and whether it is the record of a run."""

    told: dict[str, Any]
    is_record: bool


def read_settings(path: Path, part: str, parser: FlagParser) -> InFile:
    """The settings of `part` in a file, checked by its parser; those of other parts are dropped.

    Raises UsageError, in one sentence that names the file, for what cannot be read or is not valid.
    """
    try:
        in_file = _read(path.expanduser())
        is_record = RAN_ON in in_file
        return InFile(vars(parser.parse_args(_words(in_file, part, is_record))), is_record)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    form = FORMS.get(path.suffix.lower())
    if form is None:
        raise UsageError("a file of settings is named .toml or .json")
    try:
        in_file = _loads(form)(read_text(path))
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}") from error
    except ValueError as error:  # raised by both libraries, and for bytes that are not text
        raise UsageError(f"the file is not {form}: {error}") from error
    if not isinstance(in_file, dict):
        raise UsageError("the file holds no settings by name")
    return in_file


def _loads(form: str) -> Callable[[str], Any]:
    if form == "JSON":
        return parse_json
    try:
        return import_module("tomllib").loads
    except ModuleNotFoundError:
        raise UsageError("TOML requires Python 3.11 or newer: write the settings as JSON, in a "
                         "file named .json") from None


def _words(in_file: dict[str, Any], part: str, is_record: bool) -> list[str]:
    """The settings in a file, as the words of a command line."""
    words: list[str] = []
    rows = Settings.rows()
    for key, value in in_file.items():
        name = key.replace("-", "_")
        if name in Launch.rows():
            raise UsageError(f"{key} is for one start, and the file for every one: give "
                             f"{_flag(name)} on the command line")
        if name not in rows:
            words += [] if key == RAN_ON else _unknown(key, value)
        elif part in rows[name].parts:
            as_words = _as_words(name, rows[name], value)  # first: it says what cannot be meant
            words += as_words if as_words and (not is_record or rows[name].repeated(value)) else []
    return words


def _unknown(key: str, value: Plain) -> list[str]:
    """A word at which the parser says what the setting is called here, if it is."""
    if isinstance(value, dict):
        raise UsageError(f"[{key}] begins a table, and settings stand in none: leave the line out")
    return [f"{_flag(key)}={value}"]


def _as_words(name: str, row: Row, value: Plain) -> list[str]:
    """A setting as on the command line; nothing for null."""
    if value is None:
        return []
    kinds, expected = _kinds(name, row)
    if type(value) not in kinds:
        raise UsageError(f"{name} is {json.dumps(value, default=str)}, and {_flag(name)} takes "
                         f"{expected}")
    if isinstance(value, bool):
        return [_flag(name if value else f"no-{name}")]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return [f"{_flag(name)}={text}"]


def _kinds(name: str, row: Row) -> tuple[tuple[type, ...], str]:
    """The types that a value of the row may have in a file; the same in words."""
    if row.parse is bool:
        return (bool,), "true or false"
    if isinstance(Settings.default(name), list):
        return (str, list), "a text or a list of texts"
    if row.parse in (str, Path):
        return (str,), "a text"
    return (str, int, float), "a number or a text"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
