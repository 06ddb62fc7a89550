"""VGG-11 as the assignment fixes it."""

import torch
from torch import nn

from common import get_model_parameters
from common.arithmetic.pooling import PooledBatchNorm2d
from common.model.vgg11 import VGG11


def test_size():
    model = VGG11()
    tensors = [p for p in model.parameters() if p.requires_grad]
    assert len(tensors) == 34 and get_model_parameters(model) == 9_231_114
    assert sum(4 * p.numel() for p in tensors) == 36_924_456


def test_layout():
    convolutions = [layer for layer in VGG11().modules() if isinstance(layer, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    assert all(c.kernel_size == (3, 3) and c.padding == (1, 1) and c.bias is not None
               for c in convolutions)
    assert VGG11()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_pooling_before_the_relu_changes_no_bit():
    torch.manual_seed(0)
    model = VGG11().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    images = torch.randn(4, 3, 32, 32)
    expected = images
    for layer in model.features:
        expected = nn.BatchNorm2d.forward(layer, expected) if isinstance(
            layer, PooledBatchNorm2d) else layer(expected)
        if isinstance(layer, PooledBatchNorm2d):
            expected = nn.functional.max_pool2d(expected.relu(), 2)
    assert torch.equal(model.features(images), expected)


def test_features_start_small_enough_for_the_courses_rate():
    torch.manual_seed(0)
    model = VGG11()
    features = model.features(torch.randn(64, 3, 32, 32)).flatten(1).detach()
    assert 0.5 < float(features.norm(dim=1).mean()) < 5
