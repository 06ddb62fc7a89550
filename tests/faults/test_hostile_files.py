"""Every program that reads a file answers a damaged or hostile one in a sentence.

No hang, no traceback, no code out of the file, no control character on the terminal, no checkpoint
with damaged bytes taken. 300 files and more in the slow run.

Mutations that turn this red: read by Path.read_bytes in common/core/files.py; pass on torch's error
in why_not_loaded; let RecursionError pass in parse_json; drop `_shown` from Output.write.
"""

import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from common.core.trace_file import pack_trace
from tests.facts import says
from tests.faults import hostile_files as hostile
from tests.ranks import Outcome, error_lines, program
from tests.recorded import write_course
from tests.runs import Case, launch
from tests.workload import SMALL, plant

SECONDS = 60
FILES = 26  # of each kind
ROOT = Path(__file__).resolve().parents[2]
CODES = {0, 2, 3, 4, 5, 75}
Damage = Callable[[Path, random.Random], None]
ANY: tuple[Damage, ...] = (hostile.put_in_place, hostile.damage_bytes, hostile.damage_bytes)
JSON: tuple[Damage, ...] = (*ANY, hostile.damage_json, hostile.damage_json, hostile.damage_json)
SEALED: tuple[Damage, ...] = (*ANY, hostile.damage_contents, hostile.damage_contents,
                              hostile.bomb, hostile.runs_code, hostile.huge_tensors)


class Kind(NamedTuple):
    """A program, its words, the file that it reads, how that is damaged, and whether one must be
    refused whose bytes have changed.
    """

    program: str
    words: Sequence[str]
    file: str
    damages: tuple[Damage, ...]
    is_sealed: bool = False


KINDS = {
    "evaluate": Kind("scripts/evaluate.py", ["{}/Epoch_2.pt", *SMALL], "Epoch_2.pt", SEALED, True),
    "resume": Kind("PartOne", [*SMALL, "--output-dir", "{}/out", "--resume", "{}/Epoch_2.pt",
                               "--epochs", "3"], "Epoch_2.pt", SEALED, True),
    "settings": Kind("PartOne", ["--settings", "{}/settings.json", *SMALL, "--dry-run",
                                 "--output-dir", "{}/out", "--epochs", "1"], "settings.json", JSON),
    "status": Kind("scripts/status.py", ["{}/course"], "course/PartOne/metrics_rank0.jsonl", JSON),
    "compare": Kind("scripts/compare.py", ["{}/course"], "course/PartThree/metrics_rank0.jsonl",
                    JSON),
    "report_problem": Kind("scripts/report_problem.py", ["{}/course"],
                           "course/PartThree/metrics_rank0.jsonl", JSON),
    "proof": Kind("scripts/compare.py", ["{}/course", "--proof", "{}/proof.json"], "proof.json",
                  JSON),
    "trace": Kind("scripts/compare.py", ["{}/course"],
                  "course/PartOne/traces/trace_all_epoch1.json.gz", ANY),
    "predict": Kind("scripts/predict.py", ["{}/grid.json", "--nodes", "4"], "grid.json", JSON),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A folder with a sound file of each kind."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "run").mkdir()
    launch(Case("PartOne", 1, "memory", 0, 0), folder / "run", "no")
    shutil.copy(folder / "run/PartOne/checkpoints/Epoch_2.pt", folder)
    shutil.copy(folder / "run/PartOne/settings.json", folder)
    write_course(folder / "course")
    (folder / "course/PartOne/traces").mkdir()
    events = [{"ph": "X", "cat": "user_annotation", "name": name, "pid": 0, "tid": 0,
               "ts": 100.0 * at, "dur": 90.0} for at, name in enumerate(
                   ("ProfilerStep#1", "data", "forward", "backward", "sync", "update"))]
    (folder / "course/PartOne/traces/trace_all_epoch1.json.gz").write_bytes(pack_trace(
        {"traceEvents": events, "schemaVersion": 1}))
    shutil.copy(ROOT / "docs/proof_float64.json", folder / "proof.json")
    shutil.copy(ROOT / "docs/results/sync_grid.json", folder / "grid.json")
    return folder


def ended(kind: Kind, folder: Path, mark: Path) -> Outcome:
    """How the program ended on the files in `folder`; code None for one that hung."""
    ran = program(kind.program, [word.format(folder) for word in kind.words], folder, "said",
                  {"MARK": str(mark)}, before=plant)
    ran.process.start()
    ran.process.join(SECONDS)
    if hung := ran.process.is_alive():
        ran.process.kill()
        ran.process.join()
    return Outcome(None if hung else ran.process.exitcode,
                   ran.path.read_bytes().decode(errors="surrogateescape"))


def complaint(kind: Kind, name: str, seed: int, sound: Path, folder: Path) -> str:
    """Describes the program's mistakes in taking the damaged file; "" if it made none."""
    chance = random.Random(f"{name} {seed}")
    hostile.fresh_copy(sound, folder)
    damage = chance.choice(kind.damages)
    damage(folder / kind.file, chance)
    code, output = ended(kind, folder, mark := folder / "mark")
    said = f"{name} {seed} ({damage.__name__}): exit code {code}\n{output[-3000:]}"
    changed = damage in ANY or damage in (hostile.runs_code, hostile.bomb, hostile.huge_tensors)
    wrong = [
        code not in CODES, "Traceback" in output, mark.exists(), "weights_only" in output,
        re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", output) is not None,
        code not in (0, None) and name != "status" and "error: " not in output,
        kind.is_sealed and changed and code != 4]
    shutil.rmtree(folder)
    return said + str(wrong) if any(wrong) else ""


def require_sentences(names: Sequence[str], seeds: Sequence[int], sound: Path,
                      place: Path) -> None:
    found = [each for name in names for seed in seeds
             if (each := complaint(KINDS[name], name, seed, sound, place / f"{name}{seed}"))]
    assert not found, f"{len(found)} of {len(names) * len(seeds)}:\n" + "\n\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_sound_files_are_taken(name, sound, tmp_path):
    folder = hostile.fresh_copy(sound, tmp_path / "copy")
    code, output = ended(KINDS[name], folder, tmp_path / "mark")
    assert code == 0, output


@pytest.mark.parametrize("damage, facts", [
    (hostile.runs_code, ["posix.system"]),
    (lambda path, _: path.unlink() or os.mkfifo(path), ["pipe"]),
    (lambda path, _: path.write_bytes(b"PK\3\4" + b"no zip" * 9), [])])
def test_a_checkpoint_that_is_none_is_refused_in_a_sentence(damage, facts, sound, tmp_path):
    folder = hostile.fresh_copy(sound, tmp_path / "copy")
    damage(folder / "Epoch_2.pt", random.Random(2))  # sealed
    code, output = ended(KINDS["evaluate"], folder, tmp_path / "mark")
    assert code == 4 and "weights_only" not in output
    assert says(error_lines(output)[0], folder / "Epoch_2.pt", *facts)
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", KINDS)
def test_300_damaged_and_hostile_files(name, sound, tmp_path):
    require_sentences([name], range(FILES), sound, tmp_path)
