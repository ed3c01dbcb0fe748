"""What surrounds a result: versions, machine, device, and a hash of the code that made it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bpcbench.plugins import Registry

RECORDED = ("bpcbench", "numpy", "scikit-learn", "scipy", "torch", "torchvision", "jax", "safetensors", "mlflow")
DATA_VARIABLE = "BPCBENCH_DATA"


def data_root(given: str | None = None) -> Path:
    """Return where data sets are looked for: the argument, else BPCBENCH_DATA, else ~/.cache/bpcbench/data."""
    return Path(given or os.environ.get(DATA_VARIABLE) or Path.home() / ".cache" / "bpcbench" / "data").expanduser()


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the libraries that can change results."""
    found = {"python": platform.python_version()}
    for name in RECORDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def machine() -> Mapping[str, Any]:
    """Return the machine in a few words."""
    return {"system": platform.platform(), "processor": processor(), "cpus": os.cpu_count()}


def processor() -> str:
    """Return the CPU's model name where it can be read."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def git_hash() -> str | None:
    """Return the commit of the checkout that bpcbench runs from, with `+` if it has changes; None in a wheel."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


@functools.cache
def _package_hash(package: str) -> str:
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    if file is None:
        return ""
    path = Path(file)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    result = hashlib.sha256()
    for source in files:
        result.update(source.relative_to(path.parent).as_posix().encode())
        result.update(source.read_bytes())
    return result.hexdigest()[:16]


def source_hash(registry: Registry, kind: str, name: str) -> str:
    """Return a hash of the source of the package that a plugin lives in."""
    return _package_hash(registry.get(kind, name).cls.__module__.partition(".")[0])


def resolve_device(wanted: str) -> str:
    """Return the device for `auto`: an accelerator that torch sees (if torch is loaded), else the CPU."""
    if wanted != "auto":
        return wanted
    torch = sys.modules.get("torch")
    if torch is None:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def gpu_count() -> int:
    """Return how many GPUs this process may use, without importing a framework."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([item for item in visible.split(",") if item.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def limit_threads(threads: int) -> None:
    """Set the number of CPU threads of everything loaded in this process."""
    import threadpoolctl

    # Kept for the life of the process on purpose: the limits object would lift them when collected.
    threadpoolctl.threadpool_limits(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
