#!/usr/bin/env bash
# Started by namespace_cluster.sh as the first process in namespaces of its own: builds bridge,
# nodes and links, runs the command in every node, and ends all when one fails.
set -uo pipefail
master=10.77.0.1
. "$(dirname "$0")/ranks_here.sh"

fail() {
    echo "error: $1" >&2
    exit 2
}

rate_of() {
    local rate=$RATE pair
    for pair in $RATES; do
        [ "${pair%%=*}" != "$1" ] || rate=${pair#*=}
    done
    echo "$rate"
}

# A bucket of 1 ms of the rate (128 KB at least): small enough that nothing passes unshaped, large
# enough for the kernel's timer to keep the rate, and for the 64 KB that TCP hands down at a time: of
# a smaller bucket tbf cuts them into packets itself, which doubles the processor time of averaging.
limit() {
    local device=$1 rate=$2
    [ "$rate" != none ] || return 0
    "${@:3}" tc qdisc add dev "$device" root tbf rate "$rate" burst "$(bucket "$rate")" latency 50ms
}

bucket() {
    local number=${1%%[a-z]*} unit=${1##*[0-9]} bytes
    case $unit in
        gbit) bytes=$((number * 125000)) ;;
        mbit) bytes=$((number * 125)) ;;
        *) bytes=0 ;;
    esac
    echo $((bytes > 131072 ? bytes : 131072))
}

build() {
    mount -t tmpfs tmpfs /run && mkdir /run/netns || return
    ip link set lo up && ip link add bridge0 type bridge && ip link set bridge0 up || return
    local rank
    for ((rank = 0; rank < NODES; rank++)); do
        ip netns add "node$rank" &&
            ip link add "link$rank" type veth peer name eth0 netns "node$rank" &&
            ip link set "link$rank" master bridge0 up &&
            ip -n "node$rank" link set lo up &&
            ip -n "node$rank" address add "10.77.0.$((rank + 1))/16" dev eth0 &&
            ip -n "node$rank" link set eth0 up &&
            limit "link$rank" "$(rate_of "$rank")" &&
            limit eth0 "$(rate_of "$rank")" ip netns exec "node$rank" || return
        echo "10.77.0.$((rank + 1)) node$rank" >> /run/hosts
    done
}

# In a node: its own host name and hosts file, then the words given.
in_node() {
    local rank=$1
    cp /run/hosts "/run/hosts$rank"
    exec ip netns exec "node$rank" unshare --uts --mount bash -c '
        hostname "node$RANK" && { echo 127.0.0.1 localhost; cat /run/hosts; } > "/run/hosts$RANK" &&
            mount --bind "/run/hosts$RANK" /etc/hosts && bash -c "$PREPARE" &&
            touch "/run/ready$RANK" || exit 2
        unset RANK PREPARE
        while [ ! -e /run/start ]; do sleep 0.05; done
        exec "$@"' node "${@:2}"
}

start() {
    local rank word words
    for ((rank = NODES - 1; rank >= 0; rank--)); do
        words=()
        for word in "${command[@]}"; do
            word=${word//"{rank}"/$rank}
            word=${word//"{master}"/$master}
            words+=("${word//"{nodes}"/$NODES}")
        done
        if [ "$rank" -eq 0 ]; then
            (RANK=$rank in_node "$rank" "${words[@]}") > >(tee "$LOG_DIR/node0.out") 2>&1 &
        else
            (RANK=$rank in_node "$rank" "${words[@]}") > "$LOG_DIR/node$rank.out" 2>&1 &
        fi
        pids[rank]=$!
    done
}

wait_until_ready() {
    local rank
    for ((rank = 0; rank < NODES; rank++)); do
        until [ -e "/run/ready$rank" ]; do
            kill -0 "${pids[rank]}" 2> /dev/null || fail "node $rank could not be prepared (see -p)"
            sleep 0.05
        done
    done
    touch /run/start
}

has_ended() {  # RANK CODE
    echo "$2" > "$LOG_DIR/node$1.code"
}

command=("$@")
trap 'stop_all TERM; exit 143' TERM
trap 'stop_all INT; exit 130' INT
build || fail "the network of the cluster could not be built"
export RANK PREPARE
start
wait_until_ready

wait_for_all
sleep 0.1  # tee's last words
exit "$status"
