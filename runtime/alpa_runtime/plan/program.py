"""Instruction lists: one line of text an instruction, read when they are first asked for.

The forms of the lines, where `SLOTS` are numbers and ranges (`3 5-9`):

    input SLOT = arg ARG [mb M]: TENSOR
    run STAGE.FUNCTION [mb M]: SLOTS -> SLOTS
    send SLOT to MESH tag TAG by RESHARD
    recv SLOT from MESH tag TAG by RESHARD: TENSOR
    reshard SLOT = SLOT: TENSOR
    zero SLOT: TENSOR
    accumulate SLOTS = SLOTS + SLOTS
    all_reduce SLOT = SLOT among MESHES tag TAG [by RESHARD RESHARD]
    free SLOTS
    output SLOT = result RESULT [mb M]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

from alpa_runtime.plan.json_nodes import Node
from alpa_runtime.plan.tensor import TENSOR_PATTERN, TensorReader, TensorSpec


@dataclass(frozen=True, slots=True)
class InputOp:
    """Place argument `arg` (of one micro-batch, or whole) on the mesh."""

    op: ClassVar[str] = "input"
    slot: int
    arg: int
    micro_batch: int | None
    tensor: TensorSpec

    def to_text(self) -> str:
        return f"input {self.slot} = arg {self.arg}{_mb(self.micro_batch)}: {self.tensor.to_text()}"


@dataclass(frozen=True, slots=True)
class RunOp:
    """Run a function of a stage."""

    op: ClassVar[str] = "run"
    stage: int
    function: str
    micro_batch: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def to_text(self) -> str:
        slots = f"{slots_text(self.inputs)} ->{slots_text(self.outputs)}"
        return f"run {self.stage}.{self.function}{_mb(self.micro_batch)}:{slots}"


@dataclass(frozen=True, slots=True)
class SendOp:
    """Send a value to another mesh as reshard `by` says; `tag` pairs it with one receive."""

    op: ClassVar[str] = "send"
    slot: int
    to: int
    tag: int
    by: int

    def to_text(self) -> str:
        return f"send {self.slot} to {self.to} tag {self.tag} by {self.by}"


@dataclass(frozen=True, slots=True)
class RecvOp:
    """Receive a value in the sharding that this mesh wants."""

    op: ClassVar[str] = "recv"
    slot: int
    source: int
    tag: int
    by: int
    tensor: TensorSpec

    def to_text(self) -> str:
        what = f"recv {self.slot} from {self.source} tag {self.tag} by {self.by}"
        return f"{what}: {self.tensor.to_text()}"


@dataclass(frozen=True, slots=True)
class ReshardOp:
    """Hold a value of this mesh otherwise."""

    op: ClassVar[str] = "reshard"
    slot: int
    operand: int
    tensor: TensorSpec

    def to_text(self) -> str:
        return f"reshard {self.slot} = {self.operand}: {self.tensor.to_text()}"


@dataclass(frozen=True, slots=True)
class ZeroOp:
    """Zeros: what a mesh without a part of its own gives to a sum."""

    op: ClassVar[str] = "zero"
    slot: int
    tensor: TensorSpec

    def to_text(self) -> str:
        return f"zero {self.slot}: {self.tensor.to_text()}"


@dataclass(frozen=True, slots=True)
class AccumulateOp:
    """`slots[i] = lefts[i] + rights[i]`; all are read before any is written.

    A sum may have its left operand's slot, and with it the buffer.
    """

    op: ClassVar[str] = "accumulate"
    slots: tuple[int, ...]
    lefts: tuple[int, ...]
    rights: tuple[int, ...]

    def to_text(self) -> str:
        operands = f"{slots_text(self.lefts)} +{slots_text(self.rights)}"
        return f"accumulate{slots_text(self.slots)} ={operands}"


@dataclass(frozen=True, slots=True)
class AllReduceOp:
    """The sum of one value of each of several meshes, which all of them get, bit by bit the same.

    It is taken on the first of `members`, in their order. `by` are the reshards to that mesh and
    back; the first member has none.
    """

    op: ClassVar[str] = "all_reduce"
    slot: int
    operand: int
    members: tuple[int, ...]
    tag: int
    by: tuple[int, ...]

    def to_text(self) -> str:
        members = " ".join(map(str, self.members))
        by = f" by{''.join(f' {number}' for number in self.by)}" if self.by else ""
        return f"all_reduce {self.slot} = {self.operand} among {members} tag {self.tag}{by}"


@dataclass(frozen=True, slots=True)
class FreeOp:
    """The values are not needed any more."""

    op: ClassVar[str] = "free"
    slots: tuple[int, ...]

    def to_text(self) -> str:
        return f"free{slots_text(self.slots)}"


@dataclass(frozen=True, slots=True)
class OutputOp:
    """The value is result `result` of the step (its part of one micro-batch, if given)."""

    op: ClassVar[str] = "output"
    slot: int
    result: int
    micro_batch: int | None

    def to_text(self) -> str:
        return f"output {self.slot} = result {self.result}{_mb(self.micro_batch)}"


Instruction = (
    InputOp
    | RunOp
    | SendOp
    | RecvOp
    | ReshardOp
    | ZeroOp
    | AccumulateOp
    | AllReduceOp
    | FreeOp
    | OutputOp
)


Kind = TypeVar("Kind", InputOp, OutputOp, AllReduceOp)


def _mb(micro_batch: int | None) -> str:
    return "" if micro_batch is None else f" mb {micro_batch}"


def slots_text(slots: Sequence[int]) -> str:
    """Numbers and ranges, each after a space.

    Example:
        >>> slots_text((3, 5, 6, 7))
        ' 3 5-7'
    """
    text, i = "", 0
    while i < len(slots):
        end = i + 1
        while end < len(slots) and slots[end] == slots[end - 1] + 1:
            end += 1
        text += f" {slots[i]}" if end == i + 1 else f" {slots[i]}-{slots[end - 1]}"
        i = end
    return text


_SLOTS = r"((?: \d+(?:-\d+)?)*)"
_MB = r"(?: mb (\d+))?"
FORMS: dict[str, tuple[str, str]] = {
    "input": (rf"input (\d+) = arg (\d+){_MB}: ({TENSOR_PATTERN})", "SLOT = arg ARG: TENSOR"),
    "run": (rf"run (\d+)\.(\w+){_MB}:{_SLOTS} ->{_SLOTS}", "STAGE.FUNCTION: SLOTS -> SLOTS"),
    "send": (
        r"send (\d+) to (\d+) tag (\d+) by (\d+)",
        "SLOT to MESH tag TAG by RESHARD",
    ),
    "recv": (
        rf"recv (\d+) from (\d+) tag (\d+) by (\d+): ({TENSOR_PATTERN})",
        "SLOT from MESH tag TAG by RESHARD: TENSOR",
    ),
    "reshard": (rf"reshard (\d+) = (\d+): ({TENSOR_PATTERN})", "SLOT = SLOT: TENSOR"),
    "zero": (rf"zero (\d+): ({TENSOR_PATTERN})", "SLOT: TENSOR"),
    "all_reduce": (
        r"all_reduce (\d+) = (\d+) among((?: \d+)+) tag (\d+)(?: by (\d+) (\d+))?",
        "SLOT = SLOT among MESHES tag TAG by RESHARD RESHARD",
    ),
    "accumulate": (rf"accumulate{_SLOTS} ={_SLOTS} \+{_SLOTS}", "SLOTS = SLOTS + SLOTS"),
    "free": (rf"free{_SLOTS}", "SLOTS"),
    "output": (rf"output (\d+) = result (\d+){_MB}", "SLOT = result RESULT"),
}
_LARGEST = 10_000_000  # Of slot numbers: a range must not fill the memory.


def read_slots(text: str, what: str = "slots") -> tuple[int, ...]:
    """The numbers of a text that `slots_text` makes.

    Args:
        what: they are numbers of, for messages.

    Raises:
        ValueError: a range falls, or is so long that it would fill the memory.

    Example:
        >>> read_slots(" 3 5-7")
        (3, 5, 6, 7)
    """
    numbers: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        end = int(last or first)
        if end < int(first) or end > _LARGEST:
            raise ValueError(f"got the {what} {part}, expected a rising range")
        numbers.extend(range(int(first), end + 1))
    return tuple(numbers)


class InstructionReader:
    """Reads lines; equal lists of slots are read once."""

    def __init__(self, tensors: TensorReader) -> None:
        self._tensors = tensors
        self._slots: dict[str, tuple[int, ...]] = {}
        self._makers: dict[str, tuple[Callable[[str], re.Match[str] | None], Any]] = {
            op: (re.compile(pattern).fullmatch, getattr(self, f"_{op}"))
            for op, (pattern, _) in FORMS.items()
        }

    def read(self, line: str) -> Instruction:
        """The instruction of a line.

        Raises:
            ValueError: says what is wrong with the line.
        """
        op = line.partition(" ")[0]
        if op not in self._makers:
            raise ValueError(f"got {line!r}, expected one of {', '.join(FORMS)} at its beginning")
        matches, make = self._makers[op]
        match = matches(line)
        if match is None:
            raise ValueError(f"got {line!r}, expected '{op} {FORMS[op][1]}'")
        return make(match.groups())

    def _list(self, text: str) -> tuple[int, ...]:
        slots = self._slots.get(text)
        if slots is None:
            slots = self._slots[text] = read_slots(text)
        return slots

    def _input(self, g: tuple[Any, ...]) -> InputOp:
        return InputOp(int(g[0]), int(g[1]), _number(g[2]), self._tensors.parse(g[3]))

    def _run(self, g: tuple[Any, ...]) -> RunOp:
        return RunOp(int(g[0]), g[1], _number(g[2]), self._list(g[3]), self._list(g[4]))

    def _send(self, g: tuple[Any, ...]) -> SendOp:
        return SendOp(int(g[0]), int(g[1]), int(g[2]), int(g[3]))

    def _recv(self, g: tuple[Any, ...]) -> RecvOp:
        return RecvOp(int(g[0]), int(g[1]), int(g[2]), int(g[3]), self._tensors.parse(g[4]))

    def _reshard(self, g: tuple[Any, ...]) -> ReshardOp:
        return ReshardOp(int(g[0]), int(g[1]), self._tensors.parse(g[2]))

    def _zero(self, g: tuple[Any, ...]) -> ZeroOp:
        return ZeroOp(int(g[0]), self._tensors.parse(g[1]))

    def _all_reduce(self, g: tuple[Any, ...]) -> AllReduceOp:
        members = tuple(map(int, g[2].split()))
        by = () if g[4] is None else (int(g[4]), int(g[5]))
        return AllReduceOp(int(g[0]), int(g[1]), members, int(g[3]), by)

    def _accumulate(self, g: tuple[Any, ...]) -> AccumulateOp:
        sums, lefts, rights = (self._list(text) for text in g)
        if not len(sums) == len(lefts) == len(rights):
            raise ValueError(f"adds {len(rights)} values to {len(lefts)}, giving {len(sums)}")
        return AccumulateOp(sums, lefts, rights)

    def _free(self, g: tuple[Any, ...]) -> FreeOp:
        return FreeOp(self._list(g[0]))

    def _output(self, g: tuple[Any, ...]) -> OutputOp:
        return OutputOp(int(g[0]), int(g[1]), _number(g[2]))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


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
        reader, lines = InstructionReader(self._tensors), self.lines()
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
