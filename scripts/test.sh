#!/usr/bin/env bash
# Everything that CI runs: linter, type checker, tests. --slow adds the long tests; other arguments
# go to pytest: scripts/test.sh -k strategy. Three files of tests run at a time, since most wait for
# ranks that they have started; -n 0 runs one after the other.
set -euo pipefail
. "$(dirname "$0")/environment.sh"
use_environment requirements-dev.txt
cd "$ROOT"
markers=()
if [ "${1:-}" = --slow ]; then
    shift
    markers=(-m "slow or not slow")
fi

# provide PROGRAMS PACKAGES...: as root, installs the packages where a program is missing. Elsewhere
# the tests that need it are skipped, and say so.
provide() {
    if type $1 > /dev/null 2>&1 || [ "$(id -u)" -ne 0 ] || ! type apt-get > /dev/null 2>&1; then
        return
    fi
    echo "installing ${*:2}: a minute or so" >&2
    # RUNLEVEL=1: install the daemons, start none of them.
    { timeout 120 apt-get update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive timeout 300 apt-get \
        install --yes --no-install-recommends "${@:2}"; } > /dev/null 2>&1 || true
}
provide "ip tc iptables sshd sbatch munged mpirun" iproute2 iptables openssh-server slurm-wlm \
    munge openmpi-bin
provide chromium chromium
provide c++ g++
provide qemu-x86_64-static qemu-user-static
# Compiled once, before tests that must not be the ones to wait for it.
"$PYTHON" -c "from common.arithmetic.kernels import why_not; print(why_not() or 'compiled')"
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
exec "$PYTHON" -m pytest -n 3 --dist loadfile "${markers[@]}" "$@"
