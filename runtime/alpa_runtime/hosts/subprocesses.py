"""Workers in processes of this machine, without any service."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import alpa_runtime
from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import WHOLE, DevicesError, check_type
from alpa_runtime.hosts.process import (
    OUT_OF_MEMORY_KILL,
    Platform,
    ProcessFacts,
    out_of_memory_kills,
)
from alpa_runtime.hosts.process_group import Limits, ProcessGroup, is_beside, load_options
from alpa_runtime.hosts.rpc import OUT_OF_MEMORY, RpcClient, Streams
from alpa_runtime.plan import Plan
from alpa_runtime.transport.device import check_choice
from alpa_runtime.worker_group import Placement, Progress

_SECONDS_TO_END = 5.0  # For a process whose connection has ended.


class _Process:
    """A worker process and the calls that wait for its answers."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        pairs = socket.socketpair(), socket.socketpair()
        ours, theirs = zip(*pairs, strict=True)
        options = ["--die-with-parent"] * (threading.current_thread() is threading.main_thread())
        self._out_of_memory = out_of_memory_kills()
        self.popen = start_worker(program, theirs, options, environment)
        where = f"worker process {self.popen.pid}"
        self.calls = RpcClient(Streams(*ours), self._how_it_ended, where)

    def _how_it_ended(self) -> tuple[str, bool]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.popen.wait(_SECONDS_TO_END)
            how = how_it_ended(code, out_of_memory_kills() > self._out_of_memory)
            return how, code == OUT_OF_MEMORY
        return "its connection ended", False

    def end(self) -> None:
        self.popen.kill()  # Of a stopped process too; of one that is gone nothing happens.
        self.popen.wait()


def start_worker(
    program: Sequence[str],
    ends: Sequence[socket.socket],
    options: Sequence[str],
    environment: Mapping[str, str],
    output: int = 2,
) -> subprocess.Popen[bytes]:
    """Start a worker process, and give it its ends of two sockets.

    Args:
        program: what Python runs, before the numbers of the sockets.
        options: behind them.
        environment: besides that of this process.
        output: where what it prints goes, a descriptor.
    """
    root = str(Path(alpa_runtime.__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    descriptors = [end.fileno() for end in ends]
    with _ctrl_c_blocked():
        process = subprocess.Popen(
            [sys.executable, *program, *map(str, descriptors), *options],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,  # The program's own output may be a document; Gloo prints, too.
            stderr=output,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
    for end in ends:
        end.close()
    return process


@contextlib.contextmanager
def _ctrl_c_blocked() -> Generator[None, None, None]:
    """Processes that this thread starts never see Ctrl-C, not even while they import: a terminal
    sends it to all of a group, but it is for the driver, which ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def how_it_ended(code: int, out_of_memory: bool = False) -> str:
    """An exit status in words.

    Args:
        out_of_memory: the kernel has killed a process for want of memory meanwhile.

    Example:
        >>> how_it_ended(-9)
        'died of SIGKILL (out of memory, or killed)'
    """
    if code == OUT_OF_MEMORY:
        return "out of memory: it could not even answer"
    if code >= 0:
        return f"ended with status {code}"
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return OUT_OF_MEMORY_KILL if out_of_memory else f"died of {name} (out of memory, or killed)"
    return f"died of {name}" + (" (crashed, or out of memory)" if name == "SIGABRT" else "")


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
        return self._processes[rank].calls.send(method, args, is_beside(method))

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
        device_transport: how values go from device to device: "auto" (the best of what all have
            installed, for GPUs), "nccl", "nixl", or "host".
        encrypt: speak TLS where workers talk by TCP, and refuse what goes by another way than
            within the machine's memory.
        program: what Python runs in a worker, before its own arguments.

    Raises:
        TransportError: there is no such `device_transport`.

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
        device_transport: str = "auto",
        encrypt: bool = False,
        program: Sequence[str] = ("-m", "alpa_runtime.hosts.rpc"),
    ) -> None:
        check_type("ProcessWorkers", "placement", placement, Placement, None)
        check_type("ProcessWorkers", "spares", spares, WHOLE)
        check_type("ProcessWorkers", "limits", limits, Limits, None)
        self.platform: Platform = platform or ("gpu" if local_gpus() else "cpu")
        self.limits: Limits = limits or Limits()
        self.device_transport: str = check_choice(device_transport)
        self.encrypt: bool = encrypt
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
        options = load_options(
            plan, placement, donate_state, backend, cache, self.device_transport, self.encrypt
        )
        wanted = sum(map(len, placement.workers))
        gpus = local_gpus() if self.platform == "gpu" else ()
        if self.platform == "gpu" and len(gpus) < wanted:
            raise DevicesError(
                f"the plan needs {wanted} GPUs, this machine has {len(gpus)}",
                where=f"plan of {plan.name}",
                fix="plan for this machine, or take RayWorkers for several machines",
            )
        processes: list[_Process] = []
        try:
            for _ in placement.workers:
                processes.append(self._take())
        except BaseException:
            _end_processes(processes)
            raise
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
                process.calls.send("warm_up", (), beside=False)
                self._spares.append(process)


def local_gpus() -> tuple[str, ...]:
    """The NVIDIA GPUs that processes of this machine may use, as CUDA names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip())
    folder = Path("/proc/driver/nvidia/gpus")
    return tuple(map(str, range(len(list(folder.iterdir()))))) if folder.is_dir() else ()
