"""The options of the engine `ray`, and what it says without Ray: no Ray is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from bpcbench import RunInfo
from bpcbench.errors import EngineError
from bpcbench_ray.engine import RayEngine


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": -1}, "gpus: expected a number, got -1"),
        ({"overrides": {"vbpc": {"gpu": 1}}}, "overrides.vbpc.unknown option 'gpu'; did you mean 'gpus'?"),
        ({"overrides": {"vbpc": 1}}, "overrides.vbpc: expected a mapping"),
        ({"overrides": {"vbpc": {"memory": "32G"}}}, "overrides.vbpc.memory: expected GB, got '32G'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?").replace(".", r"\.")):
        RayEngine(**options)  # type: ignore[arg-type]


def test_without_ray_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r'pip install "bpcbench\[ray\]"'):
        RayEngine().open(RunInfo(store=tmp_path, run="r"))
