"""Distribution matching, random-feature regression and class-wise accuracy, as a plugin of bpcbench."""

from pathlib import Path

import bpcbench
from bpcbench_matching.evaluator import PerClass
from bpcbench_matching.inference import RandomFeatures
from bpcbench_matching.method import DistributionMatching

BPCBENCH_API = 1


@bpcbench.hookimpl
def bpcbench_methods():
    return [DistributionMatching]


@bpcbench.hookimpl
def bpcbench_inferences():
    return [RandomFeatures]


@bpcbench.hookimpl
def bpcbench_evaluators():
    return [PerClass]


@bpcbench.hookimpl
def bpcbench_suites():
    return {"digits": Path(__file__).with_name("digits.yaml")}
