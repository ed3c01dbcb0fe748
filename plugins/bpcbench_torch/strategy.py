"""The augmentation for a strategy name of a suite and a number of image channels."""

from __future__ import annotations

from bpcbench_torch.augmentation import STRATEGIES, Augmentation

_BY_CHANNELS = ("paper", "frepo")
_QUIET = "-quiet"


def strategy(name: str, channels: int) -> Augmentation:
    """Return the augmentation for a name; raise ValueError if the name is unknown.

    `paper` (VBPC's list) and `frepo` select their lists for grey or RGB images. The suffix `-quiet` removes the noise.
    `Augmentation` parses all other names.
    """
    quiet, name = name.endswith(_QUIET), name.removesuffix(_QUIET)
    if name in _BY_CHANNELS:
        name += "-grey" if channels == 1 else "-rgb"
    if quiet:
        name = "_".join(part for part in STRATEGIES.get(name, name).split("_") if part != "noise")
    return Augmentation(name or "none")
