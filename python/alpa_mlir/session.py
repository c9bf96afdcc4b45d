"""What a process plans for, and where its steps run, unless a function says otherwise."""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from alpa_runtime.errors import WHOLE, check_type
from alpa_runtime.worker_group import HOSTS, Hosts

from alpa_mlir.cluster import CLUSTER, Cluster, ClusterLike, as_cluster
from alpa_mlir.errors import AlpaError, ClusterFileError


@dataclass(frozen=True)
class Session:
    """From `init` to `shutdown`.

    Attributes:
        cluster: what functions plan for that name none.
        workers: where their steps run; None for this process.
        number: tells it from others of this process.
    """

    cluster: Cluster
    workers: Hosts | None
    number: int


class Remembers(Protocol):
    """A function that keeps steps."""

    def clear(self, session: int | None = None) -> None:
        """Forget them, or those of one session."""
        ...


class _Current:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None
        self.numbers = itertools.count(1)
        self.plans: weakref.WeakSet[Any] = weakref.WeakSet()
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()


_current = _Current()


def init(
    cluster: ClusterLike | Literal["local", "ray"] = "ray",
    devices_per_node: int | None = None,
    num_nodes: int | None = None,
    *,
    workers: Hosts | None = None,
) -> None:
    """Say once what functions plan for, and where they run, if they do not say it themselves.

    A second call for the same cluster changes nothing.

    Args:
        cluster: `"ray"` for the nodes of a Ray cluster, each with a worker; `"local"` for the
            devices of this process; or a `Cluster`, a preset, a file, a dictionary. Of Ray's and
            this process's devices only the number and the memory are known, their rates are
            nominal: describe or measure the cluster for good plans.
        devices_per_node, num_nodes: with `"ray"`, how many to take; by default all GPUs of all
            nodes. Without GPUs, `devices_per_node` virtual devices.
        workers: where steps run; by default `RayWorkers()` with `"ray"`, else this process.

    Raises:
        AlpaError: another cluster was named before; `shutdown` ends that.
        ClusterFileError: the description has an error, or numbers are given for it.
        DevicesError: Ray has fewer nodes or devices.
        WorkerError: Ray is not installed, or does not answer.

    Example:
        >>> alpa_mlir.init(cluster="local")        # doctest: +SKIP
        >>> alpa_mlir.get_global_num_devices()     # doctest: +SKIP
        8
        >>> alpa_mlir.shutdown()                   # doctest: +SKIP
    """
    check_type("init", "cluster", cluster, CLUSTER)
    check_type("init", "devices_per_node", devices_per_node, WHOLE, None)
    check_type("init", "num_nodes", num_nodes, WHOLE, None)
    check_type("init", "workers", workers, HOSTS, None)
    with _current.lock:
        if cluster == "ray":
            session = _on_ray(devices_per_node, num_nodes, workers)
        elif devices_per_node is not None or num_nodes is not None:
            raise ClusterFileError(
                "devices_per_node or num_nodes for a cluster that is not Ray's",
                where="init",
                fix="describe the hosts in the cluster's file",
            )
        else:
            described = as_cluster(None if cluster == "local" else cluster)
            session = Session(described, workers, next(_current.numbers))
        known = _current.session
        if known is not None:
            if known.cluster == session.cluster:
                return
            raise AlpaError(
                f"cluster {session.cluster.name!r}, but it is {known.cluster.name!r} already",
                where="init",
                fix="call shutdown() before",
            )
        _current.session = session


def _on_ray(devices: int | None, nodes: int | None, workers: Hosts | None) -> Session:
    from alpa_runtime.hosts.ray_hosts import RayWorkers, ray_nodes

    started = workers if isinstance(workers, RayWorkers) else RayWorkers()
    found = ray_nodes(started.connect(), devices, nodes)
    cluster = Cluster.nominal(
        f"ray-{found.platform}", found.platform, found.devices, found.memory_bytes
    )
    return Session(cluster, workers or started, next(_current.numbers))


def shutdown() -> None:
    """End what `init` began: workers that steps run on, and Ray if it was started here.

    Raises:
        AlpaError: `init` was not called.
    """
    with _current.lock:
        session = _require("shutdown")
        for plan in list(_current.plans):
            plan.close()
        _current.session = None
        _clear(session.number)
        close = getattr(session.workers, "close", None)
        if close is not None:
            close()


def current_session() -> Session | None:
    """What `init` said, until `shutdown`."""
    return _current.session


def _require(where: str) -> Session:
    session = _current.session
    if session is None:
        raise AlpaError("nothing was initialized", where=where, fix="call init() before")
    return session


def get_global_cluster() -> Cluster:
    """The cluster that `init` named.

    Raises:
        AlpaError: `init` was not called.
    """
    return _require("get_global_cluster").cluster


def get_global_num_devices() -> int:
    """How many devices that cluster has.

    Raises:
        AlpaError: `init` was not called.
    """
    return _require("get_global_num_devices").cluster.num_devices


def default_cluster(given: ClusterLike) -> ClusterLike:
    """What to plan for: what was given, else what `init` named; None for this process."""
    if given is not None or _current.session is None:
        return given
    return _current.session.cluster


def default_workers(given: Hosts | None) -> Hosts | None:
    """Where to run: what was given, else what `init` named."""
    if given is not None or _current.session is None:
        return given
    return _current.session.workers


def session_of(cluster: ClusterLike, workers: Hosts | None) -> int:
    """The number of the session that decides for a function; 0 if it decides for itself."""
    session = _current.session
    if session is None or (cluster is not None and (workers or session.workers is None)):
        return 0
    return session.number


def remember(function: Remembers) -> None:
    """Note a function whose steps `clear_executable_cache` forgets."""
    _current.functions.add(function)


def close_at_shutdown(loaded: Any) -> None:
    """Note a loaded plan that runs on the session's workers."""
    _current.plans.add(loaded)


def clear_executable_cache() -> None:
    """Let all functions forget the steps that they have planned and compiled; the next call of
    each plans anew, or finds its plan on disk."""
    with _current.lock:
        _clear()


def _clear(session: int | None = None) -> None:
    for function in list(_current.functions):
        function.clear(session)
