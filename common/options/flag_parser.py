"""A parser whose errors are one sentence that suggests the flag that was probably meant.

    python3 PartOne/main.py --lr 0.1    # in this program it is called --learning-rate
"""

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from common.core.failures import UsageError
from common.options import other_names
from common.options.other_names import CALLED, MEANT
from common.settings.row import Row
from common.settings.types import fraction, not_negative, positive

HELP = "(see --help)"
METAVARS: dict[object, str] = {str: "NAME", Path: "DIR", positive: "X", not_negative: "X",
                               fraction: "X"}
LIKE_A_FLAG = 0.8  # difflib's ratio: one letter in five may be wrong


class SentenceParser(argparse.ArgumentParser):
    """argparse's, but mistakes raise UsageError: for programs with a few flags of their own."""

    def error(self, message: str) -> NoReturn:
        sentence = re.sub(r"^unrecognized arguments: (-[^\s=]+).*", r"there is no flag \1",
                          message.removeprefix("argument "))
        raise UsageError(f"{sentence} {HELP}")


class FlagParser(SentenceParser):
    """A parser whose errors suggest flags; --help shows only the flags that people use.

    `parts_with` returns the parts of the project that have a flag; None for other programs.
    """

    def __init__(self, program: str, description: str, epilog: str, groups: Sequence[str] = (),
                 parts_with: Callable[[str], list[str]] | None = None) -> None:
        super().__init__(
            prog=program, usage=f"{program} [flags]", description=description, epilog=epilog,
            allow_abbrev=False, exit_on_error=False, formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, max_help_position=28))
        self._parts_with = parts_with
        self._titled = {title: self.add_argument_group(title) for title in groups}
        self._full_help: dict[argparse.Action, str] = {}

    def add_row(self, name: str, row: Row) -> None:
        """Adds the flag of a setting, of a switch two: --NAME and --no-NAME.

        Where it is not given, the result lacks `name`.
        """
        flags = [*filter(None, [row.short]), f"--{name.replace('_', '-')}"]
        takes: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if row.parse is not bool:
            takes = {"action": partial(Combine, row.combine), "type": row.parse,
                     "metavar": row.metavar or METAVARS.get(row.parse, "N"),
                     "choices": row.choices if row.parse is str and row.choices else None}
        action = self._titled[row.group].add_argument(
            *flags, dest=name, default=argparse.SUPPRESS,
            help=row.help if row.common else argparse.SUPPRESS, **takes)
        self._full_help[action] = row.help + row.details

    def show_all(self) -> None:
        """Makes the help show all flags, instead of only those that people use."""
        for action, text in self._full_help.items():
            action.help = text

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def parse_args(self, arguments: Sequence[str] | None = None,  # type: ignore[override]
                   namespace: Any = None) -> Any:
        try:
            # Words without a flag may stand before, between and after the flags.
            options, unknown = self.parse_known_intermixed_args(arguments, namespace)
        except argparse.ArgumentError as error:
            self.error(str(error))
        if unknown:
            flags = [word.partition("=")[0] for word in unknown if re.match("--?[A-Za-z]", word)]
            raise UsageError(self._no_flags(flags)
                             or f"no flag takes these words: {' '.join(unknown)} {HELP}")
        return options

    def _no_flags(self, flags: Sequence[str]) -> str:
        """The error for unknown flags; flags with the same suggestion are named together."""
        with_answer: dict[str, list[str]] = {}
        for flag in dict.fromkeys(flags):
            with_answer.setdefault(self._answer(flag), []).append(flag)
        return "; ".join(
            f"there is no flag {some[0]} {answer}" if len(some) == 1 else
            f"there are no flags {', '.join(some[:-1])} and {some[-1]} "
            f"{re.sub(' it$', ' them', answer)}" for answer, some in with_answer.items())

    def _answer(self, flag: str) -> str:
        name = _plain(flag) if len(flag) == 2 or flag.startswith("--") else _plain(f"-{flag}")
        close = get_close_matches(name, self.flags, 1, LIKE_A_FLAG)
        hint = (self._elsewhere(flag) or self._other_name(name)
                or (f"{MEANT} {close[0]}?" if close else ""))
        return f"here: {hint}" if hint else HELP

    def _elsewhere(self, flag: str) -> str:
        """Names the parts that have this very flag; "" if none does."""
        parts = self._parts_with(flag) if self._parts_with else []
        return f"{_only(parts)} it" if parts else ""

    def _other_name(self, name: str) -> str:
        """Suggests a flag for a name that other programs use, with its parts; "" if unknown."""
        if name in self.flags:
            return f"{MEANT} {name}?"
        if self._parts_with is None:
            return ""
        if sentence := other_names.SENTENCE_OF.get(name):
            return sentence
        ours = other_names.COUNTERPARTS.get(name)
        needed = ours.split()[0] if ours else name
        called = f"{CALLED} {ours}"
        if needed in self.flags:
            return called
        if not (parts := self._parts_with(needed)):
            return ""
        return f"{called}, which {_only(parts)}" if ours else f"{_only(parts)} it"


class Combine(argparse.Action):
    """Stores a value; of a flag that is given again, what its row makes of both values."""

    def __init__(self, combine: Callable[[Any, Any], Any], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._combine = combine

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any,
                 flag: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            value = self._combine(getattr(namespace, self.dest), value)
        setattr(namespace, self.dest, value)


class ShowAll(argparse.Action):
    """The action of --help-all: prints the help of all flags, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, FlagParser)
        parser.show_all()
        parser.print_help()
        parser.exit()


def _only(parts: Sequence[str]) -> str:
    return f"only {' and '.join(parts)} {'has' if len(parts) == 1 else 'have'}"


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
