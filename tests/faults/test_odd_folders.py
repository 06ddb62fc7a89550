"""Folders of images with odd contents are read as Pillow reads them, or refused in a sentence.

500 of them in the slow run: pipes, sockets, devices, links to nowhere and to themselves, damaged
and empty files, files that vanish, names that are not text or move a cursor.

Mutations that turn this red: open an image without O_NONBLOCK and without looking at what it is;
leave `formats` out of Image.open; encode names in _fingerprint as strict UTF-8; drop `visible` from
Failure; number the labels by all folders; end at the first file that cannot be read.
"""

import json
import os
import random
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.core.failures import DataError
from common.core.visible import visible
from common.data.datasets import load_image_folder
from tests.facts import says
from tests.faults.odd_folders import SIZE, expected_of, vanishing, write_odd_folder
from tests.forked import Ended, forked
from tests.ranks import error_lines, program, run_programs
from tests.small_files import write_image_folder

NOBODY = 65534
LEAST, ALL = 25, 500
PROGRAMS = 30


def load(data: Path, home: Path, user: int, skips: bool = False) -> tuple:
    """("read", images, labels, names) or ("refused", sentence), as that user."""
    os.environ["XDG_CACHE_HOME"] = str(home)
    if user != os.getuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    try:
        found = load_image_folder("test", data, SIZE, skips)
        return "read", np.asarray(found.inputs), found.targets.tolist(), list(found.class_names)
    except DataError as error:
        return "refused", str(error)


def require_right(ended: Ended, data: Path, skips: bool = False) -> str:
    """Fails unless the data were read right, or refused in a sentence that names all files."""
    assert ended.code == 0, (ended.code, ended.output)
    assert "Traceback" not in ended.output and "Error" not in ended.output  # Pillow may warn
    expected, (outcome, *found) = expected_of(data / "test"), ended.value
    if outcome == "read":
        assert skips or not expected.unreadable, expected.unreadable
        assert np.array_equal(found[0], expected.images) and found[1:] == [expected.labels,
                                                                           expected.names]
        return outcome
    folder = str(data / "test")
    files = [path for path in expected.unreadable if path != folder]
    missing = [folder] if skips or not files else files
    assert all(visible(path) in found[0] for path in missing), found
    assert found[0].isprintable()
    assert not (skips and expected.labels), found
    return outcome


@pytest.fixture
def place():
    """A folder that other users can enter too."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def run_case(seed: int, place: Path) -> str:
    chance = random.Random(seed)
    data, home = place / f"data{seed}", place / f"home{seed}"
    write_odd_folder(data / "test", chance)
    home.mkdir()
    home.chmod(0o777)
    user = NOBODY if os.getuid() == 0 and chance.random() < 0.2 else os.getuid()
    first = require_right(forked(load, data, home, user, output=place / "out"), data)
    if first == "read":  # from its cache
        assert require_right(forked(load, data, home, user, output=place / "out"), data) == first
    else:
        require_right(forked(load, data, home, user, True, output=place / "out"), data, skips=True)
    return first


def test_odd_folders_are_read_right_or_refused_by_name(place):
    outcomes = [run_case(seed, place) for seed in range(LEAST)]
    assert {"read", "refused"} == set(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_500_odd_folders(place):
    outcomes = [run_case(seed, place) for seed in range(ALL)]
    print({outcome: outcomes.count(outcome) for outcome in set(outcomes)})
    assert min(outcomes.count("read"), outcomes.count("refused")) > ALL // 5


def load_while_files_vanish(data: Path, home: Path) -> tuple:
    vanishing(data / "test")
    return load(data, home, os.getuid())


@pytest.mark.parametrize("seed", range(4))
def test_files_that_vanish_while_they_are_read(seed, place):
    """The data set is what stood there at one moment, or a file or the folder is named."""
    chance = random.Random(seed)
    (data := place / "data").mkdir()
    for label in range(2):
        (folder := data / "test" / f"class{label}").mkdir(parents=True)
        for index in range(100):
            pixels = np.full((SIZE, SIZE, 3), chance.randrange(256), np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    ended = forked(load_while_files_vanish, data, place, output=place / "out")
    assert ended.code == 0, ended.output
    outcome, *found = ended.value
    if outcome == "read":
        assert len(found[0]) == len(found[1]) >= len(list((data / "test").glob("*/*")))
    else:
        assert str(data / "test") in found[0]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not read")
@pytest.mark.parametrize("secret", ["test/ant/0.png", "test/ant", "test"])
def test_what_a_user_may_not_read_is_named(secret, place):
    (place / "data/test/ant").mkdir(parents=True)
    Image.new("RGB", (SIZE, SIZE)).save(place / "data/test/ant/0.png")
    (place / "data" / secret).chmod(0)
    (place / "home").mkdir(mode=0o777)
    ended = forked(load, place / "data", place / "home", NOBODY, output=place / "out")
    assert ended.code == 0, ended.output
    assert ended.value[0] == "refused" and f"data/{secret}" in ended.value[1]
    assert "Permission denied" in ended.value[1]


def require_a_right_program(seed: int, place: Path) -> None:
    """The literal main on an odd folder: it trains, or ends with 4 and a sentence on the file."""
    data = place / f"data{seed}"
    expected = write_odd_folder(data / "train", random.Random(seed))
    (data / "test").symlink_to("train")
    done, = run_programs([program("PartOne", [
        "--workload", "image-folder", "--data-dir", str(data), "--max-iterations", "1",
        "--output-dir", str(place / f"out{seed}")], place, f"rank{seed}")])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.output)
    if done.code == 0:
        assert not expected.unreadable
        report = json.loads((place / f"out{seed}/PartOne/report.json").read_text())
        assert report["class_names"] == [visible(name) for name in expected.names]
        for name in ("report.txt", "logs_rank0.txt"):
            text = (place / f"out{seed}/PartOne" / name).read_text()
            assert text.replace("\n", "").isprintable()
    else:
        (sentence,) = error_lines(done.output)
        assert done.code in (2, 4), done.output
        if expected.unreadable:
            assert done.code == 4 and visible(" ".join(expected.unreadable[0].split())) in sentence


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_programs_on_odd_folders(seed, place):
    require_a_right_program(seed, place)


def test_a_program_on_a_folder_with_a_named_pipe(place):
    for split in ("train", "test"):
        write_image_folder(place / "data" / split, 3, SIZE)
    os.mkfifo(place / "data/train/bee/x.png")
    done, = run_programs([program("PartOne", ["--workload", "image-folder", "--data-dir",
                                              str(place / "data")], place, "rank0")])
    assert done.code == 4
    line, = error_lines(done.output)
    assert says(line, f"{place}/data/train/bee/x.png", "pipe", "--skip-unreadable")
