# Sourced by the launchers: keep_command "$0" "$@" puts the launcher's own command line into
# RUN_COMMAND, from which the ranks tell how to resume. Of nested launchers the outermost counts.
keep_command() {
    local name words=""
    [ -z "${RUN_COMMAND:-}" ] || return 0
    for name in MASTER_IP NUM_NODES RANK MASTER_PORT MASTER_ADDR RANKS LOG_DIR GRACE \
        RESTART_PAUSE MAX_RESTARTS REMOTE_DIR PYTHON COPY SSH; do  # what the launchers ask for
        [ -z "${!name:-}" ] || words+="$name=$(printf %q "${!name}") "
    done
    RUN_COMMAND="$words$(printf '%q ' "$@")"
    export RUN_COMMAND
}
