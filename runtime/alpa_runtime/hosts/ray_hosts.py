"""Workers in Ray actors, one on each host."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import alpa_runtime
from alpa_runtime.argument_types import checks_types
from alpa_runtime.cache_folder import CacheLike
from alpa_runtime.errors import DevicesError, WorkerError, WorkerLostError
from alpa_runtime.hosts.connect import DriverEnds, connect
from alpa_runtime.hosts.interface import Progress
from alpa_runtime.hosts.process import LoadOptions, Platform, ProcessFacts
from alpa_runtime.hosts.process_group import Limits, ProcessGroup, is_beside
from alpa_runtime.hosts.ray_actors import (
    BEFORE_CONNECTION,
    HoldsGpus,
    RayHost,
    RayReply,
    cause,
    check_up,
    end_actor,
    end_actors,
    how_actor_ended,
    import_ray,
)
from alpa_runtime.hosts.ray_spares import RaySpares
from alpa_runtime.hosts.rpc import Calls
from alpa_runtime.placement import Placement
from alpa_runtime.plan import Plan
from alpa_runtime.transport.device_backend import check_choice

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
        self._calls: dict[int, Calls] = {}
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
        ends = [DriverEnds.make() for _ in facts]
        addresses = self.all("listen", lambda rank: (ends[rank], seconds), deadline=deadline)
        for rank, address in enumerate(addresses):
            left = deadline - time.monotonic()
            streams = connect(ends[rank], address, left, f"worker {rank} on {facts[rank].host}")
            ended = partial(how_actor_ended, self._ray, self._actors[rank], facts[rank])
            self._calls[rank] = Calls(streams, ended, f"worker {rank}")

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


@checks_types
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
    ) -> None:
        self.address = address
        self.platform: Platform | None = platform
        self.share_nodes = share_nodes
        self.nodes_seconds = nodes_seconds
        self.limits: Limits = limits or Limits()
        self.device_transport: str = check_choice(device_transport)
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
        options = LoadOptions(donate_state, backend, cache, self.device_transport)
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
            WorkerError: Ray is not installed, or no cluster answers.
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
                ray.init("local", namespace=_STARTED_HERE, include_dashboard=False, **options)
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
