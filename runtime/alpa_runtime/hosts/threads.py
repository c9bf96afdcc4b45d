"""Workers in threads of this process, each with devices of its own: the reference for all hosts.

A mesh lies on one worker, as one process runs all devices of its programs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from alpa_runtime.backends.xla import Device
from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import ROW, DevicesError, PlacementError, WorkerError, check_type
from alpa_runtime.execution.executor import MAX_IN_FLIGHT
from alpa_runtime.plan import Plan
from alpa_runtime.transport.interface import connect_in_process
from alpa_runtime.worker_group import Placement, Progress, part_of_plan
from alpa_runtime.workers.worker import Worker

_jax: Any = jax


class _Thread:
    """A worker, the thread that its methods run in, and others for those that may wait."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.worker: Worker | None = None
        self._alive = True
        self._ordered = ThreadPoolExecutor(1, f"alpa-mlir worker {rank}")
        self._beside = ThreadPoolExecutor(8, f"alpa-mlir worker {rank} beside")

    def submit(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        pool = self._beside if method in Worker.BESIDE else self._ordered
        try:
            return pool.submit(self._run, method, args)
        except RuntimeError:  # It was closed.
            raise self._gone() from None

    def make(self, make: Any) -> Future[None]:
        def build() -> None:
            self.worker = made = make()
            if not self._alive:  # Killed meanwhile.
                made.close()

        return self._ordered.submit(build)

    def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        worker = self.worker
        if worker is None or not self._alive:
            raise self._gone()
        return getattr(worker, method)(*args)

    def _gone(self) -> WorkerError:
        return WorkerError("is gone", where=f"worker {self.rank}")

    def kill(self) -> None:
        self._alive = False
        worker = self.worker
        if worker is not None:
            worker.close()

    def close(self) -> None:
        self.kill()
        # The group may be garbage-collected in one of its own threads, which cannot wait for it.
        wait = not threading.current_thread().name.startswith("alpa-mlir worker")
        self._ordered.shutdown(wait=wait)  # Calls that wait for their turn say that it is gone.
        self._beside.shutdown(wait=wait)
        self.worker = None


class ThreadGroup:
    """The workers that `ThreadWorkers` has started; a `WorkerGroup`."""

    shares_memory = True

    def __init__(self, threads: Sequence[_Thread]) -> None:
        self._threads = threads
        self._open = True

    @property
    def size(self) -> int:
        return len(self._threads)

    def call(self, rank: int, method: str, *args: Any) -> Future[Any]:
        if not self._open:
            raise WorkerError("is closed", where=f"worker {rank}")
        return self._threads[rank].submit(method, args)

    def ping(self, rank: int, timeout: float) -> dict[str, Any]:
        try:
            return self.call(rank, "ping").result(timeout)
        except TimeoutError:
            raise WorkerError(f"no answer in {timeout:g} s", where=f"worker {rank}") from None

    def kill(self, rank: int) -> None:
        """The thread stays; its worker drops everything and answers no more."""
        self._threads[rank].kill()

    def close(self) -> None:
        if self._open:
            self._open = False
            for thread in self._threads:
                thread.kill()  # All of them first: they may wait for each other.
            for thread in self._threads:
                thread.close()


class ThreadWorkers:
    """Starts a plan's workers in threads of this process; see `Hosts`.

    Args:
        placement: by default one worker for each host of the plan's cluster.
        devices: `devices[i]` is device i of the plan; by default `jax.devices()`.

    Example:
        >>> step = alpa_mlir.load("my_plan", workers=ThreadWorkers())   # doctest: +SKIP
    """

    def __init__(
        self, placement: Placement | None = None, devices: Sequence[Device] | None = None
    ) -> None:
        check_type("ThreadWorkers", "placement", placement, Placement, None)
        check_type("ThreadWorkers", "devices", devices, ROW, None)
        self._placement = placement
        self._devices = devices

    def start(
        self,
        plan: Plan,
        placement: Placement | None = None,
        *,
        donate_state: bool = True,
        progress: Progress | None = None,
        backend: str = "auto",
        cache: CacheLike = True,
    ) -> tuple[Placement, ThreadGroup]:
        placement = placement or self._placement or Placement.by_hosts(plan)
        placement.check(plan)
        for mesh in range(len(plan.meshes)):
            ranks = placement.ranks_of(plan, mesh)
            if len(ranks) > 1:
                raise PlacementError(
                    f"mesh {mesh} spans the workers {', '.join(map(str, ranks))}",
                    where=f"plan of {plan.name}",
                    fix="give each mesh to one worker, or start workers as processes",
                )
        devices = _numbered(plan, self._devices)
        ends = connect_in_process(placement.size)
        threads = [_Thread(rank) for rank in range(placement.size)]
        group = ThreadGroup(threads)
        shown = _counted(progress, placement.size)

        def make(rank: int) -> Worker:
            own = placement.meshes_of(plan, rank)
            worker = Worker(
                part_of_plan(plan, own),
                placement,
                rank,
                {number: devices[number] for number in placement.workers[rank]},
                ends[rank],
                donate_state=donate_state,
                max_in_flight=max(1, MAX_IN_FLIGHT // placement.size),
                backend=backend,
                cache=cache,
            )
            shown(f"worker {rank}")
            return worker

        try:
            started = [t.make(lambda rank=t.rank: make(rank)) for t in threads]
            for future in started:
                future.result()
        except BaseException:
            group.close()
            raise
        return placement, group


def _numbered(plan: Plan, devices: Sequence[Device] | None) -> Mapping[int, Device]:
    present = list(_jax.devices() if devices is None else devices)
    if plan.num_devices > len(present):
        raise DevicesError(
            f"the plan needs {plan.num_devices} devices, JAX has {len(present)}",
            where=f"plan of {plan.name}",
            fix=f"call alpa_mlir.use_virtual_devices({plan.num_devices}) first",
        )
    return dict(enumerate(present))


def _counted(progress: Progress | None, total: int) -> Any:
    lock, done = threading.Lock(), 0

    def show(label: str) -> None:
        nonlocal done
        with lock:
            done += 1
            if progress is not None:
                progress(done, total, label)

    return show
