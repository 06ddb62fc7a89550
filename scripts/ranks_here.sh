# Sourced by the launchers of ranks on this machine, whose processes are in `pids`, by rank.
# From the environment:
#   GRACE   seconds for the ranks to stop by themselves before they are killed (default: 15)
pids=() status=0

# Waits for all ranks, and calls `has_ended RANK CODE` for each, which the launcher defines. Sets
# `status` to the exit code of the one that failed first.
wait_for_all() {
    local ended code rank
    while [ ${#pids[@]} -gt 0 ]; do
        wait -n -p ended "${pids[@]}"
        code=$?
        [ "$status" -ne 0 ] || status=$code
        for rank in "${!pids[@]}"; do
            if [ "${pids[rank]}" = "$ended" ]; then
                has_ended "$rank" "$code"
                unset "pids[rank]"
            fi
        done
    done
}

stop_all() {  # stop_all SIGNAL: leaves none behind
    local tenth
    trap '' INT TERM HUP
    kill -"$1" "${pids[@]}" 2> /dev/null
    for ((tenth = 0; tenth < 10 * ${GRACE:-15}; tenth++)); do
        kill -0 "${pids[@]}" 2> /dev/null || break  # fails only when none is left
        sleep 0.1
    done
    kill -KILL "${pids[@]}" 2> /dev/null
}
