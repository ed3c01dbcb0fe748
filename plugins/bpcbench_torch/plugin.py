"""The hooks of bpcbench_torch."""

from __future__ import annotations

from bpcbench import hookimpl
from bpcbench.api import Inference, Network, Preprocessing
from bpcbench_torch.alexnet import AlexNet
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNN
from bpcbench_torch.preprocessing import Constants, Standardize
from bpcbench_torch.resnet import ResNet18
from bpcbench_torch.samplers import HMCInference, SGHMCInference
from bpcbench_torch.vgg import VGG11
from bpcbench_torch.zca import ZCA

BPCBENCH_API = 1


@hookimpl
def bpcbench_networks() -> list[type[Network]]:
    """Return the networks of this distribution."""
    return [ConvBN, ConvIN, ConvGN, ConvNN, AlexNet, ResNet18, VGG11]


@hookimpl
def bpcbench_preprocessings() -> list[type[Preprocessing]]:
    """Return the preprocessings of this distribution."""
    return [Standardize, Constants, ZCA]


@hookimpl
def bpcbench_inferences() -> list[type[Inference]]:
    """Return the inferences of this distribution."""
    return [NetworkInference, Ensemble, SGHMCInference, HMCInference]
