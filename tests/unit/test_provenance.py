"""Every source that a run uses is hashed, in every language, by names and contents.

Mutations that turn this red: leave one suffix or folder out of provenance.py; hash *.py alone; hash
names without contents; follow an editor's lock; hash __pycache__.
"""

import shutil
import subprocess

import pytest

from common.core.provenance import FOLDERS, ROOT, code_digest, digest_of_sources, source_files
from common.settings.user_code import Place, loaded

ONE_OF_EACH = ("common/core/world.py", "common/arithmetic/cpp/products.cpp",
               "common/arithmetic/cpp/vectors.h", "common/reporting/page.html.j2",
               "common/reporting/page.md.j2", "common/reporting/page.css",
               "common/reporting/page.js", "PartOne/main.py", "PartTwo/by_hand.py",
               "PartThree/ddp.py", "studies/proof/bits.py", "scripts/prove.py",
               "scripts/run_node.sh", "scripts/slurm/part_two.sbatch")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The folders that are hashed, without caches."""
    root = tmp_path_factory.mktemp("copy")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_every_file_of_the_project_in_these_folders_is_a_source():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", *FOLDERS], capture_output=True,
                            text=True)
    if listed.returncode:
        pytest.skip("this copy of the project is not a git repository")
    assert {ROOT / name for name in listed.stdout.split()} <= set(source_files())


def test_one_byte_in_any_language_is_seen(copy):
    before = digest_of_sources(copy)
    assert before == code_digest()
    for name in ONE_OF_EACH:
        contents = (copy / name).read_bytes()
        (copy / name).write_bytes(contents[:-1] + b" ")
        assert digest_of_sources(copy) != before, name
        (copy / name).write_bytes(contents)
    assert digest_of_sources(copy) == before


def test_another_name_is_seen_and_what_tools_leave_is_not(copy):
    before = digest_of_sources(copy)
    (copy / "common/__pycache__").mkdir()
    (copy / "common/__pycache__/world.cpython-311.pyc").write_bytes(b"x")
    (copy / "common/.#banner.py").symlink_to("me@host.1")  # an editor's lock, which leads nowhere
    (copy / "common/world.py~").touch()
    assert digest_of_sources(copy) == before
    (copy / "common/banner.py").rename(copy / "common/banner2.py")
    assert digest_of_sources(copy) != before


def test_a_users_files_and_what_they_import_from_beside_them_count(tmp_path):
    (tmp_path / "beside_mine_31.py").write_text("HALF = 2\n")
    (tmp_path / "mine_31.py").write_text("import beside_mine_31\nclass Mine: pass\n")
    Place(tmp_path / "mine_31.py", "Mine").load()
    found = loaded()
    assert {"beside_mine_31.py", "mine_31.py"} <= found.keys()
    (tmp_path / "beside_mine_31.py").write_text("HALF = 3\n")
    assert loaded()["beside_mine_31.py"] != found["beside_mine_31.py"]
