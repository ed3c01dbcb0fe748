"""Imported once by the fork server, so that every worker starts with plugins and their frameworks in memory.

Errors are ignored here, of too little memory for example; the stage that needs the module reports them.
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
    # A SIGTERM to all processes of a run, or the SIGHUP of a closed terminal, must not end the server before the
    # workers have written their checkpoints: it is the server that knows how they end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Ignored, whichever thread receives it; and blocked, so that it stays pending for a worker that is starting.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # The server has nothing to clean up: without this it would spend a second tearing down frameworks after every run.
    atexit.register(os._exit, 0)

with contextlib.suppress(Exception):
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
# The same for all workers of a run, and slow to compute.
for _compute in (provenance.versions, provenance.machine, provenance.git_hash):
    with contextlib.suppress(Exception):
        _compute()
