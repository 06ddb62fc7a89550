"""The small models of the companion workloads: two for MNIST, one for points on spirals.

    python3 -c "from common.model.small_models import MnistCnn; print(MnistCnn())"
"""

import torch
from torch import Tensor, nn

from common.model.dropout import SampleDropout


class MnistMlp(nn.Module):
    """Images (batch, 1, 28, 28) to class scores (batch, classes): 784-128-classes, ReLU."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 128), nn.ReLU(),
                                    nn.Linear(128, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class MnistCnn(nn.Module):
    """Images (batch, channels, size, size) to log-probabilities (batch, classes).

    The network of PyTorch's MNIST example: two convolutions, max-pooling, dropout, two linear
    layers with dropout between them. 1,199,882 parameters for 10 classes. Of larger images, larger
    squares are pooled: 12 to 23 places a side remain.
    """

    def __init__(self, classes: int = 10, channels: int = 1, size: int = 28) -> None:
        super().__init__()
        maps = size - 4  # each convolution takes a pixel off every side
        pooled = max(1, maps // 12)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
            nn.MaxPool2d(pooled), SampleDropout(0.25))
        units = 64 * (maps // pooled) ** 2
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(units, 128), nn.ReLU(),
                                        SampleDropout(0.5), nn.Linear(128, classes))

    def forward(self, images: Tensor) -> Tensor:
        return torch.log_softmax(self.classifier(self.features(images)), dim=1)


class SpiralMlp(nn.Module):
    """Points (batch, 2, 1, 1) to class scores (batch, classes): 2-64-32-16-classes.

    ReLU and dropout after each hidden layer.
    """

    def __init__(self, classes: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        width = 2
        for units in (64, 32, 16):
            layers += [nn.Linear(width, units), nn.ReLU(), SampleDropout(dropout)]
            width = units
        self.layers = nn.Sequential(*layers, nn.Linear(width, classes))

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points)
