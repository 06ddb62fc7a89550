#!/usr/bin/env bash
# Sourced by the batch files: run_part BATCH_FILE PROGRAM [flags] runs one rank a task, resumes
# what an earlier start of the same job has left, and puts the job back into the queue when it was
# interrupted.
# From the environment: PYTHON (default .venv/bin/python); MASTER_ADDR, when the first address of
# the first node is not the one that the others reach; MAX_RESTARTS (default 20).
. scripts/run_command.sh

run_part() {
    local file=$1 program=$2 code
    shift 2
    keep_command sbatch "--nodes=$SLURM_JOB_NUM_NODES" "$file" "$@"
    # A batch script runs on the first node of its job, where rank 0 will be. An address of it is
    # safer than its name, which a hosts file may give to 127.0.1.1.
    export MASTER_ADDR="${MASTER_ADDR:-$(hostname -I | cut -d' ' -f1)}"
    export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 12000))}"  # below ephemeral ports
    echo "start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"
    # When one rank ends, the others end by themselves, each with its sentence: they get a minute.
    srun --kill-on-bad-exit=0 --wait=60 --cpu-bind=none \
        "${PYTHON:-.venv/bin/python}" "$program" --resume auto "$@"
    code=$?
    case $code in
        75 | 143)  # lost a node, or told to stop: by the time limit's signal, or by a preemption
            if [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_RESTARTS:-20}" ]; then
                echo "exit code $code: back into the queue"
                scontrol requeue "$SLURM_JOB_ID"
                sleep 30  # requeueing ends this script
            fi ;;
    esac
    return "$code"
}
