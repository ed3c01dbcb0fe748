"""What of VBPC's options reaches which stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bpcbench.planning.plan import Plan, make
from bpcbench.planning.stages import CoresetStage, PredictStage
from bpcbench.registry.discovery import Registry
from bpcbench.suite.files import load

SUITE = {
    "protocol": 1,
    "datasets": ["digits"],
    "ipc": [1],
    "inferences": ["native"],
    "networks": ["native"],
    "evaluators": ["classification"],
    "seeds": 1,
}


@pytest.fixture
def planned(registry: Registry, write_suite: Callable[..., str], tmp_path: Path) -> Callable[..., Plan]:
    def plan(**methods: dict[str, Any]) -> Plan:
        described = {label: {"plugin": "vbpc", **options} for label, options in methods.items()}
        return make(
            registry, load(registry, write_suite(yaml.safe_dump(SUITE | {"methods": described}))), None, tmp_path
        )

    return plan


def test_steps_of_the_evaluation_share_one_coreset(planned: Callable[..., Plan]) -> None:
    plan = planned(short={"evaluation_steps": 10}, long={"evaluation_steps": 20})
    coresets = [one.stage for one in plan.stages if isinstance(one.stage, CoresetStage)]
    predicts = [one.stage for one in plan.stages if isinstance(one.stage, PredictStage)]
    assert len(coresets) == 1
    assert sorted(stage.inference.options["steps"] for stage in predicts) == [10, 20]
    assert {stage.coresets for stage in predicts} == {coresets[0].addresses}
    assert {address for cell in plan.cells for address in cell.coresets} == set(coresets[0].addresses)
    assert len({address for cell in plan.cells for address in cell.scores.values()}) == 2


def test_an_option_of_the_distillation_makes_another_coreset(planned: Callable[..., Plan]) -> None:
    plan = planned(few={"steps": 10}, many={"steps": 20})
    assert sum(isinstance(one.stage, CoresetStage) for one in plan.stages) == 2
    assert sum(isinstance(one.stage, PredictStage) for one in plan.stages) == 2
