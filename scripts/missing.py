"""Names the packages of a requirements file that this interpreter lacks, or has in another version.

    .venv/bin/python scripts/missing.py requirements.txt

For scripts/environment.sh, so it needs pip alone. The file in PIP_CONSTRAINT counts too, as it does
for pip. Prints nothing when there is nothing to install.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.core.interpreter import use_environment

use_environment(__name__, packages=())

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

try:
    from pip._vendor.packaging.requirements import Requirement
except ImportError:
    sys.exit(f"error: {sys.executable} has no pip, which installs what is missing; leave this "
             "environment, or add pip to it")


def requirements(path: Path) -> Iterator[Requirement]:
    """The requirements of the file, and of files that it includes, whose markers hold here."""
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            yield from requirements(path.parent / line.removeprefix("-r "))
        elif line:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement


def fits(requirement: Requirement, if_absent: bool) -> bool:
    """True if the installed version is one of those required; `if_absent` if none is installed."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return if_absent


def missing(path: Path, constraints: list[Path]) -> list[str]:
    """Required and absent, or present in a version that is not as required or constrained."""
    lacking = [each.name for each in requirements(path) if not fits(each, if_absent=False)]
    unlike = [each.name for file in constraints for each in requirements(file)
              if not fits(each, if_absent=True)]
    return list(dict.fromkeys(lacking + unlike))


if __name__ == "__main__":
    names = os.environ.get("PIP_CONSTRAINT", "").split()
    print(*missing(Path(sys.argv[1]), [Path(name) for name in names]))
