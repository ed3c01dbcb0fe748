"""A real Slurm of two nodes on 127.0.0.1: munge, a controller, two slurmd, all below one folder and without systemd.

Two nodes of eight declared CPUs each, two make-believe GPUs on n1; partitions `main`, and `low` whose jobs are requeued
when one of `main` needs their place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")


def missing() -> str:
    """Return why no cluster can be started here; empty if one can."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "starting Slurm's daemons needs root"


def until(condition: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
    """Wait for something and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain for {what or condition}"
        time.sleep(0.05)
    return found


class Cluster:
    """The daemons, each known by its pid file."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.configuration = base / "etc" / "slurm.conf"
        for name in ("etc", "state", "spool/n1", "spool/n2", "log", "run"):
            (base / name).mkdir(parents=True)
        base.chmod(0o755)

    def start(self) -> None:
        """Start everything and wait for both nodes."""
        (self.base / "etc" / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.base / "etc" / "munge.key").chmod(0o600)
        self.configuration.write_text(_CONFIGURATION.format(base=self.base, host=socket.gethostname(), **_facts()))
        for number in (0, 1):
            # A copy of /dev/null stands in for a card, or an empty file where that is not allowed.
            try:
                os.mknod(self.base / "run" / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except OSError:
                (self.base / "run" / f"gpu{number}").touch()
        (self.base / "etc" / "gres.conf").write_text(f"NodeName=n1 Name=gpu File={self.base}/run/gpu[0-1]\n")
        os.environ["SLURM_CONF"] = str(self.configuration)
        run = self.base / "run"
        _start(
            "munged",
            f"--key-file={self.base}/etc/munge.key",
            f"--socket={run}/munge.socket",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.base}/log/munged.log",
            f"--seed-file={run}/munge.seed",
            "--num-threads=2",
        )
        self.start_controller()
        for name in ("n1", "n2"):
            self.start_node(name)
        until(lambda: self.idle() == {"n1", "n2"})

    def start_controller(self) -> None:
        """Start the controller."""
        _start("slurmctld")

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        _start("slurmd", "-N", name)

    def kill(self, daemon: str) -> None:
        """Kill `slurmctld`, or `slurmd-n1`, as a power failure would; jobs of a node live on."""
        os.kill(self.pid(daemon), signal.SIGKILL)

    def pid(self, daemon: str) -> int:
        """Return the process of a daemon."""
        return int((self.base / "run" / f"{daemon}.pid").read_text())

    def call(self, *command: str) -> str:
        """Run a command of Slurm."""
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def idle(self) -> set[str]:
        """Return the nodes that are up and do nothing."""
        return set(self.call("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split())

    def jobs(self, states: str = "PENDING,RUNNING,COMPLETING") -> dict[str, list[str]]:
        """Return number, state, node and restarts of every job by its name."""
        listed = self.call("squeue", "--noheader", f"--states={states}", "--format=%j|%i|%T|%N")
        return {(parts := line.split("|"))[0]: parts[1:] for line in listed.splitlines()}

    def empty(self) -> None:
        """Cancel everything, bring the nodes back, and wait until no job is left."""
        subprocess.run(["scancel", "--me"], check=False, capture_output=True)
        until(lambda: not self.jobs())
        if self.idle() != {"n1", "n2"}:
            subprocess.run(
                ["scontrol", "update", "nodename=n[1-2]", "state=resume"], check=False, capture_output=True, timeout=60
            )
            until(lambda: self.idle() == {"n1", "n2"}, 60, "the nodes")

    def stop(self) -> None:
        """End the daemons."""
        subprocess.run(["scancel", "--me"], check=False, capture_output=True, timeout=60)
        time.sleep(0.5)
        for daemon in ("slurmd-n1", "slurmd-n2", "slurmctld", "munged"):
            try:
                pid = self.pid(daemon)
                os.kill(pid, signal.SIGTERM)
                end = time.monotonic() + 5
                while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
                    time.sleep(0.05)
                os.kill(pid, signal.SIGKILL)
            except (OSError, ValueError):
                continue
        os.environ.pop("SLURM_CONF", None)


def _start(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _facts() -> dict[str, Any]:
    said = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True).stdout
    memory = next(word.partition("=")[2] for word in said.split() if word.startswith("RealMemory="))
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return {"memory": memory, "port": ports[0], "port1": ports[1], "port2": ports[2]}


_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/run/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny,DisableIPv6
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
MinJobAge=300
SlurmctldTimeout=5
SlurmdTimeout=5
MessageTimeout=5
TCPTimeout=2
InactiveLimit=0
KillWait=5
UnkillableStepTimeout=15
CompleteWait=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=8 RealMemory={memory} Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=8 RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
"""
