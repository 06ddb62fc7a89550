"""The modules that the test forkserver loads once, so that each rank starts with them."""

import sklearn.metrics  # noqa: F401
import torch
import torch._dynamo  # noqa: F401  the first optimizer imports it: 2 s of every rank
import torch.distributed  # noqa: F401

import common.report  # noqa: F401
import common.setup  # noqa: F401
import common.training  # noqa: F401
import PartThree.ddp  # noqa: F401
import PartTwo.cross_step  # noqa: F401
import PartTwo.local_sgd  # noqa: F401
import PartTwo.pipelined  # noqa: F401
import studies.grading.rank_under_test  # noqa: F401

torch.set_num_threads(1)
