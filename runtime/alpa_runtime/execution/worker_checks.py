"""Is a worker what its placement says?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from alpa_runtime.backends.xla_runtime import Device
from alpa_runtime.errors import DevicesError, PlacementError
from alpa_runtime.placement import Placement
from alpa_runtime.plan import Plan
from alpa_runtime.transport.interface import Transport

_jax: Any = jax


def check_ends(placement: Placement, rank: int, transport: Transport | None) -> None:
    """Whether a worker is one of its placement, and can reach the others."""
    if not 0 <= rank < placement.size:
        raise PlacementError(f"rank {rank} of {placement.size} workers")
    if transport is None and placement.size > 1:
        raise PlacementError(
            f"{placement.size} workers without a transport",
            where=f"worker {rank}",
            fix="give each worker a connected end of a transport",
        )
    if transport is not None and transport.rank != rank:
        raise PlacementError(f"a transport of rank {transport.rank}", where=f"worker {rank}")


def check_devices(
    plan: Plan, placement: Placement, rank: int, devices: Mapping[int, Device]
) -> None:
    """Whether a worker has a device for each number of its meshes, its own in its own process."""
    where = f"worker {rank} of plan {plan.name}"
    seen: dict[Any, int] = {}
    for mesh in placement.meshes_of(plan, rank):
        for number in plan.meshes[mesh].devices:
            device = devices.get(number)
            if device is None:
                raise DevicesError(
                    f"device {number} of mesh {mesh} is missing",
                    where=where,
                    fix="start the worker with as many devices as its placement says",
                )
            if seen.setdefault(device, number) != number:
                raise DevicesError(
                    f"device {device} is given twice, as {seen[device]} and {number}", where=where
                )
            owner = placement.owners[number]
            here = device.process_index == _jax.process_index()
            if here != (owner == rank):
                raise DevicesError(
                    f"device {number} is worker {owner}'s, but {device} is one of "
                    + ("this process" if here else f"process {device.process_index}"),
                    where=where,
                    fix="place each mesh on one worker, or start workers as processes of one world",
                )
