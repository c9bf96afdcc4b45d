"""What no plan of a transfer can go below, found without the planner.

Both bounds look at the cells between the bounds of all shards: elements of one cell are held by the
same devices, and wanted by the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from alpa_runtime.plan.reshard import Box
from numpy.typing import NDArray

from alpa_mlir.simulator.transfer_network import Network, Route


@dataclass(frozen=True)
class Demand:
    """Elements that the same devices hold and the same devices still need.

    Attributes:
        elements: how many.
        holders: devices of the source mesh that have them.
        lacking: devices of the target mesh that want them and are no holders.
    """

    elements: int
    holders: tuple[int, ...]
    lacking: tuple[int, ...]


def demands(source: Mapping[int, Box], target: Mapping[int, Box]) -> list[Demand]:
    """What has to move, by who has it and who wants it.

    Example:
        >>> demands({0: ((0, 4),)}, {0: ((0, 4),), 1: ((1, 4),)})
        [Demand(elements=3, holders=(0,), lacking=(1,))]
    """
    boxes = [*source.values(), *target.values()]
    bounds = [
        sorted({bound for interval in dim for bound in interval})
        for dim in zip(*boxes, strict=True)
    ]
    sizes: NDArray[np.int64] = np.ones((), np.int64)
    for known in bounds:
        sizes = np.multiply.outer(sizes, np.diff(known).astype(np.int64))

    def cells(box: Box) -> NDArray[np.bool_]:
        inside = np.zeros(sizes.shape, bool)
        inside[
            tuple(slice(*map(known.index, span)) for known, span in zip(bounds, box, strict=True))
        ] = True
        return inside.reshape(-1)

    held = {device: cells(box) for device, box in source.items()}
    wanted = {device: cells(box) for device, box in target.items()}
    never = np.zeros(sizes.size, bool)
    lacked = {device: want & ~held.get(device, never) for device, want in wanted.items()}
    rows = np.array([*held.values(), *lacked.values()])
    patterns, which = np.unique(rows, axis=1, return_inverse=True)
    counts = np.bincount(which.reshape(-1), weights=sizes.reshape(-1).astype(float))
    found: list[Demand] = []
    for pattern, count in zip(patterns.T, counts, strict=True):
        holders = tuple(d for d, has in zip(held, pattern[: len(held)], strict=True) if has)
        lacking = tuple(d for d, need in zip(lacked, pattern[len(held) :], strict=True) if need)
        if lacking and count:
            found.append(Demand(int(count), holders, lacking))
    return found


def least_slow_bytes(
    network: Network, source: Mapping[int, Box], target: Mapping[int, Box], item_bytes: float
) -> float:
    """Bytes that must go from host to host: each that a host wants and does not hold, once.

    Args:
        source, target: the box that each device holds, or has to hold in the end.
        item_bytes: bytes of an element.
    """
    crossing = 0
    for demand in demands(source, target):
        have = {network.places[device].host for device in demand.holders}
        want = {network.places[device].host for device in demand.lacking}
        crossing += demand.elements * len(want - have)
    return crossing * item_bytes


def least_seconds(
    network: Network,
    source: Mapping[int, Box],
    target: Mapping[int, Box],
    item_bytes: float,
    *,
    least_slow: bool = True,
) -> float:
    """Seconds that the links need at least, however well the bytes are spread over them.

    A linear program: every byte that a device lacks comes to it once, straight from a device that
    held it or wanted it too; whatever is lacked by all of some hosts together comes in from outside
    of them once; no link carries more than its bandwidth for all the time, but for the latency of
    its last message. Bytes can be divided at will, and nobody waits for what was not sent yet.

    Args:
        least_slow: count only plans that bring a byte to a host once if the host lacks it, and
            never otherwise. Without, a device may get from another host what a neighbour has.

    Raises:
        RuntimeError: the solver failed.
    """
    program = _Program(network, least_slow)
    for demand in demands(source, target):
        program.add(demand, demand.elements * item_bytes)
    return program.solve()


class _Program:
    """minimize T; variables are bytes between two devices for each demand, and T at the end."""

    def __init__(self, network: Network, least_slow: bool) -> None:
        self._network = network
        self._least_slow = least_slow
        self._arcs = 0
        self._loads: dict[int, list[int]] = {}  # Of a link, the variables.
        self._latency: dict[int, float] = {}  # The least of a message on the link.
        self._equal: list[tuple[list[int], float]] = []  # Variables that add up to so much.
        self._atleast: list[tuple[list[int], float]] = []
        self._least_latency = 0.0

    def add(self, demand: Demand, size: float) -> None:
        host_of = {d: self._network.places[d].host for d in (*demand.holders, *demand.lacking)}
        held_on = {host_of[device] for device in demand.holders}
        into: dict[int, list[tuple[int, int]]] = {}  # Of a device, sources and variables.
        for device in demand.lacking:
            is_held = self._least_slow and host_of[device] in held_on
            sources = [
                source
                for source in (*demand.holders, *demand.lacking)
                if source != device and not (is_held and host_of[source] != host_of[device])
            ]
            routes = [self._network.route(source, device) for source in sources]
            into[device] = [
                (source, self._arc(r)) for source, r in zip(sources, routes, strict=True)
            ]
            self._equal.append(([variable for _, variable in into[device]], size))
            latency = min(route.latency_seconds for route in routes)
            self._least_latency = max(self._least_latency, latency)
        hosts = sorted({host_of[device] for device in demand.lacking})
        for count in range(1, len(hosts) + 1):
            for chosen in combinations(hosts, count):
                inner = {d for d in demand.lacking if host_of[d] in chosen}
                crossing = [v for d in inner for source, v in into[d] if source not in inner]
                self._atleast.append((crossing, size))
                if self._least_slow and count == 1 and not held_on.issuperset(chosen):
                    self._equal.append((crossing, size))

    def _arc(self, route: Route) -> int:
        for link in route.links:
            self._loads.setdefault(link, []).append(self._arcs)
            known = self._latency.get(link, route.latency_seconds)
            self._latency[link] = min(known, route.latency_seconds)
        self._arcs += 1
        return self._arcs - 1

    def solve(self) -> float:
        if not self._arcs:
            return 0.0
        seconds = self._minimum(self._latency)
        if seconds < max(self._latency.values()) * (1 + 1e-6):
            # A link that stays empty must not ask for its latency.
            least = min(self._latency.values())
            seconds = self._minimum(dict.fromkeys(self._latency, least))
        return max(seconds, self._least_latency)

    def _minimum(self, latency: Mapping[int, float]) -> float:
        sparse: Any = importlib.import_module("scipy.sparse")
        optimize: Any = importlib.import_module("scipy.optimize")
        # In units of the largest demand, so that the solver's tolerances mean something.
        unit = max(size for _, size in self._equal)
        scale = unit / max(self._network.bandwidths[link] for link in self._loads)
        upper: list[tuple[list[int], list[float], float]] = []
        for link, variables in self._loads.items():
            bandwidth = self._network.bandwidths[link]
            room = bandwidth * scale / unit
            upper.append(
                (
                    [*variables, self._arcs],
                    [1.0] * len(variables) + [-room],
                    -room * latency[link] / scale,
                )
            )
        upper += [(v, [-1.0] * len(v), -size / unit) for v, size in self._atleast]
        equal = [(v, [1.0] * len(v), size / unit) for v, size in self._equal]

        def matrix(rows: Sequence[tuple[list[int], list[float], float]]) -> Any:
            columns = [variable for variables, _, _ in rows for variable in variables]
            values = [value for _, row, _ in rows for value in row]
            begins = np.cumsum([0, *(len(variables) for variables, _, _ in rows)])
            return sparse.csr_array((values, columns, begins), shape=(len(rows), self._arcs + 1))

        cost = np.zeros(self._arcs + 1)
        cost[-1] = 1
        found = optimize.linprog(
            cost,
            A_ub=matrix(upper),
            b_ub=[bound for _, _, bound in upper],
            A_eq=matrix(equal),
            b_eq=[bound for _, _, bound in equal],
            method="highs",
        )
        if not found.success:
            raise RuntimeError(f"the bound was not found: {found.message}")
        return float(found.fun) * scale
