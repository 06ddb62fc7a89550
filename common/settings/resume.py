"""The value of --resume: how a run begins. No other file knows how it is written.

    python3 PartOne/main.py --resume auto        # no, auto, replace, FILE or auto:FILE; :changed
"""

import argparse
import os
import re
from dataclasses import dataclass, replace

RESUMES = ("no", "auto", "replace")
_ACCEPTS_CHANGES = ":changed"
_AUTO_OR = "auto:"


@dataclass(frozen=True)
class Resume:
    """The way a run begins: with the run in the output folder, or from a checkpoint.

    `is_auto` continues that run, `replaces` deletes it, and otherwise it is refused. `file` is the
    checkpoint to start from, "" for none; with `is_auto`, only where nothing is there to continue.
    `accepts_changes` continues although settings have changed.
    """

    file: str = ""
    is_auto: bool = False
    replaces: bool = False
    accepts_changes: bool = False

    @classmethod
    def read(cls, text: str) -> "Resume":
        """The value that `text` means; whatever is not a word is a file, which need not exist."""
        how = text.removesuffix(_ACCEPTS_CHANGES)
        file = how.removeprefix(_AUTO_OR)
        return cls("" if how in RESUMES else file, how == "auto" or file != how, how == "replace",
                   how != text)

    @classmethod
    def parse(cls, text: str) -> "Resume":
        """Reads a command line's text: a word without a dot must be one of RESUMES, or exist.

        Raises ArgumentTypeError.
        """
        resume = cls.read(text)
        is_bare = bool(re.fullmatch(r"[\w-]+", resume.file))
        if str(resume) != text or (is_bare and not os.path.exists(resume.file)):
            raise argparse.ArgumentTypeError(
                f"{resume.file or text!r} is none of {', '.join(RESUMES)}, and there is no such "
                "file here")
        return resume

    def __str__(self) -> str:
        word = "replace" if self.replaces else "auto" if self.is_auto else "no"
        file = _AUTO_OR * self.is_auto + self.file
        return (file if self.file else word) + _ACCEPTS_CHANGES * self.accepts_changes

    def then(self, later: "Resume") -> "Resume":
        """The meaning of two --resume in one command: the later, but `auto` continues this one.

        So `auto` behind FILE is auto:FILE, and behind anything with :changed it accepts changes.
        """
        if not later.is_auto or later.file:
            return later
        accepts = self.accepts_changes or later.accepts_changes
        return Resume(self.file, is_auto=True, accepts_changes=accepts)

    @property
    def at_first(self) -> "Resume":
        """The value that the run began with: FILE for auto:FILE."""
        return replace(self, is_auto=self.is_auto and not self.file)


AUTO = Resume(is_auto=True)
