"""Augmentation strategies by name. Torch is imported when images are augmented, so a suite is checked without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bpcbench.errors import unknown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OPERATIONS = {
    "frepo": ("flip", "noise", "brightness", "color", "crop", "rotate", "translate", "cutout"),
    "dsa": ("color", "crop", "cutout", "flip", "scale", "rotate"),
}
"""What each family has; the ranges of the parameters are those of its paper's code (see `distortions`)."""

STRATEGIES = {
    "none": "",
    "paper-grey": "noise_brightness_crop_rotate_translate_cutout",
    "paper-rgb": "flip_noise_color_crop_rotate_translate_cutout",
    "frepo-grey": "color_crop_rotate_translate_cutout",
    "frepo-rgb": "flip_color_crop_rotate_translate_cutout",
    "dsa": "dsa:color_crop_cutout_flip_scale_rotate",
    "dsa-grey": "dsa:color_crop_cutout_scale_rotate",
}
"""`paper-…` are VBPC's lists (Kim et al., 2025). `dsa-grey` leaves out the flip, as the DSA paper does for digits."""


@dataclass(frozen=True)
class Augmentation:
    """A differentiable augmentation whose parameters are drawn anew for every image.

    `strategy` is a name of `STRATEGIES` or operations joined by `_`, of FRePo's family or, behind `dsa:`, of DSA's.
    Mode `one` draws one operation for the whole batch at every call, as both codes do (VBPC's paper does not say);
    `all` chains them in the order given, neighbouring geometric ones with a single interpolation.
    """

    strategy: str = "none"
    mode: Literal["one", "all"] = "one"

    def __post_init__(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS[self.family]:
                what = f"augmentation {self.strategy!r}: {unknown('operation', operation, OPERATIONS[self.family])}"
                raise ValueError(f"{what}; named strategies are {', '.join(STRATEGIES)}")
        if self.mode not in ("one", "all"):
            raise ValueError(unknown("augmentation mode", self.mode, ("one", "all")))

    @property
    def family(self) -> str:
        """`frepo` or `dsa`."""
        return "dsa" if self._spelled.startswith("dsa:") else "frepo"

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations, in order."""
        listed = self._spelled.removeprefix("dsa:")
        return tuple(listed.split("_")) if listed else ()

    @property
    def _spelled(self) -> str:
        return STRATEGIES.get(self.strategy, self.strategy)

    def __call__(self, images: Tensor, generator: torch.Generator, *, chooser: torch.Generator | None = None) -> Tensor:
        """Return augmented images of the same shape, type and device; `images` itself if there is no operation.

        All numbers come from `generator`, but the operation of mode `one` from `chooser` if that is given. With images
        on an accelerator one of the two should be a CPU generator: the host waits for what another one chooses.
        """
        import torch

        from bpcbench_torch.distortions import DSA, FRePo

        operations = self.operations
        if not operations:
            return images
        if self.mode == "one":
            source = chooser or generator
            index = int(torch.randint(len(operations), (), generator=source, device=source.device))
            operations = (operations[index],)
        # Half precision is too coarse for coordinates.
        precise = images.to(torch.promote_types(images.dtype, torch.float32))
        draws = (DSA if self.family == "dsa" else FRePo)(generator, precise)
        return draws.chain(precise, operations).to(images.dtype)
