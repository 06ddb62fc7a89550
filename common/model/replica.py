"""The model as it is on every rank, without wrappers, and a digest of its weights."""

import hashlib

import torch
from torch import nn

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a DistributedDataParallel or DataParallel, or the model itself."""
    return model.module if isinstance(model, _WRAPPERS) else model


def digest_of(model: nn.Module) -> str:
    """A hash of all parameters and buffers, names and bytes: equal for equal replicas."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]
