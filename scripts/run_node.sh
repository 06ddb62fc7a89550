#!/usr/bin/env bash
# One node of a cluster: scripts/run_node.sh PartTwo [MASTER_IP NUM_NODES RANK] [flags]
# What is not given as arguments comes from MASTER_IP, NUM_NODES and RANK in the environment.
set -euo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/environment.sh"
part=$1
shift
if [ $# -ge 3 ] && [[ $1 != -* && $2 != -* && $3 != -* ]]; then
    MASTER_IP=$1 NUM_NODES=$2 RANK=$3
    shift 3
fi
for name in MASTER_IP NUM_NODES RANK; do
    if [ -z "${!name:-}" ]; then
        echo "error: $name is not set; usage: MASTER_IP=10.0.0.1 NUM_NODES=4 RANK=0 $part, or give" \
            "the three as the first arguments" >&2
        exit 2
    fi
done
use_environment requirements.txt
exec "$PYTHON" "$ROOT/$part/main.py" --master-ip "$MASTER_IP" --num-nodes "$NUM_NODES" \
    --rank "$RANK" "$@"
