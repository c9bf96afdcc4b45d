"""Runs the instruction lists of a plan against a clock: an event simulation without devices.

Every mesh takes its instructions in order. A run keeps the mesh busy for its seconds; a send
starts a transfer, which follows earlier ones of its pair of meshes as on one connection, and
costs the mesh nothing; a receive waits until its transfer has ended; all else takes no time. In an
all-reduce the other meshes send their parts to the first one and wait for what it sends back. A
mesh runs ahead by itself until it must wait, so that the events are only the beginnings and ends
of transfers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alpa_mlir.errors import PlanMismatchError
from alpa_mlir.simulator.network import FairShares, MeshPair, Route
from alpa_mlir.simulator.steps import RECV, RUN, SEND, Steps, Transfers


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
