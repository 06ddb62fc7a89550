#!/usr/bin/env bash
# Renews what README and docs show: recorded results, figures, examples, and tables of benchmarks.
#   scripts/renew_docs.sh --list              # what there is, and what is older than its sources
#   scripts/renew_docs.sh prediction example  # these
#   scripts/renew_docs.sh                     # all, on a quiet machine: a day
# Files are replaced where they stand. What a table inside a document shows is written to
# outputs/renewed/NAME.txt, to be copied by hand together with the sentences beside it.
# docs/results/renewed.txt keeps each one's day, commit, and digest of its sources.
# From the environment:
#   DATA   folder of CIFAR-10's images (default: ~/cifar10)
set -euo pipefail
. "$(dirname "$0")/environment.sh"
cd "$ROOT"
DATA="${DATA:-~/cifar10}"
IMAGES="${DATA/#\~/$HOME}"
KEPT=docs/results/renewed.txt
NEW=outputs/renewed
TRAINING="common/training.py common/arithmetic common/data common/model common/step PartTwo PartThree"
SYNC="benchmarks/sync.py studies/choosing"
EXAMPLE="docs/example/comparison* docs/example/page_* docs/example/trace_*"

# name | what it needs | what shows it | its sources: what decides what is shown
rows() {
    cat << END
quickstart | minutes | docs/results/quickstart.json README.md | scripts/quickstart.sh $TRAINING
results | data quiet | docs/results/Part* docs/results.md | $TRAINING
proof_float64 | data hours | docs/proof_float64.* | studies/proof $TRAINING
proof_float32 | data | docs/proof_float32.* | studies/proof $TRAINING
proof_strategies | data | docs/proof_strategies.* | studies/proof $TRAINING
example | data quiet chromium | $EXAMPLE | common/reporting scripts/compare.py $TRAINING
gigabit | data quiet root | docs/example/gigabit-* | common/reporting $TRAINING
sync_grid | quiet root hours | docs/results/sync_grid.json docs/predicting.md | $SYNC $TRAINING
sync_cross_step | quiet root hours | docs/results/sync_cross_step.json | $SYNC $TRAINING
sync_float32 | quiet root | docs/network.md | $SYNC $TRAINING
prediction | | docs/predicting.md | docs/results/sync_grid.json studies/prediction
peers | data quiet | docs/results/peers.json docs/one_node.md README.md | benchmarks/peers.py benchmarks/peer_loops $TRAINING
accuracy | data quiet hours | docs/recipe.md | $TRAINING
detection | quiet | docs/results/detection.json docs/faults.md README.md | benchmarks/detection.py common/cluster
chaos | quiet data root hours | docs/results/chaos.json docs/going_on.md README.md | benchmarks/chaos.py common/cluster common/run
kills | hours | docs/results/kills.json docs/faults.md README.md | tests/faults/random_kills.py tests/faults/compared_runs.py common/run $TRAINING
gpu | data gpu | docs/gpu.md docs/results/gpu_* | scripts/gpu_check.sh $TRAINING
END
}

renew_quickstart() {
    local begun=$SECONDS installs=true digest
    [ -d .venv ] && installs=false  # README's figure is of a fresh clone
    scripts/quickstart.sh --output-dir $NEW/quickstart | tee $NEW/quickstart.log
    digest="$(sed -n 's/.*one digest: \([0-9a-f]*\).*/\1/p' $NEW/quickstart.log)"
    .venv/bin/python -c "from benchmarks.records import *; write_record(
        Path('docs/results/quickstart.json'), {'n': 1, 'seconds': $((SECONDS - begun)),
        'installing_included': '$installs' == 'true', 'digest': '$digest'})"
}

renew_results() {
    local run
    train PartOne --output-dir $NEW/results
    for run in PartTwo PartThree; do
        on_four "$run" --max-iterations 40 --output-dir $NEW/results
    done
    for run in PartOne PartTwo/gather-scatter PartTwo/all-reduce PartThree; do
        cp "$NEW/results/$run/summary.json" "docs/results/$run/"
    done
}

prove() {
    "$PYTHON" scripts/prove.py --workload cifar10-vgg11 --data-dir "$DATA" --batch-size 17 \
        --threads 1 "$@"
}

renew_proof_float64() {
    prove --samples 245 --steps 40 --sizes 2,3,4 --precisions float64 \
        --output docs/proof_float64
}

renew_proof_float32() {
    prove --samples 24 --steps 1 --precisions float32 --output docs/proof_float32
}

renew_proof_strategies() {
    prove --samples 245 --steps 10 --sizes 2,3,4 --precisions float64 \
        --output docs/proof_strategies \
        --strategies overlapped-all-reduce,gather-scatter-pipelined,reduce-scatter
}

renew_example() {
    local folder=$NEW/example common=(--max-iterations 40 --profile 1:3)
    train PartOne "${common[@]}" --output-dir $folder
    on_four PartTwo "${common[@]}" --output-dir $folder
    on_four PartThree "${common[@]}" --output-dir $folder
    "$PYTHON" scripts/prove.py --workload spiral-mlp --batch-size 32 --steps 20 --sizes 1,4 \
        --strategies gather-scatter,all-reduce,ddp --precisions float64 --output $folder/proof
    rm -rf docs/example/comparison_figures
    "$PYTHON" scripts/compare.py $folder
    cp -r $folder/comparison.html $folder/comparison.md $folder/comparison_figures docs/example/
    cp $folder/PartThree/traces/trace_all_*.json.gz docs/example/trace_ddp_four_ranks.json.gz
    photograph 1280 900
    photograph 390 1100
}

photograph() {  # WIDTH HEIGHT: a window is never narrower than 500 pixels, a frame is
    local frame=$NEW/frame.html
    echo "<!DOCTYPE html><body style='margin:0'><iframe src='$ROOT/docs/example/comparison.html'" \
        "width='$1' height='$2' style='border:0'></iframe>" > "$frame"
    "$CHROMIUM" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size="$1,$2" \
        --allow-file-access-from-files --virtual-time-budget=10000 \
        --screenshot="docs/example/page_$1.png" "file://$ROOT/$frame"
}

renew_gigabit() {
    local part folder=$NEW/gigabit
    for part in PartTwo PartThree; do
        scripts/namespace_cluster.sh -n 4 -r 1gbit "$PYTHON" $part/main.py --master-ip {master} \
            --num-nodes {nodes} --rank {rank} --data-dir "$DATA" --max-iterations 12 \
            --profile 1:3 --resume replace --output-dir "$ROOT/$folder"
    done
    "$PYTHON" scripts/compare.py $folder
    cp $folder/comparison_figures/trace-partthree-4.svg docs/example/gigabit-ddp.svg
    cp $folder/comparison_figures/trace-parttwo-gather-scatter-4.svg \
        docs/example/gigabit-gather-scatter.svg
}

renew_sync_grid() {
    rm -f $NEW/sync_grid.json
    "$PYTHON" benchmarks/sync.py --precision bf16 --json $NEW/sync_grid.json
    mv $NEW/sync_grid.json docs/results/
}

renew_sync_cross_step() {
    rm -f $NEW/sync_cross_step.json
    "$PYTHON" benchmarks/sync.py --precision bf16 --steps 4 --json $NEW/sync_cross_step.json \
        --variants "compute only" overlapped-all-reduce cross-step-all-reduce \
        "cross-step-all-reduce, bf16 wire" "DDP, torch's defaults" "Part Three"
    mv $NEW/sync_cross_step.json docs/results/
}

renew_sync_float32() {
    "$PYTHON" benchmarks/sync.py --nodes 4 --rates 1gbit none --rounds 6 \
        --variants "compute only" overlapped-all-reduce "overlapped-all-reduce, bf16 wire" \
        "DDP, torch's defaults" "Part Three"
}

renew_prediction() {
    "$PYTHON" scripts/predict.py docs/results/sync_grid.json --calibrate-on 4:none 4:1gbit \
        4:100mbit 2:none 2:100mbit --nodes 4 --rate 300mbit 1gbit --shared-processors
    "$PYTHON" scripts/predict.py docs/results/sync_grid.json --rate 300mbit 1gbit 10gbit
}

renew_peers() {
    "$PYTHON" benchmarks/peers.py --data-dir "$IMAGES" --rounds 5 --steps 5 \
        --json docs/results/peers.json
}

renew_accuracy() {
    local seed
    for seed in 1 2 3; do
        train PartOne --recipe record --precision bf16 --tta --seed $seed \
            --output-dir $NEW/accuracy/$seed
    done
    "$PYTHON" scripts/compare.py $NEW/accuracy
}

renew_detection() {
    "$PYTHON" benchmarks/detection.py --runs 10 --json docs/results/detection.json
}

renew_chaos() {
    "$PYTHON" benchmarks/chaos.py --every 15 --steps 3000 --json docs/results/chaos.json
}

renew_kills() {
    "$PYTHON" -m tests.faults.random_kills 200 --seed 2 --folder $NEW/kills \
        --json docs/results/kills.json
}

renew_gpu() {
    DATA="$IMAGES" scripts/gpu_check.sh
}

train() {  # PART FLAGS...
    "$PYTHON" "$1/main.py" --data-dir "$DATA" --resume replace "${@:2}"
}

on() {  # RANKS PART FLAGS...
    scripts/local_cluster.sh "$1" "$2" --data-dir "$DATA" --resume replace "${@:3}"
}

on_four() {
    on 4 "$@"
}

digest() {  # SOURCES...: of these files and folders, as they stand here; needs no history
    local files
    files="$(git ls-files -- "$@" | LC_ALL=C sort)"
    { echo "$files" && git hash-object --stdin-paths <<< "$files"; } | sha256sum | cut -c1-12
}

age() {  # NAME SOURCES...: when it was renewed, and whether its sources have changed since
    local name day commit kept commits
    if ! read -r name day commit kept < <(grep "^$1 " $KEPT); then
        echo "no day is kept"
    elif [ "$kept" = "$(digest "${@:2}")" ]; then
        echo "of $day, as its sources are"
    else
        commits="$(git rev-list --count "$commit..HEAD" -- "${@:2}" 2> /dev/null)" || commits=some
        echo "of $day, older than its sources ($commits commits)"
    fi
}

lacking() {  # NEEDS...: what of it is not here; nothing if all is
    local need
    for need in "$@"; do
        case $need in
            data) [ -d "$IMAGES" ] || echo "the images: set DATA to their folder" ;;
            root) [ "$(id -u)" -eq 0 ] || echo "root, for network namespaces" ;;
            gpu) "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.device_count())" ||
                echo "a GPU" ;;
            chromium) [ -n "$CHROMIUM" ] || echo "chromium, for pictures of the page" ;;
        esac
    done
}

renew() {  # NAME NEEDS SOURCES
    local lack worked
    lack="$(lacking $2)"
    if [ -n "$lack" ]; then
        echo "$1 is passed over: it needs $lack" >&2
        status=2
        return
    fi
    echo "renewing $1" >&2
    set +e  # and on in the subshell, which a condition around it would prevent
    (set -e && "renew_$1") 2>&1 | tee "$NEW/$1.txt"
    worked=${PIPESTATUS[0]}
    set -e
    if [ "$worked" -ne 0 ]; then
        echo "$1 is not renewed: its command ended with $worked" >&2
        status=1
        return
    fi
    sed -i "/^$1 /d" $KEPT
    echo "$1 $(date -u +%F) $(git rev-parse --short HEAD) $(digest $3)" >> $KEPT
    LC_ALL=C sort -o $KEPT $KEPT
}

CHROMIUM="$(command -v chromium || command -v chromium-browser || true)"
command -v git > /dev/null && git rev-parse HEAD > /dev/null 2>&1 ||
    fail_usage "this needs git, and a clone: ages are told by the digests of files"
list=false wanted=() status=0
case ${1:-} in
    --list) list=true ;;
    -*) fail_usage "usage: scripts/renew_docs.sh [--list | NAME...]" ;;
    *) wanted=("$@") ;;
esac
for name in "${wanted[@]}"; do
    rows | grep -q "^$name *|" || fail_usage "nothing is called $name; --list shows the names"
done
mkdir -p $NEW
while IFS='|' read -r -u 3 name needs shows sources; do
    name="${name// /}" needs="$(echo $needs)"
    if $list; then
        printf '%-16s %s; in%s; needs %s\n' "$name" "$(age "$name" $sources)" "${shows%% }" \
            "${needs:-nothing more}"
    elif [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " = *" $name "* ]]; then
        renew "$name" "$needs" "$sources"
    fi
done 3< <(rows)
exit $status
