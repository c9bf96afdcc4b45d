"""Instruction lists: one line of text an instruction, read when they are first asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, overload

from alpa_runtime.plan.json_nodes import Node
from alpa_runtime.plan.lines import Line, LineReader
from alpa_runtime.plan.tensor import TensorReader, TensorSpec


@dataclass(frozen=True, slots=True)
class InputOp(Line):
    """Place argument `arg` (of one micro-batch, or whole) on the mesh."""

    form = "input {slot:SLOT} = arg {arg:ARG}[ mb {micro_batch:NUMBER}]: {tensor:TENSOR}"
    slot: int
    arg: int
    micro_batch: int | None
    tensor: TensorSpec


@dataclass(frozen=True, slots=True)
class RunOp(Line):
    """Run a function of a stage."""

    form = (
        "run {stage:STAGE}.{function:FUNCTION}[ mb {micro_batch:NUMBER}]:{inputs:SLOTS} "
        "->{outputs:SLOTS}"
    )
    stage: int
    function: str
    micro_batch: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendOp(Line):
    """Send a value to another mesh as reshard `by` says; `tag` pairs it with one receive."""

    form = "send {slot:SLOT} to {to:MESH} tag {tag:TAG} by {by:RESHARD}"
    slot: int
    to: int
    tag: int
    by: int


@dataclass(frozen=True, slots=True)
class RecvOp(Line):
    """Receive a value in the sharding that this mesh wants."""

    form = "recv {slot:SLOT} from {source:MESH} tag {tag:TAG} by {by:RESHARD}: {tensor:TENSOR}"
    slot: int
    source: int
    tag: int
    by: int
    tensor: TensorSpec


@dataclass(frozen=True, slots=True)
class ReshardOp(Line):
    """Hold a value of this mesh otherwise."""

    form = "reshard {slot:SLOT} = {operand:SLOT}: {tensor:TENSOR}"
    slot: int
    operand: int
    tensor: TensorSpec


@dataclass(frozen=True, slots=True)
class ZeroOp(Line):
    """Zeros: what a mesh without a part of its own gives to a sum."""

    form = "zero {slot:SLOT}: {tensor:TENSOR}"
    slot: int
    tensor: TensorSpec


@dataclass(frozen=True, slots=True)
class AllReduceOp(Line):
    """The sum of one value of each of several meshes, which all of them get, bit by bit the same.

    It is taken on the first of `members`, in their order. `by` are the reshards to that mesh and
    back; the first member has none.
    """

    form = (
        "all_reduce {slot:SLOT} = {operand:SLOT} among{members:MESHES} tag {tag:TAG}"
        "[ by{by:RESHARDS}]"
    )
    slot: int
    operand: int
    members: tuple[int, ...]
    tag: int
    by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AccumulateOp(Line):
    """`slots[i] = lefts[i] + rights[i]`; all are read before any is written.

    A sum may have its left operand's slot, and with it the buffer.
    """

    form = "accumulate{slots:SLOTS} ={lefts:SLOTS} +{rights:SLOTS}"
    slots: tuple[int, ...]
    lefts: tuple[int, ...]
    rights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.slots) == len(self.lefts) == len(self.rights):
            raise ValueError(
                f"adds {len(self.rights)} values to {len(self.lefts)}, giving {len(self.slots)}"
            )


@dataclass(frozen=True, slots=True)
class FreeOp(Line):
    """The values are not needed any more."""

    form = "free{slots:SLOTS}"
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputOp(Line):
    """The value is result `result` of the step (its part of one micro-batch, if given)."""

    form = "output {slot:SLOT} = result {result:RESULT}[ mb {micro_batch:NUMBER}]"
    slot: int
    result: int
    micro_batch: int | None


Instruction = (
    InputOp
    | RunOp
    | SendOp
    | RecvOp
    | ReshardOp
    | ZeroOp
    | AllReduceOp
    | AccumulateOp
    | FreeOp
    | OutputOp
)
INSTRUCTIONS: tuple[type[Instruction], ...] = get_args(Instruction)
Kind = TypeVar("Kind", InputOp, OutputOp, AllReduceOp)


class InstructionList(Sequence[Instruction]):
    """Instructions that are read from their lines when they are first asked for."""

    def __init__(self, lines: Node, tensors: TensorReader) -> None:
        self._node = lines
        self._tensors = tensors
        self._items: tuple[Instruction, ...] | None = None

    def all(self) -> tuple[Instruction, ...]:
        """All instructions.

        Raises:
            PlanFormatError: names the malformed line.
        """
        if self._items is None:
            self._items = tuple(self._read(range(len(self))))
        return self._items

    def _read(self, positions: Iterable[int]) -> Iterator[Instruction]:
        reader, lines = LineReader(INSTRUCTIONS, self._tensors), self.lines()
        for position in positions:
            try:
                yield reader.read(lines[position])
            except (ValueError, AttributeError) as error:  # the latter: the line is no text
                field = self._node.item(position)
                field.string()
                raise field.error_text(str(error)) from None

    def __len__(self) -> int:
        return len(self._node.list())

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Instruction, ...]: ...
    def __getitem__(self, index: int | slice) -> Instruction | tuple[Instruction, ...]:
        return self.all()[index]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.all())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, InstructionList):
            return self.lines() == other.lines()
        return isinstance(other, tuple) and self.all() == other

    def __hash__(self) -> int:
        return hash(tuple(self.lines()))

    def lines(self) -> list[str]:
        """The lines as they were read."""
        return self._node.list()

    def only(self, kind: type[Kind]) -> list[Kind]:
        """Those of one kind; others need not be read.

        Raises:
            PlanFormatError: names the malformed line.
        """
        beginning = f"{kind.op} "
        found = [i for i, line in enumerate(self.lines()) if str(line).startswith(beginning)]
        return [op for op in self._read(found) if isinstance(op, kind)]


@dataclass(frozen=True)
class ProgramInfo:
    """The instructions of one mesh, in order; `slots` is the number of buffers' names."""

    mesh: int
    slots: int
    instructions: Sequence[Instruction]

    def only(self, kind: type[Kind]) -> list[Kind]:
        """The instructions of one kind, without reading the others."""
        if isinstance(self.instructions, InstructionList):
            return self.instructions.only(kind)
        return [op for op in self.instructions if isinstance(op, kind)]

    @classmethod
    def read(cls, node: Node, tensors: TensorReader) -> ProgramInfo:
        instructions = InstructionList(node.get("instructions"), tensors)
        return cls(node.get("mesh").integer(), node.get("slots").integer(), instructions)

    def to_json(self) -> dict[str, Any]:
        listed = self.instructions
        lines = (
            listed.lines()
            if isinstance(listed, InstructionList)
            else [op.to_text() for op in listed]
        )
        return {"mesh": self.mesh, "slots": self.slots, "instructions": lines}


Order = tuple[tuple[int, int], ...]
_RUN = re.compile(r"(\d+)(?:\*(\d+))?")


def read_order(node: Node) -> Order:
    """From which mesh how many instructions come next, as `order_lines` has it.

    Raises:
        PlanFormatError: names the malformed line.
    """
    runs: list[tuple[int, int]] = []
    for line in node.items():
        for part in line.string().split():
            match = _RUN.fullmatch(part)
            if match is None:
                raise line.error(f"got {part!r}", "MESH or MESH*INSTRUCTIONS")
            runs.append((int(match[1]), int(match[2] or 1)))
    return tuple(runs)


def order_lines(order: Order) -> list[str]:
    """An order as plan.json has it: in a line meshes rise.

    Example:
        >>> order_lines(((0, 4), (1, 1), (0, 2)))
        ['0*4 1', '0*2']
    """
    lines: list[list[str]] = []
    last = None
    for mesh, count in order:
        if last is None or mesh <= last:
            lines.append([])
        lines[-1].append(f"{mesh}*{count}" if count > 1 else str(mesh))
        last = mesh
    return list(map(" ".join, lines))
