"""The memory of training with torch, from sizes alone and without torch: the parts that predictions of peaks share.

Everything is in numbers of four bytes, unless it says bytes. Not counted is what the libraries allocate themselves
(oneDNN, LAPACK, cuDNN), what the process takes before its first tensor, and what a caching allocator keeps in reserve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bpcbench.api import Network
from bpcbench.records import Activations, Facts
from bpcbench_torch.zca import LARGEST_BLOCK

RESIDENT_BYTES = 4_000_000_000
"""Preprocessed data that would be larger as float32 are not kept whole."""
FLOAT = 4
"""Bytes of a number."""
AUGMENTED = 1
"""Copies of a batch that an augmentation of images without gradients holds."""
DIFFERENTIATED = 4
"""Copies of a batch that an augmentation holds until its gradient in the images is computed."""
_TOGETHER = 2.5
"""What vmap over parameter vectors makes of a pass at most, of networks that do not say it."""
PREDICTED = 250
"""Test images per forward pass of a predictive."""
TEST_BATCH = 1000
"""Test images that a predictive is given at a time."""
_CONVERTED = 2.25
"""Copies of a batch while it is whitened on the device: its bytes, and two as numbers; one more if in blocks."""
ADAM = 4
"""A parameter, its gradient and two moments."""


@dataclass(frozen=True)
class Sizes:
    """The sizes on which the memory of one network and one coreset depends."""

    pixels: int
    """Numbers of one image."""
    classes: int
    rows: int
    """Images of the coreset."""
    parameters: int
    one: Activations
    """What the network holds for one image."""


def sizes(network: Network, facts: Facts, ipc: int) -> Sizes | None:
    """Return the sizes of a network and a coreset, or None if those of the network are unknown."""
    one = network.activations(facts.shape, facts.classes)
    parameters = network.parameters(facts.shape, facts.classes)
    if one is None or parameters is None:
        return None
    return Sizes(math.prod(facts.shape), facts.classes, ipc * facts.classes, parameters, one)


def whole(facts: Facts) -> bool:
    """Return whether the training data are small enough to be kept preprocessed on the device."""
    return FLOAT * facts.sizes["train"] * math.prod(facts.shape) <= RESIDENT_BYTES


def resident(facts: Facts) -> int:
    """Return the bytes that training data need on the device beside batches.

    Small data are all there. Of larger ones only what whitens them must be, if they have colours: how they are
    preprocessed is not known here. As bytes they are there too where memory is left (`Batches`), but need not be.
    """
    numbers = math.prod(facts.shape)
    if whole(facts):
        return FLOAT * facts.sizes["train"] * numbers
    channels, rows, columns = facts.shape
    block = channels * min(rows, LARGEST_BLOCK) * min(columns, LARGEST_BLOCK)
    return FLOAT * (block**2 + numbers) if channels > 1 else 0


def read(facts: Facts, batch: int) -> float:
    """Return the numbers of a batch of training images while it is read: preprocessed already, or from bytes."""
    in_blocks = max(facts.shape[1:]) > LARGEST_BLOCK
    return batch * math.prod(facts.shape) * (1.0 if whole(facts) else _CONVERTED + in_blocks)


def trained(these: Sizes, rows: int, *, augmented: bool) -> float:
    """Return the numbers of a training step with `rows` images: both passes, and their augmented copies."""
    return rows * (these.one.gradient + these.pixels * AUGMENTED * augmented)


def trained_together(these: Sizes, rows: int, networks: int, *, augmented: bool) -> float:
    """Return the numbers of a training step of several networks at once by vmap, each with `rows` images."""
    own = these.one.together
    each = _TOGETHER * these.one.gradient if own is None else own
    return networks * rows * (each + these.pixels * AUGMENTED * augmented)


def predicted(these: Sizes) -> float:
    """Return the numbers of a batch of test images, and of the forward pass of a part of it."""
    return TEST_BATCH * these.pixels + PREDICTED * (these.one.forward + these.one.features)


def unrolled(these: Sizes, steps: int, graphs: int | None, *, augmented: bool) -> float:
    """Return the numbers of SGD steps on all rows that are differentiated: all graphs kept, or the last `graphs`.

    A step whose graph is dropped leaves its parameters and the random numbers of its augmentation, at most those of
    noise on all images.
    """
    kept = steps if graphs is None else min(steps, graphs)
    every = kept * (2 * these.parameters + these.rows * these.pixels * (1 + 2 * augmented))
    every += (steps - kept) * (these.parameters + these.rows * these.pixels * augmented)
    one = these.rows * these.one.second_kept + these.parameters
    beyond = these.rows * (these.one.second - these.one.second_kept) + 5 * these.parameters
    return every + max(1, kept) * one + beyond
