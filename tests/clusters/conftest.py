"""Clusters for the tests that want a real one."""

from __future__ import annotations

from cluster_fixtures import ray_nodes, slurm, slurm_daemons

__all__ = ["ray_nodes", "slurm", "slurm_daemons"]
