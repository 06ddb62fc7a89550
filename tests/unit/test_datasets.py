"""Data sets: decoded once, cached atomically, rebuilt when the source changes, errors in words."""

import hashlib
import os
import tarfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.core.failures import DataError, Failure, UsageError
from common.data import datasets, image_folders, images
from common.data.dataset import as_dataset, require_labels
from common.data.datasets import load_cifar10, load_digits, load_image_folder, load_spirals
from studies.proof.ranks import CONTEXT
from tests.facts import says
from tests.small_files import write_image_folder


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for name in ("cat", "ant"):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{index}.png")
    return tmp_path


def test_labels_follow_the_sorted_class_names(folder):
    dataset = load_cifar10("train", folder)
    assert dataset.class_names == ("ant", "cat")
    assert dataset.targets.tolist() == [0] * 6 + [1] * 6
    with Image.open(folder / "train" / "cat" / "3.png") as image:
        assert np.array_equal(dataset.inputs[9], np.asarray(image))


def test_the_second_load_decodes_nothing(folder, monkeypatch):
    first = load_cifar10("train", folder)
    monkeypatch.setattr(images, "_read_image", None)
    second = load_cifar10("train", folder)
    assert np.array_equal(first.inputs, second.inputs) and first.digest == second.digest


def test_a_changed_source_is_decoded_again_and_the_old_cache_dropped(folder):
    before = load_cifar10("train", folder)
    Image.new("RGB", (32, 32)).save(folder / "train" / "ant" / "0.png")
    os.utime(folder / "train" / "ant" / "0.png", ns=(1, 1))
    after = load_cifar10("train", folder)
    assert after.digest != before.digest and after.inputs[0].max() == 0
    assert len(list((folder / ".cache").glob("folder-train-32-*"))) == 1


def test_the_digest_is_of_the_contents_not_of_file_times(folder):
    before = load_cifar10("train", folder).digest
    os.utime(folder / "train" / "ant" / "0.png", ns=(1, 1))
    assert load_cifar10("train", folder).digest == before


def test_writing_to_the_images_does_not_reach_the_cache(folder):
    load_cifar10("train", folder).take([0])[0].fill_(0)
    assert load_cifar10("train", folder).inputs[0].max() > 0


def test_ranks_of_a_node_decode_once(folder):
    with CONTEXT.Pool(4) as pool:  # not forked from here, where other threads may hold locks
        digests = pool.map(_digest_by_slow_reading, [folder] * 4)
    assert len(set(digests)) == 1
    assert (folder / "reads").read_text() == "read\n"
    assert not list((folder / ".cache").glob("partial-*"))


def _digest_by_slow_reading(folder):
    """Reads a folder slowly, counts that, and returns the digest; in a process of the pool."""
    read = image_folders.read_image_folder

    def slow_and_counted(*arguments):
        with (folder / "reads").open("a") as file:
            file.write("read\n")
        time.sleep(0.3)
        return read(*arguments)
    image_folders.read_image_folder = slow_and_counted
    try:
        return load_cifar10("train", folder).digest
    finally:
        image_folders.read_image_folder = read


def test_other_sizes_are_resized(folder):
    Image.new("RGB", (50, 70)).save(folder / "train" / "ant" / "0.png")
    assert load_image_folder("train", folder).inputs.shape == (12, 32, 32, 3)


def test_a_broken_image_is_named(folder):
    (folder / "train" / "cat" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/2\.png"):
        load_cifar10("train", folder)
    assert not (folder / ".cache").exists()


def test_an_empty_folder_is_named(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "cat").mkdir(parents=True)
    with pytest.raises(DataError) as raised:
        load_cifar10("train", tmp_path)
    assert says(raised.value, tmp_path / "train") and "--data-dir" not in str(raised.value)


def test_nothing_there_and_no_download_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", _no_network)
    with pytest.raises(DataError) as raised:
        load_cifar10("train", tmp_path)
    assert says(raised.value, tmp_path, "train/<class>", "--data-dir")


def _no_network(*_, **__):
    raise OSError("no network")


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    """A small CIFAR-10 in the official archive's format, with its checksums."""
    import pickle

    from torchvision.datasets import CIFAR10
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def write(name: str, contents: dict) -> list[str]:
        data = pickle.dumps(contents)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]
    names = [str(number) for number in range(10)]
    meta = write(CIFAR10.meta["filename"], {CIFAR10.meta["key"]: names})
    monkeypatch.setitem(CIFAR10.meta, "md5", meta[1])
    for split in ("train_list", "test_list"):
        monkeypatch.setattr(CIFAR10, split, [
            write(name, {"data": np.full((4, 3072), int(name[-1]) if name[-1].isdigit() else 9,
                                         np.uint8), "labels": [0, 1, 2, 3]})
            for name, _ in getattr(CIFAR10, split)])
    return folder


def test_the_official_archive(archive):
    train, test = (load_cifar10(split, archive.parent) for split in ("train", "test"))
    assert len(train) == 20 and len(test) == 4 and train.inputs.shape == (20, 32, 32, 3)
    assert train.targets.tolist() == [0, 1, 2, 3] * 5
    assert train.class_names == tuple("0123456789")


def test_a_file_with_another_checksum_is_named_and_nothing_downloaded(archive, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", None)
    (archive / "data_batch_3").write_bytes(b"another file")
    with pytest.raises(DataError) as raised:
        load_cifar10("train", archive.parent)
    assert says(raised.value, archive / "data_batch_3", "MD5")
    assert "cifar-10-python.tar.gz" not in str(raised.value)


def test_a_broken_archive_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", _no_network)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError) as raised:
        load_cifar10("train", tmp_path)
    assert says(raised.value, tmp_path, "cifar-10-python.tar.gz")


def test_a_source_that_changes_while_it_is_read_is_read_again(folder, monkeypatch):
    read = image_folders.read_image_folder

    def unpacking_goes_on(*arguments):
        arrays = read(*arguments)
        late = folder / "train" / "cat" / "late.png"
        if not late.exists():
            Image.new("RGB", (32, 32)).save(late)
        return arrays
    monkeypatch.setattr(image_folders, "read_image_folder", unpacking_goes_on)
    assert len(load_cifar10("train", folder)) == 13


def test_a_cache_beside_read_only_data_is_used(folder, monkeypatch):
    load_cifar10("train", folder)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert len(load_cifar10("train", folder)) == 12


def test_data_that_cannot_be_written_beside_are_cached_elsewhere(folder, tmp_path, monkeypatch):
    (folder / ".cache").write_text("in the way: as good as read-only")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert len(load_cifar10("train", folder)) == 12
    assert list((tmp_path / "home").rglob("images.npy"))


def test_relative_paths_and_spaces(folder, monkeypatch):
    folder.rename(folder.with_name("my images"))
    monkeypatch.chdir(folder.parent)
    assert len(load_cifar10("train", Path("my images"))) == 12


def test_classes_without_a_split_give_a_fixed_fifth_to_the_test_set(folder, monkeypatch):
    (folder / "train").rename(folder.parent / "plain")
    plain = folder.parent / "plain"
    train, test = (load_image_folder(split, plain) for split in ("train", "test"))
    assert (len(train), len(test)) == (10, 2) and train.class_names == ("ant", "cat")
    pixels = {image.tobytes() for part in (train, test) for image in part.inputs}
    assert len(pixels) == 12
    monkeypatch.setattr(images, "_read_image", None)  # the cache beside them is not a change
    assert load_image_folder("test", plain).digest == test.digest


def test_half_a_split_and_no_folder_at_all_are_named(folder):
    (folder / "test").rename(folder / "other")
    with pytest.raises(DataError) as raised:
        load_image_folder("test", folder)
    assert says(raised.value, folder / "test", "other")
    with pytest.raises(DataError) as raised:
        load_image_folder("train", folder / "none")
    assert says(raised.value, folder / "none")
    (folder / "pets.zip").touch()
    with pytest.raises(DataError) as raised:
        load_image_folder("train", folder / "pets.zip")
    assert says(raised.value, folder / "pets.zip", "file")


def test_a_folder_of_classes_is_not_filled_with_cifar10(tmp_path):
    write_image_folder(tmp_path / "pets", 2, names=("cat", "dog"))
    with pytest.raises(DataError, match="--workload image-folder"):
        load_cifar10("train", tmp_path / "pets")
    assert sorted(path.name for path in (tmp_path / "pets").iterdir()) == ["cat", "dog"]


@pytest.mark.parametrize("given, hint", [
    ("", "cifar"), ("cifar/train", "cifar"), ("cifar/train/airplane", None),
    ("packed/cifar-10-batches-py", "packed"), ("archives", "archives/of")])
def test_cifar10_a_level_off_is_found_and_not_downloaded(given, hint, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_read_cifar10_archive", None)
    for split in ("train", "test"):
        write_image_folder(tmp_path / "cifar" / split, 1, names=("airplane", "bird"))
    for name in ("packed", "archives/of"):
        (tmp_path / name / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(DataError if hint else TypeError) as raised:
        load_cifar10("train", tmp_path / given)
    assert not hint or says(raised.value, f"in {tmp_path.resolve() / hint}", "--data-dir")
    assert not list(tmp_path.rglob("*.lock"))


def test_spirals():
    train, test = load_spirals("train"), load_spirals("test")
    assert train.inputs.shape == (8500, 1, 1, 2) and train.inputs.dtype == np.float32
    assert len(test) == 1500 and test.class_names == ("one", "other")
    points = np.concatenate([train.inputs, test.inputs]).reshape(-1, 2)
    labels = np.concatenate([train.targets, test.targets])
    assert np.bincount(labels).tolist() == [5000, 5000]
    radius, angle = np.hypot(*points.T), np.arctan2(points[:, 1], points[:, 0])
    on_arm = 2 * ((angle - np.pi * labels) % (2 * np.pi)) + np.pi
    off = (radius - on_arm + 2 * np.pi) % (4 * np.pi) - 2 * np.pi
    assert 0.1 < np.median(np.abs(off)) < 0.2  # of 0.2 times a normal number: 0.135
    assert points.std(axis=0) == pytest.approx([8.4, 8.4], abs=0.3)
    assert load_spirals("train").digest == train.digest


def test_a_part_has_a_digest_of_its_own():
    test = load_digits("test")
    some, others = test.part(np.arange(5)), test.part(np.arange(5) + 1)
    assert len({test.digest, some.digest, others.digest}) == 3 and len(some) == 5
    assert np.array_equal(some.inputs[1], others.inputs[0])


def test_digits():
    train, test = load_digits("train"), load_digits("test")
    assert len(train) + len(test) == 1797 and len(train.class_names) == 10
    assert train.inputs.shape == (1438, 32, 32, 3) and train.inputs.max() == 255
    assert train.inputs.dtype == np.uint8 and train.targets.dtype == np.int64
    assert (np.bincount(test.targets) >= 25).all()  # no class is rare


@pytest.mark.parametrize("has_file", [True, False])
def test_digits_are_those_of_scikit_learn(has_file, monkeypatch):
    from sklearn.datasets import load_digits as reference

    if not has_file:
        monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    rows = datasets._read_digits()
    assert np.array_equal(rows[:, :-1], reference().data)
    assert np.array_equal(rows[:, -1], reference().target)


@pytest.mark.parametrize("found, facts", [
    (([[1, 2], [3]], [0, 1]), ["array"]), ((["one", "two"], [0, 1]), ["array"]),
    ((np.zeros((3, 2)), np.zeros(2)), [3, 2]), (np.zeros((3, 2)).sum(), ["float64"]),
    (iter(()), ["tuple_iterator"]),
    ((np.zeros((0, 2)), np.zeros(0)), ["empty"])])
def test_what_is_no_data_set_is_refused_in_a_sentence(found, facts):
    with pytest.raises(Failure) as raised:
        as_dataset(found)
    assert says(raised.value, *facts)


@pytest.mark.parametrize("items, facts", [
    ([("text", 1)] * 3, ["(str, int)"]), ([{"x": 1.0, "y": 1}] * 3, ["dict"]),
    ([(torch.ones(2), 0), (torch.ones(3), 0)], ["sample 1", "Tensor (3,)", "Tensor (2,)"]),
    ([(torch.ones(2, requires_grad=True), 0)] * 3, ["gradients"]),
    ({"train": 1}, ["empty", 0]), ([], ["empty", 0]), ((1, 2), ["array"])])
def test_samples_that_are_no_pairs_of_numbers_are_refused_in_a_sentence(items, facts):
    with pytest.raises(Failure) as raised:
        as_dataset(items)
    assert says(raised.value, *facts)


@pytest.mark.parametrize("odd, form, alone", [
    ((torch.ones(2), 1), "(Tensor (2,), int)", True), (None, "NoneType", True),
    ((torch.ones(3), None), "(Tensor (3,), NoneType)", True),
    ((torch.ones(3), "b"), "(Tensor (3,), str)", True),
    ((torch.ones(3), 1, 1), "(Tensor (3,), int, int)", True),
    ((np.ones(3, np.float32), 1), "(ndarray (3,), int)", False)])
def test_a_sample_unlike_sample_0_is_named_when_it_is_taken(odd, form, alone):
    dataset = as_dataset([odd if number == 37 else (torch.ones(3), 1) for number in range(600)],
                         "test").part(np.arange(30, 40))
    for chosen in [[6, 7]] + [[7]] * alone:
        with pytest.raises(UsageError) as raised:
            dataset.take(chosen)
        assert says(raised.value, "sample 37 of the test set", "sample 0", "(Tensor (3,), int)")
        assert form in str(raised.value)


def test_a_sample_that_a_library_cannot_read_is_named():
    dataset = as_dataset([(1.0, 1)] * 3)
    with pytest.raises(UsageError) as raised:
        replace(dataset, numbers=np.arange(9)).take([7])
    assert says(raised.value, "sample 7 of the training set", "IndexError")


@pytest.mark.parametrize("label, wrong", [(1, False), (2, True), (-1, True)])
def test_a_label_that_no_class_has_is_named_before_training(label, wrong):
    dataset = as_dataset((torch.ones(4, 2), torch.tensor([0, 1, label, 0]), ["no", "yes"]))
    with pytest.raises(UsageError) if wrong else nullcontext() as raised:
        require_labels(dataset, "test")
    assert not wrong or says(raised.value, "sample 2", "test", label)


@pytest.mark.parametrize("as_items", [False, True])
def test_a_users_data_set_is_taken_and_parted_by_number(as_items):
    rows, targets = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    items = torch.utils.data.TensorDataset(rows, targets)
    items.classes = ["a", "b", "c"]
    dataset = as_dataset(items if as_items else (rows, targets, ["a", "b", "c"]))
    part = dataset.part(np.array([5, 3, 1]))
    inputs, found = part.take([2, 0])
    assert torch.equal(inputs, rows[[1, 5]]) and found.tolist() == [1, 2]
    assert dataset.class_names == ("a", "b", "c") and len(part) == 3
    others = (rows + torch.eye(6)[:, :2], targets, ["a", "b", "c"])
    digests = {each.digest for each in (dataset, part, as_dataset(others))}
    assert len(digests) == 3
