"""Workers in Ray actors, one on each host."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import alpa_runtime
from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import (
    TEXT,
    WHOLE,
    DevicesError,
    TransportError,
    WorkerError,
    WorkerLostError,
    check_type,
)
from alpa_runtime.foreign_errors import ActorEnd, actor_end
from alpa_runtime.hosts.guard import die_with_parent
from alpa_runtime.hosts.process import (
    OUT_OF_MEMORY_KILL,
    HostProcess,
    Platform,
    ProcessFacts,
    boot_id,
    out_of_memory_kills,
    portable_error,
    start_ticks,
)
from alpa_runtime.hosts.process_group import Limits, ProcessGroup, is_beside, load_options
from alpa_runtime.hosts.rpc import DriverEnds, Entrance, RpcClient, answer_calls, connect
from alpa_runtime.plan import Plan
from alpa_runtime.transport.device import check_choice
from alpa_runtime.worker_group import Placement, Progress

_MIB = 1 << 20
_ASK_SECONDS = 60.0


@dataclass(frozen=True)
class RayNodes:
    """Nodes that are up.

    Attributes:
        platform: "gpu" if any of them has GPUs.
        devices: of each node that is taken.
        memory_bytes: of the device that has the least.
    """

    platform: Platform
    devices: tuple[int, ...]
    memory_bytes: int


def ray_nodes(ray: Any, devices_per_node: int | None, num_nodes: int | None) -> RayNodes:
    """The nodes to plan for.

    Args:
        ray: connected to the cluster.
        devices_per_node: by default all GPUs of each; has to be given for virtual devices.
        num_nodes: by default all.

    Raises:
        DevicesError: there are fewer nodes or devices than asked for.
    """
    nodes: list[dict[str, Any]] = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    gpus = sorted((int(n.get("GPU", 0)) for n in nodes), reverse=True)
    found = [count for count in gpus if count] if any(gpus) else [0] * len(nodes)
    where = "init"
    if not any(gpus) and devices_per_node is None:
        raise DevicesError(
            f"the {len(nodes)} nodes of the Ray cluster have no GPUs",
            where=where,
            fix="give devices_per_node, for virtual devices",
        )
    wanted = len(found) if num_nodes is None else num_nodes
    each = 1 if devices_per_node is None else devices_per_node
    least = each if any(gpus) else 0
    if not 1 <= wanted <= len(found) or each < 1 or found[wanted - 1] < least:
        raise DevicesError(
            f"num_nodes={num_nodes}, devices_per_node={devices_per_node}; the Ray cluster has "
            f"nodes of {', '.join(map(str, found))} GPUs",
            where=where,
            fix="ask for at least 1 and for no more than there is",
        )
    devices = tuple(devices_per_node or count for count in found[:wanted])
    if any(gpus):
        task = ray.remote(_gpu_memory).options(num_gpus=1, num_cpus=0)
        return RayNodes("gpu", devices, int(ray.get(task.remote(), timeout=_ASK_SECONDS)))
    memory = min(int(n.get("memory", 0)) for n in nodes)
    return RayNodes("cpu", devices, max(memory // max(devices), _MIB))


def _gpu_memory() -> int:
    """Bytes of the smallest GPU of the node where this runs."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return min(int(line) for line in done.stdout.split()) * _MIB


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
    end, more = actor_end(error)
    match end:
        case ActorEnd.NODE_OUT_OF_MEMORY:
            return OUT_OF_MEMORY_RAY + (f" ({more})" if more else "")
        case ActorEnd.PROCESS_DIED:
            return "the actor's process died: out of memory, killed or crashed"
        case ActorEnd.CONNECTION_ENDED:
            return "its connection ended: it or its node is gone"
        case ActorEnd.OTHER:
            return f"the actor is gone: {more[:300]}"


def how_actor_ended(ray: Any, actor: Any, facts: ProcessFacts) -> tuple[str, bool]:
    """Why the connection to an actor has ended; Ray does not tell whether for want of memory."""
    return _why_actor_ended(ray, actor, facts), False


def _why_actor_ended(ray: Any, actor: Any, facts: ProcessFacts) -> str:
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
    calls: Mapping[int, RpcClient],
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


_ANSWER_SECONDS = 2.0  # For a spare actor, to show that it is alive.


@dataclass(frozen=True)
class _Spare:
    """An actor that waits.

    Attributes:
        cluster: of which Ray.
        node: where it is.
        warm: Ray's reference to the end of its imports.
    """

    cluster: str
    node: str
    actor: Any
    warm: Any


class RaySpares:
    """Keeps actors ready; any thread may call.

    Args:
        count: how many.
        environment: of the actors, as `RayWorkers` has it.
    """

    def __init__(self, count: int, environment: Mapping[str, str]) -> None:
        self.count = count
        self._environment = dict(environment)
        self._spares: list[_Spare] = []
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._spares)

    def take(self, ray: Any, nodes: Sequence[str]) -> list[Any | None]:
        """For each of these nodes an actor that waits there, or None; they are kept no more."""
        with self._lock:
            self._forget_others(ray)
            there = self._alive(ray)
            found: list[Any | None] = []
            for node in nodes:
                spare = next((one for one in there if one.node == node), None)
                found.append(None if spare is None else spare.actor)
                if spare is not None:
                    there.remove(spare)
                    self._spares.remove(spare)
            return found

    def refill(self, ray: Any, nodes: Sequence[str]) -> None:
        """Start actors until there are enough: in turn on these nodes, then on all others."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._lock:
            self._forget_others(ray)
            up: list[str] = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            order = [*dict.fromkeys(n for n in nodes if n in up)]
            order += [node for node in up if node not in order]
            held = Counter(spare.node for spare in self._spares)
            while order and len(self._spares) < self.count:
                node = min(order, key=lambda n: held[n])
                held[node] += 1
                there = NodeAffinitySchedulingStrategy(node, soft=False)
                options = {"num_cpus": 0, "num_gpus": 0, "max_restarts": 0}
                kind = ray.remote(RayHost).options(**options, scheduling_strategy=there)
                actor = kind.remote(self._environment)
                warm = actor.warm_up.remote()
                self._spares.append(_Spare(_cluster(ray), node, actor, warm))

    def close(self) -> None:
        """End the actors that wait."""
        with self._lock:
            _end(self._spares)

    def _forget_others(self, ray: Any) -> None:
        """Actors of a Ray that was shut down have ended with it."""
        here = _cluster(ray)
        self._spares[:] = [spare for spare in self._spares if spare.cluster == here]

    def _alive(self, ray: Any) -> list[_Spare]:
        """Drops those that are gone, and what their nodes were."""
        warm = [one for one in self._spares if ray.wait([one.warm], timeout=0)[0]]
        asked = {id(one): one.actor.describe.remote() for one in warm}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        alive: list[_Spare] = []
        for spare in list(self._spares):
            reference = asked.get(id(spare))  # One that still imports is as good as a new one.
            try:
                if reference is not None:
                    ray.get(reference, timeout=0)
            except (ray.exceptions.RayError, TimeoutError):
                self._spares.remove(spare)
                _end([spare])
            else:
                alive.append(spare)
        return alive


def _cluster(ray: Any) -> str:
    """Tells one joining of a cluster from another."""
    return str(ray.get_runtime_context().get_worker_id())


def _end(spares: list[_Spare]) -> None:
    if not spares:
        return
    ray = import_ray()
    while spares:
        spare = spares.pop()
        with contextlib.suppress(Exception):
            check_up(ray)
            if spare.cluster == _cluster(ray):
                ray.kill(spare.actor, no_restart=True)


_log = logging.getLogger("alpa_mlir.hosts")
_LOOK_SECONDS = 0.5  # How often it is looked whether there is room.
# The namespace of a Ray that was started here tells it from all others.
_STARTED_HERE = "alpa_mlir-local"
# A share of a node's processors; workers take what they need, and none keeps others away.
_PROCESSORS = 0.01


class RayGroup(ProcessGroup):
    """Worker actors; `RayWorkers.start` makes it."""

    def __init__(
        self,
        ray: Any,
        actors: Sequence[Any],
        holders: Mapping[int, Any],
        placement_group: Any,
        limits: Limits,
    ) -> None:
        super().__init__(len(actors), limits)
        self._ray = ray
        self._actors = actors
        self._gpus = {rank: RayReply(ray, holder.gpus.remote()) for rank, holder in holders.items()}
        self._holders = holders  # They end when nobody has them.
        self._facts: dict[int, ProcessFacts] = {}
        self._calls: dict[int, RpcClient] = {}
        self._release_now = weakref.finalize(
            self, end_actors, ray, actors, self._facts, self._calls, placement_group
        )

    def _send(self, rank: int, method: str, args: tuple[Any, ...]) -> Any:
        calls = self._calls.get(rank)
        if calls is not None:
            return calls.send(method, args, is_beside(method))
        return self._ask(rank, method, args)

    def _ask(self, rank: int, method: str, args: tuple[Any, ...]) -> RayReply:
        """A call of Ray's, before there is a connection."""
        check_up(self._ray)
        if method not in BEFORE_CONNECTION:
            raise WorkerError(f"{method}: not connected yet", where=f"worker {rank}")
        try:
            return RayReply(self._ray, getattr(self._actors[rank], method).remote(*args))
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError(cause(error), where=f"worker {rank}", rank=rank) from None

    def met(self, facts: Sequence[ProcessFacts]) -> None:
        self._facts.update(enumerate(facts))
        seconds = self.limits.start_seconds
        deadline = time.monotonic() + seconds
        ends = [DriverEnds.make(self.encrypt) for _ in facts]
        addresses = self.all("listen", lambda rank: (ends[rank], seconds), deadline=deadline)
        for rank, address in enumerate(addresses):
            left = deadline - time.monotonic()
            streams = connect(ends[rank], address, left, f"worker {rank} on {facts[rank].host}")
            ended = partial(how_actor_ended, self._ray, self._actors[rank], facts[rank])
            self._calls[rank] = RpcClient(streams, ended, f"worker {rank}")

    def environment_of(self, rank: int, placement: Placement) -> Mapping[str, str]:
        if rank not in self._gpus:
            return {}
        try:
            gpus = self._gpus[rank].result(self.limits.start_seconds)
        except TimeoutError:
            raise self.lose(rank, "Ray has not given it its GPUs") from None
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}

    def _end(self, rank: int) -> None:
        end_actor(self._ray, self._actors[rank], self._facts.get(rank), 0.2)

    def _release(self) -> None:
        self._release_now()

    @property
    def facts(self) -> tuple[ProcessFacts, ...]:
        """What each worker said of itself when it started."""
        return tuple(self._facts[rank] for rank in range(self.size))

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the workers' processes on their machines, by rank."""
        return tuple(facts.pid for facts in self.facts)


class RayWorkers:
    """Starts the workers of a plan as actors of Ray, one on each node.

    Args:
        address: of a Ray cluster; by default that of `ray.init` if it was called, else
            `RAY_ADDRESS`, else Ray is started on this machine.
        placement: by default one worker for each host of the plan's cluster.
        platform: "cpu" for virtual devices, "gpu" for the nodes' GPUs; by default "gpu" if a
            node has any.
        share_nodes: whether several workers may run on one node; by default only where Ray was
            started here, on this machine.
        environment: variables of the workers, set before JAX is imported.
        nodes_seconds: how long to wait for nodes that are missing, such as those that an
            autoscaler is about to replace; then `platform` should be given, too.
        spares: actors that are kept ready, with JAX imported, so that the next group starts
            quickly: in turn on the nodes of the last group, then on others.
        limits: how long things may take.
        device_transport: how values go from device to device: "auto" (the best of what all have
            installed, for GPUs), "nccl", "nixl", or "host".
        encrypt: speak TLS over TCP; needs Ray's own TLS (RAY_USE_TLS), by which keys go, and
            meshes that lie within workers.

    Raises:
        TransportError: there is no such `device_transport`.

    Example:
        >>> step = alpa_mlir.load("my_plan", workers=RayWorkers())  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        placement: Placement | None = None,
        platform: Platform | None = None,
        share_nodes: bool | None = None,
        environment: Mapping[str, str] | None = None,
        nodes_seconds: float = 0.0,
        spares: int = 0,
        limits: Limits | None = None,
        device_transport: str = "auto",
        encrypt: bool = False,
    ) -> None:
        check_type("RayWorkers", "address", address, TEXT, None)
        check_type("RayWorkers", "placement", placement, Placement, None)
        check_type("RayWorkers", "spares", spares, WHOLE)
        check_type("RayWorkers", "limits", limits, Limits, None)
        self.address = address
        self.platform: Platform | None = platform
        self.share_nodes = share_nodes
        self.nodes_seconds = nodes_seconds
        self.limits: Limits = limits or Limits()
        self.device_transport: str = check_choice(device_transport)
        self.encrypt: bool = encrypt
        self._placement = placement
        self._environment = dict(environment or {})
        self._spares = RaySpares(spares, self._environment)

    def start(
        self,
        plan: Plan,
        placement: Placement | None = None,
        *,
        donate_state: bool = True,
        backend: str = "auto",
        cache: CacheLike = True,
        progress: Progress | None = None,
    ) -> tuple[Placement, RayGroup]:
        """Start one actor for each worker, and load the plan in each; see `Hosts.start`."""
        placement = placement or self._placement or Placement.by_hosts(plan)
        placement.check(plan)
        options = load_options(
            plan, placement, donate_state, backend, cache, self.device_transport, self.encrypt
        )
        if self.encrypt and os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            raise WorkerError(
                "Ray does not encrypt the keys of workers",
                where="RayWorkers",
                fix="start Ray, and this program, with RAY_USE_TLS=1 and certificates",
            )
        ray = self.connect()
        platform, group, nodes = self._group(ray, plan, placement)
        group.start(plan, placement, platform, options, progress)
        self._spares.refill(ray, nodes)
        return placement, group

    def close(self) -> None:
        """End the spare actors, and Ray if it was started here; groups are closed by themselves."""
        self._spares.close()
        ray = import_ray()
        if ray.is_initialized() and _is_started_here(ray):
            ray.shutdown()

    def connect(self) -> Any:
        """Join the cluster, or start Ray on this machine; gives Ray.

        Raises:
            WorkerError: Ray is not installed or does not start, or no cluster answers.
        """
        ray = import_ray()
        if ray.is_initialized():
            return ray
        address = self.address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            # Processes of a local Ray inherit the environment: they find the package as we do.
            with (
                _python_path(str(Path(alpa_runtime.__file__).parents[1])),
                warnings.catch_warnings(),
            ):
                # Ray forks to start its services, which is safe: they are programs of their own.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                try:
                    ray.init("local", namespace=_STARTED_HERE, include_dashboard=False, **options)
                except Exception as error:  # On a busy machine, say: it has no class of its own.
                    ray.shutdown()  # What of it is up.
                    raise WorkerError(
                        f"Ray does not start: {error}",
                        where="Ray on this machine",
                        fix="try again; /tmp/ray/session_latest/logs says more",
                    ) from error
            return ray
        try:
            _check_listening(address)  # Ray itself tries for minutes.
            ray.init(address, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise WorkerError(
                f"no Ray cluster answers: {error}",
                where=f"Ray at {address}",
                fix="start it with `ray start --head`, or give another address; if it asks for a "
                "token, set RAY_AUTH_MODE=token",
            ) from None
        return ray

    def num_hosts(self) -> int:
        """How many nodes are up on which workers may run."""
        return len(self.nodes())

    def nodes(self) -> tuple[int, ...]:
        """The GPUs of each node that is up: what is there to plan for."""
        return tuple(_gpus(self.connect()))

    def _group(
        self, ray: Any, plan: Plan, placement: Placement
    ) -> tuple[Platform, RayGroup, list[str]]:
        """Actors in a placement group, and the nodes where they are."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        share = _is_started_here(ray) if self.share_nodes is None else self.share_nodes
        platform: Platform = self.platform or _platform(_gpus(ray))
        gpus = [len(own) if platform == "gpu" else 0 for own in placement.workers]
        bundles = [{"CPU": _PROCESSORS} | ({"GPU": float(n)} if n else {}) for n in gpus]
        check = partial(check_room, plan, placement, platform=platform, share=share)
        places = self._places(ray, bundles, "SPREAD" if share else "STRICT_SPREAD", check)
        nodes = _nodes_of(places, len(bundles))
        actors = self._spares.take(ray, nodes)
        holders: dict[int, Any] = {}
        for rank, n in enumerate(gpus):
            options = {
                "num_cpus": _PROCESSORS,
                "num_gpus": n,
                "max_restarts": 0,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    places, placement_group_bundle_index=rank
                ),
            }
            if actors[rank] is None:
                actors[rank] = ray.remote(RayHost).options(**options).remote(self._environment)
            elif n:
                holders[rank] = ray.remote(HoldsGpus).options(**options).remote()
        return platform, RayGroup(ray, actors, holders, places, self.limits), nodes

    def _places(
        self,
        ray: Any,
        bundles: list[dict[str, float]],
        strategy: str,
        check: Callable[[Sequence[int]], None],
    ) -> Any:
        """A placement group with room for all workers.

        Args:
            check: raises a DevicesError if nodes with so many GPUs are too few.
        """
        from ray.util import placement_group, remove_placement_group

        missing = _missing(ray, check)
        if missing is not None and not self.nodes_seconds:
            raise missing
        # An autoscaler provides only what somebody has asked for.
        places = placement_group(bundles, strategy=strategy)
        asked = complete = time.monotonic()
        told = False
        try:
            while not places.wait(_LOOK_SECONDS):
                now = time.monotonic()
                missing = _missing(ray, check)  # Ray hears late of nodes that are gone.
                if missing is None:
                    if now - complete > self.limits.start_seconds:
                        raise DevicesError(
                            f"no room for {len(bundles)} workers within "
                            f"{self.limits.start_seconds:g} s; free are "
                            f"{ray.available_resources()}",
                            where="Ray",
                            fix="end what else runs there, or wait",
                        )
                    continue
                complete = now
                if now - asked > self.nodes_seconds:
                    raise missing
                if not told:
                    told = True
                    _log.warning("waiting for nodes, up to %g s: %s", self.nodes_seconds, missing)
        except BaseException:
            remove_placement_group(places)
            raise
        if told:
            _log.info("the nodes are there after %.1f s", time.monotonic() - asked)
        return places


def _check_listening(address: str) -> None:
    """Raises an OSError if nobody listens at `host:port`; other forms of addresses are Ray's."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()


def _nodes_of(places: Any, count: int) -> list[str]:
    """The node of each bundle of a placement group that is ready."""
    from ray import util

    _util: Any = util
    found = _util.placement_group_table(places)["bundles_to_node_id"]
    return [str(found[bundle]) for bundle in range(count)]


def _missing(ray: Any, check: Callable[[Sequence[int]], None]) -> DevicesError | None:
    try:
        check(_gpus(ray))
    except DevicesError as error:
        return error
    return None


def _gpus(ray: Any) -> list[int]:
    """Of each node that is up and has processors: on others, such as a head, no worker runs."""
    up = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    return [int(own.get("GPU", 0)) for own in up if own.get("CPU", 0) >= _PROCESSORS]


def _platform(gpus: Sequence[int]) -> Platform:
    return "gpu" if any(gpus) else "cpu"


def _is_started_here(ray: Any) -> bool:
    return bool(ray.get_runtime_context().namespace == _STARTED_HERE)


def check_room(
    plan: Plan, placement: Placement, gpus: Sequence[int], *, platform: Platform, share: bool
) -> None:
    """Whether a cluster has the hosts and GPUs of a plan.

    Args:
        gpus: of each node.
        share: several workers may run on one node.

    Raises:
        DevicesError: names what is missing.
    """
    where = f"plan of {plan.name}"
    if not share and len(gpus) < placement.size:
        raise DevicesError(
            f"the plan needs {placement.size} hosts, the Ray cluster has {len(gpus)}",
            where=where,
            fix="add nodes, plan for fewer hosts, or give RayWorkers(share_nodes=True)",
        )
    if platform == "cpu":
        return
    wanted = sorted((len(own) for own in placement.workers), reverse=True)
    found = sorted(gpus, reverse=True)
    fits = sum(wanted) <= sum(found) if share else all(map(int.__le__, wanted, found))
    if not fits:
        raise DevicesError(
            f"the plan needs hosts of {_counts(wanted)} GPUs, the Ray cluster has nodes of "
            f"{_counts(found)}",
            where=where,
            fix="plan for the cluster as it is, or add nodes",
        )


def _counts(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


@contextlib.contextmanager
def _python_path(folder: str) -> Any:
    """Processes that are started within find packages in this folder."""
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + old if old else "")
    try:
        yield
    finally:
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old
