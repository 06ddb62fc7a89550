"""Images of every format that Pillow reads arrive as they look; what is left out is counted.

Mutations that turn this red: convert 16 bits of grey as Pillow does; leave out exif_transpose; keep
a list of three suffixes; count no file that is left out; tell on no rank, or on every;
let the traceback of a worker's error hold the worker; end at the first file that cannot be read;
one cache for --skip-unreadable and without; keep folders without an image; a cache among classes;
decode before looking at both sets; list the unreadable files of the training set alone; a fifth of
all instead of each class; drop alpha unsaid; take an empty file for one of another format; leave
the test set out of the training set's fingerprint; compare the copies' names, or sizes alone; name
the first folder of images too deep, or the one with fewest; drop S_ISLNK or islink; compare looks
as they are.
"""

import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features
from torchvision.datasets import ImageFolder

from common.cluster.node import Node
from common.core.failures import DataError, UsageError
from common.core.world import World
from common.data import images
from common.data.dataset import require_same_classes
from common.data.datasets import load_cifar10, load_image_folder
from common.data.images import DANGLING, HIDDEN, HIDDEN_FOLDER, NESTED, OUTSIDE, UNREADABLE
from common.settings.settings import Settings
from common.settings.types import LoaderChoice, Validation
from common.setup import create_loader, load_datasets
from tests.facts import says

NODE = Node(World(), torch.device("cpu"), threads=1)

SIZE = 32
RAMP = np.arange(SIZE * SIZE).reshape(SIZE, SIZE) // 4  # 0 to 255, darkest in the first row


def write(folder: Path, name: str, image: Image.Image, **how) -> None:
    for split in ("train", "test"):
        (folder / split / "ant").mkdir(parents=True, exist_ok=True)
        image.save(folder / split / "ant" / name, **how)


def first_image(folder: Path) -> np.ndarray:
    return load_image_folder("train", folder).inputs[0]


@pytest.mark.parametrize("name", ["0.png", "0.tiff", "0.pgm"])
def test_grey_of_16_bits_is_scaled(name, tmp_path):
    grey = np.full((SIZE, SIZE), 30000, np.uint16)
    grey[0], grey[1] = 0, 65535
    write(tmp_path, name, Image.fromarray(grey))
    assert first_image(tmp_path)[:3, 0].tolist() == [[0] * 3, [255] * 3, [116] * 3]


@pytest.mark.parametrize("values", [np.float32(0.5), np.int32(70000)], ids=type)
def test_grey_without_a_white_is_refused_by_name(values, tmp_path):
    write(tmp_path, "0.tif", Image.fromarray(np.full((SIZE, SIZE), values)))
    with pytest.raises(DataError) as raised:
        first_image(tmp_path)
    assert says(raised.value, tmp_path / "train/ant/0.tif", "32 bits")


@pytest.mark.parametrize("suffix", ["bmp", "gif", "webp", "TIFF", "jpg", "png"])
def test_what_pillow_reads_is_read(suffix, tmp_path):
    if suffix == "webp" and not features.check("webp"):
        pytest.skip("Pillow was built without WebP")
    write(tmp_path, f"0.{suffix}", Image.fromarray(RAMP.astype(np.uint8)))
    assert np.abs(first_image(tmp_path) - RAMP[..., None]).max() < 8


@pytest.mark.parametrize("orientation, turned", [
    (1, RAMP), (3, RAMP[::-1, ::-1]), (6, np.rot90(RAMP, -1)), (8, np.rot90(RAMP))])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_an_image_is_turned_as_its_camera_was(dtype, orientation, turned, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    factor = 257 if dtype == np.uint16 else 1
    write(tmp_path, "0.png", Image.fromarray((RAMP * factor).astype(dtype)), exif=exif)
    assert np.array_equal(first_image(tmp_path)[..., 0], turned)


@pytest.fixture
def mixed(tmp_path):
    write(tmp_path, "0.png", Image.new("RGB", (SIZE, SIZE)))
    write(tmp_path, "1.bmp", Image.new("RGB", (SIZE, SIZE)))
    for name in ("notes.txt", "more.txt", "figure.pdf", ".DS_Store"):
        (tmp_path / "train" / "ant" / name).write_text("no image")
    for name in ("ant/more/er", ".cat"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (SIZE, SIZE)).save(tmp_path / "train" / name / "0.png")
    (tmp_path / "train" / "LICENSE").write_text("words")
    return tmp_path


@pytest.mark.parametrize("load", [load_cifar10, load_image_folder])
def test_what_is_left_out_is_counted_and_why(load, mixed):
    for _ in range(2):  # decoded, and from the cache
        dataset = load("train", mixed)
        assert len(dataset) == 2 and not load("test", mixed).note
        assert says(dataset.note, "train", ".txt", ".pdf", HIDDEN, NESTED, OUTSIDE,
                    HIDDEN_FOLDER, ".cat")
        assert sorted(re.findall(r"\d+", dataset.note.partition("\n")[0])) == [*"1111127"]


def test_of_images_that_lie_too_deep_the_folder_with_most_is_named(mixed):
    write(mixed / "train/ant/y2023", "0.png", Image.new("RGB", (SIZE, SIZE)))  # two below it
    note = load_image_folder("train", mixed).note
    assert says(note, f"{NESTED}, as in ant/y2023: 3") and not says(note, "ant/more")


def test_a_link_to_what_is_not_there_is_called_that(mixed):
    for place in ("bee", "ant/folder"):
        (mixed / "train" / place).symlink_to(mixed / "gone")
    assert says(load_image_folder("train", mixed).note, f"{DANGLING}: 2", f"{OUTSIDE}: 1")
    (mixed / "train/ant/7.png").symlink_to("../gone.png")
    with pytest.raises(DataError) as raised:
        load_image_folder("train", mixed)
    assert says(raised.value, mixed / "train/ant/7.png", "link", mixed / "train/gone.png")


def test_class_names_that_only_look_alike_are_shown_apart(tmp_path, monkeypatch):
    classes_of(tmp_path / "train", **{"gr\u00fcn": 2})
    classes_of(tmp_path / "test", **{"gru\u0308n": 2})
    refused_before_decoding(tmp_path, monkeypatch, "Unicode", r"gr\xfcn", r"gru\u0308n")
    assert not says(error_of(["ant"], ["bee"]), "Unicode")
    assert says(error_of(["ant", "bee"], ["ant", "bee "]), "spaces", "'bee'", "'bee '")


def error_of(trained: list[str], tested: list[str]) -> DataError:
    with pytest.raises(DataError) as raised:
        require_same_classes(trained, tested, Path("pets"))
    return raised.value


def test_where_all_is_left_out_the_reason_is_told(mixed):
    for path in (mixed / "train" / "ant").glob("?.*"):
        path.unlink()
    with pytest.raises(DataError) as raised:
        load_image_folder("train", mixed)
    assert says(raised.value, mixed / "train", ".txt", 2, HIDDEN)


def spoilt(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no image")


def test_all_files_that_cannot_be_read_are_listed_or_left_out_and_counted(mixed):
    spoilt(mixed, "train/ant/7.png", "train/bee/8.png", "test/bee/9.png")
    for _ in range(2):
        with pytest.raises(DataError) as raised:
            load_image_folder("train", mixed)
        assert says(raised.value, 3, "--skip-unreadable", mixed / "train/ant/7.png",
                    mixed / "train/bee/8.png", mixed / "test/bee/9.png")
        dataset = load_image_folder("train", mixed, skip_unreadable=True)  # in a cache of its own
        assert len(dataset) == 2 and dataset.class_names == ("ant",)
        assert says(dataset.note, UNREADABLE, 9, "bee")  # 7 and these 2


def test_folders_without_an_image_are_no_classes(mixed):
    spoilt(mixed, "train/__MACOSX/._0.png", "train/aa/notes.txt")
    Image.new("RGB", (SIZE, SIZE)).save(mixed / "train/ant/0.png")
    dataset = load_image_folder("train", mixed)
    assert dataset.class_names == ("ant",) and dataset.targets.tolist() == [0, 0]
    assert says(dataset.note, "__MACOSX", "aa")


def refused_before_decoding(folder: Path, monkeypatch, *facts: object) -> None:
    """Fails unless loading ends in a sentence with these facts, with nothing read or written."""
    monkeypatch.setattr(images, "_read_image", None)
    before = sorted(folder.rglob("*"))
    with pytest.raises(DataError) as raised:
        load_datasets(Settings(workload="image-folder", data_dir=folder), NODE)
    assert says(raised.value, *facts), raised.value
    assert sorted(folder.rglob("*")) == before


def test_a_class_without_an_image_in_one_of_both_sets_is_named(mixed, monkeypatch):
    for split, name in (("train", "bee"), ("test", "cat")):
        (mixed / split / name).mkdir()
        Image.new("RGB", (SIZE, SIZE)).save(mixed / split / name / "0.png")
    refused_before_decoding(mixed, monkeypatch, "training", "bee", "test", "cat", mixed)


def test_other_programs_find_the_classes_and_nothing_of_ours(tmp_path):
    for number in range(5):
        write(tmp_path, f"{number}.png", Image.new("RGB", (SIZE, SIZE)))
    load_image_folder("train", tmp_path / "train")
    assert ImageFolder(tmp_path / "train").classes == ["ant"]


@pytest.mark.parametrize("workload, error, fact", [
    ("digits-vgg11", UsageError, "--skip-unreadable"), ("image-folder", DataError, "missing")])
def test_images_are_skipped_in_folders_of_images_alone(workload, error, fact, tmp_path):
    settings = Settings(workload=workload, data_dir=tmp_path / "missing", skip_unreadable=True)
    with pytest.raises(error) as raised:
        load_datasets(settings, NODE)
    assert says(raised.value, fact)


@pytest.mark.parametrize("has, given, hint", [
    (["all/train/ant", "all/test/ant"], "", "give --data-dir {}/all"),
    (["all/ant", "all/bee"], "", "give --data-dir {}/all"),
    (["ant", "bee"], "ant", "a folder for each class, or, .* give --data-dir {}$"),
    (["train/ant", "train/bee", "test/ant"], "train/ant", "give --data-dir {}$"),
    (["ant"], "ant", "a folder for each class$"), (["train"], "", "{}/train holds images"),
    (["train", "test"], "", "{}/train .* a folder for each class, or, .* name$"),
    (["Train/ant", "Test/ant"], "", "rename Train to train and Test to test"),
    (["train/ant", "val/ant"], "", "rename val to test"),
    (["Training/ant", "test/ant"], "", "rename Training to train"),
    (["pets/cat", "pets/dog", "holiday"], "", "give --data-dir {}/pets"),
    (["pets/train/cat", "pets/test/cat", "holiday"], "", "give --data-dir {}/pets"),
    (["train/pets/cat", "train/ant", "test/ant"], "", "{}/train/pets holds folders of images"),
    (["ant"], "ant/0.png", "ant/0.png is a file"),
    (["train/ant", "odd/ant"], "", "give --data-dir {}/train, of which a fifth")])
def test_the_folder_that_was_meant_is_named(has, given, hint, tmp_path, monkeypatch):
    for name in has:
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (SIZE, SIZE)).save(tmp_path / name / f"{number}.png")
    monkeypatch.setattr(images, "_read_image", None)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=hint.format(re.escape(str(tmp_path.resolve())))):
        load_image_folder("train", tmp_path / given)
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_that_are_not_used_are_named(mixed):
    for name in ("val/ant", "notes"):
        (mixed / name).mkdir(parents=True)
    Image.new("RGB", (SIZE, SIZE)).save(mixed / "val/ant/0.png")
    assert says(load_image_folder("train", mixed).note, "val")
    assert not says(load_image_folder("train", mixed).note, "notes")
    assert not load_image_folder("test", mixed).note


@pytest.mark.parametrize("mode, value, drops", [
    ("RGBA", (1, 2, 3, 254), True), ("RGBA", (1, 2, 3, 255), False), ("LA", (1, 0), True),
    ("P", 0, True), ("RGB", 0, False)])
def test_transparency_that_is_dropped_is_counted(mode, value, drops, tmp_path):
    write(tmp_path, "0.png", Image.new("RGB", (SIZE, SIZE)))
    write(tmp_path, "1.png", Image.new(mode, (SIZE, SIZE), value),
          **({"transparency": 0} if mode == "P" else {}))
    assert says(load_image_folder("train", tmp_path).note, "transparency", 1) == drops


@pytest.mark.parametrize("colours, expected", [
    ({"train/ant": "01", "train/bee": "2", "test/ant": "3", "test/bee": "4"}, []),
    ({"train/ant": "01", "train/bee": "2", "test/ant": "1", "test/bee": "4"},
     [("1 picture", "training", "test", "train/ant/1.png", "test/ant/0.png")]),
    ({"train/ant": "01", "train/bee": "10", "test/ant": "3", "test/bee": "4"},
     [("2 pictures", "classes", "train/ant/0.png", "train/bee/1.png")]),
    ({"train/ant": "01", "train/bee": "2", "test/ant": "3", "test/bee": "0"},
     [("1 picture", "classes"), ("1 picture", "training", "test")]),
    ({"ant": "0112", "bee": "34"}, [("1 picture", "training", "test", "ant/1.png", "ant/2.png")]),
    ({"ant": "01", "bee": "13"}, [("1 picture", "classes", "ant/1.png", "bee/0.png")])])
def test_copies_that_spoil_training_or_test_are_counted(colours, expected, tmp_path):
    def write_all(colours: dict[str, str]) -> list[str]:
        for name, each in colours.items():
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
            for number, colour in enumerate(each):
                Image.new("RGB", (4, 4), (int(colour), 0, 0)).save(
                    tmp_path / name / f"{number}.png")
        return [line for line in load_image_folder("train", tmp_path).note.splitlines() if line]
    for _ in range(2):  # as it is decoded, and from its cache
        lines = write_all(colours)
        assert len(lines) == len(expected)
        assert all(says(line, *facts) for line, facts in zip(lines, expected, strict=True))
    last = [*colours][-1]
    assert not [line for line in write_all({last: "56"[:len(colours[last])]}) if last in line]


@pytest.mark.parametrize("contents", ["", "text"])
def test_an_empty_file_is_called_empty(contents, tmp_path):
    write(tmp_path, "0.png", Image.new("RGB", (SIZE, SIZE)))
    (tmp_path / "train/ant/1.png").write_text(contents)
    with pytest.raises(DataError) as raised:
        first_image(tmp_path)
    assert says(raised.value, "train/ant/1.png") and says(raised.value, "empty") == (not contents)


def test_a_runs_folder_is_not_that_of_images(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics_rank0.jsonl").touch()
    with pytest.raises(DataError, match="holds no images; it is a run's folder"):
        load_image_folder("train", tmp_path)


def test_the_size_of_the_data_is_said(tmp_path, capsys):
    classes_of(tmp_path, ant=10, bee=10)
    load_datasets(Settings(workload="image-folder", data_dir=tmp_path, dry_run=True,
                           validation=Validation(0.25)), NODE)
    load_datasets(Settings(workload="digits-vgg11"), NODE)
    assert capsys.readouterr().out.splitlines() == [
        "  12 training, 4 validation and 4 test samples of 2 classes",
        "  1,438 training and 359 test samples of 10 classes"]


@pytest.mark.parametrize("rank, lines", [(0, 1), (1, 0)])
def test_the_leader_tells_it_in_one_line(rank, lines, mixed, capsys):
    Image.new("RGB", (SIZE, SIZE), 9).save(mixed / "test/ant/0.png")
    Image.new("RGB", (SIZE, SIZE), 9).save(mixed / "test/ant/1.bmp")
    settings = Settings(workload="image-folder", data_dir=mixed)
    load_datasets(settings, Node(World(rank, 2), torch.device("cpu"), threads=1))
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3 * lines
    assert not told or says(told[0], 2, "training", "test", 1)
    assert all(says(line, "train", 7) for line in told[1:2])
    assert all(says(line, "ant") for line in told[2:])


@pytest.mark.parametrize("loader", ["memory", "workers:0"])
def test_both_loaders_have_the_same_images(loader, mixed):
    write(mixed, "2.png", Image.fromarray(np.full((SIZE, SIZE), 30000, np.uint16)))
    settings = Settings(workload="image-folder", data_dir=mixed, batch_size=3, crop_padding=0,
                        loader=LoaderChoice.parse(loader))
    node = NODE
    batch, = create_loader(settings, load_image_folder("train", mixed), node).batches(1)
    assert batch.inputs[:, 0, 0, 0].sort().values.tolist() == pytest.approx(
        [(grey - 125.3) / 63 for grey in (0, 0, 116)], abs=1e-5)


@pytest.mark.parametrize("loader", ["memory", "workers:0", "workers:1"])
def test_with_both_loaders_a_damaged_cache_is_told_in_a_sentence(loader, mixed):
    settings = Settings(workload="image-folder", data_dir=mixed, batch_size=2,
                        loader=LoaderChoice.parse(loader))
    train_set = load_image_folder("train", mixed)
    batches = create_loader(settings, train_set, Node(World(), torch.device("cpu"), 1)).batches(1)
    rows = next((mixed / ".cache").glob("folder-train-*-*/images.npy"))
    os.truncate(rows, 100)
    with pytest.raises(DataError) as raised:
        next(batches)
    assert says(raised.value, rows.parent)
    assert not multiprocessing.active_children()


def classes_of(folder: Path, **counts: int) -> None:
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (4, 4), (number, label, 0)).save(folder / name / f"{number}.png")


def test_a_class_of_one_image_leaves_none_to_test_with(tmp_path, monkeypatch):
    classes_of(tmp_path, ant=30, bee=1)
    refused_before_decoding(tmp_path, monkeypatch, tmp_path, "bee", "fifth")


def test_so_does_one_of_which_one_image_can_be_read(tmp_path):
    classes_of(tmp_path, ant=30, bee=1)
    (tmp_path / "bee/1.png").write_text("no image")
    with pytest.raises(DataError) as raised:
        load_image_folder("train", tmp_path, skip_unreadable=True)
    assert says(raised.value, tmp_path, "bee", "fifth") and not says(raised.value, "ant")


def test_every_class_is_trained_on_and_tested_with(tmp_path):
    classes_of(tmp_path, ant=30, bee=2, cat=9)
    train, test = (load_image_folder(split, tmp_path) for split in ("train", "test"))
    assert np.bincount(train.targets).tolist() == [24, 1, 8]
    assert np.bincount(test.targets).tolist() == [6, 1, 1]
