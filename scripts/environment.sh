# Sourced by the other scripts: makes .venv with what the named requirements file lists, once, and
# again when the file changes. Sets PYTHON. Usage: . scripts/environment.sh; use_environment FILE
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="$ROOT/.venv/bin/python"

use_environment() {
    local requirements="$ROOT/$1"
    local stamp="$ROOT/.venv/.installed-$1"
    local base="${BASE_PYTHON:-python3}"
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "error: Python 3.11 or newer is needed; name one with BASE_PYTHON=python3.12" >&2
        exit 2
    fi
    [ -x "$PYTHON" ] || "$base" -m venv "$ROOT/.venv"
    if ! cat "$ROOT"/requirements*.txt | cmp -s - "$stamp"; then
        echo "installing $1 into .venv (torch is large: a minute or more)"
        "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$requirements"
        "$PYTHON" -c 'import torch, torchvision' 2>/dev/null || {
            echo "error: torch and torchvision in .venv do not fit together (a CPU-only torch beside" \
                "a CUDA torchvision, say): delete .venv and start again" >&2
            exit 2
        }
        cat "$ROOT"/requirements*.txt > "$stamp"
    fi
}
