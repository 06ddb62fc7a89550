#!/usr/bin/env bash
# Everything at once on this machine: installs, then runs part one on one rank and parts two and
# three on four, and prints a table. Flags are passed on to every part:
#   scripts/quickstart.sh
#   scripts/quickstart.sh --workload cifar10-vgg11 --data-dir ~/cifar10 --max-iterations 40
set -euo pipefail
. "$(dirname "$0")/environment.sh"
use_environment requirements.txt

RANKS="${RANKS:-4}"
flags=(--workload digits-vgg11 --output-dir outputs/quickstart --resume replace "$@")
"$PYTHON" "$ROOT/PartOne/main.py" "${flags[@]}"
"$ROOT/scripts/local_cluster.sh" "$RANKS" PartTwo "${flags[@]}"
"$ROOT/scripts/local_cluster.sh" "$RANKS" PartThree "${flags[@]}"
"$PYTHON" "$ROOT/scripts/table.py" "${flags[@]}"
