"""Comparisons of a resumed run with its checkpoint, and its sentences on a difference.

Mutations that turn this red: drop the comparison of data; count other code as exact, as inexact, or
as a change that virtual nodes refuse; compare the number of a strategy's tensors alone; say nothing
of a batch that is larger than the data.
"""

import pytest
import torch
from torch import nn

from common.cluster.node import Node
from common.core.failures import UsageError
from common.core.world import World
from common.data.epoch_plan import EpochPlan
from common.run.opening import _remarks_on
from common.run.resuming import (
    _change_of_data,
    _check_settings,
    _exactness,
    _ran_on,
    _restore_ranks,
)
from common.settings.resume import Resume
from common.settings.settings import Settings
from tests.facts import says

NODE = Node(World(1, 2), torch.device("cpu"), threads=1)
RAN_ON = {"code": "abc", "threads": 1, "device": "cpu", "pooling": "first",
          "arithmetic": "native"}


@pytest.mark.parametrize("resume", ["auto", "auto:changed"])
def test_other_data_is_refused_unless_changes_are_accepted(resume):
    settings = Settings(resume=Resume.read(resume))
    before = {"settings": settings.as_json(), "data": "old", "ran_on": RAN_ON}
    now = {"data": "new", "ran_on": RAN_ON}
    assert _check_settings({**before, "data": "new"}, settings, now) == []
    if settings.resume.accepts_changes:
        remark, = _check_settings(before, settings, now)
        assert says(remark, "data")
    else:
        with pytest.raises(UsageError) as refused:
            _check_settings(before, settings, now)
        assert says(refused.value, "data", "--resume auto:changed")


@pytest.mark.parametrize("before, now, facts", [
    ((["ant"], 9), (["ant"], 12), ["9 training samples", "12"]),
    ((["ant", "bee"], 9), (["ant", "cat"], 9), ["class bee is gone", "class cat is new"]),
    ((["gr\u00fcn"], 9), (["gru\u0308n"], 9), [r"gr\xfcn", r"gru\u0308n", "look alike"]),
    ((["ant"], 9), (["ant"], 9), ["contents of the data"])])
def test_it_is_said_what_has_changed_in_data(before, now, facts):
    said = _change_of_data(*({"classes": names, "count": count} for names, count in (before, now)))
    assert all(fact in said for fact in facts)
    assert ("contents" in said) is ("contents" in facts[0])
    assert "contents" in _change_of_data({}, {"classes": [], "count": 3})


@pytest.mark.parametrize("virtual_nodes", [0, 4])
def test_other_code_is_said_and_not_refused(virtual_nodes):
    settings = Settings(virtual_nodes=virtual_nodes, threads=1)
    before = {"settings": settings.as_json(), "data": "d", "ran_on": RAN_ON}
    now = {"data": "d", "ran_on": {**RAN_ON, "code": "def"}}
    assert _check_settings(before, settings, now) == []


def test_a_checkpoint_of_before_is_of_a_native_run_that_pooled_first():
    assert _ran_on({"ran_on": {"code": "abc"}}) == {
        "code": "abc", "pooling": "first", "arithmetic": "native"}
    later = {"pooling": "last", "arithmetic": "portable"}
    assert _ran_on({"ran_on": later}) == later and _ran_on({}) == {}


@pytest.mark.parametrize(("arithmetic", "exact"), [
    ("native", "no"), ("portable", "yes"), ("portable, but for: elu", "no")])
def test_portable_arithmetic_goes_on_with_other_threads_on_another_processor(arithmetic, exact):
    before = {**RAN_ON, "arithmetic": arithmetic, "instructions": "AVX2"}
    now = {**before, "threads": 2, "instructions": "AVX512"}
    assert _exactness(before, now).startswith(exact)


@pytest.mark.parametrize("now, answer, facts", [
    ({}, "yes", []), ({"code": "def"}, "unknown", ["code", "abc", "def"]),
    ({"code": "abc mine.py:1"}, "unknown", ["code", "abc", "mine.py:1"]),
    ({"code": "def", "threads": 2}, "no", ["threads", 1, 2]),
    ({"device": "cuda"}, "no", ["device", "cpu", "cuda"])])
def test_whether_a_resumed_run_is_exact(now, answer, facts):
    words = _exactness(RAN_ON, {**RAN_ON, **now})
    assert words.split(",")[0] == answer and says(words, *facts)


SAVED = [[torch.ones(2), torch.full((2,), 5.0)], [torch.ones(3), torch.full((3,), 7.0)]]


@pytest.mark.parametrize("sizes, dtype, saved", [
    ((2, 4), torch.float32, SAVED), ((3, 2), torch.float32, SAVED), ((2,), torch.float32, SAVED),
    ((2, 3), torch.bfloat16, SAVED), ((2, 3), torch.float32, [rows * 2 for rows in SAVED]),
    ((2, 3), torch.float32, [])])
def test_a_strategys_state_of_another_form_is_lost_in_a_sentence(sizes, dtype, saved):
    state = [torch.zeros(size, dtype=dtype) for size in sizes]
    remark, = _restore_ranks(saved, state, NODE)
    assert says(remark, "strategy") and not any(map(torch.any, state))


def test_a_strategys_state_of_the_same_form_is_this_ranks():
    state = [torch.zeros(2), torch.zeros(3)]
    assert _restore_ranks(SAVED, state, NODE) == []
    assert [each.tolist() for each in state] == [[5.0] * 2, [7.0] * 3]


@pytest.mark.parametrize("batch, remarks", [
    (20, []), (40, []), (35, [("5 samples", 8)]), (13, [("1 sample", 3)]),
    (41, [("--batch-size", 41, 40)])])
def test_what_becomes_of_the_last_batch_is_said(batch, remarks):
    said = _remarks_on(EpochPlan(40, batch), Settings(epochs=50), nn.BatchNorm2d(1))
    for each, facts in zip(said, remarks, strict=True):
        assert says(each, *facts)


@pytest.mark.parametrize("epochs, most, steps", [
    (1, None, 2), (24, None, 48), (25, None, None), (1, 1, None)])
def test_few_steps_in_all_are_said_with_the_flags_that_make_them_more(epochs, most, steps):
    settings = Settings(epochs=epochs, max_iterations=most)
    said = " ".join(_remarks_on(EpochPlan(40, 20), settings, nn.BatchNorm2d(1)))
    assert _remarks_on(EpochPlan(40, 20), settings, nn.Linear(1, 1)) == []
    assert said.startswith(f"{steps} steps in all") if steps else not said
    assert not steps or "--batch-size than 20" in said and f"--epochs than {epochs}" in said
