"""The conformance tests of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np

from bpcbench.api import Network
from bpcbench.records import Array
from bpcbench.testing.plugins import PluginConformance, differ, same
from bpcbench.testing.toys import toy_data, toy_images


class NetworkConformance(PluginConformance):
    """A network's weights are a function of its options, the shapes and the seed; a torch one has features."""

    plugin: ClassVar[Network]

    def _build(self, seed: int = 0) -> Any:
        facts, network = toy_data().facts, self.ready()
        reason = network.skip(facts)
        if reason is not None:
            raise SkipTest(f"it refuses the toy images: {reason}")
        return network.build(facts.shape, facts.classes, seed)

    def test_deterministic(self) -> None:
        """The same seed gives the same weights, another seed gives others."""
        first, again, other = (weights(self._build(seed)) for seed in (0, 0, 1))
        same(first, again, "two networks of the same seed differ: draw the weights from a generator seeded with `seed`")
        assert differ(first, other), "another seed gives the same weights, so seeds of a suite would mean nothing"

    def test_leaves_global_generators_alone(self) -> None:
        """Building a network draws nothing from the global generators, on which the resume of a loop depends."""
        import random

        before, state = random.getstate(), str(np.random.get_state(legacy=False))
        self._build()
        assert random.getstate() == before, "build draws from Python's global generator; use `seed` instead"
        after = str(np.random.get_state(legacy=False))
        assert after == state, "build draws from NumPy's global generator; use `seed` instead"

    def test_torch(self) -> None:
        """A torch network maps images to outputs of one row per image, which are its head on its features."""
        if self.plugin.framework != "torch":
            raise SkipTest(f"it is a {self.plugin.framework} network")
        import torch

        facts, model = toy_data().facts, self._build().eval()
        images = torch.from_numpy(toy_images()[:6])
        with torch.no_grad():
            outputs = model(images)
            wanted = (6, facts.classes)
            assert tuple(outputs.shape) == wanted, f"the outputs have shape {tuple(outputs.shape)}, not {wanted}"
            assert torch.isfinite(outputs).all(), "some outputs are NaN or infinite"
            assert hasattr(model, "features"), (
                "it has no method `features(x)`, the input of its last layer, which `vi`, VBPC, FRePo and others use"
            )
            features = model.features(images)
            assert features.ndim == 2, f"features(x) has shape {tuple(features.shape)}, not (images, features)"
            if hasattr(model, "head"):
                assert torch.allclose(model.head(features), outputs, atol=1e-4), "model(x) is not head(features(x))"

    def test_parameters(self) -> None:
        """The number of parameters is what `parameters` says."""
        facts = toy_data().facts
        promised = self.ready().parameters(facts.shape, facts.classes)
        if promised is None:
            raise SkipTest("parameters() does not say how many there are")
        model = self._build()
        if not hasattr(model, "parameters"):
            raise SkipTest(f"parameters of a {self.plugin.framework} network cannot be counted")
        found = sum(p.numel() for p in model.parameters())
        assert found == promised, f"it has {found} parameters, parameters() says {promised}"


def weights(model: Any) -> dict[str, Array]:
    """Return the arrays of a built network: of a torch module, an array, or nested mappings and sequences of them."""
    if hasattr(model, "state_dict"):
        return {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}
    if isinstance(model, Mapping):
        return {f"{key}.{name}": a for key, value in model.items() for name, a in weights(value).items()}
    if isinstance(model, Sequence) and not isinstance(model, str):
        return {f"{key}.{name}": a for key, value in enumerate(model) for name, a in weights(value).items()}
    try:
        array = np.asarray(model)
    except Exception:
        array = np.asarray(None)
    if array.dtype == object:
        raise SkipTest(f"the weights of a {type(model).__name__} cannot be read")
    return {"": array}
