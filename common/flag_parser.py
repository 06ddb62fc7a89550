"""A parser whose complaints are one sentence, and that guesses what a misspelt flag was to be."""

import argparse
import re
from difflib import get_close_matches
from functools import partial
from typing import NoReturn

from common.failures import UsageError
from common.settings import LOCAL_SYNC_NAMES, SYNC_NAMES


class FlagParser(argparse.ArgumentParser):
    """argparse's, but mistakes raise UsageError and --help is short enough to read."""

    def __init__(self, program: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=program, usage=f"{program} [flags]", description=description, epilog=epilog,
            allow_abbrev=False, formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, max_help_position=33))

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}{self._suggestion(message)} (--help lists all flags)")

    def _suggestion(self, message: str) -> str:
        """What a misspelt flag or value was probably meant to be, as a question; or nothing."""
        wrong = re.search(r"arguments: (--[\w-]+)|'([^']+)'", message)
        known = [*self._option_string_actions, *SYNC_NAMES, *LOCAL_SYNC_NAMES,
                 *(choice for action in self._actions for choice in action.choices or ())]
        close = get_close_matches(wrong[1] or wrong[2], known, 1) if wrong else []
        return f"; did you mean {close[0]}?" if close else ""
