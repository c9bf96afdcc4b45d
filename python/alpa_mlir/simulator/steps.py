"""What of the programs takes time: runs of each mesh in order, and transfers between meshes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import AllReduceOp, RecvOp, RunOp, SendOp

from alpa_mlir.errors import PlanMismatchError
from alpa_mlir.simulator.costs import tensor_bytes
from alpa_mlir.simulator.network import MeshPair

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
