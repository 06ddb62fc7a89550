"""The names of Part Two's strategies, which the command line must know without torch.

PartTwo/strategies.py says what each is.

    python3 PartTwo/main.py --master-ip 10.0.0.1 --num-nodes 4 --rank 0 --sync all-reduce
"""

SYNC_NAMES = ("gather-scatter", "all-reduce", "gather-scatter-per-tensor", "all-reduce-per-tensor",
              "gather-scatter-pipelined", "reduce-scatter", "overlapped-all-reduce",
              "cross-step-all-reduce")
# These can add in a given order, as --virtual-nodes asks.
VIRTUAL_SYNC_NAMES = ("gather-scatter", "all-reduce", "gather-scatter-pipelined", "reduce-scatter",
                      "overlapped-all-reduce", "cross-step-all-reduce")
# Other algorithms: they average weights now and then, and learn something else than one rank does.
LOCAL_SYNC_NAMES = ("local-sgd", "diloco")
# The seams of the parts where there is nothing to choose.
SEAMS = {"PartOne": "none", "PartThree": "ddp"}
