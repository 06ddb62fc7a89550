#!/usr/bin/env bash
# Everything that CI runs: linter, type checker, tests. --slow adds the long tests; other arguments
# go to pytest: scripts/test.sh -k synchroniser
set -euo pipefail
. "$(dirname "$0")/environment.sh"
use_environment requirements-dev.txt
cd "$ROOT"
markers=()
if [ "${1:-}" = --slow ]; then
    shift
    markers=(-m "slow or not slow")
fi
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
exec "$PYTHON" -m pytest "${markers[@]}" "$@"
