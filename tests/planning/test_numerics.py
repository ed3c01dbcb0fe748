"""Precision and determinism in keys: absent where nothing is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpcbench import Session
from bpcbench.errors import UserError

TINY = ["methods=[random]", "ipc=[1]", "seeds=1"]


def keys(folder: Path, *more: str) -> set[str]:
    return {stage.id for stage in Session("quickstart", [*TINY, *more], out=folder).prepare().plan.stages}


def test_only_what_is_asked_for_is_in_keys(tmp_path: Path) -> None:
    plain = keys(tmp_path)
    assert keys(tmp_path, "deterministic=false", "precision=float32") == plain
    assert keys(tmp_path, "engine.plugin=local", "engine.overrides={random: {gpus: 0.5}}", "engine.gpus=0") == plain
    for other in ("deterministic=true", "precision=tf32", "precision=bf16"):
        assert not keys(tmp_path, other) & plain


@pytest.mark.parametrize(("word", "meant"), [("fp16", "bf16"), ("fp32", "float32"), ("bf61", "bf16")])
def test_an_unknown_precision_is_an_error(tmp_path: Path, word: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"unknown precision '{word}'; did you mean '{meant}'"):
        keys(tmp_path, f"precision={word}")
