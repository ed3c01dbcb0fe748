"""From the name of an augmentation in a suite to the augmentation for images of a kind."""

from __future__ import annotations

from bpcbench_torch.augmentation import STRATEGIES, Augmentation

_BY_CHANNELS = ("paper", "frepo")
_QUIET = "-quiet"


def strategy(name: str, channels: int) -> Augmentation:
    """Return the augmentation of a name; raise ValueError if there is none.

    `paper` (VBPC's list) and `frepo` stand for their lists for grey or RGB images; `-quiet` behind a name leaves out
    the noise; anything else is read by `Augmentation`.
    """
    quiet, name = name.endswith(_QUIET), name.removesuffix(_QUIET)
    if name in _BY_CHANNELS:
        name += "-grey" if channels == 1 else "-rgb"
    if quiet:
        name = "_".join(part for part in STRATEGIES.get(name, name).split("_") if part != "noise")
    return Augmentation(name or "none")
