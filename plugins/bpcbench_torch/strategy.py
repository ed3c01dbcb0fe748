"""The augmentation for a strategy name of a suite and a number of image channels."""

from __future__ import annotations

from bpcbench_torch.augmentation import STRATEGIES, Augmentation

_BY_CHANNELS = ("paper", "frepo", "rcig")
_QUIET, _ALL, _EACH = "-quiet", "-all", "-each"


def strategy(name: str, channels: int) -> Augmentation:
    """Return the augmentation for a name; raise ValueError if the name is unknown.

    `paper` (VBPC's list), `frepo` and `rcig` select their lists for grey or RGB images. Two suffixes may follow, in
    this order: `-all` chains all operations of the list instead of drawing one per call, or `-each` draws one for every
    image; `-quiet` removes the noise. `Augmentation` parses all other names.
    """
    quiet, name = name.endswith(_QUIET), name.removesuffix(_QUIET)
    chained, name = name.endswith(_ALL), name.removesuffix(_ALL)
    each, name = name.endswith(_EACH), name.removesuffix(_EACH)
    if name in _BY_CHANNELS:
        name += "-grey" if channels == 1 else "-rgb"
    if quiet:
        name = "_".join(part for part in STRATEGIES.get(name, name).split("_") if part != "noise")
    return Augmentation(name or "none", mode="all" if chained else "each" if each else "one")
