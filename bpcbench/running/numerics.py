"""How torch computes on a device: what a suite's `precision` and `deterministic` set, and what was in force."""

from __future__ import annotations

import os
import sys

_DETERMINISTIC = "deterministic"


def parted(numerics: str) -> tuple[str, bool]:
    """Return the precision of a stage, and whether it is deterministic."""
    precision, _, more = numerics.partition("+")
    return precision, more == _DETERMINISTIC


def of_plugins(numerics: str) -> str:
    """Return what plugins see as precision: `tf32` is float32 with other kernels, which is set here."""
    precision, _ = parted(numerics)
    return "float32" if precision == "tf32" else precision


def settle(numerics: str, device: str) -> None:
    """Set torch's switches for a stage: `float32` turns TF32 off, in products and convolutions; `tf32` turns it on.

    What an earlier stage of this process has turned on for itself is turned off again.
    """
    precision, deterministic = parted(numerics)
    if deterministic:
        # Read by cuBLAS when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not deterministic and not device.startswith("cuda"):
        _DETERMINISM.restore()
        return
    import torch

    fast = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    if deterministic:
        _DETERMINISM.turn_on()
    else:
        _DETERMINISM.restore()


class _Determinism:
    """Torch's switches for algorithms that repeat their bits, with what they were before."""

    def __init__(self) -> None:
        self._before: tuple[bool, bool, bool, bool] | None = None

    def turn_on(self) -> None:
        """Use such algorithms only."""
        import torch

        cudnn = torch.backends.cudnn
        if self._before is None:
            enabled, warn_only = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            self._before = enabled, warn_only, cudnn.deterministic, cudnn.benchmark
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False

    def restore(self) -> None:
        """Take back what `turn_on` has changed."""
        if self._before is None:
            return
        import torch

        enabled, warn_only, deterministic, benchmark = self._before
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = deterministic, benchmark
        self._before = None


_DETERMINISM = _Determinism()


def synchronise() -> None:
    """Wait for the GPU, if this process uses one: a time that is read before says only when work was queued."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
