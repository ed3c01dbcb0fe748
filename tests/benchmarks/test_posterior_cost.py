"""Time and extra memory of VBPC's loss, closed form by n^ x n^ against naively by V (the paper's Table 6).

    pytest tests/benchmarks/test_posterior_cost.py -s -m benchmark

Loss only: features are given, a batch of 1024, k = 10, float32; loss and its gradient with respect to Phi and Y. Every
case runs in a process of its own with one thread. Memory is the peak of the resident set above that just before the
first call, kernel workspaces included; time is the best of up to ten calls, in CPU seconds as machines may be shared.
The naive cases beyond h = 2048 take minutes: they run with BPCBENCH_SLOW=1. Nothing is asserted about time.

The paper reports 5.5 times less time and half the memory. Its "efficient" 268.9 MB are close to the size of one
h x h array in float32 at h = 8192 (268.4 MB), which does not show that its code holds one. One run on a shared 2-core
AMD EPYC, torch 2.13:

| h | n^ | CPU s | naive | ratio | extra MB | naive | ratio |
|---:|---:|---:|---:|---:|---:|---:|---:|
| 512 | 10 | 0.0021 | 0.0553 | 26.6 | 1 | 14 | 10.8 |
| 512 | 100 | 0.0085 | 0.0576 | 6.8 | 3 | 12 | 3.6 |
| 512 | 1000 | 0.0878 | 0.0788 | 0.9 | 20 | 15 | 0.7 |
| 1024 | 10 | 0.0038 | 0.3271 | 86.8 | 3 | 37 | 11.1 |
| 1024 | 100 | 0.0132 | 0.3304 | 25.0 | 5 | 41 | 7.6 |
| 1024 | 1000 | 0.4260 | 0.4395 | 1.0 | 69 | 25 | 0.4 |
| 2048 | 10 | 0.0069 | 2.1282 | 306.7 | 7 | 113 | 15.3 |
| 2048 | 100 | 0.0218 | 1.9791 | 90.8 | 9 | 114 | 12.8 |
| 2048 | 1000 | 0.6262 | 2.3048 | 3.7 | 74 | 130 | 1.8 |
| 4096 | 10 | 0.0122 | 13.7265 | 1120.8 | 16 | 361 | 23.2 |
| 4096 | 100 | 0.0406 | 15.5407 | 383.0 | 17 | 361 | 21.5 |
| 4096 | 1000 | 0.9951 | 15.8227 | 15.9 | 117 | 340 | 2.9 |
| 8192 | 10 | 0.0478 | 99.7748 | 2087.9 | 32 | 1291 | 40.3 |
| 8192 | 100 | 0.0949 | 97.3936 | 1026.1 | 33 | 1293 | 39.6 |
| 8192 | 1000 | 1.5862 | 101.3435 | 63.9 | 172 | 1317 | 7.7 |

Where n^ is about h or larger there is nothing to gain (512 x 1000 takes the h x h path by Cholesky). The 32 MB at
h = 8192 are the squares of the batch's features.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WIDTHS = (512, 1024, 2048, 4096, 8192)
ROWS = (10, 100, 1000)
SLOW = bool(os.environ.get("BPCBENCH_SLOW"))
LONGEST = 2048
"""The widest naive case that runs without being asked for."""

CASE = """
import json, sys, time
import torch
from bpcbench_vbpc import naive, posterior
from bpcbench_vbpc.likelihood import mean_field_log_probs, outer_loss

kind, width, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fit = naive.fit if kind == "naive" else posterior.fit


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def make(rows, width, batch=1024):
    features, phi = torch.randn(rows, width).relu(), torch.randn(batch, width).relu()
    targets = torch.eye(10)[torch.arange(rows) % 10] - 0.1
    return features.requires_grad_(), targets.requires_grad_(), phi, torch.arange(batch) % 10


def loss(features, targets, phi, labels):
    fitted = fit(features, targets, 1.0, 100.0)
    value = outer_loss(mean_field_log_probs(*fitted.predict(phi)), labels, fitted.kl(), 1e-8)
    torch.autograd.grad(value, [features, targets])


loss(*make(10, 64))  # loads the libraries
case = make(rows, width)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # sets the high-water mark to the present
before = status("VmRSS")
times = []
while sum(times) < 3 and len(times) < 10:
    start = time.process_time()
    loss(*case)
    times.append(time.process_time() - start)
    if len(times) == 1:
        memory = status("VmHWM") - before
print(json.dumps({"seconds": min(times), "megabytes": memory}))
"""


def measure(kind: str, width: int, rows: int) -> dict[str, float]:
    command = [sys.executable, "-c", CASE, kind, str(width), str(rows)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure a peak of memory")
def test_efficient_against_naive_loss() -> None:
    print("\n| h | n^ | CPU s | naive | ratio | extra MB | naive | ratio |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for width in WIDTHS:
        for rows in ROWS:
            ours = measure("efficient", width, rows)
            cells = [str(width), str(rows)]
            theirs = measure("naive", width, rows) if SLOW or width <= LONGEST else None
            for quantity, digits in (("seconds", 4), ("megabytes", 0)):
                cells.append(f"{ours[quantity]:.{digits}f}")
                if theirs is None:
                    cells += ["-", "-"]
                else:
                    ratio = theirs[quantity] / max(ours[quantity], 1e-6)
                    cells += [f"{theirs[quantity]:.{digits}f}", f"{ratio:.1f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
