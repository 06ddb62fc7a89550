"""Flags to frozen Settings and World. Imports nothing heavy: --help and a mistake answer at once.

    python3 PartTwo/main.py --help
"""

from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from common.core.failures import UsageError
from common.core.world import World, detect_world
from common.options.checks import check
from common.options.flag_parser import LIKE_A_FLAG, FlagParser, ShowAll
from common.options.other_names import CALLED, COUNTERPARTS, MEANT
from common.options.settings_file import read_settings
from common.options.workloads import TABLES, WORKLOADS, Workload, find_row, find_workload
from common.settings.resume import AUTO
from common.settings.row import Row
from common.settings.settings import GROUPS, Launch, Settings, SyncChoice
from common.settings.strategies import SEAMS
from common.settings.user_code import Place

EXAMPLES = """examples:
  python3 PartOne/main.py --workload digits-vgg11
  python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0
  .venv/bin/torchrun --nproc-per-node 4 PartThree/main.py --settings run.toml
exit codes: 0 done, 2 usage, 3 ranks disagree, 4 data or checkpoint,
  5 loss not finite, 75 lost a peer, 130 and 143 interrupted
--help-all shows all flags"""
PARTS = {
    "PartOne": "Part One: trains on one node.",
    "PartTwo": "Part Two: trains on N nodes and averages gradients by hand.",
    "PartThree": "Part Three: trains on N nodes with DistributedDataParallel.",
    "Preflight": "Checks N nodes before a run of Part Two or Three; takes the flags of the run.",
}
PROGRAMS = {"Preflight": "scripts/preflight.py"}


def parse_command_line(part: str, arguments: Sequence[str] | None = None) -> tuple[Settings, World]:
    """The settings and the world of `part` ("PartOne", "PartTwo", "PartThree", "Preflight").

    Raises UsageError, in one sentence, for whatever cannot be meant.
    """
    flags = _given(part, arguments)
    world = launched(flags)
    if world.is_elastic:  # the ranks that are left compute the shards of those that are lost
        flags.setdefault("virtual_nodes", world.size)
    settings = complete(flags, part)
    if world.attempt:  # a launcher's restart goes on by itself
        settings = replace(settings, resume=settings.resume.then(AUTO))
    check(part, settings, world)
    return settings, world


def _given(part: str, arguments: Sequence[str] | None) -> dict[str, Any]:
    """The flags on the command line; for the rest, the values in the file of --settings."""
    parser = _parser(part)
    flags = vars(parser.parse_args(arguments))
    if (path := flags.pop("settings", None)) is None:
        return flags
    in_file, is_record = read_settings(path, part, parser)
    rows = {**Launch.rows(), **Settings.rows()}
    return {**(_without_defaults(in_file, part) if is_record else in_file),
            **{name: rows[name].combine(in_file[name], value) if name in in_file else value
               for name, value in flags.items()}}


def _without_defaults(in_file: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A run's settings less the defaults of its workload and recipe: flags may name others."""
    named = {name: in_file[name] for name in TABLES if name in in_file}
    usual = complete(named, part)
    return {**named, **{name: value for name, value in in_file.items()
                        if value != getattr(usual, name)}}


def launched(flags: dict[str, Any]) -> World:
    """The world that flags and environment describe; takes the flags of the launch out of `flags`.

    Raises UsageError.
    """
    launch = {name: flags.pop(name) for name in Launch.rows() if name in flags}
    launch.pop("debug", None)  # run_program looks for it
    return detect_world(**launch)


def complete(flags: Mapping[str, Any], part: str = "",
             saved: Mapping[str, Any] | None = None) -> Settings:
    """All settings, of which `flags` were given; `saved` are those of a checkpoint.

    What was in neither comes from the recipe, else from the workload, else from the row.
    """
    chosen = {**(saved or {}), **flags}
    workload = find_workload(chosen.get("workload", Settings.workload))
    recipe = find_row("recipe", chosen.get("recipe", Settings.recipe))
    fixed = {"sync": (SyncChoice(SEAMS[part]),)} if part in SEAMS else {}
    settings = Settings(**{**fixed, **_parsed(workload), **recipe, **chosen})
    if settings.virtual_nodes and not settings.is_portable:  # other threads add in another order
        settings = replace(settings, threads=settings.threads or 1)
    return replace(settings, data_dir=settings.data_dir.expanduser(),
                   output_dir=settings.output_dir.expanduser())


def _parsed(workload: Workload) -> dict[str, Any]:
    """A workload's defaults, each as its flag would take it. Raises UsageError."""
    rows, defaults = Settings.rows(), dict(workload.defaults)
    for name, value in defaults.items():
        if name not in rows:
            raise UsageError(f"the workload {workload.name} has a default for {name!r}, which is "
                             f"no setting{_meant(name)}")
        try:
            defaults[name] = _as_by_flag(name, rows[name], value)
        except (ArgumentTypeError, ValueError) as error:
            raise UsageError(f"the workload {workload.name} has a default for {name} that "
                             f"cannot be: {error}") from None
    return defaults


def _meant(name: str) -> str:
    """A clause that suggests a setting for a name that is none; "" where none is known."""
    if ours := COUNTERPARTS.get("--" + name.replace("_", "-")):
        return f": {CALLED} {ours.removeprefix('--').replace('-', '_')}"
    close = get_close_matches(name, Settings.rows(), 1, LIKE_A_FLAG)
    return f": {MEANT} {close[0]}?" if close else ""


def _as_by_flag(name: str, row: Row, value: Any) -> Any:
    """A default of a workload as a setting's value. Raises ArgumentTypeError or ValueError."""
    if value is None and Settings.default(name) is None or isinstance(value, tuple | list):
        return value
    if row.parse is bool:
        if not isinstance(value, bool):
            raise ArgumentTypeError(f"{value!r} is neither True nor False")
        return value
    if row.choices and str(value).partition(":")[0] not in row.choices:
        raise ArgumentTypeError(f"{value!r} is none of {', '.join(row.choices)}")
    return row.parse(str(value))


def _parser(part: str) -> FlagParser:
    """Has a flag for each row of `part`; what was not given is absent from what it finds."""
    parser = FlagParser(PROGRAMS.get(part, f"{part}/main.py"), PARTS[part], EXAMPLES, GROUPS,
                        _parts_with)
    parser.add_argument("--help-all", action=ShowAll, nargs=0, default=SUPPRESS,
                        help="show all flags and exit")
    add_rows(parser, lambda name, row: part in row.parts)
    return parser


def add_rows(parser: FlagParser, is_wanted: Callable[[str, Row], bool]) -> None:
    """Adds a flag for each row that is wanted; what is not given is absent from what it finds."""
    for name, row in {**Launch.rows(), **Settings.rows()}.items():
        if is_wanted(name, row):
            names = tuple(TABLES.get(name, ()))
            parser.add_row(name, replace(row, choices=names or row.choices,
                                         parse=_workload if name == "workload" else row.parse,
                                         help=row.help + (": " + ", ".join(names)) * bool(names)))


def _workload(text: str) -> str:
    """A type for argparse: a name in the table, or a place in a user's file."""
    if text not in WORKLOADS and Place.parse(text) is None:
        raise ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(WORKLOADS)}; or "
                                "FILE.py:NAME, a workload of your own)")
    return text


def _parts_with(flag: str) -> list[str]:
    names = {"PartOne": "Part One", "PartTwo": "Part Two", "PartThree": "Part Three"}
    return [name for part, name in names.items() if flag in _parser(part).flags]
