"""The hooks of bpcbench_data."""

from __future__ import annotations

from bpcbench import hookimpl
from bpcbench.api import Dataset
from bpcbench_data.cifar import CIFAR10, CIFAR100
from bpcbench_data.cifar10c import CIFAR10C
from bpcbench_data.corrupted import Corrupted
from bpcbench_data.digits import Digits
from bpcbench_data.image_folder import ImageFolder
from bpcbench_data.imagenet64 import ImageNet64
from bpcbench_data.imagewoof import Imagewoof
from bpcbench_data.mnist import MNIST, FashionMNIST
from bpcbench_data.svhn import SVHN
from bpcbench_data.tiny_imagenet import TinyImageNet

BPCBENCH_API = 1


@hookimpl
def bpcbench_datasets() -> list[type[Dataset]]:
    """Return the data sets of this distribution."""
    return [
        Digits,
        MNIST,
        FashionMNIST,
        CIFAR10,
        CIFAR100,
        SVHN,
        TinyImageNet,
        Imagewoof,
        ImageNet64,
        ImageFolder,
        CIFAR10C,
        Corrupted,
    ]
