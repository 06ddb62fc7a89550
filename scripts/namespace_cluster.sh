#!/usr/bin/env bash
# A cluster in a box: N hosts made of network namespaces, each with its own address, loopback, host
# name and hosts file, joined by a bridge over links of a chosen rate; runs a command in each:
#   scripts/namespace_cluster.sh -n 4 -r 1gbit python3 PartTwo/main.py \
#       --master-ip {master} --num-nodes {nodes} --rank {rank} --workload digits-vgg11
# In the command, {rank}, {master} (node0's address) and {nodes} are filled in for each node.
#   -n N        number of nodes (default 4)
#   -r RATE     of every link, both ways, in tc's words: 1gbit, 100mbit, none (default 1gbit)
#   -s R=RATE   another rate for node R's link; may be repeated
#   -p COMMAND  runs in every node before any command starts, with $RANK set, as bash -c COMMAND
#   -l DIR      where nodeR.out and nodeR.code go (default: a temporary folder)
# Shows node0's output. Ends with the exit code of the node that failed first. Needs root, iproute2
# and util-linux. Nothing outlives it, not even when it is killed: the nodes live in namespaces of
# its own, so that several such clusters can run side by side, and the kernel clears them away.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
. "$here/environment.sh"
needs_bash 5 1  # wait -n -p, in ranks_here.sh
. "$here/run_command.sh"
keep_command "$0" "$@"

usage() {
    echo "error: $1; usage: scripts/namespace_cluster.sh [-n N] [-r RATE] [-s R=RATE] [-p COMMAND]" \
        "[-l DIR] COMMAND..." >&2
    exit 2
}

export NODES=4 RATE=1gbit RATES="" PREPARE="" LOG_DIR=""
while getopts ":n:r:s:p:l:" option; do
    case $option in
        n) NODES=$OPTARG ;;
        r) RATE=$OPTARG ;;
        s) RATES+=" $OPTARG" ;;
        p) PREPARE=$OPTARG ;;
        l) LOG_DIR=$OPTARG ;;
        :) usage "-$OPTARG needs a value" ;;
        *) usage "there is no flag -$OPTARG" ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage "no command given"
[[ $NODES =~ ^[1-9][0-9]*$ ]] && [ "$NODES" -le 200 ] || usage "-n $NODES is not 1 to 200"
if [ "$(id -u)" -ne 0 ]; then
    echo "error: network namespaces need root; without it, scripts/local_cluster.sh runs N ranks" \
        "on loopback" >&2
    exit 2
fi
for tool in ip tc unshare setpriv; do
    if ! command -v "$tool" > /dev/null; then
        echo "error: $tool is missing; install iproute2 and util-linux" >&2
        exit 2
    fi
done
[ -n "$LOG_DIR" ] || LOG_DIR="$(mktemp -d)"
mkdir -p "$LOG_DIR" || exit 2

# If this shell dies, setpriv's signal ends unshare, and unshare's ends the first process inside,
# with which the kernel ends every process of that process namespace and frees the networks.
setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child=KILL --mount-proc \
    bash "$here/namespace_inside.sh" "$@" &
outside=$!
echo "cluster of $NODES nodes at $RATE; logs in $LOG_DIR; to look into node 0:" \
    "nsenter --target $outside --net --mount ip netns exec node0 bash" >&2

pass_on() {
    local inside=""
    read -r inside 2> /dev/null < "/proc/$outside/task/$outside/children"  # a line without its end
    [ -z "$inside" ] || kill -"$1" "$inside" 2> /dev/null
}
trap 'pass_on TERM' TERM HUP
trap 'pass_on INT' INT
wait "$outside"
status=$?
while kill -0 "$outside" 2> /dev/null; do  # a signal interrupted the wait
    wait "$outside"
    status=$?
done
exit "$status"
