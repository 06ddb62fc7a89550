"""Image files with the same bytes, where that spoils training or test.

    say_copies(Path("pets/train"), Path("pets/test"))
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from common.core.files import read_bytes
from common.core.visible import visible
from common.data.images import find_images, is_readable


def say_copies(folder: Path, test: Path | None = None) -> str:
    """Warnings, a line each, of pictures in two classes, and in the training and the test set.

    The training set is `folder`, and `test` the test set; where that is None, it is a part of
    `folder`, and a copy may be in both.
    """
    files = [path for each in (folder, test) if each for path, _ in find_images(each).files]
    groups = [same for size in _alike(files, os.path.getsize) for same in _alike(size, _hash)
              if is_readable(same[0])]
    in_classes = _of_several(groups, lambda path: path.parent.name)
    in_both = (_of_several(groups, lambda path: path.parent.parent) if test else
               [each for each in groups if len({path.parent for path in each}) == 1])
    return "\n".join(filter(None, (
        _say("in two classes", in_classes),
        _say("in the training and in the test set" if test else
             "there twice, perhaps in the training and in the test set", in_both))))


def _alike(paths: Iterable[Path], key: Callable[[Path], Hashable]) -> list[list[Path]]:
    """The paths of which two or more have one key, without those that cannot be read."""
    found = defaultdict(list)
    for path in paths:
        try:
            found[key(path)].append(path)
        except OSError:
            continue
    return [each for each in found.values() if len(each) > 1]


def _hash(path: Path) -> bytes:
    return hashlib.blake2b(read_bytes(path)).digest()


def _of_several(groups: Iterable[list[Path]], place: Callable[[Path], Hashable]
                ) -> list[list[Path]]:
    """The groups with paths in several places, one path of each."""
    several = ({place(path): path for path in reversed(group)} for group in groups)
    return [[*each.values()][::-1] for each in several if len(each) > 1]


def _say(where: str, groups: list[list[Path]]) -> str:
    if not groups:
        return ""
    one, other, *_ = groups[0]
    are = "pictures are" if len(groups) > 1 else "picture is"
    return visible(f"warning: {len(groups):,} {are} {where}, such as {one} and {other}")
