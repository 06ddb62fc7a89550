"""MNIST in its own format, from the places where people have it; every fault is one sentence.

Mutations that turn this red: look in one place only; do not compare the two files' lengths; drop
the last dimension of the images.
"""

import hashlib
from urllib.error import URLError

import numpy as np
import pytest

from common.core.failures import DataError
from common.data.mnist import load_mnist
from tests.facts import says
from tests.small_files import write_mnist

GENERATOR = np.random.default_rng(3)
IMAGES = GENERATOR.integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.arange(12) % 10


def write_both(folder) -> None:
    write_mnist(folder, IMAGES[:9], LABELS[:9], "train")
    write_mnist(folder, IMAGES[9:], LABELS[9:], "test")


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
def test_files_are_found_where_people_have_them(place, tmp_path):
    write_both(tmp_path / place)
    train, test = load_mnist("train", tmp_path), load_mnist("test", tmp_path)
    assert np.array_equal(train.inputs[:][..., 0], IMAGES[:9]) and train.inputs.shape[3] == 1
    assert train.inputs.dtype == np.uint8 and train.targets.dtype == np.int64
    assert test.targets.tolist() == LABELS[9:].tolist()
    assert test.class_names == tuple("0123456789")


def test_the_second_load_comes_from_the_cache(tmp_path, monkeypatch):
    write_both(tmp_path)
    first = load_mnist("train", tmp_path)
    monkeypatch.setattr("common.data.mnist._read", None)
    assert load_mnist("train", tmp_path).digest == first.digest


def no_network(*_, **__):
    raise URLError("no network")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("torchvision.datasets.utils._get_redirect_url", no_network)


def test_nothing_there_and_no_download_is_one_sentence(tmp_path, offline):
    with pytest.raises(DataError) as raised:
        load_mnist("train", tmp_path)
    assert says(raised.value, tmp_path, "no network", "--data-dir", "digits-vgg11")
    assert "\n" not in str(raised.value)


def test_a_packed_file_with_another_checksum_is_refused(tmp_path, offline):
    write_mnist(tmp_path, IMAGES, LABELS, "train", packed=True)
    with pytest.raises(DataError) as raised:
        load_mnist("train", tmp_path)
    assert says(raised.value, tmp_path, "train-images-idx3-ubyte.gz", "MD5")
    assert "no network" not in str(raised.value)


def test_packed_files_with_the_right_checksums_need_no_network(tmp_path, offline, monkeypatch):
    from torchvision.datasets import MNIST

    write_mnist(tmp_path, IMAGES[:9], LABELS[:9], "train", packed=True)
    write_mnist(tmp_path, IMAGES[9:], LABELS[9:], "test", packed=True)
    sums = [(name, hashlib.md5((tmp_path / name).read_bytes()).hexdigest())
            for name, _ in MNIST.resources]
    monkeypatch.setattr(MNIST, "resources", sums)
    assert load_mnist("test", tmp_path).targets.tolist() == LABELS[9:].tolist()


def test_a_file_cut_short_is_refused(tmp_path, offline):
    write_both(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError) as raised:
        load_mnist("train", tmp_path)
    assert says(raised.value, tmp_path) and "no network" not in str(raised.value)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path):
    write_both(tmp_path)
    write_mnist(tmp_path / "other", IMAGES, LABELS, "train")
    (tmp_path / "other" / "train-labels-idx1-ubyte").replace(tmp_path / "train-labels-idx1-ubyte")
    with pytest.raises(DataError) as raised:
        load_mnist("train", tmp_path)
    assert says(raised.value, tmp_path, 9, 12)
