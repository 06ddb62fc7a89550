#!/usr/bin/env bash
# Tests and measures on this machine's GPUs all that can be, in ten minutes or so:
#   DATA=~/cifar10 scripts/gpu_check.sh
# Leaves what each step has printed in docs/results/gpu_NAME.md. One that fails, or takes too long,
# does not end the rest; the exit code is 1 then. Needs no network where the environment holds torch.
# From the environment:
#   DATA   folder of CIFAR-10's images (default: ~/cifar10)
set -euo pipefail
. "$(dirname "$0")/environment.sh"
"$PYTHON" -c 'import pytest, torch' 2> /dev/null || use_environment requirements.txt
cd "$ROOT"
gpu="$("$PYTHON" -c 'import torch; print(*map(torch.cuda.get_device_name,
    range(torch.cuda.device_count())), sep=", ")')"
[ -n "$gpu" ] || fail_usage "there is no GPU here that torch can use"
name="${gpu%%,*}"
result="docs/results/gpu_${name//[^[:alnum:]]/-}.md"
output="$(mktemp)"
images="${DATA:-$HOME/cifar10}"
data=(--workload cifar10-vgg11 --data-dir "$images" --steps 60)
[ -d "$images" ] || data=(--workload digits-vgg11 --steps 2)
prove=(scripts/prove.py --device cuda --workload digits-vgg11 --sizes 1,2 --steps 10 --samples 130
    --batch-size 35)
status=0 running=""

step() {  # step SECONDS NAME ARGUMENTS...: Python with these arguments, for so many seconds at most
    local code=0 begun=$SECONDS how
    echo "$2: $1 s at most" >&2
    timeout --kill-after=10 "$1" "$PYTHON" "${@:3}" > "$output" &
    running=$!
    wait $running || code=$?
    case $code in
        0) how=passed ;;
        124 | 137) how="stopped after $1 s" ;;
        *) how="failed ($code)" ;;
    esac
    [ $code -eq 0 ] || status=1
    printf '## %s: %s, %s s\n\n%s\n\n' "$2" "$how" $((SECONDS - begun)) "$(< "$output")" |
        tee -a "$result"
}

trap 'rm -f "$output"' EXIT
trap 'kill $running 2> /dev/null; exit 130' INT TERM
printf '%s\n\n' "$gpu; $("$PYTHON" -c 'from common.core.provenance import *; print(conditions())')" |
    tee "$result"
step 300 "tests/cuda" -m pytest -q -rs -p no:cacheprovider tests/cuda
step 300 "images a second" benchmarks/peers.py --device cuda "${data[@]}"
step 60 "proof in float64" "${prove[@]}" --precisions float64 \
    --strategies gather-scatter,all-reduce,ddp
step 60 "bits of virtual nodes" "${prove[@]}" --bits --virtual-nodes 4 --precisions float32 \
    --strategies all-reduce
[ ! -d "$images" ] || step 300 "a recipe's seconds and accuracy" PartOne/main.py --device cuda \
    --data-dir "$images" --recipe record --precision bf16 --tta --log-every 1000 \
    --output-dir outputs/gpu_check --resume replace
echo "written to $result" >&2
exit $status
