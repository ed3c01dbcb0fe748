"""Clusters for the tests that want a real one: started once, on this machine alone."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray_cluster
import slurm_cluster


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[slurm_cluster.Cluster]:
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    # Not tmp_path: paths of sockets are short.
    base = Path(tempfile.mkdtemp(prefix="bpc-slurm-"))
    cluster = slurm_cluster.Cluster(base)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def slurm(slurm_daemons: slurm_cluster.Cluster) -> Iterator[slurm_cluster.Cluster]:
    """A cluster without jobs, all of whose nodes are up."""
    slurm_daemons.empty()
    yield slurm_daemons
    slurm_daemons.empty()


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[ray_cluster.Cluster]:
    if reason := ray_cluster.missing():
        pytest.skip(reason)
    # From here on this process has no network but its own loopback.
    try:
        ray_cluster.enter_namespace()
    except OSError as error:
        pytest.skip(f"a network namespace is not allowed here: {error}")
    base = Path(tempfile.mkdtemp(prefix="bpc-ray-"))
    cluster = ray_cluster.Cluster(base)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)
