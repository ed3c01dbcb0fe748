"""Augmentation strategies by name. Torch is imported when images are augmented, so suites are validated without it."""

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
"""The operations of each family; parameter ranges are those of its paper's code (see `distortions`)."""

STRATEGIES = {
    "none": "",
    "paper-grey": "noise_brightness_crop_rotate_translate_cutout",
    "paper-rgb": "flip_noise_color_crop_rotate_translate_cutout",
    "frepo-grey": "color_crop_rotate_translate_cutout",
    "frepo-rgb": "flip_color_crop_rotate_translate_cutout",
    "rcig-grey": "crop_rotate_translate_cutout",
    "rcig-rgb": "flip_color_crop_rotate_translate_cutout",
    "dsa": "dsa:color_crop_cutout_flip_scale_rotate",
    "dsa-grey": "dsa:color_crop_cutout_scale_rotate",
}
"""`paper-…` are VBPC's lists (Lee, Lee & Lee, 2025). `dsa-grey` omits the flip, as the DSA paper does for digits."""


@dataclass(frozen=True)
class Augmentation:
    """A differentiable augmentation with independent parameters for every image.

    `strategy` is a name in `STRATEGIES`, or operations joined by `_`: FRePo's or, after the prefix `dsa:`, DSA's. Mode
    `one` draws one operation for the whole batch at every call, as both codes do (VBPC's paper does not specify it).
    Mode `all` chains the operations in the given order; adjacent geometric ones share a single interpolation. Mode
    `each` draws one operation for every image, as RCIG's code does. Suites choose these by the suffixes `-all` and
    `-each` (`bpcbench_torch.strategy`).
    """

    strategy: str = "none"
    mode: Literal["one", "all", "each"] = "one"

    def __post_init__(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS[self.family]:
                what = f"augmentation {self.strategy!r}: {unknown('operation', operation, OPERATIONS[self.family])}"
                raise ValueError(f"{what}; named strategies are {', '.join(STRATEGIES)}")
        if self.mode not in ("one", "all", "each"):
            raise ValueError(unknown("augmentation mode", self.mode, ("one", "all", "each")))

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
        """Return augmented images of the same shape, type and device, or `images` itself if there is no operation.

        All random numbers come from `generator`, except that `chooser`, if given, draws the operation of mode `one`.
        For images on an accelerator, pass a CPU generator as one of them: otherwise the host waits for the device.
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
        if self.mode == "each":
            # All operations for all images, so that no shape depends on the draw and the host need not wait for it.
            every = torch.stack([draws.chain(precise, (operation,)) for operation in operations])
            drawn = torch.randint(len(operations), (len(images),), generator=generator, device=generator.device)
            return every[drawn.to(images.device), torch.arange(len(images), device=images.device)].to(images.dtype)
        return draws.chain(precise, operations).to(images.dtype)
