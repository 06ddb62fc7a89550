"""A cache of decoded data: who may read it, and what happens to one that is damaged.

Mutations that turn this red: leave the cache as mkdtemp makes it; take the first root's cache
whether it can be read or not; map the file instead of reading rows; do not look at its state after
reading; take any other state for damage; ask for the source's parent before it is downloaded; open
the folder of the cache only when it is made; remove `partial-*` without holding the lock, or of
every host at once; never remove any; believe every user's cache; read again for ever; leave the
time of a change out of the fingerprint; end where the first root is full; keep the lock's file;
take a lock whose file is gone.
"""

import errno
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from common.core.failures import DataError
from common.data import dataset_cache
from common.data.dataset import make_dataset
from common.data.dataset_cache import cached
from common.data.rows_on_disk import RowsOnDisk
from tests.facts import says

NOBODY = 65534
IMAGES = np.random.default_rng(1).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) % 2
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def arrays():
    return IMAGES, LABELS, ["ant", "bee"]


def slow_arrays():
    time.sleep(0.3)
    return arrays()


def load(data: Path, read=arrays):
    return cached(data, "some", data / "train", read)


@pytest.fixture
def data(tmp_path):
    return folder_of_data(tmp_path / "data")


def folder_of_data(data: Path) -> Path:
    (data / "train" / "ant").mkdir(parents=True)
    (data / "train" / "ant" / "0.png").write_bytes(b"pixels")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return data


def the_cache(root: Path) -> Path:
    cache, = (path for path in root.glob("some-*") if path.is_dir())
    return cache


def in_a_process(target, *arguments) -> int:
    """The exit code of a process that calls `target`; so a bus error ends no test."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def modes(cache: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.iterdir())}


@pytest.mark.parametrize("private, expected", [
    ((), {0o755, 0o644}), (["train/ant/0.png"], {0o700, 0o600}), (["train/ant"], {0o700, 0o600})])
def test_the_cache_is_as_readable_as_all_of_the_data(private, expected, data):
    for name in private:
        (data / name).chmod(0o700)
    before = os.umask(0o077)
    try:
        load(data)
    finally:
        os.umask(before)
    assert modes(the_cache(data / ".cache")) == expected
    assert stat.S_IMODE((data / ".cache").stat().st_mode) == max(expected)


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_the_cache_of_downloaded_data_lies_beside_them(mode, tmp_path):
    """Where `read` downloads them, as MNIST's, into a folder of a folder that is not there yet."""
    data, before = tmp_path / "data", os.umask(0o077)
    source = data / "MNIST" / "raw"

    def download():
        if not source.exists():
            folder_of_data(source)
            source.chmod(mode)
            source.parent.chmod(0o755)
        return arrays()

    data.mkdir()
    data.chmod(0o755)
    try:
        for split in ("some-train", "some-test"):
            images = cached(data, split, source, download).inputs
            assert images._path.is_relative_to(data / ".cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE((data / ".cache").stat().st_mode) == mode


def test_a_cache_elsewhere_is_the_users_alone(data, tmp_path, monkeypatch):
    (data / ".cache").write_text("in the way: as good as read-only")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    load(data)
    root, = (tmp_path / "home" / "data-parallel-training").iterdir()
    assert stat.S_IMODE(the_cache(root).stat().st_mode) == 0o700


def as_another_user(data: Path, home: Path, read=arrays) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.environ["XDG_CACHE_HOME"] = str(home)
    assert np.array_equal(load(data, read).inputs[[3, 5]], IMAGES[[3, 5]])


@pytest.fixture
def for_all():
    """A folder that other users can reach, and of another one's own within it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        yield folder_of_data(Path(folder) / "data"), home


@as_root
def test_a_second_user_reads_the_first_ones_cache(for_all):
    data, home = for_all
    load(data)
    assert in_a_process(as_another_user, data, home, None) == 0
    assert not list(home.iterdir())


@as_root
@pytest.mark.parametrize("folder_mode", [0o755, 0o777])
def test_a_cache_that_a_user_cannot_read_is_in_nobodys_way(folder_mode, for_all):
    data, home = for_all
    load(data)
    the_cache(data / ".cache").chmod(0o700)  # as earlier versions left it
    (data / ".cache").chmod(folder_mode)
    assert in_a_process(as_another_user, data, home) == 0
    assert the_cache(next((home / "data-parallel-training").iterdir()))


@as_root
@pytest.mark.parametrize("folder_mode", [0o755, 0o777, 0o1777])
def test_two_users_at_once(folder_mode, for_all):
    data, home = for_all
    (data / ".cache").mkdir()
    (data / ".cache").chmod(folder_mode)
    process = multiprocessing.get_context("fork").Process(target=as_another_user,
                                                          args=(data, home, slow_arrays))
    process.start()
    assert np.array_equal(load(data, slow_arrays).inputs[7], IMAGES[7])
    process.join()
    assert process.exitcode == 0


def images_of(data: Path) -> Path:
    return the_cache(data / ".cache") / "images.npy"


def cut_short_then_take(data: Path) -> None:
    dataset = load(data)
    dataset.take([39])
    os.truncate(images_of(data), 4096)
    with pytest.raises(DataError) as raised:
        dataset.take([39])
    assert says(raised.value, the_cache(data / ".cache"))


def test_a_cache_cut_short_under_a_running_rank_is_named(data):
    assert in_a_process(cut_short_then_take, data) == 0


def test_a_row_read_in_part_is_damage_too(data, monkeypatch):
    dataset = load(data)
    monkeypatch.setattr(os, "preadv", lambda *_: 100)  # as where a file's size is known late
    with pytest.raises(DataError) as raised:
        dataset.take([0])
    assert says(raised.value, the_cache(data / ".cache"))


def alter(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([255 - IMAGES.flat[-1]]))


def test_a_cache_altered_under_a_running_rank_is_named_at_every_batch(data):
    dataset = load(data)
    alter(images_of(data))
    for chosen in ([0], [39]):
        with pytest.raises(DataError) as raised:
            dataset.take(chosen)
        assert says(raised.value, the_cache(data / ".cache"))


@pytest.mark.parametrize("damage", [
    lambda cache: alter(cache / "images.npy"),
    lambda cache: os.truncate(cache / "images.npy", 4096),
    lambda cache: os.truncate(cache / "images.npy", 0),
    lambda cache: os.truncate(cache / "labels.npy", 0),
    lambda cache: np.save(cache / "labels.npy", 1 - LABELS),
    lambda cache: (cache / "meta.json").write_text("[]"),
    lambda cache: (cache / "images.npy").unlink()])
def test_a_damaged_cache_is_refused_by_name(damage, data):
    load(data)
    damage(the_cache(data / ".cache"))
    with pytest.raises(DataError) as raised:
        load(data)
    assert says(raised.value, the_cache(data / ".cache"))


def test_a_cache_copied_or_touched_is_still_sound(data):
    dataset = load(data)
    os.utime(images_of(data), ns=(1, 1))
    assert np.array_equal(dataset.take([4])[0], IMAGES[[4]])
    assert np.array_equal(load(data).inputs[4], IMAGES[4])


def test_a_cache_that_is_replaced_serves_who_has_it_open(data):
    dataset = load(data)
    (data / "train" / "ant" / "1.png").write_bytes(b"more pixels")
    assert np.array_equal(load(data).inputs[:], IMAGES)
    assert np.array_equal(dataset.take([4])[0], IMAGES[[4]])


def test_a_change_behind_a_link_is_a_change_of_the_data(data, tmp_path):
    (data / "train" / "bee").symlink_to(tmp_path / "bees")
    (tmp_path / "bees").mkdir()
    load(data)
    (tmp_path / "bees" / "0.png").write_bytes(b"pixels")
    with pytest.raises(TypeError):  # read anew, by nothing
        load(data, None)


def test_another_file_of_the_same_size_and_date_is_a_change(data):
    load(data)
    path = data / "train" / "ant" / "0.png"
    before = path.stat()
    path.write_bytes(b"others")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(TypeError):  # read anew, by nothing
        load(data, None)


def full(data: Path, save=np.save):
    def save_elsewhere(path, array):
        if path.is_relative_to(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, array)
    return save_elsewhere


def test_where_the_disk_is_full_the_cache_is_kept_elsewhere(data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(dataset_cache.np, "save", full(data))
    assert np.array_equal(load(data).inputs, IMAGES)
    assert not (data / ".cache").exists()
    assert np.array_equal(load(data, None).inputs, IMAGES)
    (data / "train" / "ant" / "1.png").write_bytes(b"pixels")
    monkeypatch.setattr(dataset_cache.np, "save", full(Path("/")))
    with pytest.raises(DataError) as raised:
        load(data)
    assert says(raised.value, data / ".cache", tmp_path / "home", "No space left on device")


def test_no_lock_is_left_behind(data):
    load(data)
    assert [path.name for path in (data / ".cache").iterdir()] == [the_cache(data / ".cache").name]


def test_who_has_waited_for_a_lock_holds_one_that_others_find(data):
    path, found = data / "some.lock", []

    def wait() -> None:
        with dataset_cache._locked(path):
            found.append(path.exists())

    with dataset_cache._locked(path):
        (waiting := threading.Thread(target=wait)).start()
        time.sleep(0.3)
    waiting.join()
    assert found == [True] and not path.exists()


def require_a_sentence(data: Path) -> None:
    os.setuid(NOBODY)
    with pytest.raises(DataError) as raised:
        load(data)
    assert says(raised.value, data / "train" / "ant", os.strerror(errno.EACCES))


@as_root
def test_data_that_a_user_may_not_read_are_named(for_all):
    data, _ = for_all
    (data / "train" / "ant").chmod(0o700)
    assert in_a_process(require_a_sentence, data) == 0


@pytest.mark.parametrize("chosen", [3, -1, slice(5, 30, 7), [2, 2, 0], np.array([], np.int64)],
                         ids=str)
def test_rows_are_those_of_the_array(chosen, data):
    rows = load(data).inputs
    assert isinstance(rows, RowsOnDisk) and (rows.shape, rows.dtype) == (IMAGES.shape, np.uint8)
    assert np.array_equal(rows[chosen], IMAGES[chosen]) and np.array_equal(rows, IMAGES)


def test_the_digest_is_of_the_arrays(data):
    assert load(data).digest == make_dataset(*arrays()).digest


def killed_while_it_writes(data: Path) -> None:
    dataset_cache.np.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    load(data)


def partial_folders(data: Path) -> list[str]:
    return sorted(path.name for path in (data / ".cache").glob("partial-*"))


def test_what_a_killed_decode_has_left_goes_with_the_next(data):
    for _ in range(2):
        assert in_a_process(killed_while_it_writes, data) == -signal.SIGKILL
        assert len(partial_folders(data)) == 1
    load(data)
    assert not partial_folders(data)


def write_slowly(data: Path, is_writing, may_end) -> None:
    save = np.save

    def wait(*arguments):
        is_writing.set()
        may_end.wait()
        save(*arguments)

    dataset_cache.np.save = wait
    load(data)


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_decode_that_is_under_way_loses_nothing(has_locks, data, monkeypatch):
    """Without locks nothing is removed, and the first to finish wins."""
    if not has_locks:
        monkeypatch.setattr(dataset_cache.fcntl, "flock", no_lock)
    context = multiprocessing.get_context("fork")
    is_writing, may_end = context.Event(), context.Event()
    writer = context.Process(target=write_slowly, args=(data, is_writing, may_end))
    writer.start()
    is_writing.wait()
    other = context.Process(target=load, args=(data,))
    other.start()
    if not has_locks:
        other.join()
    assert len(partial_folders(data)) == 1
    may_end.set()
    for process in (writer, other):
        process.join()
        assert process.exitcode == 0
    assert not partial_folders(data)


def no_lock(*_) -> None:
    raise OSError("No locks available")


def test_what_another_host_may_be_writing_stays_for_a_day(data):
    load(data)
    for name, age in (("partial-some-elsewhere-x", 0), ("partial-some-elsewhere-y", 90_000),
                      ("partial-old_format", 90_000), ("partial-mine", 0)):
        (data / ".cache" / name).mkdir()
        os.utime(data / ".cache" / name, (time.time() - age,) * 2)
    (data / "train" / "ant" / "1.png").write_bytes(b"more pixels")
    load(data)
    assert partial_folders(data) == ["partial-mine", "partial-some-elsewhere-x"]


@as_root
def test_another_users_cache_is_not_believed(for_all):
    """It may hold anything; but the owner of the data may say what they are."""
    data, home = for_all
    load(data)
    cache = the_cache(data / ".cache")
    os.chown(cache, NOBODY - 1, NOBODY)
    assert in_a_process(as_another_user, data, home) == 0
    assert the_cache(next((home / "data-parallel-training").iterdir()))
    shutil.rmtree(home / "data-parallel-training")
    os.chown(data / "train", NOBODY - 1, NOBODY)
    assert in_a_process(as_another_user, data, home, None) == 0
    assert not list(home.iterdir())


def test_data_that_never_stay_as_they_are_are_named(data):
    def changing():
        (data / "train" / "ant" / "0.png").open("ab").write(b"more")
        return arrays()

    with pytest.raises(DataError) as raised:
        load(data, changing)
    assert says(raised.value, data / "train", dataset_cache.MOST_READINGS)


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "meta.json"])
def test_a_pipe_in_the_cache_is_not_waited_for(name, data):
    load(data)
    (path := the_cache(data / ".cache") / name).unlink()
    os.mkfifo(path)
    with pytest.raises(DataError) as raised:
        load(data)
    assert says(raised.value, path.parent, "pipe")


def test_a_cache_runs_no_code(data):
    load(data)
    np.save(the_cache(data / ".cache") / "labels.npy", np.array([print], object),
            allow_pickle=True)
    with pytest.raises(DataError) as raised:
        load(data)
    assert says(raised.value, the_cache(data / ".cache"))
