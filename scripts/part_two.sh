#!/usr/bin/env bash
# PartTwo on this node of a cluster. Run it on every node, each with its own rank:
#   MASTER_IP=10.0.0.1 NUM_NODES=4 RANK=0 scripts/part_two.sh --data-dir ~/cifar10
#   scripts/part_two.sh 10.0.0.1 4 0 --data-dir ~/cifar10
exec "$(dirname "$0")/run_node.sh" PartTwo "$@"
