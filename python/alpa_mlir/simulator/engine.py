"""Runs the instruction lists of a plan against a clock: an event simulation without devices.

Every mesh takes its instructions in order. A run keeps the mesh busy for its seconds; a send
starts a transfer, which follows earlier ones of its pair of meshes as on one connection, and
costs the mesh nothing; a receive waits until its transfer has ended; all else takes no time. A
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
from alpa_mlir.plan import Plan, RecvOp, RunOp, SendOp
from alpa_mlir.simulator.costs import tensor_bytes
from alpa_mlir.simulator.network import FairShares, MeshPair, Path

RUN, SEND, RECV = range(3)
# (kind, function or tag, position in the program)
Step = tuple[int, Any, int]


@dataclass(frozen=True)
class Work:
    """What of a plan takes time.

    Attributes:
        steps: of each mesh, its runs, sends and receives in order.
        seconds: of a call, by (stage, function).
        sizes: bytes of a transfer by tag; transfers of other tags do not happen.
        pairs: (sending, receiving mesh) of a transfer by tag.
        paths: between meshes.
    """

    steps: tuple[tuple[Step, ...], ...]
    seconds: Mapping[tuple[int, str], float]
    sizes: Mapping[int, float]
    pairs: Mapping[int, MeshPair]
    paths: Mapping[MeshPair, Path]


@dataclass(frozen=True)
class Record:
    """When everything happened, in seconds.

    Attributes:
        runs: of each mesh, (start, end) of its runs in order.
        waits: of each mesh, (start, end, tag) of the receives that it had to wait for.
        clocks: of each mesh, its time after each of its steps.
        started, ended: of transfers, by tag.
        taken: when the receivers had come to the receive of a tag.
        seconds: until the last mesh and the last transfer are done.
    """

    runs: list[list[tuple[float, float]]]
    waits: list[list[tuple[float, float, int]]]
    clocks: list[list[float]]
    started: dict[int, float]
    ended: dict[int, float]
    taken: dict[int, float] = field(default_factory=dict[int, float])
    seconds: float = 0.0


def collect_steps(
    plan: Plan,
) -> tuple[tuple[tuple[Step, ...], ...], dict[int, float], dict[int, MeshPair]]:
    """Steps of each mesh, and sizes and pairs of meshes of the transfers.

    Raises:
        PlanMismatchError: a tag without exactly one send and one receive.
    """
    steps: list[tuple[Step, ...]] = [() for _ in plan.meshes]
    sizes: dict[int, float] = {}
    pairs: dict[int, MeshPair] = {}
    received: dict[int, MeshPair] = {}
    known_sizes: dict[int, float] = {}
    for program in plan.programs:
        own: list[Step] = []
        for position, op in enumerate(program.instructions):
            match op:
                case RunOp():
                    own.append((RUN, (op.stage, op.function), position))
                case SendOp():
                    if op.tag in pairs:
                        raise _bad_tag(op.tag, "is sent twice")
                    pairs[op.tag] = (program.mesh, op.to)
                    own.append((SEND, op.tag, position))
                case RecvOp():
                    if op.tag in received:
                        raise _bad_tag(op.tag, "is received twice")
                    received[op.tag] = (op.source, program.mesh)
                    key = id(op.tensor)
                    if key not in known_sizes:
                        known_sizes[key] = tensor_bytes(op.tensor)
                    sizes[op.tag] = known_sizes[key]
                    own.append((RECV, op.tag, position))
                case _:
                    pass
        steps[program.mesh] = tuple(own)
    for tag in pairs.keys() ^ received.keys():
        raise _bad_tag(tag, "is never received" if tag in pairs else "is never sent")
    for tag, pair in pairs.items():
        if received[tag] != pair:
            raise _bad_tag(
                tag,
                f"goes from mesh {pair[0]} to {pair[1]}, but mesh {received[tag][1]} expects "
                f"it from mesh {received[tag][0]}",
            )
    return tuple(steps), sizes, pairs


def _bad_tag(tag: int, what: str) -> PlanMismatchError:
    return PlanMismatchError(f"tag {tag} {what}", where="programs")


class _Flow:
    """A transfer whose bytes are on their way."""

    __slots__ = ("pair", "rate", "remaining", "since", "tag", "version")

    def __init__(self, tag: int, pair: MeshPair, remaining: float, now: float) -> None:
        self.tag = tag
        self.pair = pair
        self.remaining = remaining
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
    waiting: dict[int, int] = field(default_factory=dict[int, int])  # Tag to mesh.
    flowing: dict[MeshPair, deque[_Flow]] = field(default_factory=dict[MeshPair, deque[_Flow]])
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
                latency = self.work.paths[self.work.pairs[what]].latency_seconds
                self.push(now + latency, _FLOWS, what)
            elif kind == _FLOWS:
                self.begin(what, now)
            elif version == what.version:
                self.end(what, now)
        stuck = [m for m, steps in enumerate(self.work.steps) if self.positions[m] < len(steps)]
        if stuck:
            waits = ", ".join(
                f"mesh {m} for tag {self.work.steps[m][self.positions[m]][1]}" for m in stuck
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

    def begin(self, tag: int, now: float) -> None:
        pair = self.work.pairs[tag]
        queue = self.flowing[pair]
        queue.append(_Flow(tag, pair, self.work.sizes[tag], now))
        if len(queue) == 1:
            self.share(pair, now)

    def end(self, flow: _Flow, now: float) -> None:
        self.flowing[flow.pair].popleft()
        self.record.ended[flow.tag] = now
        self.share(flow.pair, now)
        mesh = self.waiting.pop(flow.tag, None)
        if mesh is not None:
            self.advance(mesh)

    def share(self, pair: MeshPair, now: float) -> None:
        """New rates for the transfers that a change of this pair's concerns."""
        flowing = self.flowing
        pairs = [p for p in self.shares.affected(pair, flowing) if flowing[p]]
        parts = self.shares.rates([(p, 1) for p in pairs])
        for other in pairs:
            rate = parts[other] * self.work.paths[other].bytes_per_second
            flow = flowing[other][0]
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
        FairShares(work.paths, share_links),
        record,
        [0.0 for _ in meshes],
        [0 for _ in meshes],
        flowing={pair: deque() for pair in work.paths},
    )
    return engine.run()
