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
# The tests of real clusters need a few programs; without them they are skipped, and say so.
missing_tools() {
    for tool in ip tc iptables sshd sbatch munged mpirun; do
        command -v "$tool" > /dev/null || return 0
    done
    return 1
}
if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null && missing_tools; then
    echo "installing the programs that the tests of clusters need: a minute or so" >&2
    # RUNLEVEL=1: install the daemons, start none of them.
    { timeout 120 apt-get update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive timeout 300 apt-get \
        install --yes --no-install-recommends iproute2 iptables openssh-server slurm-wlm munge \
        openmpi-bin
    } > /dev/null 2>&1 || true
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null && ! command -v chromium > /dev/null; then
    echo "installing chromium for the tests of pages: a minute or so" >&2
    { timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get \
        install --yes --no-install-recommends chromium; } > /dev/null 2>&1 || true
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null && ! command -v c++ > /dev/null; then
    echo "installing a C++ compiler: a minute or so" >&2
    { timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get \
        install --yes --no-install-recommends g++; } > /dev/null 2>&1 || true
fi
# Compiled once, before tests that must not be the ones to wait for it.
"$PYTHON" -c "from common.arithmetic.kernels import why_not; print(why_not() or 'compiled')"
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
exec "$PYTHON" -m pytest -n 3 --dist loadfile "${markers[@]}" "$@"
