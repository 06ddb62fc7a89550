"""A setting is one row: the parser, the handshake, resume and the banner read it.

Mutations that turn this red: build the parser from a list of names; leave out a group; take
`learned` or `banner` for granted; keep a list of the settings that ranks share.
"""

import re
import tokenize
from dataclasses import dataclass, replace

import pytest
import torch

from common.arithmetic.choice import POOLED_LAST
from common.banner import announce
from common.cluster.node import Node
from common.cluster.rank_info import RankInfo, require_one_run
from common.core.failures import RanksDisagree, UsageError
from common.core.world import World
from common.options import command_line
from common.options.command_line import PARTS
from common.run.resuming import _check_settings
from common.settings.learning import LEARN
from common.settings.resume import Resume
from common.settings.row import setting
from common.settings.settings import GROUPS, Settings
from common.settings.types import Validation, whole
from tests.facts import says
from tests.ranks import ROOT

TEXT = "darken each image by N percent"
NODE = Node(World(), torch.device("cpu"), threads=1)


@dataclass(frozen=True)
class OneMore(Settings):
    """The settings with one more row, and nothing else."""

    darkness: int = setting(0, TEXT, LEARN, parse=whole, metavar="N", learned=True,
                            banner="darkened by {} percent")


@pytest.fixture
def told(monkeypatch) -> OneMore:
    """The settings of a command line with the new flag."""
    monkeypatch.setattr(command_line, "Settings", OneMore)
    settings, _ = command_line.parse_command_line("PartOne", ["--darkness", "3"])
    assert isinstance(settings, OneMore) and settings.darkness == 3
    return settings


@pytest.mark.parametrize("part", PARTS)
def test_a_new_row_has_a_flag_which_help_all_shows(part, told):
    parser = command_line._parser(part)
    assert "--darkness" in parser.flags and TEXT not in parser.format_help()
    parser.show_all()
    assert TEXT in parser.format_help()


def test_its_mistakes_are_named(told):
    with pytest.raises(UsageError) as refused:
        command_line.parse_command_line("PartOne", ["--darkness=-1"])
    assert says(refused.value, "--darkness", -1)


def test_all_ranks_must_agree_on_it(told):
    ranks = [RankInfo(rank, "host", 1, "127.0.0.1", "lo", settings=settings.shared())
             for rank, settings in enumerate((told, replace(told, darkness=4)))]
    with pytest.raises(RanksDisagree, match="darkness"):
        require_one_run(ranks)


def test_all_ranks_must_agree_on_what_torch_reads_from_the_environment(monkeypatch):
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL on one rank torch waits for minutes, and crashes."""
    def rank(number: int, debug: str) -> RankInfo:
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
        return RankInfo.of_this_process(World(number, 2), Settings(), "lo", "127.0.0.1")
    require_one_run([rank(0, "OFF"), rank(1, "off")])
    with pytest.raises(RanksDisagree) as refused:
        require_one_run([rank(0, "OFF"), rank(1, "DETAIL")])
    assert says(refused.value, "TORCH_DISTRIBUTED_DEBUG", "rank 0", "OFF", "rank 1", "DETAIL")


def test_a_resumed_run_must_not_change_it(told):
    before = {"settings": replace(told, darkness=1, threads=7).as_json(), "data": "d"}
    with pytest.raises(UsageError) as refused:
        _check_settings(before, told, {"data": "d"})
    assert says(refused.value, "darkness", 1, 3) and "threads" not in str(refused.value)
    accepting = replace(told, resume=Resume.read("auto:changed"))
    remark, = _check_settings(before, accepting, {"data": "d"})
    assert says(remark, "darkness", 1, 3)


def test_the_banner_says_it_where_it_is_not_the_default(told, capsys):
    announce("PartOne", told, NODE)
    assert "  darkened by 3 percent\n" in capsys.readouterr().out
    announce("PartOne", replace(told, darkness=0), NODE)
    assert "darkened" not in capsys.readouterr().out


@pytest.mark.parametrize("convolutions, words", [
    ("fused winograd-4 winograd-4 toeplitz", ": 1 fused, 2 winograd-4, 1 toeplitz"),
    ("library", ": library"), (POOLED_LAST, f": {POOLED_LAST}")])
def test_the_banner_counts_the_convolutions_of_a_checkpoint(convolutions, words, capsys):
    announce("PartOne", Settings(), NODE, convolutions)
    line, = re.findall("3x3 convolutions.*", capsys.readouterr().out)
    assert line.startswith(f"3x3 convolutions{words} (") and says(line, "resumed")
    announce("PartOne", Settings(), NODE)
    assert "resumed" not in capsys.readouterr().out


@pytest.mark.parametrize(("text", "numbers"), [
    ("0.17647058823529413:3:0.01", ["17.6 %", "3", "0.01"]), ("0.1:5", ["10 %", "5"]),
    ("0.1", ["10 %"])])
def test_the_banner_says_in_words_what_is_held_out(text, numbers):
    line, = Settings(validation=Validation.parse(text)).said()
    assert says(line, "validation") and re.findall(r"[\d.]+(?: %)?", line) == numbers


def test_what_the_augmentation_uses_stands_in_two_files():
    files = set()
    for path in (ROOT / "common").rglob("*.py"):
        with tokenize.open(path) as file:
            if any(token.type == tokenize.NAME and token.string == "cutout"
                   for token in tokenize.generate_tokens(file.readline)):
                files.add(str(path.relative_to(ROOT)))
    assert files == {"common/settings/learning.py", "common/data/augment.py"}


def test_every_row_is_in_a_group_and_nodes_choose_only_what_is_not_learned():
    for name, row in Settings.rows().items():
        assert row.group in GROUPS, name
        assert not row.per_node or not row.decides(Settings().as_json()), name


def test_defaults_are_what_their_flags_would_give():
    for name, row in Settings.rows().items():
        default = Settings.default(name)
        if row.parse is not bool and default is not None:
            text = ",".join(default) if isinstance(default, list) else str(default)
            assert row.parse(text) == getattr(Settings(), name), name
