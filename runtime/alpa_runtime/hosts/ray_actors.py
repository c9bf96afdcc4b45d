"""Actors of Ray that are workers: what they answer, why they are gone, and how they end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_runtime.errors import TransportError, WorkerError, WorkerLostError
from alpa_runtime.hosts.connect import DriverEnds, Entrance
from alpa_runtime.hosts.process import (
    OUT_OF_MEMORY_KILL,
    HostProcess,
    ProcessFacts,
    boot_id,
    die_with_parent,
    out_of_memory_kills,
    portable_error,
    start_ticks,
)
from alpa_runtime.hosts.rpc import Calls, answer_calls

OUT_OF_MEMORY_RAY = "killed by Ray, whose node was out of memory"
_SECONDS_TO_SAY = 3.0  # For Ray, why an actor is gone.
_SECONDS_TO_BE_ENDED = 2.0  # For Ray, to end an actor whose driver is gone; what ends by itself
# is an accident that Ray reports to the user.


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


BEFORE_CONNECTION = ("describe", "listen")  # What Ray calls.


class RayHost:
    """The actor. It says who it is, and then takes calls of the driver over sockets of our own: a
    call of Ray's takes a good part of a step."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        die_with_parent()
        self._host = HostProcess(import_ray().util.get_node_ip_address())

    def describe(self) -> tuple[bool, Any]:
        """As `HostProcess.answer("describe", ())`."""
        return self._host.answer("describe", ())

    def warm_up(self) -> tuple[bool, Any]:
        """As `HostProcess.answer("warm_up", ())`."""
        return self._host.answer("warm_up", ())

    def listen(self, driver: DriverEnds, seconds: float) -> tuple[bool, Any]:
        """Wait, in a thread, for the driver, and answer its calls.

        Returns:
            Whether this succeeded; the address, or the error.
        """
        try:
            entrance = Entrance(self._host.address, driver)
        except Exception as error:
            return False, portable_error(error)

        def answer() -> None:
            with contextlib.suppress(TransportError):  # The driver knows that it has not come.
                answer_calls(entrance.wait(seconds), self._host, _SECONDS_TO_BE_ENDED)

        threading.Thread(target=answer, name="alpa-mlir entrance", daemon=True).start()
        return True, entrance.address


class HoldsGpus:
    """An actor that has the GPUs of a worker which was started before they were given to it."""

    def gpus(self) -> list[str]:
        """As CUDA names them."""
        return [str(number) for number in import_ray().get_gpu_ids()]


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
    if "running low on memory" in text:
        found = re.search(r"\S+ used / \S+ limit", text)
        return OUT_OF_MEMORY_RAY + (f" ({found[0]})" if found else "")
    if "Worker exit type: SYSTEM_ERROR" in text:
        return "the actor's process died: out of memory, killed or crashed"
    if "is temporarily unavailable" in text:
        return "its connection ended: it or its node is gone"
    return f"the actor is gone: {text[:300]}"


def how_actor_ended(ray: Any, actor: Any, facts: ProcessFacts) -> str:
    """Why the connection to an actor has ended."""
    try:
        check_up(ray)
        ray.get(actor.describe.remote(), timeout=_SECONDS_TO_SAY)
    except WorkerLostError as error:
        return error.what
    except ray.exceptions.GetTimeoutError:
        return f"its connection ended, and Ray has not said why within {_SECONDS_TO_SAY:g} s"
    except ray.exceptions.RayError as error:
        if facts.boot == boot_id() and out_of_memory_kills() > facts.out_of_memory_kills:
            return OUT_OF_MEMORY_KILL
        return cause(error)
    return "its connection ended"


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
    ray: Any,
    actors: Sequence[Any],
    facts: Mapping[int, ProcessFacts],
    calls: Mapping[int, Calls],
    placement_group: Any,
) -> None:
    """The last one first: it leaves a world before the process that the world meets at."""
    from ray.util import remove_placement_group

    for rank in reversed(range(len(actors))):
        if rank in calls:
            calls[rank].expect_end("the workers were closed")
        end_actor(ray, actors[rank], facts.get(rank), 1.0)
        if rank in calls:
            calls[rank].end()
    with contextlib.suppress(Exception):
        check_up(ray)
        remove_placement_group(placement_group)
