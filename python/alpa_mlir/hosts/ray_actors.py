"""Actors of Ray that are workers: what they answer, why they are gone, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_mlir.errors import WorkerError, WorkerLostError
from alpa_mlir.hosts.process import (
    HostProcess,
    ProcessFacts,
    boot_id,
    die_with_parent,
    start_ticks,
)


def import_ray() -> Any:
    """Ray, which is an extra.

    Raises:
        WorkerError: it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise WorkerError(
            "Ray is not installed",
            where="RayWorkers",
            fix="install it with pip install 'alpa-mlir[ray]'",
        ) from None
    return ray


class RayHost:
    """The actor: a `HostProcess` whose answers are values, so that errors keep their types."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        die_with_parent()
        self._host = HostProcess(import_ray().util.get_node_ip_address())

    def answer(self, method: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call a method by its name; see `HostProcess.answer`."""
        return self._host.answer(method, args)


class RayReply:
    """Ray's reference as a future."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def done(self) -> bool:
        check_up(self._ray)
        return bool(self._ray.wait([self._reference], timeout=0)[0])

    def result(self, timeout: float | None = None) -> Any:
        errors = self._ray.exceptions
        check_up(self._ray)
        try:
            return self._ray.get(self._reference, timeout=timeout)
        except errors.GetTimeoutError:
            raise TimeoutError from None
        except errors.RayError as error:
            raise WorkerLostError(cause(error)) from None


def check_up(ray: Any) -> None:
    """Ray would start anew if it was shut down."""
    if not ray.is_initialized():
        raise WorkerLostError("Ray was shut down", fix="load the plan again")


def cause(error: Exception) -> str:
    """Why an actor is gone, of the many lines that Ray says."""
    text = " ".join(str(error).split())
    if "Worker exit type: SYSTEM_ERROR" in text:
        return "the actor's process died: out of memory, killed or crashed"
    return f"the actor is gone: {text[:300]}"


def _kill(pid: int, started: int, grace_seconds: float) -> None:
    """Kill a process unless it ends by itself, or its number belongs to another one by now.

    Returns when it is gone.
    """
    begin = time.monotonic()
    while start_ticks(pid) == started and time.monotonic() < begin + grace_seconds + 5.0:
        if time.monotonic() > begin + grace_seconds:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def end_actor(ray: Any, actor: Any, facts: ProcessFacts | None, grace_seconds: float) -> None:
    """Ray asks a process to end, which one that is stopped never does; the kernel makes it."""
    with contextlib.suppress(Exception):
        check_up(ray)
        ray.kill(actor, no_restart=True)
    if facts is None:
        return
    if facts.boot == boot_id():
        _kill(facts.pid, facts.started, grace_seconds)
    else:
        _kill_there(ray, facts, grace_seconds)


def _kill_there(ray: Any, facts: ProcessFacts, grace_seconds: float) -> None:
    """Kill a process of another machine, by a task that runs there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with contextlib.suppress(Exception):
        check_up(ray)
        for node in ray.nodes():
            if node["Alive"] and node["NodeManagerAddress"] == facts.address:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                task = ray.remote(_kill).options(num_cpus=0, scheduling_strategy=there)
                task.remote(facts.pid, facts.started, grace_seconds)


def end_actors(
    ray: Any, actors: Sequence[Any], facts: Mapping[int, ProcessFacts], placement_group: Any
) -> None:
    """The last one first: it leaves a world before the process that the world meets at."""
    from ray.util import remove_placement_group

    for rank in reversed(range(len(actors))):
        end_actor(ray, actors[rank], facts.get(rank), 1.0)
    with contextlib.suppress(Exception):
        check_up(ray)
        remove_placement_group(placement_group)
