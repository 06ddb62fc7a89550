#!/usr/bin/env bash
# Runs one node's command, and again with --resume auto when it lost a peer (exit code 75) or died
# of a signal that nobody sent on purpose; on every node of the cluster, each with its own command:
#   scripts/supervise.sh 3 python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0
# The first argument is the number of restarts. Ends with the last exit code. Any other failure (a
# wrong flag, other data, a loss that is not finite) would only happen again, so it ends at once, and
# so does an interrupt: SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the command.
set -uo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/exit_code.sh"
if [ $# -lt 2 ] || ! [ "$1" -ge 0 ] 2>/dev/null; then
    echo "error: usage: scripts/supervise.sh RESTARTS COMMAND [ARGUMENTS]" >&2
    exit 2
fi
restarts=$1
shift

told=no
pass_on() {
    told=yes
    kill "-$1" "$pid" 2>/dev/null
}
for name in INT TERM HUP USR1; do
    trap "pass_on $name" "$name"
done

for ((attempt = 0; ; attempt++)); do
    if [ "$attempt" -eq 0 ]; then "$@" & else "$@" --resume auto & fi
    pid=$!
    wait "$pid"
    code=$?
    while kill -0 "$pid" 2>/dev/null; do # a trap ends the wait before the command has ended
        wait "$pid"
        code=$?
    done
    [ "$told" = yes ] || tell_signal "$code" "the command"
    if [ "$told" = yes ] || { [ "$code" -ne 75 ] && [ "$code" -le 128 ]; }; then
        exit "$code"
    fi
    case $code in 130 | 143) exit "$code" ;; esac
    if [ "$attempt" -ge "$restarts" ]; then
        echo "error: exit code $code, and all $restarts restarts are used up" >&2
        exit "$code"
    fi
    echo "exit code $code: restart $((attempt + 1)) of $restarts" >&2
    sleep "${RESTART_PAUSE:-5}" # the others need a moment to notice, and to free the port
done
