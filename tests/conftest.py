"""Shared by many tests: the end of an undisturbed run, and what must stay as it is."""

import os
from collections.abc import Callable, Iterator

import pytest

from common.arithmetic import portable, products
from common.options.workloads import WORKLOADS
from tests.runs import STEPS, Case, End, end_of, launch


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Callable[[Case], End]:
    """A function from a case to the end of its run without any fault."""
    ends: dict[tuple[str, int], End] = {}

    def end(case: Case) -> End:
        key = case.run, case.world_size
        if key not in ends:
            folder = tmp_path_factory.mktemp("undisturbed")
            launch(case, folder, "no")
            ends[key] = end_of(case, folder)
            assert [len(losses) for losses in ends[key].losses] == [STEPS] * case.world_size
        return ends[key]
    return end


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory) -> Iterator[None]:
    """Keeps measurements of this machine by tests and by real runs apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def the_same_workloads() -> Iterator[None]:
    """Takes rows out of the table again that a module's tests have planted in this process."""
    before = dict(WORKLOADS)
    yield
    WORKLOADS.clear()
    WORKLOADS.update(before)


@pytest.fixture(autouse=True)
def the_same_arithmetic() -> Iterator[None]:
    """Ends each test in native arithmetic: a run in this process may have chosen another."""
    yield
    if products.arithmetic() != products.NATIVE:
        portable.use(products.NATIVE)


@pytest.fixture(scope="module", autouse=True)
def the_same_environment() -> Iterator[None]:
    """Fails a module that leaves a variable of the environment changed: later ones inherit it.

    Torch, scikit-learn and pytest set some of their own, which change nothing for others.
    """
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    left = sorted(name for name in {*before, *after} if before.get(name) != after.get(name)
                  and not name.startswith(("PYTEST_", "TORCH", "KINETO_", "KMP_")))
    os.environ.update({name: before[name] for name in left if name in before})
    for name in {*left} - {*before}:
        del os.environ[name]
    assert not left, f"changed and not put back: {', '.join(left)}"
