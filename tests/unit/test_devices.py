"""The backend: NCCL only where it can work, and a sentence instead of its own where it cannot.

Mutation that turns this red: return what is wanted from choose_backend without a look.
"""

import pytest
import torch.distributed as dist

from common.cluster.devices import choose_backend
from common.core.failures import UsageError
from tests.facts import says


@pytest.mark.parametrize("device, gpus_suffice", [("auto", False), ("cpu", True)])
def test_nccl_without_gpus_is_refused_in_a_sentence(device, gpus_suffice, monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with pytest.raises(UsageError) as raised:
        choose_backend("nccl", device, gpus_suffice)
    assert says(raised.value, "--backend nccl", "GPU")
    assert says(raised.value, "--device cpu") == (device == "cpu")
    assert choose_backend("auto", device, gpus_suffice) == "gloo"


def test_nccl_where_every_rank_has_a_gpu(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert choose_backend("nccl", "auto", True) == choose_backend("auto", "cuda", True) == "nccl"
    assert choose_backend("gloo", "cuda", True) == "gloo"
