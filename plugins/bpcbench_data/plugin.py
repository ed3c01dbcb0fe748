"""The hooks of bpcbench_data."""

from __future__ import annotations

from bpcbench import hookimpl
from bpcbench.api import Dataset
from bpcbench_data.cifar import CIFAR10
from bpcbench_data.digits import Digits
from bpcbench_data.mnist import MNIST, FashionMNIST

BPCBENCH_API = 1


@hookimpl
def bpcbench_datasets() -> list[type[Dataset]]:
    """Return the data sets of this distribution."""
    return [Digits, MNIST, FashionMNIST, CIFAR10]
