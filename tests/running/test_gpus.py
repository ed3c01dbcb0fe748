"""GPUs that a run hands out: counted as torch counts them, and shared or exclusive as a suite says; all simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plain_stages import planned

from bpcbench.records import RunInfo, Task
from bpcbench.running import gpus
from bpcbench.running.engines import Local
from bpcbench.running.run import make_task


@pytest.mark.parametrize(
    ("visible", "present", "names"),
    [
        (None, 2, ("0", "1")),
        (None, None, ()),
        ("", 2, ()),
        ("-1", 2, ()),
        ("1,0", 2, ("1", "0")),
        ("0,-1,1", 2, ("0",)),
        ("0,5,1", 2, ("0",)),
        ("3,5", None, ("3", "5")),
        ("0,0", 2, ()),
        ("GPU-5fd4,MIG-1", 2, ("GPU-5fd4", "MIG-1")),
    ],
)
def test_visible_gpus_are_those_of_cuda(visible: str | None, present: int | None, names: tuple[str, ...]) -> None:
    assert gpus.listed(visible, present) == names


def test_the_first_that_can_count_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "cpu_build", lambda file: "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus.nvml, "count", lambda: None)
    monkeypatch.setattr(gpus, "_by_nvidia_smi", lambda: 1 // 0)
    monkeypatch.setattr(gpus, "_by_driver", lambda: 3)
    assert gpus.visible_gpus() == ("0", "1", "2")
    # A torch for the CPU beside three GPUs uses none of them.
    monkeypatch.setattr(gpus, "cpu_build", lambda file: "2.9+cpu")
    assert gpus.visible_gpus() == ()


@pytest.mark.parametrize(
    ("device", "wanted", "said"),
    [
        ("auto", None, None),
        ("auto", 0, None),
        ("auto", 1, None),
        ("cpu", 4, None),
        ("cuda:0", None, None),
        ("cuda", 1, None),
        ("auto", 4, "engine.gpus is 4, but torch can use 1 GPU here"),
        ("cuda", 0, "engine.gpus is 0, but the device is 'cuda'"),
        ("cuda:0", 0, "engine.gpus is 0, but the device is 'cuda:0'"),
        ("cuda:1", None, "device 'cuda:1' is not available on this machine: torch can use 1 GPU here, counted from 0"),
    ],
)
def test_what_is_not_there_is_refused(
    device: str, wanted: int | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = gpus.impossible(device, wanted, lambda: ("0",))
    assert (found or "").startswith(said or "")
    assert (found is None) == (said is None)


@pytest.mark.parametrize("values", [{"gpus": 2}, {"gpus": True}, {"memory": 1}, {"gpus": "half"}, 0.5])
def test_shares_are_checked(values: object) -> None:
    with pytest.raises(ValueError, match=r"overrides\.vbpc: expected a mapping such as"):
        Local(overrides={"vbpc": values})
    with pytest.raises(ValueError, match="must not be negative"):
        Local(gpus=-1)


def test_a_number_beyond_those_that_the_engine_uses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.impossible("cuda:1", 2, lambda: ("0", "1")) is None
    said = gpus.impossible("cuda:1", 1, lambda: ("0", "1"))
    assert said == (
        "device 'cuda:1' is not available on this machine: torch can use 2 GPUs here, and engine.gpus is 1, "
        "counted from 0"
    )
    assert str(gpus.impossible("cuda", None, lambda: ())).startswith("device 'cuda' is not available")


def test_the_library_of_the_driver_counts_where_no_tool_does() -> None:
    assert gpus._by_library() == (0 if gpus._by_driver() is None else gpus._by_driver())


class Silent:
    """A worker that never answers."""

    sent: list[Task]
    process = None

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        pass

    def send(self, task: Task) -> None:
        self.sent.append(task)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that submits a stage of plugin `p` to an engine with GPUs 3 and 5."""
    monkeypatch.setattr("bpcbench.running.local.Worker", Silent)
    monkeypatch.setattr(Silent, "sent", [], raising=False)
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ("3", "5"))

    def start(**options: object):
        pool = Local(jobs=9, **options).open(RunInfo(store=tmp_path, run="r"))

        def submit(device: str = "auto", share: float = 1.0) -> str | None:
            task = make_task(planned("k", gpus=share), tmp_path, tmp_path, log=tmp_path / "log")
            return f"{Silent.sent[-1].visible}" if pool.submit(replace(task, device=device)) else None

        return submit

    return start


def test_whole_gpus_are_exclusive(submitted) -> None:
    submit = submitted()
    assert [submit() for _ in range(3)] == ["3", "5", None]


def test_a_suite_may_share_them(submitted) -> None:
    submit = submitted(overrides={"p": {"gpus": 0.5}})
    assert [submit() for _ in range(5)] == ["3", "3", "5", "5", None]


def test_a_suite_may_use_fewer(submitted) -> None:
    submit = submitted(gpus=1)
    assert [submit() for _ in range(2)] == ["3", None]


def test_a_numbered_device_is_that_one_and_number_0_for_its_worker(submitted) -> None:
    submit = submitted()
    assert [submit("cuda:1"), submit("cuda:1"), submit("cuda:0")] == ["5", None, "3"]
    assert [task.device for task in Silent.sent] == ["cuda", "cuda"]


def test_the_cpu_needs_none(submitted) -> None:
    submit = submitted()
    assert [submit("cpu") for _ in range(4)] == ["None"] * 4


@pytest.mark.parametrize(
    "options", [{"gpus": 0}, {"overrides": {"p": {"gpus": 0}}}], ids=["engine without GPUs", "plugin without a share"]
)
def test_without_a_share_a_stage_sees_no_gpu_and_computes_on_the_cpu(submitted, options: dict[str, object]) -> None:
    submit = submitted(**options)
    # Left alone, each of them would find all GPUs.
    assert [submit() for _ in range(3)] == [""] * 3
    assert [(task.visible, task.device) for task in Silent.sent] == [("", "cpu")] * 3


def test_a_stage_that_asks_for_no_gpu_sees_none(submitted) -> None:
    submit = submitted()
    assert [submit("auto", 0.0), submit("cuda", 0.0), submit()] == ["", "", "3"]
    assert [task.device for task in Silent.sent] == ["cpu", "cpu", "auto"]
