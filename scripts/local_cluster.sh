#!/usr/bin/env bash
# N ranks of one part, or of another program with the cluster flags, on this machine, without root:
#   scripts/local_cluster.sh 4 PartTwo --workload digits-vgg11
#   scripts/local_cluster.sh 4 scripts/preflight.py --workload digits-vgg11
# Shows the leader's output; the others' lands in LOG_DIR/rankR.out (default: a temporary folder,
# which stays only where a rank has failed).
# Ends with the exit code of the rank that failed first. Interrupted, it passes the signal on,
# waits GRACE seconds (default 15) for the ranks to stop by themselves, and leaves none behind.
set -uo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/exit_code.sh"
. "$(dirname "$0")/ranks_here.sh"
. "$(dirname "$0")/environment.sh"
needs_bash 5 1  # wait -n -p, in ranks_here.sh
[ -x "$PYTHON" ] || PYTHON=python3
program="$ROOT/${2:-}"
[ ! -f "$program/main.py" ] || program="$program/main.py"
if [ $# -lt 2 ] || [ ! -f "$program" ] || ! [ "$1" -ge 1 ] 2>/dev/null; then
    echo "error: usage: scripts/local_cluster.sh N PartTwo|PartThree|PROGRAM.py [flags]" >&2
    exit 2
fi
ranks=$1
shift 2
logs="${LOG_DIR:-$(mktemp -d -t local_cluster.XXXXXX)}" keep="${LOG_DIR:-}"
mkdir -p "$logs" || exit 2
export EXIT_CODES="$logs/exit_codes"  # the other ranks read what became of one
mkdir -p "$EXIT_CODES" || exit 2
port="${MASTER_PORT:-$("$PYTHON" -c \
    'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}"

trap 'stop_all KILL; [ -n "$keep" ] || rm -rf "$logs"' EXIT
trap 'stop_all INT; exit 130' INT
trap 'stop_all TERM; exit 143' TERM
trap 'stop_all HUP; exit 143' HUP
for ((rank = ranks - 1; rank >= 0; rank--)); do
    command=("$PYTHON" "$program" --master-ip 127.0.0.1 --num-nodes "$ranks" --rank "$rank"
        --master-port "$port" "$@")
    if [ "$rank" -eq 0 ]; then
        "${command[@]}" &
    else
        "${command[@]}" > "$logs/rank$rank.out" 2>&1 &
    fi
    pids[rank]=$!
done

has_ended() {  # RANK CODE
    echo "$2" > "$EXIT_CODES/${pids[$1]}"
    tell_signal "$2" "rank $1"
}
wait_for_all
if [ "$status" -ne 0 ]; then
    keep=yes
    echo "exit code $status; the other ranks' output is in $logs" >&2
fi
exit "$status"
