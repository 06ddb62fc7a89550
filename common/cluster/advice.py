"""What a run that ended early tells its user: the last good checkpoint, and how to go on.

    error: stopped by SIGTERM at epoch 1 iteration 7. Last good checkpoint: … Resume with: …
"""

import re
import shlex
from collections.abc import Mapping, Sequence

RESUMABLE = (75, 130, 143)
NOT_FINITE = 5
QUOTED_RESUME = re.compile(r" --resume[ =](?:\\.|[^\\\s])+")


def advice(code: int, saved: str | None, arguments: Sequence[str],
           environment: Mapping[str, str]) -> str:
    """The last good checkpoint and the command that resumes; nothing before a run has begun.

    `saved` is the checkpoint's path, "" when there is none yet, None when no run has begun.
    """
    if saved is None or code not in (*RESUMABLE, NOT_FINITE):
        return ""
    told = f". Last good checkpoint: {saved or 'none'}"
    if code == NOT_FINITE:
        return told  # the same command would come to the same end
    return f"{told}. Resume with: {resume_command(arguments, environment)}"


def resume_command(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """The launcher's command, or this process's own where there is none, with --resume auto.

    Our launchers leave theirs, quoted for the shell, in RUN_COMMAND; see scripts/run_command.sh.
    """
    if launcher := environment.get("RUN_COMMAND"):
        return f"{QUOTED_RESUME.sub('', launcher).strip()} --resume auto"
    for variable, launcher in (("TORCHELASTIC_RUN_ID", "torchrun"), ("SLURM_STEP_ID", "srun")):
        if variable in environment and "--rank" not in arguments and "-R" not in arguments:
            return f"the same {launcher} command with --resume auto"
    kept = [word for before, word in zip(["", *arguments], arguments, strict=False)
            if "--resume" not in (before, word) and not word.startswith("--resume=")]
    return f"python3 {shlex.join(kept)} --resume auto"
