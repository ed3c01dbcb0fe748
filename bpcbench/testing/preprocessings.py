"""The conformance tests of preprocessings."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from unittest import SkipTest

import numpy as np

from bpcbench.api import Preprocessing
from bpcbench.testing.plugins import PluginConformance, same
from bpcbench.testing.toys import context, toy_data


class PreprocessingConformance(PluginConformance):
    """A preprocessing maps uint8 to float32, image by image, and back."""

    plugin: ClassVar[Preprocessing]
    tolerance: ClassVar[float] = 1e-3

    def test_inverts(self, tmp_path: Path) -> None:
        """Pixels survive the round trip, and an image's result does not depend on its neighbours."""
        data, plugin = toy_data(), self.ready()
        arrays = plugin.fit(data, context(tmp_path))
        mapped = plugin.apply(data.train.images, arrays)
        assert mapped.dtype == np.float32, f"apply gives {mapped.dtype}, not float32"
        alone = plugin.apply(data.train.images[3:4], arrays)
        message = "an image's result depends on the other images: fit such statistics on the training data, in `fit`"
        np.testing.assert_allclose(alone, mapped[3:4], atol=1e-4, err_msg=message)
        back = plugin.invert(mapped, arrays)
        message = "invert(apply(images)) is not images / 255"
        np.testing.assert_allclose(back, data.train.images / 255.0, atol=self.tolerance, err_msg=message)

    def test_deterministic(self, tmp_path: Path) -> None:
        """Fitting twice gives the same arrays."""
        data, plugin = toy_data(), self.ready()
        first, again = (plugin.fit(data, context(tmp_path / name)) for name in "ab")
        same(first, again, "fitting twice gives other arrays: they must be a function of the training data alone")

    def test_takes_imported_images(self, tmp_path: Path) -> None:
        """Pixels as floats are mapped as bytes are, so that coresets from elsewhere can be brought into this space."""
        data, plugin = toy_data(), self.ready()
        arrays = plugin.fit(data, context(tmp_path))
        try:
            mapped = plugin.apply_float((data.train.images / 255.0).astype(np.float32), arrays)
        except ValueError as error:
            raise SkipTest(str(error)) from None
        message = "apply_float(images / 255) is not apply(images)"
        np.testing.assert_allclose(mapped, plugin.apply(data.train.images, arrays), atol=1e-3, err_msg=message)
