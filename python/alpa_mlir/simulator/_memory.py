"""Bytes on each device of a mesh over time, from the buffers that its program keeps.

State that the step is given counts from the beginning, other buffers from the instruction that
makes them until the one that frees them, or until the receivers have taken what was sent of them.
A function's results have their buffers while it runs. A result takes the buffer of an argument of
the same form that is freed next, as the runtime gives it away, and a sum that of its left operand
where it has its slot. What the search foresaw that a function holds besides its arguments and
results is there while it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    FreeOp,
    InputOp,
    Instruction,
    ProgramInfo,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
)
from alpa_runtime.plan.stage import MeshInfo, StageInfo
from alpa_runtime.plan.tensor import TensorSpec
from numpy.typing import NDArray

from alpa_mlir.simulator.costs import BACKWARD_PARTS, device_bytes
from alpa_mlir.simulator.engine import RUN, Record, Step, Steps


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on each device of a mesh; between `times[i]` and `times[i + 1]` it is `bytes[i]`.

    Attributes:
        peak_bytes: the most at any time.
        predicted_bytes: the peak that the search foresaw, or None if the plan does not say.
        capacity_bytes: what a device has, or None if the cluster does not say.
    """

    times: NDArray[np.float64]
    bytes: NDArray[np.float64]
    peak_bytes: float
    predicted_bytes: float | None
    capacity_bytes: float | None

    def at(self, seconds: float) -> float:
        """Bytes at a time of the step.

        Example:
            >>> use = MemoryUse(np.array([0.0, 1.0]), np.array([4.0, 0.0]), 4.0, None, None)
            >>> use.at(0.5)
            4.0
        """
        index = int(np.searchsorted(self.times, seconds, side="right")) - 1
        return float(self.bytes[index]) if index >= 0 else 0.0


class _MeshMemory:
    """Walks one program; changes are (time, bytes) in program order."""

    def __init__(self, plan: Plan, mesh: int, record: Record, steps: Sequence[Step]) -> None:
        self.plan = plan
        self.mesh: MeshInfo = plan.meshes[mesh]
        self.record = record
        self.clocks = iter(record.clocks[mesh])
        self.runs = iter(record.runs[mesh])
        self.now = 0.0
        self.held: dict[int, float] = {}  # Bytes by slot.
        self.forms: dict[int, TensorSpec] = {}
        self.keys = iter([what for kind, what, _ in steps if kind != RUN])
        self.busy_until: dict[int, float] = {}  # Slots that receivers still have to take.
        self.lent: set[int] = set()  # Slots of the caller's arrays that the step may not reuse.
        self.times: list[float] = []
        self.changes: list[float] = []
        self.sizes: dict[int, float] = {}
        self.aliases: dict[tuple[int, str, tuple[int, ...]], tuple[int, ...]] = {}

    def walk(self, program: ProgramInfo) -> None:
        instructions = program.instructions
        for position, op in enumerate(instructions):
            following = instructions[position + 1] if position + 1 < len(instructions) else None
            match op:
                case RunOp():
                    self.run(op, following)
                case SendOp():
                    self.send(op.slot)
                case RecvOp():
                    self.receive()
                    self.make(self.now, op.slot, op.tensor)
                case ReshardOp() | ZeroOp():
                    self.make(self.now, op.slot, op.tensor)
                case AllReduceOp():
                    self.all_reduce(op)
                case InputOp():
                    info = self.plan.inputs[op.arg]
                    self.make(0.0 if info.kind == "state" else self.now, op.slot, op.tensor)
                    if info.carried_by is None:
                        self.lent.add(op.slot)
                case AccumulateOp():
                    self.accumulate(op)
                case FreeOp():
                    for slot in op.slots:
                        self.free(slot)
                case _:
                    pass

    def send(self, slot: int) -> None:
        self.now = next(self.clocks)
        taken = self.record.taken[next(self.keys)]
        self.busy_until[slot] = max(taken, self.busy_until.get(slot, 0.0))

    def receive(self) -> None:
        self.now = next(self.clocks)
        next(self.keys)

    def all_reduce(self, op: AllReduceOp) -> None:
        """The first mesh keeps one more part while it adds it to the sum."""
        tensor = self.forms[op.operand]
        others = op.members[1:]
        if op.by:
            self.send(op.operand)
            self.receive()
            self.make(self.now, op.slot, tensor)
            return
        for _ in others:
            self.receive()
        self.make(self.now, op.slot, tensor)
        self.change(self.now, self.size_of(tensor))
        self.change(self.now, -self.size_of(tensor))
        for _ in others:
            self.send(op.slot)

    def size_of(self, tensor: TensorSpec) -> float:
        key = id(tensor)
        if key not in self.sizes:
            self.sizes[key] = device_bytes(tensor, self.mesh)
        return self.sizes[key]

    def change(self, time: float, count: float) -> None:
        if count:
            self.times.append(time)
            self.changes.append(count)

    def make(self, time: float, slot: int, tensor: TensorSpec) -> None:
        if slot in self.held:
            self.free(slot)
        size = self.held[slot] = self.size_of(tensor)
        self.forms[slot] = tensor
        self.lent.discard(slot)
        self.change(time, size)

    def free(self, slot: int) -> None:
        until = max(self.now, self.busy_until.pop(slot, 0.0))
        self.change(until, -self.held.pop(slot, 0.0))

    def run(self, op: RunOp, following: Instruction | None) -> None:
        start, end = next(self.runs)
        self.now = next(self.clocks)
        stage = self.plan.stages[op.stage]
        outputs = stage.functions[op.function].outputs
        taken = self.given_away(op, following)
        made = sum(map(self.size_of, outputs))
        for slot, tensor in zip(op.outputs, outputs, strict=True):
            self.held[slot] = self.size_of(tensor)
            self.forms[slot] = tensor
            self.lent.discard(slot)
        for slot in taken:
            made -= self.held[slot]
            self.held[slot] = 0.0
        scratch = _scratch_bytes(stage, op.function)
        self.change(start, made + scratch)
        self.change(end, -scratch)

    def given_away(self, op: RunOp, following: Instruction | None) -> Sequence[int]:
        """Slots of arguments whose buffers the results take."""
        if not isinstance(following, FreeOp):
            return ()
        freed = set(following.slots)
        dying = tuple(
            i
            for i, slot in enumerate(op.inputs)
            if slot in freed and slot not in self.busy_until and slot not in self.lent
        )
        if not dying:
            return ()
        key = (op.stage, op.function, dying)
        if key not in self.aliases:
            function = self.plan.stages[op.stage].functions[op.function]
            wanted = Counter(function.outputs)
            taken: list[int] = []
            for i in dying:
                tensor = function.inputs[i]
                if wanted[tensor] > 0:
                    wanted[tensor] -= 1
                    taken.append(i)
            self.aliases[key] = tuple(taken)
        return [op.inputs[i] for i in self.aliases[key]]

    def accumulate(self, op: AccumulateOp) -> None:
        forms = [self.forms[left] for left in op.lefts]
        for slot, left, tensor in zip(op.slots, op.lefts, forms, strict=True):
            if slot != left:
                self.make(self.now, slot, tensor)


def _scratch_bytes(stage: StageInfo, function: str) -> float:
    """What a call holds besides its arguments and results; each part of a backward as the whole
    one, if the plan does not say."""
    phase = "update" if function.startswith("update") else function
    whole = "backward" if phase in BACKWARD_PARTS else phase
    otherwise = stage.predicted.get(f"{whole}_scratch_bytes", 0.0)
    return stage.predicted.get(f"{phase}_scratch_bytes", otherwise)


def memory_use(
    plan: Plan, record: Record, steps: Steps, capacities: Sequence[float | None]
) -> tuple[MemoryUse, ...]:
    """The memory of each mesh's devices.

    Args:
        steps: of each mesh, in order.
        capacities: bytes of a device of each mesh.
    """
    uses: list[MemoryUse] = []
    programs = {program.mesh: program for program in plan.programs}
    for mesh, capacity in enumerate(capacities):
        walker = _MeshMemory(plan, mesh, record, steps[mesh])
        walker.walk(programs[mesh])
        times = np.array([0.0, *walker.times])
        changes = np.array([0.0, *walker.changes])
        order = np.argsort(times, kind="stable")
        times, held = times[order], np.cumsum(changes[order])
        last = np.append(np.diff(times) > 0, True)  # What holds after all changes of a moment.
        predicted = [s.predicted.get("peak_bytes") for s in plan.stages if s.mesh == mesh]
        known = [p for p in predicted if p is not None]
        uses.append(
            MemoryUse(
                times[last],
                held[last],
                float(held.max()),
                sum(known) if known and len(known) == len(predicted) else None,
                capacity,
            )
        )
    return tuple(uses)
