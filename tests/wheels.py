"""Tiny wheels and a package index of them in a folder, for tests of what gets installed."""

import zipfile
from collections.abc import Iterable
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel of one module, that has nothing but `__version__`; returns the file."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", f"__version__ = {version!r}\n")
        wheel.writestr(f"{info}/METADATA",
                       f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL",
                       "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def write_index(folder: Path, packages: Iterable[tuple[str, str]]) -> str:
    """An index (PEP 503) of (name, version) pairs in `folder`; returns its address."""
    for name, version in packages:
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        wheel = write_wheel(page.parent, name, version).name
        with page.open("a") as file:
            file.write(f'<a href="{wheel}">{wheel}</a>\n')
    return folder.as_uri()
