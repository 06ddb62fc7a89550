#!/usr/bin/env bash
# Part One on this node. Flags are passed on: scripts/part_one.sh --data-dir ~/cifar10
set -euo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/environment.sh"
use_environment requirements.txt
exec "$PYTHON" "$ROOT/PartOne/main.py" "$@"
