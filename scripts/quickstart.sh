#!/usr/bin/env bash
# Everything at once on this machine: installs, runs part one on one rank and parts two and three on
# four, and proves on a small network in float64 that they learn the same without virtual nodes too.
# Shows that all runs learned the same weights, bit for bit; ends with status 1 when they did not.
# Names the page to look at last. Flags are passed on to every part, not to the proof:
#   scripts/quickstart.sh
#   scripts/quickstart.sh --workload cifar10-vgg11 --data-dir ~/cifar10 --max-iterations 40
set -euo pipefail
. "$(dirname "$0")/run_command.sh"
keep_command "$0" "$@"
. "$(dirname "$0")/environment.sh"
use_environment requirements.txt

RANKS="${RANKS:-4}"
nodes=$((RANKS > 4 ? RANKS : 4)) # on fewer ranks the same experiment, and so the same digest
output=outputs/quickstart
for ((place = 1; place <= $#; place++)); do # the last --output-dir counts, as it does for the parts
    case ${!place} in
        --output-dir) next=$((place + 1)) && output=${!next-} ;;
        --output-dir=*) output=${!place#*=} ;;
    esac
done
flags=(--workload digits-vgg11 --max-iterations 30 --output-dir "$output" --resume replace
    --profile 1:1 --virtual-nodes "$nodes" "$@")
echo "1 of 5: part one, on one rank"
"$PYTHON" "$ROOT/PartOne/main.py" "${flags[@]}"
echo "2 of 5: part two, on $RANKS ranks"
"$ROOT/scripts/local_cluster.sh" "$RANKS" PartTwo "${flags[@]}"
echo "3 of 5: part three, on $RANKS ranks"
"$ROOT/scripts/local_cluster.sh" "$RANKS" PartThree "${flags[@]}"

echo "4 of 5: the proof; every way to average, on one and on four ranks, against one rank"
rm -f "$output/proof.json" "$output/proof.md"
proved=0
# the small network, on which it takes seconds; docs/proof.md has VGG-11 on real images
"$PYTHON" "$ROOT/scripts/prove.py" --workload spiral-mlp --batch-size 32 --steps 20 --sizes 1,4 \
    --strategies gather-scatter,all-reduce,ddp --precisions float64 \
    --output "$output/proof" || proved=$?
echo "5 of 5: the digests, and the page"
"$PYTHON" "$ROOT/scripts/compare.py" "$output" --one-digest
exit "$proved"
