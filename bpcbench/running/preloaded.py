"""Imported once by the fork server, so that every worker starts with plugins and their frameworks in memory.

Whatever fails here is left for the stage that needs it, where it is reported.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal

import bpcbench.running.bodies
from bpcbench.registry.discovery import registry
from bpcbench.running.worker import PRELOAD_VARIABLE
from bpcbench.store import provenance

__all__ = ["bpcbench"]

if PRELOAD_VARIABLE in os.environ:
    # A SIGTERM to all processes of a run must leave the server standing until the workers have written their
    # checkpoints. Ignored, whichever thread of a library gets it; and blocked, so that it waits for a young worker.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Nothing to tidy up in the server: without this it would take frameworks apart for a second after every run.
    atexit.register(os._exit, 0)

registry()
for _module in (
    "numpy.ma",
    "omegaconf",
    "safetensors.numpy",
    "threadpoolctl",
    *os.environ.get(PRELOAD_VARIABLE, "").split(","),
):
    with contextlib.suppress(Exception, SystemExit):
        importlib.import_module(_module)
# The same for all workers of a run, and slow to find out.
provenance.versions()
provenance.machine()
provenance.git_hash()
