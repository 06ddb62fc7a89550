"""Types of settings: a text to a value that can be meant, or a complaint that says what can.

Each is a function from a text, as argparse wants it. Values that are a name and numbers print
themselves as they are written on the command line.

    python3 -c "from common.settings.types import *; print(ScheduleChoice.parse('step:1:0.7'))"
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from common.core.failures import UsageError
from common.core.world import Nodes
from common.settings.strategies import SYNC_NAMES
from common.settings.user_code import Place, label, require_distinct

SCHEDULES = ("constant", "step", "one-cycle", "cosine", "linear")
ENDING_SCHEDULES = ("one-cycle", "cosine", "linear")
LOADERS = ("memory", "workers")
TRACKERS = ("none", "page", "tensorboard", "wandb")
LARGEST = 2**62
MOST_SECONDS = 1_000_000  # 11 days; the timers of torch and of the system overflow later
MOST_THREADS = 1024  # with many thousands the library that starts them crashes


def _number(kind: Callable[[str], Any], accept: Callable[[Any], bool],
            meaning: str) -> Callable[[str], Any]:
    """A type for argparse: a number of `kind` that is accepted, or an error that says `meaning`."""
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (value == value and accept(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {meaning}")
        if abs(value) >= LARGEST:
            raise argparse.ArgumentTypeError(f"{text!r} is too large: numbers go up to "
                                             f"{LARGEST:.1e}")
        return value
    return parse


integer = _number(int, lambda n: True, "a whole number")


def nodes(text: str) -> Nodes:
    """The value of --num-nodes: N, or MIN:MAX. Raises ArgumentTypeError."""
    least, colon, most = text.rpartition(":")
    if not colon:
        return Nodes(integer(most))
    if not 1 <= integer(least) <= integer(most):
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN:MAX with MIN from 1 to MAX")
    return Nodes(integer(most), integer(least))
count = _number(int, lambda n: n >= 1, "a whole number of at least 1")
whole = _number(int, lambda n: n >= 0, "a whole number of at least 0")
threads = _number(int, lambda n: 1 <= n <= MOST_THREADS,
                  f"a whole number from 1 to {MOST_THREADS:,}")
positive = _number(float, lambda x: x > 0, "a number above 0")
seconds = _number(float, lambda x: 0 < x <= MOST_SECONDS,
                  f"a number of seconds above 0, at most {MOST_SECONDS:,}")
not_negative = _number(float, lambda x: x >= 0, "a number of at least 0")
fraction = _number(float, lambda x: 0 <= x < 1, "a number from 0 up to, not including, 1")
Form = Mapping[str, Callable[[str], Any]]  # the numbers of a value, by field, with their types


def _read(text: str, words: list[str], form: Form) -> dict[str, Any]:
    if len(words) > len(form):
        raise argparse.ArgumentTypeError(f"{text!r} has more than {len(form)} numbers")
    return {name: form[name](word) for name, word in zip(form, words, strict=False)}


def _written(value: Any, form: Form) -> list[str]:
    """The numbers of a value, without those at the end that are the fields' defaults."""
    names = list(form)
    while names and getattr(value, names[-1]) == getattr(type(value), names[-1]):
        names.pop()
    numbers = [getattr(value, name) for name in names]
    return [f"{n:g}" if float(f"{n:g}") == n else repr(n) for n in numbers]


class Named:
    """A value written NAME[:NUMBER...], of which `forms` says what numbers a name has.

    Numbers that a text leaves out at its end are the fields' defaults.
    """

    name: str
    forms: ClassVar[Mapping[str, Form]]

    @classmethod
    def parse(cls, text: str) -> Any:
        """The value that `text` means; ArgumentTypeError where it means none."""
        name, *words = text.split(":")
        if name not in cls.forms:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(cls.forms)}")
        return cls(name, **_read(text, words, cls.forms[name]))  # type: ignore[call-arg]

    def __str__(self) -> str:
        return ":".join([self.name, *_written(self, self.forms.get(self.name, {}))])


@dataclass(frozen=True)
class SyncChoice(Named):
    """A strategy, by its name or by its place in a user's file.

    The numbers are those of LOCAL_SYNC_NAMES: the least number of steps between synchronisation
    rounds; and diloco's learning rate and Nesterov momentum at each of them.
    """

    name: str
    every: int = 50
    rate: float = 0.7
    momentum: float = 0.9
    forms = {**dict.fromkeys(SYNC_NAMES, {}), "local-sgd": {"every": count},
             "diloco": {"every": count, "rate": positive, "momentum": fraction}}

    @classmethod
    def parse(cls, text: str) -> Any:
        return cls(text) if Place.parse(text) else super().parse(text)

    @property
    def label(self) -> str:
        """A name for folders and tables."""
        return label(self.name)


@dataclass(frozen=True)
class ScheduleChoice(Named):
    """How the learning rate moves. Under `step` it is multiplied by `factor` every `epochs`.

    All rise linearly over the first `warmup` epochs; for one-cycle it is the length of its rise.
    """

    name: str
    warmup: float = 0.0
    epochs: int = 1
    factor: float = 0.1
    forms = {**dict.fromkeys(SCHEDULES, {"warmup": not_negative}),
             "step": {"epochs": count, "factor": positive, "warmup": not_negative}}


@dataclass(frozen=True)
class LoaderChoice(Named):
    """Where batches come from: memory, or `workers` processes of torch's DataLoader."""

    name: str
    workers: int = 2
    forms = {"memory": {}, "workers": {"workers": whole}}


_VALIDATION: Form = {"fraction": fraction, "patience": count, "gain": not_negative}


@dataclass(frozen=True)
class Validation:
    """The `fraction` of the training set to hold out, and when to stop early: after `patience`
    epochs without a loss that is smaller by more than `gain`; 0 epochs is never."""

    fraction: float = 0.0
    patience: int = 0
    gain: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Validation":
        return cls(**_read(text, text.split(":"), _VALIDATION))

    def __str__(self) -> str:
        return ":".join(_written(self, _VALIDATION)) or "0"

    @property
    def in_words(self) -> str:
        """For the banner: "10 % of the training set, early stopping after 3 epochs"."""
        gain = f" without a loss lower by {self.gain:g}" if self.gain else ""
        stops = f", early stopping after {self.patience} epochs{gain}" if self.patience else ""
        return f"{100 * self.fraction:.3g} % of the training set{stops}"


@dataclass(frozen=True)
class Interval:
    """How often to save within an epoch: every so many iterations, or minutes; 0 is never."""

    iterations: int = 0
    minutes: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Interval":
        if text.endswith("min"):
            return cls(minutes=not_negative(text.removesuffix("min")))
        if not text.isdigit():
            raise argparse.ArgumentTypeError(f"{text!r} is neither a number of iterations, as 100, "
                                             "nor one of minutes, as 10min")
        return cls(iterations=whole(text))

    def __str__(self) -> str:
        return f"{self.minutes:g}min" if self.minutes else str(self.iterations)


class Profile(NamedTuple):
    """Range to trace: an epoch's first `iterations`, with Python's stacks if `stacks`."""

    epoch: int
    iterations: int = 5
    stacks: bool = False

    @classmethod
    def parse(cls, text: str) -> "Profile":
        """EPOCH, EPOCH:ITERATIONS, and either with :stacks behind it."""
        numbers = text.removesuffix(":stacks")
        profile = cls(**_read(text, numbers.split(":"), {"epoch": count, "iterations": count}))
        return profile._replace(stacks=numbers != text)

    def __str__(self) -> str:
        return f"{self.epoch}:{self.iterations}" + ":stacks" * self.stacks


def tracker(text: str) -> str:
    """A name of TRACKERS, or a place in a user's file."""
    if text not in TRACKERS and Place.parse(text) is None:
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from "
                                         f"{', '.join(TRACKERS)}; or FILE.py:NAME, a tracker of "
                                         "your own)")
    return text


def sync_list(text: str) -> tuple[SyncChoice, ...]:
    """Strategies with commas between them, each once."""
    choices = tuple(map(SyncChoice.parse, text.split(",")))
    try:
        require_distinct([choice.name for choice in choices])
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return choices
