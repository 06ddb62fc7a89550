"""A model in torch's own layers computes what it did in this project's.

Mutations that turn this red: leave a kind of layer out of in_plain_layers; change the model itself
instead of a copy; scale before the mean is taken off.
"""

import torch
from torch import nn

from common.arithmetic.convolution import FastConv2d, compute_by
from common.arithmetic.pooling import PooledBatchNorm2d
from common.model.batch_norm import synchronize_batch_norm
from common.model.dropout import SampleDropout
from common.model.export import Prepared, in_plain_layers


def model_of_our_layers() -> nn.Sequential:
    """Each kind of layer that is this project's, with running statistics that have moved."""
    torch.manual_seed(2)
    model = synchronize_batch_norm(nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), PooledBatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), SampleDropout(0.5), nn.Flatten(),
        nn.Linear(128, 5)))
    layer = model[3]
    assert isinstance(layer, nn.Conv2d)
    compute_by("winograd-2", layer)
    model(torch.randn(50, 3, 8, 8) * 2 + 1)
    return model.eval()


def test_every_layer_of_ours_becomes_torchs_and_computes_the_same():
    model = model_of_our_layers()
    plain = in_plain_layers(model).eval()
    assert all(type(layer).__module__.startswith("torch.nn") for layer in plain.modules())
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(plain(images), model(images), atol=1e-5)
    assert type(model[3]) is FastConv2d  # which is still its own


def test_images_are_normalised_as_in_training():
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    prepared = Prepared(nn.Sequential(nn.Flatten(), nn.Linear(12, 12).double()), mean, std, 255,
                        has_classes=False)
    nn.init.eye_(prepared.model[1].weight)
    nn.init.zeros_(prepared.model[1].bias)
    images = torch.randint(0, 256, (3, 3, 2, 2), dtype=torch.uint8)
    one, other = (torch.tensor(each, dtype=torch.float64).view(3, 1, 1) for each in (mean, std))
    expected = (images.double() / 255 - one) / other
    assert torch.allclose(prepared(images).view(expected.shape), expected)
