"""Every first-party plugin passes the conformance tests that third parties are offered."""

from __future__ import annotations

import pytest

from bpcbench.testing import (
    DatasetConformance,
    EvaluatorConformance,
    InferenceConformance,
    MethodConformance,
    PreprocessingConformance,
)
from bpcbench_baselines.herding import Herding
from bpcbench_baselines.kmeans import KMeans
from bpcbench_baselines.random_choice import RandomChoice
from bpcbench_baselines.whole import Whole
from bpcbench_data.digits import Digits
from bpcbench_evaluators.classification import Classification
from bpcbench_evaluators.continual import Continual
from bpcbench_torch.inferences import Ensemble, NetworkInference
from bpcbench_torch.networks import ConvBN, ConvGN, ConvIN, ConvNN
from bpcbench_torch.preprocessing import Standardize


class TestRandom(MethodConformance):
    plugin = RandomChoice()


class TestHerding(MethodConformance):
    plugin = Herding()


class TestKMeans(MethodConformance):
    plugin = KMeans()


class TestWhole(MethodConformance):
    plugin = Whole()


class TestClassification(EvaluatorConformance):
    plugin = Classification()


class TestContinual(EvaluatorConformance):
    plugin = Continual()


class TestDigits(DatasetConformance):
    plugin = Digits()


class TestStandardize(PreprocessingConformance):
    plugin = Standardize()


@pytest.fixture(params=[ConvBN, ConvIN, ConvGN, ConvNN], ids=lambda cls: cls.name)
def network(request):
    request.cls.network = request.param(width=8)


@pytest.mark.usefixtures("network")
class TestNetwork(InferenceConformance):
    plugin = NetworkInference(steps=20)


@pytest.mark.usefixtures("network")
class TestEnsemble(InferenceConformance):
    plugin = Ensemble(steps=10, members=2)
