"""What a worker process does before it has a Worker: versions, environment, devices, transport.

Nothing here imports JAX before the environment is set. The methods of `HostProcess` are called by
name from the driver, whatever carries the calls (hosts/subprocesses.py, hosts/ray_hosts.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import socket
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from alpa_runtime.errors import AlpaError, DevicesError, WorkerError, worker_error

if TYPE_CHECKING:  # Of the runtime nothing is imported before the environment is set.
    from alpa_runtime.cache import CacheLike
    from alpa_runtime.plan import Plan
    from alpa_runtime.worker_group import Placement

PROTOCOL = 3  # Of the calls between driver and workers; changes with their form.
Platform = Literal["cpu", "gpu"]

OUT_OF_MEMORY_KILL = "killed by the kernel, which was out of memory"

# Answered at once, whatever the worker is doing.
CONTROL = frozenset({"ping", "describe", "waits_for"})


@dataclass(frozen=True)
class ProcessFacts:
    """What a worker process says of itself before it does anything.

    Attributes:
        host: name of its machine.
        address: where other workers reach it.
        boot: which start of which machine; equal for processes that share memory and numbers.
        pid, started: its number, and when it started, in clock ticks since boot.
        out_of_memory_kills: of its machine, so far.
        versions: of all that must be the same in driver and workers.
    """

    host: str
    address: str
    boot: str
    pid: int
    started: int
    out_of_memory_kills: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Start:
    """What one process of a group shall be.

    Attributes:
        rank: its number among the workers.
        devices: the plan's devices of each worker, by rank.
        world: the ranks, in order, that share meshes with this one; itself included.
        coordinator: `host:port` where that world meets; not read if it is alone.
        x64: whether JAX has 64-bit types in the driver.
        heartbeat_seconds: after how long without a sign of life JAX gives a world up.
        start_seconds: how long to wait for the other processes of the world.
        environment: variables to set before JAX looks at the devices.
        encrypt: whether workers speak TLS over TCP.
    """

    rank: int
    devices: tuple[tuple[int, ...], ...]
    world: tuple[int, ...]
    coordinator: str
    platform: Platform
    x64: bool
    heartbeat_seconds: int
    start_seconds: int
    environment: Mapping[str, str]
    encrypt: bool = False


@dataclass(frozen=True)
class LoadOptions:
    """What `Hosts.start` is told of how to load the plan.

    Attributes:
        device_transport: how values go from device to device; see `transport.device.CHOICES`.
        encrypt: whether what goes over TCP is encrypted.
    """

    donate_state: bool
    backend: str
    cache: CacheLike
    device_transport: str = "auto"
    encrypt: bool = False


def versions() -> dict[str, str]:
    """The versions that driver and workers must share."""
    from alpa_runtime.version import VERSION

    return {
        "alpa_mlir": VERSION,
        "protocol": str(PROTOCOL),
        "jax": metadata.version("jax"),
        "jaxlib": metadata.version("jaxlib"),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def boot_id() -> str:
    """Tells one start of one machine from all others; containers have their own process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def start_ticks(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = text[text.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(rest[18])


def out_of_memory_kills() -> int:
    """How many processes the kernel of this machine has killed for want of memory since boot."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


class HostProcess:
    """The far end of a worker group in a worker process.

    Methods that start programs are called by one thread only: XLA orders programs with
    collectives by the thread that starts them where a process has one device of a mesh, and two
    threads could start them in another order than the other processes do.

    Args:
        address: where other workers reach this machine.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._compiled = (0, 0, "")
        self._held_port: socket.socket | None = None
        self._devices: dict[int, Any] = {}
        self._start: Start | None = None
        self._transport: Any = None
        self._device_transport: Any = None
        self._worker: Any = None

    def describe(self) -> ProcessFacts:
        """Who is this?"""
        pid = os.getpid()
        return ProcessFacts(
            socket.gethostname(),
            self.address,
            boot_id(),
            pid,
            start_ticks(pid) or 0,
            out_of_memory_kills(),
            versions(),
        )

    def ping(self) -> dict[str, Any]:
        """A sign of life, with what the Worker says of itself once it is there."""
        said: dict[str, Any] = {}
        worker = self._worker
        if worker is not None:
            worker.notice_failed_values()
            said = dict(worker.ping())
        return {**said, "pid": os.getpid(), "compiled": self._compiled}

    def warm_up(self) -> None:
        """Import what takes long, so that a later start is quick."""
        importlib.import_module("alpa_runtime.workers.worker")

    def open_port(self) -> int:
        """A port for this process's world to meet at, kept free until it is used.

        The server that JAX starts there shares it with the socket, which never listens.
        """
        six = ":" in self.address
        held = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((self.address, 0))
        self._held_port = held
        return int(held.getsockname()[1])

    def prepare(self, start: Start) -> str:
        """Make devices and the transport.

        Returns:
            The transport's address.

        Raises:
            DevicesError: there are fewer devices than the plan has for this worker.
        """
        self._start = start
        os.environ.update(start.environment)
        count = len(start.devices[start.rank])
        if count > 1 or len(start.world) > 1:
            # Programs with collectives wait for each other if the pool is too small; others are
            # faster with as many threads as there are cores, into which XLA also cuts their ops.
            threads = max(16, 4 * count)
            if int(os.environ.get("NPROC", "0") or 0) < threads:
                os.environ["NPROC"] = str(threads)
        flag = r"--xla_force_host_platform_device_count=\d+"
        os.environ["XLA_FLAGS"] = re.sub(flag, "", os.environ.get("XLA_FLAGS", "")).strip()
        if start.platform == "gpu":
            from alpa_runtime.backends.gpus import allow_host_memory

            allow_host_memory()
        import jax

        _jax: Any = jax
        _jax.config.update("jax_enable_x64", start.x64)
        if start.platform == "cpu":
            _jax.config.update("jax_platforms", "cpu")
            _jax.config.update("jax_num_cpu_devices", count)
        if len(start.world) > 1:
            self._join_world(start, _jax)
        self._devices = _global_devices(start, _jax.devices())
        if len(start.devices) == 1:
            return ""
        from alpa_runtime.transport import make_transport

        self._transport = make_transport(start.rank, ip=self.address, encrypt=start.encrypt)
        return str(self._transport.address())

    def _join_world(self, start: Start, _jax: Any) -> None:
        if start.platform == "cpu":
            _jax.config.update("jax_cpu_collectives_implementation", "gloo")
        index = start.world.index(start.rank)
        _jax.distributed.initialize(
            start.coordinator,
            len(start.world),
            index,
            coordinator_bind_address=start.coordinator if index == 0 else None,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=start.heartbeat_seconds,
            initialization_timeout=start.start_seconds,
        )
        if start.platform == "cpu":
            from alpa_runtime.jax_internals import meet_at

            meet_at(self.address)

    def connect(self, addresses: tuple[str, ...]) -> None:
        """Connect the transport to those of all workers."""
        if self._transport is not None:
            self._transport.connect(addresses)

    def load(self, plan: Plan, placement: Placement, options: LoadOptions) -> None:
        """Check and compile this worker's part of a plan.

        Raises:
            TransportError: the way from device to device that was asked for is not installed.
        """
        from alpa_runtime.workers.worker import Worker

        assert self._start is not None
        self._device_transport = self._reach_devices(self._start, options.device_transport)

        def progress(done: int, total: int, label: str) -> None:
            self._compiled = (done, total, label)

        self._worker = Worker(
            plan,
            placement,
            self._start.rank,
            self._devices,
            self._transport,
            donate_state=options.donate_state,
            backend=options.backend,
            cache=options.cache,
            progress=progress,
            device_transport=self._device_transport,
        )

    def _reach_devices(self, start: Start, choice: str) -> Any:
        """What reaches other workers' devices, or None; all workers choose the same."""
        from alpa_runtime.transport.device import (
            connect_devices,
            find_device_backends,
            make_device_backend,
        )

        auto_on_cpu = choice == "auto" and start.platform == "cpu"
        if self._transport is None or choice == "host" or auto_on_cpu:
            return None
        kinds = find_device_backends(choice, start.platform)
        own = start.devices[start.rank]
        ordinals = {number: int(self._devices[number].local_hardware_id) for number in own}
        return connect_devices(
            self._transport,
            len(start.devices),
            kinds,
            lambda kind: make_device_backend(kind, start.platform, ordinals),
        )

    def close(self) -> None:
        """Give up the Worker and its connections; the process is ended by who started it."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        if self._transport is not None:
            self._transport.close()
        if self._device_transport is not None:  # Of a plan that could not be loaded.
            self._device_transport.close()

    def answer(self, method: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """The result of a call, or what it raised, as something that can be pickled.

        Methods of the Worker are called under their own names.
        """
        try:
            own, worker = getattr(type(self), method, None), self._worker
            if own is None and worker is None:
                raise WorkerError(f"call of {method!r} where no plan is loaded")
            return True, getattr(self if own else worker, method)(*args)
        except Exception as error:
            return False, portable_error(error)


def portable_error(error: Exception) -> Exception:
    """An error that another process can read: our own as they are, others as text."""
    if isinstance(error, AlpaError):
        return error
    text = worker_error(error, f"process {os.getpid()} on {socket.gethostname()}")
    text.add_note("".join(traceback.format_exception(error)))
    return text


def _global_devices(start: Start, found: list[Any]) -> dict[int, Any]:
    """Plan devices of all workers of the world, by number; those of a worker stand in a row."""
    devices: dict[int, Any] = {}
    for index, rank in enumerate(start.world):
        theirs = sorted((d for d in found if d.process_index == index), key=lambda d: d.id)
        wanted = start.devices[rank]
        kinds = {d.platform for d in theirs}
        if len(theirs) < len(wanted) or ("cpu" in kinds) != (start.platform == "cpu"):
            raise DevicesError(
                f"worker {rank} has {len(theirs)} {' and '.join(sorted(kinds))} devices, the plan "
                f"needs {len(wanted)} of kind {start.platform}",
                where=socket.gethostname(),
                fix="plan for the devices that the hosts have",
            )
        devices.update(zip(wanted, theirs, strict=False))
    return devices
