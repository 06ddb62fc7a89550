#!/usr/bin/env bash
# How many loader processes does this machine need? Part One with 0, 1, 2, 4 and 8 of them (or those
# in WORKERS), 20 iterations each, a trace of each, and one page that compares them:
#   scripts/worker_sweep.sh --data-dir ~/cifar10
#   WORKERS="0 2" scripts/worker_sweep.sh --workload digits-vgg11 --output-dir outputs/sweep
# Under SLURM, scripts/slurm/worker_sweep.sbatch runs them as jobs of an array.
set -euo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/environment.sh"
[ -x "$PYTHON" ] || PYTHON=python3
output=outputs/worker-sweep
flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --output-dir) output=$2 && shift 2 ;;
        *) flags+=("$1") && shift ;;
    esac
done
for workers in ${WORKERS:-0 1 2 4 8}; do
    "$PYTHON" "$ROOT/PartOne/main.py" --loader "workers:$workers" --profile 1:3 \
        --max-iterations 20 --resume replace --output-dir "$output/$workers" "${flags[@]}"
done
exec "$PYTHON" "$ROOT/scripts/compare.py" "$output"
