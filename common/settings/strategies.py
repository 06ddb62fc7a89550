"""The strategies of Part Two by name: the one place to enter a new one.

Each names what makes it, "module:callable", which gets the SyncOptions and returns a GradientSync.
It is imported when it is used, so that the command line knows the names without torch.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync all-reduce
"""

STRATEGIES = {
    "gather-scatter": "PartTwo.by_hand:flat_gather_scatter",
    "all-reduce": "PartTwo.by_hand:flat_all_reduce",
    "gather-scatter-per-tensor": "PartTwo.by_hand:gather_scatter_per_tensor",
    "all-reduce-per-tensor": "PartTwo.by_hand:all_reduce_per_tensor",
    "gather-scatter-pipelined": "PartTwo.pipelined:flat_gather_scatter",
    "reduce-scatter": "PartTwo.pipelined:flat_reduce_scatter",
    "overlapped-all-reduce": "PartTwo.overlapped:OverlappedAllReduce",
    "cross-step-all-reduce": "PartTwo.cross_step:CrossStepAllReduce",
}
# What makes them with --virtual-nodes; those that are missing cannot add in a given order.
ON_VIRTUAL_NODES = {
    "gather-scatter": "PartTwo.on_virtual_nodes:flat_gather_scatter",
    "all-reduce": "PartTwo.on_virtual_nodes:flat_all_reduce",
    "gather-scatter-pipelined": "PartTwo.on_virtual_nodes:flat_pipelined",
    "reduce-scatter": "PartTwo.on_virtual_nodes:flat_reduce_scatter",
    "overlapped-all-reduce": "PartTwo.on_virtual_nodes:OverlappedVirtual",
    "cross-step-all-reduce": "PartTwo.on_virtual_nodes:CrossStepVirtual",
}
# Other algorithms: they average weights now and then, and learn something else than one rank does.
LOCAL_STRATEGIES = {
    "local-sgd": "PartTwo.local_sgd:local_sgd",
    "diloco": "PartTwo.local_sgd:DiLoCo",
}
# What stands in the seam of the parts where there is nothing to choose.
SEAMS = {"PartOne": "none", "PartThree": "ddp"}
