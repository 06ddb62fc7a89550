# Sourced by the launchers: tell_signal 137 "rank 2" says which signal ended a process, and what may
# have sent it: the process itself can say nothing. Silent for other codes, and for the signals that
# end a run on purpose.
tell_signal() {
    local name cause
    case $1 in 130 | 143) return 0 ;; esac
    [ "$1" -gt 128 ] && name=$(kill -l "$1" 2> /dev/null) || return 0
    case $name in
        KILL) cause="by hand, by the kernel for want of memory (see dmesg), or by a limit (ulimit -t)" ;;
        XCPU) cause="by the limit of processor time (ulimit -t)" ;;
        SEGV) cause="a crash, or too small a stack (ulimit -s)" ;;
        ABRT) cause="a crash, or too little memory (ulimit -v)" ;;
        BUS) cause="a file that became shorter while it was read, or a full /dev/shm" ;;
        *) cause="see man 7 signal" ;;
    esac
    echo "$2 was ended by SIG$name ($cause)" >&2
}
