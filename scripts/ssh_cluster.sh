#!/usr/bin/env bash
# Runs one part on several machines over ssh: checks the code on each, starts a rank on each,
# follows the leader, stops all when one fails, and brings logs and results back.
#   scripts/ssh_cluster.sh hosts.txt PartTwo --data-dir ~/cifar10 --max-iterations 40
#   scripts/ssh_cluster.sh hosts.txt scripts/preflight.py --data-dir ~/cifar10
# hosts.txt: one line a node, rank 0 first: what ssh calls it, and, where it differs, its address in
# the cluster ("me@login1 10.0.0.1"). # starts a comment. ssh must work without a password.
# From the environment:
#   REMOTE_DIR  the project's folder there (default: the same path as here)
#   PYTHON      the interpreter there, seen from that folder (default: .venv/bin/python)
#   COPY=1      copy the code to every node first, instead of only comparing it
#   LOG_DIR     where nodeR.out, and each node's results in nodeR/, go (default: outputs/ssh-TIME)
#   GRACE       seconds that the ranks get to stop by themselves (default: 15)
#   SSH         the ssh command (default: ssh); say SSH="ssh -F my_config"
# Ranks are detached: a lost connection does not end them, a signal to this script does.
# Ends with the exit code of the node that failed first; 3 when the code differs, 75 when a node
# does not answer.
set -uo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/exit_code.sh"
ROOT="$(cd "$(dirname "$0")/.." && pwd)"
SOURCES="common PartOne PartTwo PartThree scripts studies benchmarks"
# The same words here and there: names and contents of all source files.
DIGEST="from common.core.provenance import *; print(digest_of_sources(folders='$SOURCES'.split()))"
# One connection a node, which all commands share: asking every rank each second whether it has
# ended must take no processor time from what is measured there. The path has a short limit.
sockets="$(mktemp -d /tmp/ssh-XXXXXX)"
read -ra SSH_COMMAND <<< "${SSH:-ssh} -o BatchMode=yes -o ConnectTimeout=10 \
-o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
-o ControlMaster=auto -o ControlPersist=60 -o ControlPath=$sockets/%C"
remote_dir="${REMOTE_DIR:-$ROOT}"
python="${PYTHON:-.venv/bin/python}"
run="$(date -u +%Y%m%d-%H%M%S)-$$"

fail() {
    echo "error: $2" >&2
    exit "$1"
}

close_connections() {
    local target
    for target in "${targets[@]}"; do
        "${SSH_COMMAND[@]}" -O exit -- "$target" 2> /dev/null
    done
    rm -rf "$sockets"
}

on() {  # on RANK COMMAND: runs a shell command in the project's folder there; $job is the rank's own
    "${SSH_COMMAND[@]}" -n -- "${targets[$1]}" \
        "cd $(printf %q "$remote_dir") && job=outputs/.ssh-$run/rank$1 && { $2; }"
}

read_hosts() {
    [ -f "$1" ] && [ -r "$1" ] || fail 2 "the hosts file $1 cannot be read: it must be a file"
    local target address word
    while read -r target address _ || [ -n "$target" ]; do
        [[ -n $target && $target != \#* ]] || continue
        for word in "$target" "${target#*@}" "$address"; do  # ssh would take it for an option
            [[ $word != -* ]] || fail 2 "the hosts file $1 names $(printf %q "$word"), which is not\
 an address: one cannot begin with -"
        done
        targets+=("$target")
        addresses+=("${address:-${target#*@}}")
    done < "$1"
    [ ${#targets[@]} -ge 1 ] || fail 2 "the hosts file $1 names no host"
}

check_node() {
    local host=${targets[$1]} folder theirs ours
    folder=$(printf %q "$remote_dir")
    "${SSH_COMMAND[@]}" -n -- "$host" true || fail 75 "rank $1: $host does not answer ssh without a\
 password: \"${SSH:-ssh} $host true\" must succeed here without a question"
    if [ "${COPY:-}" = 1 ]; then
        tar -C "$ROOT" --exclude=__pycache__ -cz $SOURCES requirements.txt requirements-dev.txt |
            "${SSH_COMMAND[@]}" -- "$host" "mkdir -p $folder && tar -C $folder -xz" ||
            fail 75 "rank $1: the code could not be copied to $host:$remote_dir"
    fi
    ! on "$1" true 2> /dev/null || on "$1" "command -v $(printf %q "$python")" > /dev/null ||
        fail 2 "rank $1: $host:$remote_dir has no $python:\
 install the packages there, or name another interpreter with PYTHON"
    ours="$(cd "$ROOT" && python3 -c "$DIGEST")" || fail 2 "the code here cannot be read"
    theirs="$(on "$1" "$(printf '%q ' "$python" -c "$DIGEST")" 2> /dev/null)"
    [ "$ours" = "$theirs" ] || fail 3 "rank $1: $host:$remote_dir holds other code (${theirs:-none})\
 than is here ($ours): bring both to the same commit, or copy it with COPY=1"
}

start_rank() {  # prints the process id there, which is also that of the rank's process group
    local words
    words="$(printf '%q ' env "RUN_COMMAND=$RUN_COMMAND" "$python" \
        "$program" --master-ip "${addresses[0]}" --num-nodes ${#targets[@]} --rank "$1" "${flags[@]}")"
    # Without job control a background process leads no group, so setsid does not fork: $! is it.
    on "$1" "mkdir -p \$job && touch \$job/begun && export job && { setsid bash -c \
        '\"\$@\"; echo \$? > \$job/code' rank $words > \$job/out 2>&1 < /dev/null & echo \$!; }"
}

follow_leader() {  # shows and keeps the leader's output; goes on when the connection breaks
    while [ ! -e "$logs/.ended" ]; do
        on 0 "tail -c +$(($(stat -c %s "$logs/node0.out") + 1)) --pid=${pids[0]} -f \$job/out" \
            2> /dev/null | tee -a "$logs/node0.out"
        sleep 1
    done
}

# The exit code of a rank that has ended; 75 when it left none; nothing while it runs.
code_of() {
    on "$1" "cat \$job/code || kill -0 ${pids[$1]} || { sleep 1; cat \$job/code || echo 75; }" \
        2> /dev/null
}

# Waits for all ranks, until SECONDS is $1; without $1, also ends when one has failed. Returns 0
# when all have ended. Sets `status` to the code of the first that failed.
wait_for_all() {
    local rank code left
    while true; do
        left=0
        for rank in "${!targets[@]}"; do
            [ -z "${codes[rank]:-}" ] || continue
            code="$(code_of "$rank")"
            codes[rank]=$code
            [ -n "$code" ] || left=$((left + 1))
            if [ "${code:-0}" -ne 0 ] && [ "$status" -eq 0 ]; then
                status=$code
                echo "rank $rank on ${targets[rank]} ended with exit code $code" >&2
                tell_signal "$code" "rank $rank"
                [ "$rank" -eq 0 ] || [ "$code" -gt 128 ] || on "$rank" "tail -n 1 \$job/out" >&2
            fi
        done
        [ "$left" -gt 0 ] || return 0
        if [ -n "${1:-}" ]; then
            [ "$SECONDS" -lt "$1" ] || return 1
        elif [ "$status" -ne 0 ]; then
            return 1
        fi
        sleep 1
    done
}

signal_all() {
    local rank waiting=()
    for rank in "${!pids[@]}"; do
        on "$rank" "[ -e \$job/code ] || kill -$1 -- -${pids[rank]}" 2> /dev/null &
        waiting+=($!)
    done
    wait "${waiting[@]}"
}

stop_all() {
    signal_all "$1"
    wait_for_all $((SECONDS + ${GRACE:-15})) || signal_all KILL
}

# Everything that was written since the start, without the checkpoints, and without the folder that
# this goes to, should it lie in there: .ended marks it.
collect() {
    local rank begun
    begun="$(printf %q "$remote_dir")/\$job/begun"
    for rank in "${!pids[@]}"; do
        mkdir -p "$logs/node$rank"
        on "$rank" "cat \$job/out" > "$logs/node$rank.out" 2> /dev/null
        on "$rank" "cd $(printf %q "$output_dir") &&
            find . -type d -exec test -e '{}/.ended' \; -prune -o -newer $begun -type f \
                ! -path '*/checkpoints/*' ! -path './.ssh-*' -print0 | tar -c --null -T -" \
            2> /dev/null | tar -C "$logs/node$rank" -x 2> /dev/null
        on "$rank" "rm -rf outputs/.ssh-$run/rank$rank; rmdir outputs/.ssh-$run" 2> /dev/null
    done
}

finish() {
    trap '' INT TERM HUP
    [ -z "${2:-}" ] || stop_all "$2"
    touch "$logs/.ended"
    wait "$follower" 2> /dev/null
    collect
    rm -f "$logs/.ended"
    [ "$1" -eq 0 ] || echo "exit code $1" >&2
    echo "every node's output is in $logs" >&2
    exit "$1"
}

targets=() addresses=() pids=() codes=() status=0 follower=""
trap close_connections EXIT
[ $# -ge 2 ] || fail 2 "usage: scripts/ssh_cluster.sh HOSTFILE PartTwo|PartThree|PROGRAM.py [flags]"
read_hosts "$1"
program=$2
[ ! -f "$ROOT/$program/main.py" ] || program="$program/main.py"
[ -f "$ROOT/$program" ] || fail 2 "there is no program $program here"
shift 2
flags=("$@")
output_dir=outputs
for index in "${!flags[@]}"; do
    [ "${flags[index]}" != --output-dir ] || output_dir="${flags[index + 1]:-outputs}"
    [[ ${flags[index]} != --output-dir=* ]] || output_dir="${flags[index]#*=}"
done
for rank in "${!targets[@]}"; do
    check_node "$rank"
done
logs="${LOG_DIR:-$ROOT/outputs/ssh-$run}"
mkdir -p "$logs" && : > "$logs/node0.out" || fail 2 "the log folder $logs cannot be written"

trap 'finish 130 INT' INT
trap 'finish 143 TERM' TERM HUP
for ((rank = ${#targets[@]} - 1; rank >= 0; rank--)); do
    pids[rank]="$(start_rank "$rank")"
    [ -n "${pids[rank]}" ] || { unset "pids[rank]"; echo "error: rank $rank did not start" >&2
        finish 75 TERM; }
done
follow_leader &
follower=$!
if wait_for_all; then
    finish "$status"
fi
# One has failed. The others have their own sentence to say: give them time before the signal.
wait_for_all $((SECONDS + ${GRACE:-15})) && finish "$status"
finish "$status" TERM
