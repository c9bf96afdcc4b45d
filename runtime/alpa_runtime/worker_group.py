"""What a driver needs of the place where its workers run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from alpa_runtime.argument_types import Kind
from alpa_runtime.cache import CacheLike
from alpa_runtime.placement import Placement
from alpa_runtime.plan import Plan

Progress = Callable[[int, int, str], None]


class Reply(Protocol):
    """The answer to a call, perhaps not there yet; `concurrent.futures.Future` is one."""

    def result(self, timeout: float | None = None) -> Any:
        """The method's result; waits for it.

        Raises:
            TimeoutError: it has not come within `timeout` seconds.
            WorkerError: the worker is gone.
            Exception: what the method raised.
        """
        ...

    def done(self) -> bool:
        """Whether the result, or an error, is there."""
        ...


class WorkerGroup(Protocol):
    """Workers with a plan loaded, ranks 0 to `size` - 1.

    `shares_memory` says that workers see the very arrays that they are given, not copies.
    """

    @property
    def size(self) -> int: ...

    @property
    def shares_memory(self) -> bool: ...

    def call(self, rank: int, method: str, *args: Any) -> Reply:
        """Call a method of a `Worker`; returns at once.

        Calls of one worker are taken in order, one after the other, apart from those of
        `Worker.BESIDE`, which run beside them: they may wait for what a later step makes.
        """
        ...

    def ping(self, rank: int, timeout: float) -> dict[str, Any]:
        """What `Worker.ping` says, however busy the worker is.

        Raises:
            WorkerError: the worker is gone, or has not answered within `timeout` seconds.
        """
        ...

    def kill(self, rank: int) -> None:
        """End a worker at once."""
        ...

    def close(self) -> None:
        """End all workers; no call follows. May be called twice."""
        ...


class Hosts(Protocol):
    """What users give as `workers=`: starts the workers of a plan."""

    def start(
        self,
        plan: Plan,
        placement: Placement | None = None,
        *,
        donate_state: bool = True,
        progress: Progress | None = None,
        backend: str = "auto",
        cache: CacheLike = True,
    ) -> tuple[Placement, WorkerGroup]:
        """Start one worker for each entry of the placement, and load the plan in each.

        Args:
            placement: by default that of the hosts themselves, or `Placement.by_hosts(plan)`.
            donate_state: a step uses up the state that it is given.
            progress: called with (done, total, label) as workers get ready.
            backend, cache: who compiles, and whether programs are kept on disk, as in
                `loaded_plan.load`.

        Raises:
            PlacementError: the placement is not one of this plan.
            DevicesError: a host has too few devices.
            WorkerError: a worker could not be started.
        """
        ...


HOSTS = Kind(
    "workers such as ProcessWorkers()",
    lambda value: hasattr(value, "start") and not isinstance(value, type),
)
