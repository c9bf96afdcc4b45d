"""Random transfers between meshes: a cluster, two meshes, a tensor and how they hold it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any, Protocol, TypeVar

from alpa_mlir.compiler import plan_reshard
from alpa_runtime.plan.reshard import Box, shard_boxes
from alpa_runtime.plan.tensor import Spec, TensorSpec

T = TypeVar("T")
AXES = ("x", "y", "z")
ITEM_BYTES = {"int8": 1, "bfloat16": 2, "float32": 4, "float64": 8}
# Bytes a second of a device within its host and of a host to others: Ethernet and InfiniBand from
# 10 to 8 x 400 Gbit/s, PCIe 3 and 4, NVLink from one link to 18.
INTRA_HOST = (12e9, 25e9, 50e9, 150e9, 300e9, 450e9)
INTER_HOST = (1.25e9, 3.125e9, 12.5e9, 25e9, 50e9, 100e9, 400e9)
INTRA_LATENCY, INTER_LATENCY = (1e-6, 3e-6, 1e-5), (5e-6, 2e-5, 5e-5)
SIZES = (8_000_000, 256_000_000)  # Of tensors, in bytes.


class Chooser(Protocol):
    """Where the choices come from: a seed, or hypothesis."""

    def integer(self, low: int, high: int) -> int: ...
    def pick(self, items: Sequence[T]) -> T: ...


class Seeded:
    """Choices of a pseudo-random generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, items: Sequence[T]) -> T:
        return self._random.choice(items)


@dataclass(frozen=True)
class Side:
    """A mesh, and how it holds the tensor."""

    shape: tuple[int, ...]
    devices: tuple[int, ...]
    spec: Spec

    @property
    def axes(self) -> tuple[str, ...]:
        return AXES[: len(self.shape)]

    @property
    def axis_numbers(self) -> list[list[int]]:
        """The spec as the compiler takes it."""
        return [[self.axes.index(axis) for axis in axes] for axes in self.spec]


@dataclass(frozen=True)
class Case:
    """A transfer; `cluster` is a description as docs/cluster.md has it."""

    cluster: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    source: Side
    target: Side

    def tensor(self, side: Side) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype, side.spec)

    def boxes(self, side: Side) -> dict[int, Box]:
        """The box that each device of a mesh holds."""
        boxes = shard_boxes(self.tensor(side), side.axes, side.shape)
        return dict(zip(side.devices, boxes, strict=True))

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    def plan(self, strategy: str) -> dict[str, Any]:
        """What the compiler plans; see `alpa_mlir.compiler.plan_reshard`."""
        source, target = self.source, self.target
        return plan_reshard(
            json.dumps(self.cluster),
            self.dtype,
            self.shape,
            (source.shape, source.devices),
            source.axis_numbers,
            (target.shape, target.devices),
            target.axis_numbers,
            strategy,
        )

    def as_text(self) -> str:
        """One line, for people."""
        sides = (
            f"{self.tensor(side).to_text()} on {'x'.join(map(str, side.shape))} "
            f"{','.join(map(str, side.devices))}"
            for side in (self.source, self.target)
        )
        hosts = " ".join(
            f"{host['count']}x{host['devices']}/{host['nics']} nics "
            f"{_rate(host['links']['intra_host'])} {_rate(host['links']['inter_host'])}"
            for host in self.cluster["hosts"]
        )
        return f"{' -> '.join(sides)}; hosts {hosts}"


def _rate(link: dict[str, float]) -> str:
    return f"{link['bandwidth'] / 1e9:g}GB/s+{link['latency'] * 1e6:g}us"


def make_cluster(hosts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A cluster of groups of hosts with links of their own; compute rates do not matter here."""
    device = {"memory_bytes": 16 * 2**30, "memory_bandwidth": 9e11, "peak_flops": {"float32": 1e13}}
    return {
        "name": "random",
        "device_types": {"device": device},
        "hosts": [{"device_type": "device", **host} for host in hosts],
        "links": hosts[0]["links"],
    }


def random_case(choose: Chooser, sizes: tuple[int, int] = SIZES) -> Case:
    """1 to 4 hosts of 1 to 8 devices and as many adapters at most, which may differ; meshes of 1 to
    3 axes on runs of devices or on any devices, apart or overlapping; tensors of rank 1 to 4.

    Args:
        sizes: least and most bytes of the tensor, roughly.
    """
    cluster, devices = _random_cluster(choose)
    source, target = _random_meshes(choose, devices)
    rank = choose.integer(1, 4)
    sides = [_random_side(choose, mesh, rank) for mesh in (source, target)]
    dtype = choose.pick(list(ITEM_BYTES))
    parts = [lcm(*(_parts(side, dim) for side in sides)) for dim in range(rank)]
    left = max(1, choose.integer(*sizes) // (prod(parts) * ITEM_BYTES[dtype]))
    long = choose.integer(0, rank - 1)
    for dim in range(rank):
        factor = left if dim == long else min(left, choose.pick((1, 1, 2, 3, 4, 8, 16)))
        parts[dim] *= factor
        left = max(1, left // factor) if dim != long else 1
    return Case(cluster, tuple(parts), dtype, sides[0], sides[1])


def _random_cluster(choose: Chooser) -> tuple[dict[str, Any], int]:
    count = choose.integer(1, 4)
    if choose.integer(0, 2):  # Hosts are alike.
        hosts = [{**_random_host(choose, 2 if count == 1 else 1), "count": count}]
    else:
        hosts = [_random_host(choose, 2 if count == 1 else 1) for _ in range(count)]
    return make_cluster(hosts), sum(host["count"] * host["devices"] for host in hosts)


def _random_host(choose: Chooser, least: int) -> dict[str, Any]:
    devices = choose.integer(least, 8)
    nics = choose.integer(1, devices)
    near = choose.pick(INTRA_HOST)
    # An adapter is no faster than the links of the devices behind it.
    far = choose.pick([rate for rate in INTER_HOST if rate / nics <= near])
    return {
        "count": 1,
        "devices": devices,
        "nics": nics,
        "links": {
            "intra_host": {"bandwidth": near, "latency": choose.pick(INTRA_LATENCY)},
            "inter_host": {"bandwidth": far, "latency": choose.pick(INTER_LATENCY)},
        },
    }


def _random_meshes(choose: Chooser, devices: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Devices of two meshes: mostly apart, mostly in a row."""
    everyone = list(range(devices))
    if choose.integer(0, 4) == 0:  # Any devices, in any order.
        for i in range(devices - 1, 0, -1):
            j = choose.integer(0, i)
            everyone[i], everyone[j] = everyone[j], everyone[i]
    if choose.integer(0, 9) == 0:  # Anywhere, perhaps overlapping.
        runs: list[tuple[int, ...]] = []
        for _ in range(2):
            first = choose.integer(0, devices - 1)
            runs.append(tuple(everyone[first : choose.integer(first + 1, devices)]))
        return runs[0], runs[1]
    cut = choose.integer(1, devices - 1)
    runs = []
    for part in (everyone[:cut], everyone[cut:]):
        count = choose.integer(1, len(part)) if choose.integer(0, 1) else len(part)
        first = choose.integer(0, len(part) - count)
        runs.append(tuple(part[first : first + count]))
    swap = choose.integer(0, 1)
    return runs[swap], runs[1 - swap]


def _random_side(choose: Chooser, devices: tuple[int, ...], rank: int) -> Side:
    shape: list[int] = []
    left = len(devices)
    for _ in range(choose.integer(1, 3) - 1):
        shape.append(choose.pick([n for n in range(1, left + 1) if left % n == 0]))
        left //= shape[-1]
    shape.append(left)
    axes = list(AXES[: len(shape)])
    if choose.integer(0, 1):
        axes.reverse()
    spec: list[tuple[str, ...]] = [() for _ in range(rank)]
    for axis in axes:
        if choose.integer(0, 2):  # Otherwise the tensor is replicated along the axis.
            dim = choose.integer(0, rank - 1)
            spec[dim] = (*spec[dim], axis)
    return Side(tuple(shape), devices, tuple(spec))


def _parts(side: Side, dim: int) -> int:
    sizes = dict(zip(side.axes, side.shape, strict=True))
    return prod(sizes[axis] for axis in side.spec[dim])
