"""The workers of a plan as their driver sees them: which of them holds which devices, what both say
to each other, and what starts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import ROWS, Kind, PlacementError, check_type
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import host_groups
from alpa_runtime.plan.reshard import Box


@dataclass(frozen=True)
class Placement:
    """The devices of each worker. A worker is one process of one host.

    A mesh may span workers, and a worker may hold several meshes.

    Attributes:
        workers: for each worker, by rank, device numbers of the plan in rising order.

    Raises:
        PlacementError: a worker has no device, its devices are out of order, or two share one.

    Example:
        >>> Placement(((0, 1), (2, 3))).owners[2]
        1
    """

    workers: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_type("Placement", "workers", self.workers, ROWS)
        if not self.workers:
            raise PlacementError("no workers", fix="give each device of the plan to one")
        seen: dict[int, int] = {}
        for rank, devices in enumerate(self.workers):
            where = f"worker {rank}"
            if not devices or list(devices) != sorted(set(devices)) or devices[0] < 0:
                raise PlacementError(
                    f"devices {list(devices)}, expected at least one, in rising order", where=where
                )
            for device in devices:
                if device in seen:
                    raise PlacementError(
                        f"device {device} belongs to worker {seen[device]} as well", where=where
                    )
                seen[device] = rank

    @classmethod
    def by_hosts(cls, plan: Plan) -> Placement:
        """One worker for each host of the plan's cluster of which the plan uses a device.

        A plan that describes no hosts gets one worker.

        Raises:
            PlacementError: the plan uses a device that its cluster does not have.
        """
        used = plan.used_devices
        sizes: list[int] = []
        for group in host_groups(plan.cluster):
            sizes += [int(group["devices"])] * int(group.get("count", 1))
        if not sizes:
            return cls((tuple(used),))
        if used[-1] >= sum(sizes):
            raise PlacementError(
                f"the plan uses device {used[-1]}, its cluster has {sum(sizes)}",
                where=f"plan of {plan.name}",
            )
        workers: list[tuple[int, ...]] = []
        first = 0
        for size in sizes:
            own = tuple(device for device in used if first <= device < first + size)
            workers += [own] if own else []
            first += size
        return cls(tuple(workers))

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @cached_property
    def owners(self) -> Mapping[int, int]:
        """The worker of each device."""
        return {device: rank for rank, own in enumerate(self.workers) for device in own}

    def check(self, plan: Plan) -> None:
        """Whether the workers have the devices of the plan's meshes, and no others.

        Raises:
            PlacementError: names the first device that is missing or not used.
        """
        used = plan.used_devices
        for device in used:
            if device not in self.owners:
                raise PlacementError(
                    f"no worker has device {device}",
                    where=f"plan of {plan.name}",
                    fix=f"place all of the plan's devices: {', '.join(map(str, used))}",
                )
        for device, rank in self.owners.items():
            if device not in used:
                raise PlacementError(
                    f"worker {rank} has device {device}, which no mesh of the plan uses",
                    where=f"plan of {plan.name}",
                    fix=f"place the plan's devices only: {', '.join(map(str, used))}",
                )

    def ranks_of(self, plan: Plan, mesh: int) -> tuple[int, ...]:
        """The workers that hold devices of a mesh, in rising order."""
        return tuple(sorted({self.owners[device] for device in plan.meshes[mesh].devices}))

    def meshes_of(self, plan: Plan, rank: int) -> tuple[int, ...]:
        """The meshes of which a worker holds devices."""
        own = set(self.workers[rank])
        return tuple(i for i, mesh in enumerate(plan.meshes) if own & set(mesh.devices))

    def worlds(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Groups of workers that meshes connect, each in rising order, by their first workers.

        A group of several is one world of `jax.distributed`; a worker's process number is its
        position in the group.
        """
        groups = [{rank} for rank in range(self.size)]
        for mesh in range(len(plan.meshes)):
            ranks = set(self.ranks_of(plan, mesh))
            joined = [group for group in groups if group & ranks]
            groups = [group for group in groups if not group & ranks]
            groups.append(set[int]().union(*joined))
        return tuple(sorted(tuple(sorted(group)) for group in groups))


def part_of_plan(plan: Plan, meshes: Sequence[int]) -> Plan:
    """The plan with the modules of these meshes' stages only: what a worker that holds them needs.

    Tables and programs stay whole; a worker reads the programs of its meshes.
    """
    wanted = {stage.module for stage in plan.stages if stage.mesh in meshes}
    modules = {name: text for name, text in plan.modules.items() if name in wanted}
    return replace(plan, modules=modules, explanations={})


# What the driver of several workers and a worker say to each other: plain data, to be pickled.
#
# Arrays live in workers under numbers (uids) that the driver gives out.

# Parts of an array on the host: where each lies in the whole array (batches whole, with all of
# their micro-batches), and a NumPy array of that shape.
Parts = tuple[tuple[Box, Any], ...]


@dataclass(frozen=True)
class Held:
    """An input that the worker has already.

    Attributes:
        copy: the step uses it up, but it must stay: it is given as another input as well.
    """

    uid: int
    copy: bool = False


@dataclass(frozen=True)
class StepRequest:
    """One step of one worker.

    Attributes:
        number: of the step, from 0; workers take the steps in order.
        inputs: for each of the plan's inputs of which the worker needs something, where it has it,
            or the parts that it needs.
        outputs: for each of the plan's results that the worker makes a part of, its uid.
        free: arrays that nobody needs any more; they are dropped before the step.
        counted_from: what the step of number 0 is called in messages.
    """

    number: int
    inputs: Mapping[int, Held | Parts]
    outputs: Mapping[int, int]
    free: tuple[int, ...] = ()
    counted_from: int = 0


@dataclass(frozen=True)
class StepReply:
    """What a worker says when it has started all of a step; the work itself may go on.

    Attributes:
        number: of the step.
        ready: small results of earlier steps that have arrived since the last reply, by uid.
    """

    number: int
    ready: Mapping[int, Parts] = field(default_factory=dict[int, Parts])


# What a driver needs of the place where its workers run.

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
