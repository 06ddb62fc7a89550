"""How a process ends early: one line that says why, and how to go on.

    error: stopped by SIGTERM at epoch 1 iteration 7. Last good checkpoint: … Resume with: …
"""

import multiprocessing
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NoReturn

from common.core.events import append_event
from common.core.progress import process_progress
from common.settings.resume import AUTO, Resume

RESUMABLE = (75, 130, 143)
NOT_FINITE = 5
LAUNCHERS = (("TORCHELASTIC_RUN_ID", "torchrun"), ("OMPI_COMM_WORLD_RANK", "mpirun"),
             ("SLURM_STEP_ID", "srun"), ("PMI_RANK", "mpirun"))  # srun may set PMI_RANK too
QUOTED_RESUME = re.compile(r" --resume[ =]((?:\\.|[^\\\s])+)")
CLEARED_LINE = "\r\x1b[K"


def print_failure(sentence: str, code: int) -> None:
    """Prints a failure's one line, and notes it in the open run's log.

    On a terminal it replaces a progress bar. It does not go through tqdm, whose lock a blocked main
    thread may hold.
    """
    progress = process_progress()
    how = advice(code, progress.saved, sys.argv, os.environ)
    before = CLEARED_LINE if sys.stderr.isatty() else ""
    print(f"{before}{progress.mark}error: {sentence}{how}", file=sys.stderr, flush=True)
    if progress.log is not None:
        append_event(progress.log, "failed", why=sentence, exit_code=code)


def end_process(sentence: str, code: int) -> NoReturn:
    """Prints the failure and ends this process and its workers, whatever the main thread does."""
    print_failure(sentence, code)
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    os._exit(code)


def advice(code: int, saved: str | None, arguments: Sequence[str],
           environment: Mapping[str, str]) -> str:
    """The last good checkpoint and the command that resumes; nothing before a run has begun.

    `saved` is the checkpoint's path, "" before the first save, None when no run has begun.
    """
    if saved is None or code not in (*RESUMABLE, NOT_FINITE):
        return ""
    checkpoint = f". Last good checkpoint: {saved or 'none'}"
    if code == NOT_FINITE:
        return checkpoint  # the same command would fail again
    return f"{checkpoint}. Resume with: {resume_command(arguments, environment)}"


def resume_command(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command that resumes: the launcher's if it is known, otherwise this process's own.

    Our launchers leave theirs, quoted for the shell, in RUN_COMMAND; see scripts/run_command.sh.
    """
    if launcher := environment.get("RUN_COMMAND"):
        quoted = " ".join(QUOTED_RESUME.findall(launcher))
        return f"{QUOTED_RESUME.sub('', launcher).strip()} {_resume_flag(shlex.split(quoted))}"
    pairs = list(zip(["", *arguments], arguments, strict=False))
    flag = _resume_flag([word.removeprefix("--resume=") for before, word in pairs
                         if before == "--resume" or word.startswith("--resume=")])
    for variable, launcher in LAUNCHERS:
        if variable in environment and "--rank" not in arguments and "-R" not in arguments:
            return f"the same {launcher} command with {flag}"
    kept = [word for before, word in pairs
            if "--resume" not in (before, word) and not word.startswith("--resume=")]
    return f"python3 {shlex.join(kept)} {flag}"


def _resume_flag(values: Sequence[str]) -> str:
    """The flag that continues a run started with these --resume values, quoted for the shell."""
    started = reduce(Resume.then, map(Resume.read, values), Resume())
    return f"--resume {shlex.quote(str(started.then(AUTO)))}"
