from bpcbench_blend import Blend

from bpcbench.testing import MethodConformance


class TestBlend(MethodConformance):
    plugin = Blend(steps=5)
