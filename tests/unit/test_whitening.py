"""The whitened initialisation: principal patches first, identities behind, the same everywhere.

Mutations that turn this red: order components by rising variance; leave the negatives out; order a
patch's elements row, column, channel; leave the signs to the library; dirac on all filters.
"""

import numpy as np
import pytest
import torch
from torch import nn

from common.core.failures import UsageError
from common.data.datasets import load_spirals
from common.model.small_models import SpiralMlp
from common.model.vgg11 import VGG11
from common.model.whitening import initialise, principal_patches
from tests.facts import says
from tests.small import small_dataset


def smooth_images() -> np.ndarray:
    """Each image one grey ramp from top to bottom, of its own height; a little noise."""
    generator = np.random.default_rng(1)
    ramps = np.arange(8)[None, :, None, None] * generator.integers(0, 20, (300, 1, 1, 1))
    noise = generator.integers(0, 4, (300, 8, 8, 3))
    return (ramps + noise).astype(np.uint8)


def test_components_are_orthonormal_and_the_first_is_what_varies_most():
    vectors = principal_patches(smooth_images(), 3)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(27), atol=1e-5)
    flat = vectors[0].reshape(3, 3, 3)  # channel, row, column: grey, so alike but for the row
    assert flat.min() > 0 and abs(flat - flat.mean((0, 2))[None, :, None]).max() < 0.02
    rows = flat.mean((0, 2))
    assert rows[0] < rows[1] < rows[2]
    assert (np.take_along_axis(vectors, abs(vectors).argmax(1)[:, None], 1) > 0).all()


def test_vgg_begins_with_patches_and_their_negatives_and_passes_channels_on():
    torch.manual_seed(3)
    model = VGG11()
    before = [layer.weight.clone() for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    images = small_dataset(60)
    initialise(model, images)
    after = [layer.weight.detach() for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    first, expected = after[0].flatten(1), principal_patches(images.inputs, 3)
    torch.testing.assert_close(first[:27], torch.from_numpy(expected).float(), rtol=0, atol=0)
    assert torch.equal(first[27:54], -first[:27])
    assert torch.equal(after[0][54:], before[0][54:])
    features = torch.randn(2, 64, 4, 4)
    passed = nn.functional.conv2d(features, after[1], padding=1)
    assert torch.equal(passed[:, :64], features)
    assert torch.equal(after[1][64:], before[1][64:])
    assert torch.equal(after[7], nn.init.dirac_(torch.empty(512, 512, 3, 3)))


def test_a_model_without_convolutions_is_one_sentence():
    with pytest.raises(UsageError) as refused:
        initialise(SpiralMlp(2), load_spirals("train"))
    assert says(refused.value, "--init whitened", 2)
