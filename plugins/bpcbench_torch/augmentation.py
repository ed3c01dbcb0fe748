"""Augmentation strategies by name. Torch is imported when images are augmented, so suites are validated without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bpcbench.errors import unknown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bpcbench_torch.distortions import Draws

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
    def kinds(self) -> int:
        """How many different operations calls do: those of which mode `one` draws one each."""
        return max(1, len(self.operations)) if self.mode == "one" else 1

    @property
    def _spelled(self) -> str:
        return STRATEGIES.get(self.strategy, self.strategy)

    def __call__(self, images: Tensor, generator: torch.Generator, *, chooser: torch.Generator | None = None) -> Tensor:
        """Return augmented images of the same shape, type and device, or `images` itself if there is no operation.

        All random numbers come from `generator`, except that `chooser`, if given, draws the operation of mode `one`.
        For images on an accelerator, pass a CPU generator as one of them: otherwise the host waits for the device.
        """
        return self.drawn(chooser or generator).recorded(images, generator)[0]

    def drawn(self, chooser: torch.Generator) -> Augmentation:
        """Return the augmentation of the one operation that `chooser` draws; itself in the other modes."""
        if self.mode != "one" or not self.operations:
            return self
        import torch

        index = int(torch.randint(len(self.operations), (), generator=chooser, device=chooser.device))
        prefix = "dsa:" if self.family == "dsa" else ""
        return Augmentation(prefix + self.operations[index], "all")

    def recorded(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return augmented images and the random numbers from which `repeated` makes the same; not in mode `one`."""
        draws = self._draws(images, generator, None)
        return self._applied(images, draws), tuple(draws.numbers)

    def numbers(self, images: Tensor, generator: torch.Generator) -> Callable[[], tuple[Tensor, ...]]:
        """Return what draws the numbers of `recorded` for images of this shape, without augmenting any."""
        state = generator.get_state()
        draws = self._draws(images.detach(), generator, None)
        self._applied(images.detach(), draws)
        generator.set_state(state)
        return draws.again

    def repeated(self, images: Tensor, numbers: Sequence[Tensor]) -> Tensor:
        """Return the images of `recorded`, with gradients where these have them; no number is drawn."""
        return self._applied(images, self._draws(images, None, numbers))

    def _draws(self, images: Tensor, generator: torch.Generator | None, numbers: Sequence[Tensor] | None) -> Draws:
        from bpcbench_torch.distortions import DSA, FRePo

        return (DSA if self.family == "dsa" else FRePo)(generator, _precise(images), numbers)

    def _applied(self, images: Tensor, draws: Draws) -> Tensor:
        import torch

        operations = self.operations
        if not operations:
            return images
        if self.mode == "one":
            raise ValueError("an operation is drawn first")
        precise = _precise(images)
        if self.mode == "each":
            # All operations for all images, so that no shape depends on the draw and the host need not wait for it.
            every = torch.stack([draws.chain(precise, (operation,)) for operation in operations])
            found = every[draws.below(len(operations)), torch.arange(len(images), device=images.device)]
        else:
            found = draws.chain(precise, operations)
        return found.to(images.dtype)


def _precise(images: Tensor) -> Tensor:
    """Return images in the precision that coordinates need, for which half is too coarse."""
    import torch

    return images.to(torch.promote_types(images.dtype, torch.float32))
