"""The pool of the engine `ray`: what Ray says of actors is a hint; outcomes come from the store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpcbench import Ended, RunInfo, Started, Task
from bpcbench.errors import EngineError
from bpcbench_ray.actor import StageActor
from bpcbench_ray.head import Head

# Before Ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

if TYPE_CHECKING:
    from bpcbench_ray.engine import RayEngine

NAMESPACE = "bpcbench"
CONNECT_SECONDS = 10.0
HANDOVER_SECONDS = 3.0
"""How long actors that do not live yet are waited for when a run leaves them."""
_INHERITED = ("PYTHONPATH",)
"""What the worker's environment takes from this process's, besides BPCBENCH_*."""


@dataclass
class _Attempt:
    task: Task
    actor: Any
    ref: Any
    """The pending call: `where`, later `join`."""
    started: bool = False


class RayPool:
    """A named, detached actor for each attempt."""

    def __init__(self, engine: RayEngine, run: RunInfo, slots: int) -> None:
        self.slots = slots
        self._engine, self._run = engine, run
        self._folder = run.folder("ray")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._attempts: dict[str, _Attempt] = {}
        self._news: list[Started | Ended] = []
        self._stopping: set[str] = set()
        self._told: set[str] = set()
        self._mine = not ray.is_initialized()
        if self._mine:
            slow = threading.Timer(CONNECT_SECONDS, run.report, ["Ray does not answer yet; it tries for minutes"])
            slow.daemon = True
            slow.start()
            try:
                _connect(engine.address)
            finally:
                slow.cancel()
        self._head = Head(ray.get_runtime_context().gcs_address, run.report)

    def adopt(self) -> Iterable[Task]:
        """Return the tasks that earlier runs have left, those without a living actor or an outcome apart."""
        left = []
        named: set[str] = set()
        for file, task in self._files():
            # An actor is named after its stage: it is that of the newest file.
            newest = task.id not in named
            named.add(task.id)
            if not self._run.claim(task):
                continue
            actor = _found(task) if newest else None
            if actor is not None:
                self._attempts[task.attempt] = _Attempt(task, actor, actor.where.remote())
            elif task.outcome_file.exists():
                self._news.append(Ended(task.attempt))
            if actor is not None or task.outcome_file.exists():
                left.append(task)
            if actor is None:
                file.unlink(missing_ok=True)
        return left

    def _files(self) -> list[tuple[Path, Task]]:
        """Return the files of all tasks of this store, the newest first."""
        found = []
        for file in self._folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.append((file.stat().st_mtime_ns, file, Task.from_json(json.loads(file.read_text()))))
        return [(file, task) for _, file, task in sorted(found, key=lambda one: one[0], reverse=True)]

    def submit(self, task: Task) -> bool:
        """Create an actor; Ray queues it until there is room. While the head node is away this would not return."""
        if not self._head.answers(fresh=True):
            return False
        asked = self._resources(task)
        if not asked["num_gpus"]:
            task = replace(task, visible="")
        file = self._file(task)
        file.write_text(json.dumps(task.to_json()))
        task.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name.startswith("BPCBENCH_")}
        environment |= {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment["OMP_NUM_THREADS"] = str(task.threads)
        try:
            actor: Any = (
                ray.remote(StageActor)
                .options(
                    name=actor_name(task),
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=0,
                    max_task_retries=0,
                    max_concurrency=4,
                    **asked,
                )
                .remote(str(file), str(task.log), self._engine.python, environment, task.timeout, self._run.grace)
            )
        except ValueError as error:
            file.unlink(missing_ok=True)
            if "already taken" not in str(error) and "already exists" not in str(error):
                raise
            # Another run is at this very stage.
            self._news.append(Ended(task.attempt, "busy"))
            return True
        self._attempts[task.attempt] = _Attempt(task, actor, actor.where.remote())
        self._warn(task, asked)
        return True

    def _resources(self, task: Task) -> dict[str, Any]:
        engine = self._engine
        own = engine.overrides.get(task.plugin, {})
        cpus = own.get("cpus", engine.cpus)
        gpus = own.get("gpus", engine.gpus)
        if gpus is None:
            gpus = task.resources.gpus if task.device.startswith(("auto", "cuda")) else 0
        memory = own.get("memory", engine.memory)
        memory = task.resources.memory if memory is None else memory
        return {
            "num_cpus": task.threads if cpus is None else cpus,
            "num_gpus": gpus,
            "memory": None if memory is None else int(memory * 1e9),
            "resources": {**engine.resources, **own.get("resources", {})} or None,
        }

    def _warn(self, task: Task, asked: dict[str, Any]) -> None:
        """Say what no node of the cluster has: the stage waits until one joins."""
        wanted = {"CPU": asked["num_cpus"], "GPU": asked["num_gpus"], **(asked["resources"] or {})}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for name, amount in wanted.items():
            if amount and not any(node.get(name, 0) >= amount for node in nodes):
                text = f"no node of the Ray cluster has {amount:g} {name}, which {task.plugin} waits for"
                if text not in self._told:
                    self._told.add(text)
                    self._run.report(text)

    def wait(self, seconds: float) -> Iterable[Started | Ended]:
        """Return what pending calls have answered."""
        if not self._news and self._attempts:
            waiting = {attempt.ref: name for name, attempt in self._attempts.items()}
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=seconds)
            if not ready:
                self._head.answers()
            else:
                # Whatever else is ready by now.
                ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for ref in ready:
                self._answered(waiting[ref])
        elif not self._news:
            self._head.answers()
            time.sleep(seconds)
        news, self._news = self._news, []
        return news

    def _answered(self, name: str) -> None:
        attempt = self._attempts[name]
        try:
            ray.get(attempt.ref, timeout=10)
        except ActorUnavailableError:
            attempt.ref = (attempt.actor.join if attempt.started else attempt.actor.where).remote()
            return
        except RayActorError as error:
            message = str(error).strip().splitlines()[0]
            self._over(name, Ended(name, "failed", f"its actor is gone: {message}", lost=True))
            return
        except RayError as error:
            self._over(
                name, Ended(name, "failed", f"no worker could be started: {str(error).strip().splitlines()[-1]}")
            )
            return
        if attempt.started:
            self._over(name, Ended(name))
            return
        attempt.started = True
        attempt.ref = attempt.actor.join.remote()
        self._news.append(Started(name))

    def _over(self, name: str, event: Ended) -> None:
        attempt = self._attempts.pop(name)
        with contextlib.suppress(Exception):
            ray.kill(attempt.actor)
        self._file(attempt.task).unlink(missing_ok=True)
        if event.lost and name in self._stopping:
            event = Ended(name, "stopped", "stopped")
        self._stopping.discard(name)
        self._news.append(event)

    def stop(self, attempts: Collection[str]) -> None:
        """Ask workers for a checkpoint and their end; what Ray has not placed yet is withdrawn."""
        for name in attempts:
            if attempt := self._attempts.get(name):
                self._stopping.add(name)
                if attempt.started or ray.wait([attempt.ref], timeout=0)[0]:
                    attempt.actor.stop.remote(self._run.grace)
                else:
                    ray.kill(attempt.actor)

    def kill(self, attempts: Collection[str]) -> None:
        """Send SIGKILL to workers."""
        for name in attempts:
            if attempt := self._attempts.get(name):
                self._stopping.add(name)
                if attempt.started:
                    attempt.actor.kill.remote()
                else:
                    ray.kill(attempt.actor)

    def close(self) -> None:
        """Leave the cluster; actors stay, also those that wait for room."""
        if waiting := [attempt.ref for attempt in self._attempts.values() if not attempt.started]:
            # The cluster must have them before this process, which asks for them in the background, is gone.
            with contextlib.suppress(RayError):
                ray.wait(waiting, num_returns=len(waiting), timeout=HANDOVER_SECONDS)
        if self._mine:
            ray.shutdown()

    def _file(self, task: Task) -> Path:
        return self._folder / f"{task.attempt}.json"


def _connect(address: str) -> None:
    """Connect this process to a cluster; EngineError if there is none."""
    place = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    try:
        if found := re.fullmatch(r"([^:/]+):(\d+)", place):
            # Ray itself tries for minutes.
            socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS).close()
        with _signals_kept():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RayError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(f"no Ray cluster at address {place or address!r}: {reason}") from None


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Give SIGTERM back to whoever handled it: Ray takes it, and would end the run at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _found(task: Task) -> Any:
    """Return the actor for the stage of a task, or None: it is over, or its node is gone."""
    try:
        return ray.get_actor(actor_name(task), NAMESPACE)
    except ValueError:
        return None


def actor_name(task: Task) -> str:
    """Return the name of the actor for a stage of a store: there are never two of them."""
    place = hashlib.sha256(f"{task.store.resolve()} {task.id}".encode()).hexdigest()
    return f"bpc-{task.kind}-{task.key[:12]}-{place[:8]}"
