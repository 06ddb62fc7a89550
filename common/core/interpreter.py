"""Runs a program of this project with the environment beside it, whichever Python was started.

    python3 PartOne/main.py      # python3 has no torch: goes on as .venv/bin/python PartOne/main.py

Loaded before anything else, by any Python from 3.6 on: it keeps to the syntax of that version.
"""

import importlib.util
import os
import sys

OLDEST = (3, 10)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENVIRONMENT_PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
CONTINUED = "CONTINUED_IN_ENVIRONMENT"  # set from one interpreter to the next: exec only once


def use_environment(module, packages=("torch", "xxhash")):
    """Returns if this interpreter has what the program needs; otherwise goes on in .venv.

    `module` is the caller's __name__: only a program may be replaced, not whoever imports it.
    `packages` are those that the program cannot do without. Ends with exit code 2 and one sentence
    without a .venv to go on in, or when .venv lacks them too.
    """
    if module != "__main__":
        return
    continued = os.environ.pop(CONTINUED, None)
    problem = _problem(packages)
    if problem is None:
        return
    if not continued and sys.platform == "linux":
        _continue()
    sys.stderr.write(f"error: {problem}\n")
    sys.exit(2)


def _problem(packages):
    """The reason why this interpreter cannot run the program, and what to do; None if it can."""
    if "torch" in packages and sys.platform != "linux":
        return (f"training needs Linux, and this is {sys.platform}; WSL on Windows, a virtual "
                "machine, a container or a hosted notebook will do")
    if sys.version_info < OLDEST:
        return (f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, and this is "
                f"{sys.version.split()[0]}; with BASE_PYTHON=python3.12 (say), "
                "scripts/quickstart.sh makes a .venv that all programs use by themselves")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        return (f"{sys.executable} has no {' and no '.join(missing)}: scripts/quickstart.sh "
                "installs all that is needed into .venv; in an environment of your own, "
                "pip install -r requirements.txt does")
    return None


def _continue():
    """Replaces this process by the same command in .venv; returns if .venv does not exist."""
    spec = sys.modules["__main__"].__spec__  # None unless started with -m
    rebuilt = ["python", "-m", spec.name] if spec else ["python", sys.argv[0]]
    # orig_argv is new in 3.10, and has the interpreter's own flags too
    words = getattr(sys, "orig_argv", rebuilt + sys.argv[1:])
    os.environ[CONTINUED] = "1"
    try:
        os.execv(ENVIRONMENT_PYTHON, [ENVIRONMENT_PYTHON] + words[1:])
    except OSError:
        del os.environ[CONTINUED]
