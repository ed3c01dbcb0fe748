from bpcbench_matching.evaluator import PerClass
from bpcbench_matching.inference import RandomFeatures
from bpcbench_matching.method import DistributionMatching

from bpcbench.testing import EvaluatorConformance, InferenceConformance, MethodConformance
from bpcbench_torch.networks import ConvIN


class TestDistributionMatching(MethodConformance):
    plugin = DistributionMatching(steps=6, batch=8, lr=0.1, network=ConvIN(width=4))


class TestRandomFeatures(InferenceConformance):
    plugin = RandomFeatures(members=2)
    network = ConvIN(width=4)


class TestPerClass(EvaluatorConformance):
    plugin = PerClass()
