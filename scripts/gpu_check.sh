#!/usr/bin/env bash
# Tests and measures on this machine's GPUs all that can be, in MINUTES (default: 10), and leaves
# docs/results/gpu_NAME.json and .md: see benchmarks/gpu_check.py.
#   scripts/gpu_check.sh 20
#   scripts/gpu_check.sh --pretend     # the same steps, tiny, on the CPU; measures nothing
# Needs no network where the environment holds torch.
# From the environment:
#   DATA   folder of CIFAR-10's images (default: ~/cifar10)
set -euo pipefail
. "$(dirname "$0")/environment.sh"
flags=(--data-dir "${DATA:-~/cifar10}")
for word in "$@"; do
    case $word in
        --pretend) flags+=(--pretend) ;;
        *[!0-9.]* | "") fail_usage "usage: scripts/gpu_check.sh [--pretend] [MINUTES]" ;;
        *) flags+=(--minutes "$word") ;;
    esac
done
"$PYTHON" -c 'import sys, importlib.util as packages
sys.exit(not all(packages.find_spec(name) for name in ("torch", "pytest")))' 2> /dev/null ||
    use_environment requirements.txt
cd "$ROOT"
exec "$PYTHON" benchmarks/gpu_check.py "${flags[@]}"
