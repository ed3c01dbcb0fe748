"""What a worker must still import when it fits: what takes long is named in `preload`, and paid for once per run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LARGE = 40
"""More new modules than that are a library: scipy.stats brings about 560."""
FIT = """
import importlib, sys
from pathlib import Path
from bpcbench import testing
from bpcbench.running import preloaded
from bpcbench_torch.inferences import Ensemble
from bpcbench_torch.networks import ConvBN
from bpcbench_torch.samplers import SGHMCInference
from bpcbench_vbpc.inference import VariationalInference
inference = {inference}
network = ConvBN(width=4)
for module in (*inference.preload, *network.preload):
    importlib.import_module(module)
before = set(sys.modules)
predictive = inference.fit(testing.toy_coreset(), network, testing.toy_inputs(), testing.context(Path(sys.argv[1])))
predictive.predict(testing.toy_coreset().images)
new = sorted(name for name in set(sys.modules) - before if not name.startswith("bpcbench"))
print(len(new), *new[:20])
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    "inference",
    [
        "SGHMCInference(chains=1, burn=2, samples=4, thin=1)",
        "Ensemble(steps=2, members=2)",
        "VariationalInference(steps=2)",
    ],
)
def test_a_fit_imports_no_library(inference: str, tmp_path: Path) -> None:
    code = FIT.format(inference=inference)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) < LARGE, done.stdout
