"""A real Ray of two nodes on 127.0.0.1, in a network namespace of its own: Ray asks for cloud metadata and DNS.

`python ray_cluster.py FOLDER` starts it, prints its address as JSON, and ends with its standard input; the line `kill`
kills the raylet of the second node, `kill all` whatever holds the cluster together.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NEW_NETWORK = 0x40000000
SETTINGS = {
    # On Linux Ray turns 127.0.0.1 into the public address and listens everywhere; this keeps the loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}


def missing() -> str:
    """Return why no cluster can be started here; empty if one can."""
    if importlib.util.find_spec("ray") is None:
        return 'not installed: pip install -e ".[ray]"'
    if shutil.which("ip") is None:
        return "not installed: ip (apt-get install iproute2)"
    return "" if os.geteuid() == 0 else "a network namespace needs root"


def enter_namespace() -> None:
    """Put this process where there is no network but a loopback of its own."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Cluster:
    """The process that holds the nodes."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._start()

    def _start(self) -> None:
        os.environ.update(SETTINGS)
        command = [sys.executable, __file__, str(self._base)]
        self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def kill_node(self) -> None:
        """Kill the raylet of the second node; its workers live on."""
        self._say("kill")

    def kill_all(self) -> None:
        """Kill the head node and the other; the workers of both live on."""
        self._say("kill all")

    def restart(self) -> None:
        """Start two nodes anew, at another address."""
        self.process.kill()
        self.process.wait()
        self._start()

    def add_node(self) -> None:
        """Start a second node again."""
        self._say("add")

    def _say(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def stop(self) -> None:
        """End all nodes."""
        self.process.communicate(timeout=60)


def main(base: str) -> None:
    os.environ.update(SETTINGS)
    os.environ["RAY_TMPDIR"] = base
    from ray.cluster_utils import Cluster as Nodes

    common = {"num_cpus": 4, "memory": 2 * 10**9, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
    head = {**common, "num_gpus": 2, "include_dashboard": False, "resources": {"first": 8}}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    second = nodes.add_node(**common, resources={"second": 8})
    nodes.wait_for_nodes()
    print(json.dumps({"address": nodes.address}), flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            nodes.remove_node(second, allow_graceful=False)
        elif line.strip() == "kill all":
            for node in nodes.list_all_nodes():
                node.kill_all_processes(check_alive=False, allow_graceful=False)
        else:
            second = nodes.add_node(**common, resources={"second": 8})
            nodes.wait_for_nodes()
        print("done", flush=True)
    nodes.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
