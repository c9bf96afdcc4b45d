"""Workers in processes of this machine, without any service."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import alpa_mlir
from alpa_mlir.cache_folder import CacheLike
from alpa_mlir.errors import DevicesError, WorkerLostError
from alpa_mlir.hosts.interface import Progress
from alpa_mlir.hosts.process import LoadOptions, Platform, ProcessFacts
from alpa_mlir.hosts.process_group import Limits, ProcessGroup
from alpa_mlir.plan import Plan
from alpa_mlir.runtime.placement import Placement


class _Process:
    """A worker process and the calls that wait for its answers."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(alpa_mlir.__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        arguments = [sys.executable, *program, str(theirs.fileno())]
        if threading.current_thread() is threading.main_thread():
            arguments.append("--die-with-parent")
        self.popen = subprocess.Popen(
            arguments,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
        theirs.close()
        self._connection: Any = Connection(ours.detach())
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._count = 0
        self._gone: str | None = None
        self.where = f"worker process {self.popen.pid}"
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._sending:
            if self._gone is not None:
                future.set_exception(WorkerLostError(self._gone, where=self.where))
                return future
            self._count += 1
            self._waiting[self._count] = future
            try:
                message = (self._count, method, args)
                self._connection.send_bytes(pickle.dumps(message, protocol=5))
            except OSError:
                pass  # The reader sees the same and tells all who wait.
        return future

    def _read(self) -> None:
        try:
            while True:
                number, succeeded, result = pickle.loads(self._connection.recv_bytes())
                self._waiting.pop(number).set_result((succeeded, result))
        except (EOFError, OSError):
            pass
        with self._sending:
            self._gone = how_it_ended(self.popen.wait())
            self._connection.close()
        for future in self._waiting.values():
            future.set_exception(WorkerLostError(self._gone, where=self.where))

    def end(self) -> None:
        self.popen.kill()  # Of a stopped process too; of one that is gone nothing happens.
        self.popen.wait()


def how_it_ended(code: int) -> str:
    """An exit status in words.

    Example:
        >>> how_it_ended(-9)
        'died of SIGKILL (out of memory, or killed)'
    """
    import signal

    if code >= 0:
        return f"ended with status {code}"
    name = signal.Signals(-code).name
    return f"died of {name}" + (" (out of memory, or killed)" if name == "SIGKILL" else "")


def _end_processes(processes: list[_Process]) -> None:
    """The last one first: it leaves a world before the process that the world meets at."""
    while processes:
        processes.pop().end()


class LocalProcessGroup(ProcessGroup):
    """Worker processes of this machine; `ProcessWorkers.start` makes it."""

    def __init__(self, processes: Sequence[_Process], limits: Limits, gpus: Sequence[str]) -> None:
        super().__init__(len(processes), limits)
        self._processes = processes
        self._gpus = gpus
        self._release_now = weakref.finalize(self, _end_processes, list(processes))

    def _send(self, rank: int, method: str, args: tuple[Any, ...]) -> Future[Any]:
        return self._processes[rank].send(method, args)

    def _end(self, rank: int) -> None:
        self._processes[rank].end()

    def _release(self) -> None:
        self._release_now()

    def met(self, facts: Sequence[ProcessFacts]) -> None:
        pass

    def environment_of(self, rank: int, placement: Placement) -> Mapping[str, str]:
        if not self._gpus:
            return {}
        first = sum(map(len, placement.workers[:rank]))
        own = self._gpus[first : first + len(placement.workers[rank])]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)}

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the processes, by rank."""
        return tuple(process.popen.pid for process in self._processes)


class ProcessWorkers:
    """Starts the workers of a plan as processes of this machine.

    Args:
        placement: by default one worker for each host of the plan's cluster.
        platform: "cpu" for virtual devices, "gpu" for this machine's GPUs, which the workers take
            in the order of the plan's devices; by default "gpu" where there are any.
        environment: variables of the workers, besides those of this process.
        spares: processes that are kept ready, with JAX imported, so that the next group starts
            quickly.
        limits: how long things may take.
        program: what Python runs in a worker, before its own arguments.

    Example:
        >>> step = alpa_mlir.load("my_plan", workers=ProcessWorkers())  # doctest: +SKIP
    """

    def __init__(
        self,
        placement: Placement | None = None,
        *,
        platform: Platform | None = None,
        environment: Mapping[str, str] | None = None,
        spares: int = 0,
        limits: Limits | None = None,
        program: Sequence[str] = ("-m", "alpa_mlir.hosts.plain_process"),
    ) -> None:
        self.platform: Platform = platform or ("gpu" if local_gpus() else "cpu")
        self.limits = limits or Limits()
        self._placement = placement
        self._environment = dict(environment or {})
        self._program = tuple(program)
        self._wanted_spares = spares
        self._spares: list[_Process] = []
        self._lock = threading.Lock()
        self._end_spares = weakref.finalize(self, _end_processes, self._spares)

    def start(
        self,
        plan: Plan,
        placement: Placement | None = None,
        *,
        donate_state: bool = True,
        backend: str = "auto",
        cache: CacheLike = True,
        progress: Progress | None = None,
    ) -> tuple[Placement, LocalProcessGroup]:
        """Start one process for each worker, and load the plan in each; see `Hosts.start`."""
        placement = placement or self._placement or Placement.by_hosts(plan)
        placement.check(plan)
        options = LoadOptions(donate_state, backend, cache)
        wanted = sum(map(len, placement.workers))
        gpus = local_gpus() if self.platform == "gpu" else ()
        if self.platform == "gpu" and len(gpus) < wanted:
            raise DevicesError(
                f"the plan needs {wanted} GPUs, this machine has {len(gpus)}",
                where=f"plan of {plan.name}",
                fix="plan for this machine, or take RayWorkers for several machines",
            )
        processes = [self._take() for _ in placement.workers]
        group = LocalProcessGroup(processes, self.limits, gpus)
        group.start(plan, placement, self.platform, options, progress)
        self._refill()
        return placement, group

    def close(self) -> None:
        """End the spare processes; groups are closed by themselves."""
        with self._lock:
            _end_processes(self._spares)

    def __enter__(self) -> ProcessWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> _Process:
        with self._lock:
            while self._spares:
                process = self._spares.pop(0)
                if process.popen.poll() is None:
                    return process
        return _Process(self._program, self._environment)

    def _refill(self) -> None:
        with self._lock:
            while len(self._spares) < self._wanted_spares:
                process = _Process(self._program, self._environment)
                process.send("warm_up", ())
                self._spares.append(process)


def local_gpus() -> tuple[str, ...]:
    """The NVIDIA GPUs that processes of this machine may use, as CUDA names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip())
    folder = Path("/proc/driver/nvidia/gpus")
    return tuple(map(str, range(len(list(folder.iterdir()))))) if folder.is_dir() else ()
