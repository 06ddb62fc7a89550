"""The course's loop as students write it: eager float32, NCHW, torchvision transforms, two workers.

The libraries get the same model and data: what their users would hand them.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.models.vgg import cfgs, make_layers

from benchmarks.peer_loops.job import Job, StepClock
from common.options.workloads import find_workload

WORKERS = 2
RATE, MOMENTUM, DECAY = 0.1, 0.9, 1e-4


def textbook_vgg11(classes: int = 10) -> nn.Module:
    """VGG-11 in the write-up's order of layers: images (n, 3, 32, 32) to scores (n, classes)."""
    return nn.Sequential(make_layers(cfgs["A"], batch_norm=True), nn.Flatten(),
                         nn.Linear(512, classes))


class ArrayImages(Dataset):
    """Images in memory, transformed one at a time: what torchvision's CIFAR10 does."""

    def __init__(self, images: np.ndarray, labels: np.ndarray,
                 transform: transforms.Compose) -> None:
        self._images, self._labels, self._transform = images, labels, transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._images[index])), int(self._labels[index])


def textbook_loader(job: Job, workers: int = WORKERS) -> DataLoader:
    """The training set with the course's augmentation, in a DataLoader with worker processes.

    For a GPU in pinned memory.
    """
    row = find_workload(job.workload)
    found = row.load("train", job.data_dir)
    augment = transforms.Compose([
        transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), transforms.Normalize(row.mean, row.std)])
    images = ArrayImages(np.array(found.inputs), found.targets, augment)
    return DataLoader(images, job.batch_size, shuffle=True, num_workers=workers, drop_last=True,
                      pin_memory=job.device != "cpu")


def textbook_training(job: Job) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    """Model, on the job's device, criterion and optimiser with the course's numbers."""
    torch.manual_seed(1)
    classes = find_workload(job.workload).load("train", job.data_dir).class_names
    model = textbook_vgg11(len(classes)).to(job.device)
    return model, nn.CrossEntropyLoss(), torch.optim.SGD(
        model.parameters(), RATE, MOMENTUM, weight_decay=DECAY)


def run_course(job: Job, clock: StepClock) -> str:
    """Trains until the clock has seen enough; says with which settings."""
    model, criterion, optimizer = textbook_training(job)
    model.train()
    for images, labels in textbook_loader(job):
        images, labels = images.to(job.device), labels.to(job.device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        clock.tick()
        if clock.is_done:
            break
    return "eager, NCHW, 2 workers"
