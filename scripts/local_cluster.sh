#!/usr/bin/env bash
# N ranks of one part on this machine, without root:
#   scripts/local_cluster.sh 4 PartTwo --workload digits-vgg11
# Shows the leader's output; the others' lands in OUTPUT/rankR.out (LOG_DIR, default a temporary
# folder). Ends with the exit code of the first rank that failed; stops every rank when interrupted.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
[ -x "$PYTHON" ] || PYTHON=python3
if [ $# -lt 2 ] || ! [ -f "$ROOT/$2/main.py" ] || ! [ "$1" -ge 1 ] 2>/dev/null; then
    echo "usage: scripts/local_cluster.sh N PartTwo|PartThree [flags]" >&2
    exit 2
fi
ranks=$1 part=$2
shift 2
logs="${LOG_DIR:-$(mktemp -d)}"
mkdir -p "$logs"
port="${MASTER_PORT:-$("$PYTHON" -c \
    'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}"

pids=()
trap 'kill "${pids[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((rank = ranks - 1; rank >= 0; rank--)); do
    command=("$PYTHON" "$ROOT/$part/main.py" --master-ip 127.0.0.1 --num-nodes "$ranks"
        --rank "$rank" --master-port "$port" "$@")
    if [ "$rank" -eq 0 ]; then
        "${command[@]}" &
    else
        "${command[@]}" > "$logs/rank$rank.out" 2>&1 &
    fi
    pids+=($!)
done

status=0
for pid in "${pids[@]}"; do
    wait "$pid"
    code=$?
    [ "$status" -ne 0 ] || status=$code
done
[ "$status" -eq 0 ] || echo "exit code $status; the other ranks' output is in $logs" >&2
exit "$status"
