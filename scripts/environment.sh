# Sourced by the other scripts. Chooses the environment that the programs run in: the active one
# (VIRTUAL_ENV, CONDA_PREFIX), else .venv, else that of a python3 that has torch, as on hosted
# notebooks, else a .venv that is yet to be made. Sets ROOT and PYTHON.
# Usage: . scripts/environment.sh; use_environment FILE     (installs what FILE lists and is missing)
# From the environment:
#   BASE_PYTHON     the Python that .venv is made with (default: python3)
#   TORCH_INDEX     the index that torch and torchvision come from; PyTorch's installation page names
#                   the one for CPUs, without GPU libraries
#   PIP_CONSTRAINT  pip's own: PIP_CONSTRAINT=constraints.txt installs exactly those versions
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail_usage() {
    echo "error: $1" >&2
    exit 2
}

needs_bash() {  # needs_bash 5 1
    [ $((100 * BASH_VERSINFO[0] + BASH_VERSINFO[1])) -ge $((100 * $1 + $2)) ] ||
        fail_usage "bash $1.$2 or newer is needed, and this is $BASH_VERSION"
}

choose_python() {
    local prefix conda="${CONDA_PREFIX:-}"
    [ "${CONDA_DEFAULT_ENV:-}" != base ] || conda=""  # active in every shell, and not for this
    for prefix in "${VIRTUAL_ENV:-}" "$conda" "$ROOT/.venv"; do
        if [ -n "$prefix" ] && [ -x "$prefix/bin/python" ]; then
            echo "$prefix/bin/python"
            return
        fi
    done
    if python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' \
        2> /dev/null; then
        command -v python3
    else
        echo "$ROOT/.venv/bin/python"
    fi
}

use_environment() {
    local missing
    # pip comes last: without it, making .venv was interrupted, and is done again
    [ "$PYTHON" != "$ROOT/.venv/bin/python" ] || [ -x "$ROOT/.venv/bin/pip" ] || make_venv
    check_version "$PYTHON" "leave its environment, or make one with a newer Python"
    [ "$PYTHON" = "$ROOT/.venv/bin/python" ] || echo "using the environment of $PYTHON" >&2
    missing="$("$PYTHON" "$ROOT/scripts/missing.py" "$ROOT/$1")" || exit 2
    [ -z "$missing" ] || install "$ROOT/$1" $missing
}

check_version() {  # check_version PYTHON ADVICE
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null ||
        fail_usage "Python 3.10 or newer is needed, and $1 is older or missing: $2"
}

make_venv() {
    local base="${BASE_PYTHON:-python3}"
    check_version "$base" "name a newer one with BASE_PYTHON=python3.12, say"
    echo "making .venv with $("$base" --version): a few seconds" >&2
    "$base" -m venv "$ROOT/.venv" > /dev/null 2>&1 ||
        fail_usage "$base -m venv fails; on Debian and Ubuntu the package python3-venv is missing"
}

install() {  # install FILE NAMES...
    local file=$1 began=$SECONDS
    shift
    echo "installing $*" >&2
    if [[ " $* " = *" torch "* && -z ${TORCH_INDEX:-} ]]; then
        echo "torch and its GPU libraries are 3 GB to download and 6 GB on disk: 2 to 10 minutes;" \
            "without a GPU, TORCH_INDEX=URL of PyTorch's index for CPUs saves most of it" >&2
    fi
    if [ -n "${TORCH_INDEX:-}" ]; then
        # The pair, from there alone: another index may have a newer torch, for other hardware.
        PIP_EXTRA_INDEX_URL="$TORCH_INDEX" run_pip --index-url "$TORCH_INDEX" \
            $(grep -E '^torch(vision)?\b' "$ROOT/requirements.txt")
    fi
    run_pip -r "$file"
    echo "loading torch and torchvision, to see that they fit together" >&2
    "$PYTHON" -c 'import torch, torchvision' 2> /dev/null ||
        fail_usage "torch and torchvision of $PYTHON do not fit together (a CPU-only torch beside a\
 CUDA torchvision, say): install both from one index, in a new environment"
    echo "installed in $((SECONDS - began)) s" >&2
}

run_pip() {
    "$PYTHON" -m pip install --disable-pip-version-check "$@" >&2 ||
        fail_usage "pip could not install this, for the reason above"
}

[ "$(uname -s)" = Linux ] || fail_usage "Linux is needed, and this is $(uname -s)"
needs_bash 4 4  # empty arrays under set -u
PYTHON="$(choose_python)"
