"""What the steps of a transfer take on the links of a cluster, and what bounds it from below.

Steps become messages from device to device: a send is one, a broadcast one for each chunk and
hop, an all-gather a ring in which every part goes around. A hop hands a chunk on once it has
wholly arrived (store and forward), one chunk after the other. Messages whose data is there flow
at the same time and share links max-min fairly (progressive filling: Bertsekas, Gallager, "Data
Networks", 2nd ed., section 6.5.2); a message arrives its latency after its last byte has left
(Hockney, *Parallel Computing* 20, 1994).

Devices of one host have a link each way of their own; between hosts only the hosts' adapters
count, which their devices share evenly, and between racks the racks' as well (docs/cluster.md).
"""

from __future__ import annotations

import heapq
import importlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, TypeVar

import numpy as np
from alpa_runtime.plan.plan import host_groups, hosts_per_rack
from alpa_runtime.plan.reshard import (
    AllGather,
    Box,
    Broadcast,
    PlacedTile,
    ReshardStep,
    SendTile,
    box_elements,
    place_tiles,
    sources_of,
)
from numpy.typing import NDArray

Link = TypeVar("Link")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device stands; `adapter` is the number of the one it uses, on its host."""

    host: int
    adapter: int
    rack: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """From a device to another: the links on the way by number, and the latency."""

    links: tuple[int, ...]
    latency_seconds: float
    slow: bool  # Between hosts.


@dataclass(frozen=True)
class TransferTimes:
    """What became of a transfer.

    Attributes:
        seconds: until the last byte has arrived.
        step_seconds: when the tiles of each step were there.
        link_bytes: bytes that took each link, by name, such as `host 0 adapter 1 out`.
        slow_bytes: bytes that went from host to host.
    """

    seconds: float
    step_seconds: tuple[float, ...]
    link_bytes: Mapping[str, float]
    slow_bytes: float


class Network:
    """The links of a cluster.

    Args:
        cluster: a description as docs/cluster.md has it, such as `Plan.cluster`.

    Example:
        >>> from alpa_runtime.plan.reshard import read_step
        >>> link = {"bandwidth": 10.0, "latency": 1.0}
        >>> network = Network({
        ...     "hosts": {"count": 2, "devices": 1, "device_type": "a"},
        ...     "links": {"intra_host": link, "inter_host": link}})
        >>> steps = [read_step("tile 0 on 0 [0:20]"), read_step("send 1 = 0 to 1")]
        >>> network.simulate(steps, item_bytes=1).seconds
        3.0
    """

    def __init__(self, cluster: Mapping[str, Any]) -> None:
        self.places: list[Place] = []
        self.names: list[str] = []
        self.bandwidths: list[float] = []
        # Numbers of links: of each device and direction, within its host and out of it.
        self._near: list[tuple[int, int]] = []
        self._far: list[tuple[int, int]] = []
        self._out: list[tuple[int, int]] = []  # Out of its rack, where there are racks.
        self._latency: list[tuple[float, float]] = []  # Of each host, within and out of it.
        self._rack_latency = 0.0
        hosts = hosts_per_rack(cluster)
        for group in host_groups(cluster):
            links = {**cluster["links"], **group.get("links", {})}
            for _ in range(int(group.get("count", 1))):
                rack = len(self._latency) // hosts if hosts else 0
                self._add_host(int(group["devices"]), int(group.get("nics", 1)), links, rack)
        if hosts:
            self._add_racks(int(cluster["racks"].get("nics", 1)), cluster["links"]["inter_rack"])

    def _add_racks(self, nics: int, link: Mapping[str, Any]) -> None:
        self._rack_latency = float(link["latency"])
        sizes = Counter(place.rack for place in self.places)
        for rack, devices in sorted(sizes.items()):
            adapters = min(nics, devices)
            of_adapter = [
                self._add_links(f"rack {rack} adapter {adapter}", _reached(link) / adapters)
                for adapter in range(adapters)
            ]
            self._out += [of_adapter[local * adapters // devices] for local in range(devices)]

    def _add_host(self, devices: int, nics: int, links: Mapping[str, Any], rack: int) -> None:
        host = len(self._latency)
        near, far = links["intra_host"], links["inter_host"]
        self._latency.append((float(near["latency"]), float(far["latency"])))
        adapters = min(nics, devices)
        of_adapter = [
            self._add_links(f"host {host} adapter {adapter}", _reached(far) / adapters)
            for adapter in range(adapters)
        ]
        for local in range(devices):
            adapter = local * adapters // devices
            name = f"device {len(self.places)}"
            self.places.append(Place(host, adapter, rack))
            self._near.append(self._add_links(name, _reached(near)))
            self._far.append(of_adapter[adapter])

    def _add_links(self, name: str, bandwidth: float) -> tuple[int, int]:
        self.names += [f"{name} out", f"{name} in"]
        self.bandwidths += [bandwidth, bandwidth]
        return len(self.names) - 2, len(self.names) - 1

    def route(self, source: int, target: int) -> Route:
        """The way between two different devices."""
        a, b = self.places[source].host, self.places[target].host
        if a == b:
            links = self._near[source][0], self._near[target][1]
            return Route(links, self._latency[a][0], False)
        leaves, comes = self._far[source][0], self._far[target][1]
        latency = max(self._latency[a][1], self._latency[b][1])
        if self.places[source].rack == self.places[target].rack:
            return Route((leaves, comes), latency, True)
        links = leaves, self._out[source][0], self._out[target][1], comes
        return Route(links, max(latency, self._rack_latency), True)

    def simulate(self, steps: Sequence[ReshardStep], item_bytes: float) -> TransferTimes:
        """Take the steps, from the moment at which the source mesh has the tensor.

        Args:
            item_bytes: bytes of an element.

        Raises:
            ValueError: as `place_tiles`.
        """
        placed = place_tiles(steps)
        hops = _hops(self, steps, placed, item_bytes)
        makers = [frozenset(placed[tile].step for tile in sources_of(step)) for step in steps]
        seconds, there = _Clock(self, hops, makers).run()
        slow_bytes = sum(hop.size * hop.chunks * hop.route.slow for hop in hops)
        return TransferTimes(seconds, tuple(there), self._link_bytes(hops), slow_bytes)

    def link_bytes(self, steps: Sequence[ReshardStep], item_bytes: float) -> dict[str, float]:
        """Bytes that take each link, by name; without the seconds, which take longer to find.

        Raises:
            ValueError: as `place_tiles`.
        """
        return self._link_bytes(_hops(self, steps, place_tiles(steps), item_bytes))

    def _link_bytes(self, hops: Sequence[_Hop]) -> dict[str, float]:
        found: dict[str, float] = {}
        for hop in hops:
            for link in hop.route.links:
                name = self.names[link]
                found[name] = found.get(name, 0.0) + hop.size * hop.chunks
        return found


def _reached(link: Mapping[str, Any]) -> float:
    """Bytes a second that large messages get."""
    return float(link["bandwidth"]) * float(link.get("efficiency", 1))


@dataclass
class _Hop:
    """Chunks that go from one device to the next, one after the other."""

    step: int
    route: Route
    size: float  # Of a chunk.
    chunks: int
    following: int | None = None  # The hop that hands the chunks on.
    come: int = 0  # Chunks that are there to be sent.
    sent: int = 0
    remaining: float = 0.0  # Of the chunk that is flowing.


def _hops(
    network: Network,
    steps: Sequence[ReshardStep],
    placed: Sequence[PlacedTile],
    item_bytes: float,
) -> list[_Hop]:
    hops: list[_Hop] = []

    def chain(step: int, devices: Sequence[int], size: float, chunks: int) -> None:
        for i, (a, b) in enumerate(pairwise(devices)):
            if i > 0:
                hops[-1].following = len(hops)
            hops.append(_Hop(step, network.route(a, b), size / chunks, chunks))

    for number, step in enumerate(steps):
        sizes = [box_elements(placed[tile].box) * item_bytes for tile in sources_of(step)]
        devices = [placed[tile].device for tile in sources_of(step)]
        match step:
            case SendTile():
                chain(number, [*devices, step.device], sizes[0], 1)
            case Broadcast():
                chain(number, [*devices, *step.devices], sizes[0], step.chunks)
            case AllGather():
                for i, size in enumerate(sizes):
                    chain(number, devices[i:] + devices[:i], size, 1)
            case _:
                pass
    return hops


class _Clock:
    """The events: a chunk has left its links, or it has arrived."""

    def __init__(
        self, network: Network, hops: list[_Hop], makers: Sequence[frozenset[int]]
    ) -> None:
        """`makers` are the steps that make what a step reads."""
        self._hops = hops
        self._waits = [len(needed) for needed in makers]
        self._users: list[list[int]] = [[] for _ in makers]
        for number, needed in enumerate(makers):
            for maker in needed:
                self._users[maker].append(number)
        self._first: list[list[int]] = [[] for _ in makers]
        self._left = [0 for _ in makers]  # Chunks that have not arrived.
        followers = {hop.following for hop in hops}
        for i, hop in enumerate(hops):
            self._left[hop.step] += hop.chunks
            if i not in followers:
                self._first[hop.step].append(i)
        self._groups: list[_Group] = []
        self._group_of = [0 for _ in hops]
        bandwidths = dict(enumerate(network.bandwidths))
        for members in _groups_of(hops):
            for i in members:
                self._group_of[i] = len(self._groups)
            self._groups.append(_Group(hops, bandwidths))
        self._departures: list[tuple[float, int, int]] = []  # Time, group, its version.
        self._arrivals: list[tuple[float, int]] = []
        self._there = [0.0 for _ in makers]
        self._changed: set[int] = set()
        self._now = 0.0

    def run(self) -> tuple[float, list[float]]:
        for step in [number for number, waits in enumerate(self._waits) if waits == 0]:
            self._start(step)
        self._update()
        while self._departures or self._arrivals:
            self._now = min(queue[0][0] for queue in (self._departures, self._arrivals) if queue)
            soon = self._now * (1 + 1e-12)
            while self._departures and self._departures[0][0] <= soon:
                _, number, version = heapq.heappop(self._departures)
                if version != self._groups[number].version:
                    continue
                self._changed.add(number)
                for i in self._groups[number].take_sent(self._now):
                    end = self._now + self._hops[i].route.latency_seconds
                    heapq.heappush(self._arrivals, (end, i))
            while self._arrivals and self._arrivals[0][0] <= soon:
                self._arrive(heapq.heappop(self._arrivals)[1])
            self._update()
        return self._now, self._there

    def _start(self, step: int) -> None:
        if not self._first[step]:  # A cut, or a gather of a single tile.
            self._finish(step)
        for i in self._first[step]:
            self._come(i, self._hops[i].chunks)

    def _come(self, i: int, chunks: int) -> None:
        number = self._group_of[i]
        self._groups[number].come(i, chunks, self._now)
        self._changed.add(number)

    def _arrive(self, i: int) -> None:
        hop = self._hops[i]
        if hop.following is not None:
            self._come(hop.following, 1)
        self._left[hop.step] -= 1
        if self._left[hop.step] == 0:
            self._finish(hop.step)

    def _finish(self, step: int) -> None:
        self._there[step] = self._now
        for user in self._users[step]:
            self._waits[user] -= 1
            if self._waits[user] == 0:
                self._start(user)

    def _update(self) -> None:
        for number in self._changed:
            group = self._groups[number]
            end = group.next_end(self._now)
            if end is not None:
                heapq.heappush(self._departures, (end, number, group.version))
        self._changed.clear()


def _groups_of(hops: Sequence[_Hop]) -> list[list[int]]:
    """Hops that share links, directly or through others."""
    parents: dict[int, int] = {}

    def find(link: int) -> int:
        while parents.setdefault(link, link) != link:
            parents[link] = parents[parents[link]]
            link = parents[link]
        return link

    for hop in hops:
        for a, b in pairwise(hop.route.links):
            parents[find(a)] = find(b)
    groups: dict[int, list[int]] = {}
    for i, hop in enumerate(hops):
        groups.setdefault(find(hop.route.links[0]), []).append(i)
    return list(groups.values())


class _Group:
    """Hops whose rates change together; each sends one chunk at a time."""

    def __init__(self, hops: Sequence[_Hop], bandwidths: Mapping[int, float]) -> None:
        self.version = 0
        self._hops = hops
        self._bandwidths = bandwidths
        self._flowing: set[int] = set()
        self._rates: Mapping[int, float] = {}
        self._known: dict[frozenset[int], Mapping[int, float]] = {}
        self._time = 0.0

    def come(self, i: int, chunks: int, now: float) -> None:
        """Chunks of hop `i` can be sent from now on."""
        hop = self._hops[i]
        hop.come += chunks
        if i not in self._flowing:
            self._flow(now)
            self._flowing.add(i)
            hop.remaining = hop.size

    def take_sent(self, now: float) -> list[int]:
        """Hops of which a chunk has left by now."""
        self._flow(now)
        # What is left may take less time than the clock can tell apart.
        done = [
            i
            for i in self._flowing
            if (h := self._hops[i]).remaining <= max(1e-9 * h.size, 1e-12 * now * self._rates[i])
        ]
        for i in done:
            hop = self._hops[i]
            hop.sent += 1
            hop.remaining = hop.size
            if hop.sent == hop.come:
                self._flowing.remove(i)
        return done

    def next_end(self, now: float) -> float | None:
        """When the next chunk will have left, if nothing comes before; rates are set anew."""
        self.version += 1
        self._flow(now)
        if not self._flowing:
            return None
        key = frozenset(self._flowing)
        rates = self._known.get(key)
        if rates is None:
            loads = {i: dict.fromkeys(self._hops[i].route.links, 1.0) for i in key}
            rates = self._known[key] = fair_rates(loads, self._bandwidths)
        self._rates = rates
        return now + min(self._hops[i].remaining / rates[i] for i in self._flowing)

    def _flow(self, now: float) -> None:
        if now > self._time:
            for i in self._flowing:
                self._hops[i].remaining -= self._rates[i] * (now - self._time)
        self._time = now


def fair_rates(
    loads: Mapping[int, Mapping[Link, float]], room: Mapping[Link, float], most: float = math.inf
) -> dict[int, float]:
    """Rates of flows that share links max-min fairly: all grow alike until a link is full.

    Args:
        loads: of each flow, what it takes of its links at a rate of 1.
        room: what there is of each link.
        most: the rate of a flow whose links never are full.

    Example:
        >>> loads = {0: {"a": 1.0}, 1: {"a": 1.0, "b": 1.0}, 2: {"b": 1.0}}
        >>> fair_rates(loads, {"a": 1.0, "b": 3.0})
        {0: 0.5, 1: 0.5, 2: 2.5}
    """
    flows: dict[Link, set[int]] = {}
    for flow, links in loads.items():
        for link in links:
            flows.setdefault(link, set()).add(flow)
    left = {link: room[link] for link in flows}
    demand = {link: sum(loads[flow][link] for flow in users) for link, users in flows.items()}
    rates: dict[int, float] = {}
    while flows:
        share = min(left[link] / demand[link] for link in flows)
        if share >= most:
            break
        full = [link for link in flows if left[link] <= share * (1 + 1e-12) * demand[link]]
        stopped = sorted({flow for link in full for flow in flows[link]})
        for flow in stopped:
            rates[flow] = share
            for link, load in loads[flow].items():
                flows[link].remove(flow)
                left[link] -= share * load
        for link in {link for flow in stopped for link in loads[flow]}:
            demand[link] = sum(loads[flow][link] for flow in flows[link])
            if not flows[link]:
                del flows[link]
    return dict.fromkeys(loads, most) | rates


# What no plan of a transfer can go below, found without the planner.
#
# Both bounds look at the cells between the bounds of all shards: elements of one cell are held by
# the same devices, and wanted by the same.


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
