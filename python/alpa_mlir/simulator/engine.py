"""Runs the instruction lists of a plan against a clock, on links that transfers share."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import AllReduceOp, RecvOp, RunOp, SendOp
from alpa_runtime.plan.reshard import ReshardInfo

from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import ClusterFileError, PlanMismatchError
from alpa_mlir.simulator.costs import item_bytes, tensor_bytes
from alpa_mlir.simulator.transfer_network import Network, fair_rates

MeshPair = tuple[int, int]


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link, and the bytes that take it."""

    link: str
    bandwidth: float
    bytes: float


@dataclass(frozen=True)
class Route:
    """What a transfer takes without company, and which links it uses.

    Attributes:
        pair: the sending and the receiving mesh.
        latency_seconds: until its bytes flow.
        flow_seconds: while they flow.
    """

    pair: MeshPair
    latency_seconds: float
    flow_seconds: float
    links: tuple[LinkUse, ...]

    @property
    def seconds(self) -> float:
        """Seconds of a transfer that has the links to itself."""
        return self.latency_seconds + self.flow_seconds


class FairShares:
    """Rates of the transfers that flow at the same time, as parts of their full rates."""

    def __init__(self, routes: Sequence[Route], share_links: bool = True) -> None:
        """Transfers are known by the numbers of their routes.

        With `share_links=False` every pair of meshes has links of its own.
        """
        on_link: dict[str, dict[int, float]] = {}
        for number, route in enumerate(routes):
            if not share_links:
                between = f"link from {route.pair[0]} to {route.pair[1]}"
                on_link.setdefault(between, {})[number] = 1.0
            elif route.flow_seconds > 0:
                for use in route.links:
                    load = use.bytes / use.bandwidth / route.flow_seconds
                    on_link.setdefault(use.link, {})[number] = load
        # Links that the same transfers load alike are full at the same time: one speaks for all.
        alike = {tuple(loads.items()): loads for loads in on_link.values()}
        self.loads: list[dict[int, float]] = [{} for _ in routes]
        meets: list[set[int]] = [set() for _ in routes]
        for link, loads in enumerate(alike.values()):
            for number, load in loads.items():
                self.loads[number][link] = load
                meets[number].update(loads)
        self.meets: list[list[int]] = [
            sorted(others - {number}) for number, others in enumerate(meets)
        ]
        self._known: dict[tuple[int, ...], dict[int, float]] = {}

    def affected(self, number: int, flowing: Mapping[int, object]) -> list[int]:
        """Routes whose transfers may have another rate once that of one route begins or ends.

        Args:
            flowing: the routes whose transfers are flowing.
        """
        found = {number}
        order = [number]
        for at in order:
            for other in self.meets[at]:
                if other not in found and other in flowing:
                    found.add(other)
                    order.append(other)
        return order

    def rates(self, flowing: Sequence[int]) -> Mapping[int, float]:
        """The part of its full rate that a transfer of each of these routes gets."""
        key = tuple(sorted(flowing))
        known = self._known.get(key)
        if known is None:
            loads = {number: self.loads[number] for number in key}
            room = {link: 1.0 for links in loads.values() for link in links}
            known = self._known[key] = fair_rates(loads, room, most=1.0)
        return known


RUN, SEND, RECV = range(3)
#: (kind, function or key of a transfer, position in the program)
Step = tuple[int, Any, int]
Steps = tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Sent:
    """A transfer of the step.

    Attributes:
        tag: of the send and the receive, or of the all-reduce.
        source, target: meshes.
        bytes: of the whole tensor.
        route: the reshard by which it goes.
    """

    tag: int
    source: int
    target: int
    bytes: float
    route: int


#: By key: sends and receives have their tag; those of all-reduces have numbers below zero.
Transfers = Mapping[int, Sent]


def collect_steps(plan: Plan) -> tuple[Steps, Transfers]:
    """Steps of each mesh, and the transfers between them.

    Raises:
        PlanMismatchError: a transfer without exactly one send and one receive.
    """
    return _Collector(plan).collect()


class _Collector:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sent: dict[int, tuple[int, int]] = {}  # Sending and receiving mesh, by key.
        self.received: dict[int, tuple[int, int]] = {}
        self.tags: dict[int, int] = {}
        self.routes: dict[int, int] = {}
        self.keys: dict[tuple[int, int, bool], int] = {}

    def collect(self) -> tuple[Steps, Transfers]:
        steps: list[tuple[Step, ...]] = [() for _ in self.plan.meshes]
        for program in self.plan.programs:
            steps[program.mesh] = tuple(
                (kind, what, position)
                for position, op in enumerate(program.instructions)
                for kind, what in self.steps_of(program.mesh, op)
            )
        for key in self.sent.keys() ^ self.received.keys():
            raise self.error(key, f"is never {'received' if key in self.sent else 'sent'}")
        for key, (source, target) in self.sent.items():
            if self.received[key] != (source, target):
                expected, at = self.received[key]
                raise self.error(
                    key,
                    f"goes from mesh {source} to {target}, but mesh {at} expects it from mesh "
                    f"{expected}",
                )
        return tuple(steps), {
            key: Sent(self.tags[key], *pair, *self.way(key)) for key, pair in self.sent.items()
        }

    def way(self, key: int) -> tuple[float, int]:
        """Bytes and route of a transfer."""
        route = self.routes[key]
        return tensor_bytes(self.plan.reshards[route].target), route

    def error(self, key: int, what: str) -> PlanMismatchError:
        return PlanMismatchError(f"tag {self.tags[key]} {what}", where="programs")

    def steps_of(self, mesh: int, op: object) -> list[tuple[int, Any]]:
        match op:
            case RunOp():
                return [(RUN, (op.stage, op.function))]
            case SendOp():
                return [self.send(op.tag, op.tag, (mesh, op.to), op.by)]
            case RecvOp():
                return [self.receive(op.tag, op.tag, (op.source, mesh), op.by)]
            case AllReduceOp():
                return self.all_reduce(mesh, op)
            case _:
                return []

    def send(self, key: int, tag: int, pair: MeshPair, by: int | None) -> tuple[int, int]:
        self.note(self.sent, "sent", key, tag, pair, by)
        return SEND, key

    def receive(self, key: int, tag: int, pair: MeshPair, by: int | None) -> tuple[int, int]:
        self.note(self.received, "received", key, tag, pair, by)
        return RECV, key

    def note(
        self,
        where: dict[int, MeshPair],
        how: str,
        key: int,
        tag: int,
        pair: MeshPair,
        by: int | None,
    ) -> None:
        self.tags[key] = tag
        if key in where:
            raise self.error(key, f"is {how} twice")
        where[key] = pair
        if by is not None:
            if by >= len(self.plan.reshards):
                raise self.error(key, f"goes by reshard {by} of {len(self.plan.reshards)}")
            self.routes[key] = by

    def all_reduce(self, mesh: int, op: AllReduceOp) -> list[tuple[int, Any]]:
        """Parts go to the first mesh, its sum comes back; the other meshes say how."""
        first, *others = op.members

        def key(other: int, back: bool) -> int:
            return self.keys.setdefault((op.tag, other, back), -1 - len(self.keys))

        if mesh == first:
            parts = [self.receive(key(m, False), op.tag, (m, first), None) for m in others]
            return parts + [self.send(key(m, True), op.tag, (first, m), None) for m in others]
        to, back = op.by
        return [
            self.send(key(mesh, False), op.tag, (mesh, first), to),
            self.receive(key(mesh, True), op.tag, (first, mesh), back),
        ]


@dataclass(frozen=True)
class Work:
    """What of a plan takes time.

    Attributes:
        steps: of each mesh, its runs, sends and receives in order.
        seconds: of a call, by (stage, function).
        transfers: by key.
        routes: that transfers take, by number.
    """

    steps: Steps
    seconds: Mapping[tuple[int, str], float]
    transfers: Transfers
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Record:
    """When everything happened, in seconds.

    Attributes:
        runs: of each mesh, (start, end) of its runs in order.
        waits: of each mesh, (start, end, transfer) of the receives that it had to wait for.
        clocks: of each mesh, its time after each of its steps.
        started, ended: of transfers, by key.
        taken: when the receivers had come to the receive of a transfer.
        seconds: until the last mesh and the last transfer are done.
    """

    runs: list[list[tuple[float, float]]]
    waits: list[list[tuple[float, float, int]]]
    clocks: list[list[float]]
    started: dict[int, float]
    ended: dict[int, float]
    taken: dict[int, float] = field(default_factory=dict[int, float])
    seconds: float = 0.0


class _Flow:
    """A transfer whose bytes are on their way."""

    __slots__ = ("key", "rate", "remaining", "route", "since", "version")

    def __init__(self, key: int, route: int, remaining: float, now: float) -> None:
        self.key = key
        self.route = route
        self.remaining = remaining  # Seconds at full rate.
        self.since = now
        self.rate = 0.0
        self.version = 0


_SENT, _FLOWS, _ARRIVES = range(3)


@dataclass
class _Engine:
    work: Work
    shares: FairShares
    record: Record
    clocks: list[float]
    positions: list[int]
    waiting: dict[int, int] = field(default_factory=dict[int, int])  # Transfer to mesh.
    queues: dict[MeshPair, deque[_Flow]] = field(default_factory=dict[MeshPair, deque[_Flow]])
    flowing: dict[int, _Flow] = field(default_factory=dict[int, _Flow])  # By route.
    events: list[tuple[float, int, int, Any, int]] = field(
        default_factory=list[tuple[float, int, int, Any, int]]
    )
    count: int = 0

    def run(self) -> Record:
        for mesh in range(len(self.work.steps)):
            self.advance(mesh)
        now = 0.0
        while self.events:
            now, _, kind, what, version = heapq.heappop(self.events)
            if kind == _SENT:
                self.record.started[what] = now
                latency = self.work.routes[self.work.transfers[what].route].latency_seconds
                self.push(now + latency, _FLOWS, what)
            elif kind == _FLOWS:
                self.begin(what, now)
            elif version == what.version:
                self.end(what, now)
        stuck = [m for m, steps in enumerate(self.work.steps) if self.positions[m] < len(steps)]
        if stuck:
            keys = [self.work.steps[m][self.positions[m]][1] for m in stuck]
            waits = ", ".join(
                f"mesh {m} for tag {self.work.transfers[key].tag}"
                for m, key in zip(stuck, keys, strict=True)
            )
            raise PlanMismatchError(
                f"every mesh waits for a value that is never sent: {waits}", where="programs"
            )
        return replace(
            self.record, seconds=max([*self.clocks, *self.record.ended.values()], default=0.0)
        )

    def push(self, time: float, kind: int, what: Any, version: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, what, version))

    def advance(self, mesh: int) -> None:
        """Go on until the mesh has to wait or is done."""
        clock, position = self.clocks[mesh], self.positions[mesh]
        steps, seconds, ended = self.work.steps[mesh], self.work.seconds, self.record.ended
        runs, clocks = self.record.runs[mesh], self.record.clocks[mesh]
        while position < len(steps):
            kind, what, _ = steps[position]
            if kind == RUN:
                start = clock
                clock += seconds[what]
                runs.append((start, clock))
            elif kind == SEND:
                self.push(clock, _SENT, what)
            else:
                assert kind == RECV
                arrival = ended.get(what)
                if arrival is None:
                    self.waiting[what] = mesh
                    break
                if arrival > clock:
                    self.record.waits[mesh].append((clock, arrival, what))
                    clock = arrival
                self.record.taken[what] = clock
            clocks.append(clock)
            position += 1
        self.clocks[mesh], self.positions[mesh] = clock, position

    def begin(self, key: int, now: float) -> None:
        number = self.work.transfers[key].route
        route = self.work.routes[number]
        flow = _Flow(key, number, route.flow_seconds, now)
        queue = self.queues.setdefault(route.pair, deque())
        queue.append(flow)
        if len(queue) == 1:
            self.flowing[number] = flow
            self.share([number], now)

    def end(self, flow: _Flow, now: float) -> None:
        queue = self.queues[self.work.routes[flow.route].pair]
        queue.popleft()
        del self.flowing[flow.route]
        changed = [flow.route]
        if queue:
            following = queue[0]
            following.since = now
            self.flowing[following.route] = following
            changed.append(following.route)
        self.record.ended[flow.key] = now
        self.share(changed, now)
        mesh = self.waiting.pop(flow.key, None)
        if mesh is not None:
            self.advance(mesh)

    def share(self, changed: Sequence[int], now: float) -> None:
        """New rates for the transfers that a change of these routes' concerns."""
        found = {n for number in changed for n in self.shares.affected(number, self.flowing)}
        numbers = sorted(number for number in found if number in self.flowing)
        parts = self.shares.rates(numbers)
        for number in numbers:
            rate = parts[number]
            flow = self.flowing[number]
            if flow.rate == rate:
                continue
            flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.since))
            flow.since = now
            flow.rate = rate
            flow.version += 1
            self.push(now + flow.remaining / rate, _ARRIVES, flow, flow.version)


def execute(work: Work, share_links: bool = True) -> Record:
    """Run all programs.

    Raises:
        PlanMismatchError: the programs wait for each other forever.
    """
    meshes: Sequence[int] = range(len(work.steps))
    record = Record([[] for _ in meshes], [[] for _ in meshes], [[] for _ in meshes], {}, {})
    engine = _Engine(
        work,
        FairShares(work.routes, share_links),
        record,
        [0.0 for _ in meshes],
        [0 for _ in meshes],
    )
    return engine.run()


# What each transfer of a plan takes, and which links: from the steps of its reshard.


def plan_routes(plan: Plan, cluster: Cluster) -> tuple[Route, ...]:
    """One route for each reshard of the plan.

    On the cluster that the plan was made for a transfer takes the seconds that the plan foresees.
    On another one it takes so many times as long as its steps do there in the simulated network;
    where nothing was foreseen, because the plan knows no cluster, as long as the steps do.

    Raises:
        ClusterFileError: a device of a mesh is not in the cluster.
    """
    given: Mapping[str, Any] = json.loads(cluster.text)
    network = Network(given)
    for mesh in plan.meshes:
        for device in mesh.devices:
            if device >= len(network.places):
                raise ClusterFileError(
                    f"device {device} is not in a cluster of {len(network.places)} devices"
                )
    planned = None
    if plan.cluster:
        planned = json.loads(Cluster.from_dict(plan.cluster).text)
        same = all(planned.get(key) == given.get(key) for key in ("hosts", "racks", "links"))
        before = network if same else Network(planned)
    else:
        before = None
    bandwidths = dict(zip(network.names, network.bandwidths, strict=True))
    return tuple(_route(info, network, bandwidths, before) for info in plan.reshards)


def _route(
    info: ReshardInfo,
    network: Network,
    bandwidths: Mapping[str, float],
    before: Network | None,
) -> Route:
    size = item_bytes(info.source.dtype)
    links = tuple(
        LinkUse(name, bandwidths[name], count)
        for name, count in network.link_bytes(info.steps, size).items()
    )
    if before is network:
        seconds = info.seconds
    else:
        seconds = network.simulate(info.steps, size).seconds
        if before is not None and (then := before.simulate(info.steps, size).seconds) > 0:
            seconds *= info.seconds / then
    flow = max([use.bytes / use.bandwidth for use in links], default=0.0)
    flow = min(flow, seconds)
    return Route((info.source_mesh, info.target_mesh), seconds - flow, flow, links)
