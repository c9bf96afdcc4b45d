"""Instruction lists: one line of text an instruction, read when they are first asked for."""

from __future__ import annotations

import gc
import operator
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, get_args, overload

from alpa_runtime.plan.tensor import TENSOR_PATTERN, TensorReader, TensorSpec
from alpa_runtime.plan.text import Node

_call: Any = operator.call
_LARGEST = 1_000_000  # Of numbers in ranges: one must not fill the memory.


@contextmanager
def collector_paused() -> Generator[None]:
    """Python's collector rests: it looks for circles among hundreds of thousands of instructions
    that have none, which takes a third of the time of making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers and ranges, each after a space.

    Example:
        >>> numbers_text((3, 5, 6, 7))
        ' 3 5-7'
    """
    text, i = "", 0
    while i < len(numbers):
        end = i + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        text += f" {numbers[i]}" if end == i + 1 else f" {numbers[i]}-{numbers[end - 1]}"
        i = end
    return text


def read_numbers(text: str, what: str) -> tuple[int, ...]:
    """The numbers of a text that `numbers_text` makes.

    Args:
        what: they are numbers of, for messages.

    Raises:
        ValueError: a range falls, or is so long that it would fill the memory.

    Example:
        >>> read_numbers(" 3 5-7", "slots")
        (3, 5, 6, 7)
    """
    numbers: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        end = int(last or first)
        if end < int(first) or end > _LARGEST:
            raise ValueError(f"got the {what} {part}, expected a rising range up to {_LARGEST}")
        numbers.extend(range(int(first), end + 1))
    return tuple(numbers)


@dataclass(frozen=True)
class Kind:
    """A kind of fields.

    Attributes:
        pattern: of its text, without groups.
        shown: what stands for it in messages; its name by default.
        absent: the field where its part of the line is missing.
    """

    pattern: str
    read: Callable[[str], Any] = int
    write: Callable[[Any], str] = str
    shown: str | None = None
    absent: Any = None


def _numbers(pattern: str, name: str) -> Kind:
    return Kind(pattern, lambda text: tuple(map(int, text.split())), _separate, f" {name}", ())


def _separate(numbers: Sequence[int]) -> str:
    return "".join(f" {number}" for number in numbers)


def _ranges(pattern: str, name: str) -> Kind:
    return Kind(pattern, partial(read_numbers, what=name.lower()), numbers_text, f" {name}", ())


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        **dict.fromkeys(
            ("SLOT", "ARG", "RESULT", "STAGE", "MESH", "TAG", "RESHARD", "TILE", "DEVICE"),
            Kind(r"\d+"),
        ),
        "NUMBER": Kind(r"\d+"),
        "FUNCTION": Kind(r"\w+", str),
        "SLOTS": _ranges(r"(?: \d+(?:-\d+)?)*", "SLOTS"),
        "TILES": _ranges(r"(?: \d+(?:-\d+)?)+", "TILES"),
        "MESHES": _numbers(r"(?: \d+)+", "MESHES"),
        "DEVICES": _numbers(r"(?: \d+)+", "DEVICES"),
        "RESHARDS": _numbers(r" \d+ \d+", "RESHARD RESHARD"),
        "TENSOR": Kind(TENSOR_PATTERN, TensorSpec.parse, TensorSpec.to_text),
    }
)


@dataclass(frozen=True)
class _Part:
    """A field of a form, with the text before it."""

    before: str
    name: str
    kind: str
    may_be_missing: bool


class Line:
    """What a line says.

    Subclasses are dataclasses, and have a `form`, which names their fields in their order, each
    with its kind. What stands in square brackets may be missing; its field is None then, or an
    empty tuple.

    Example:
        >>> @dataclass(frozen=True, slots=True)
        ... class Move(Line):
        ...     form = "move {value:SLOT} to {mesh:MESH}[ mb {micro_batch:NUMBER}]"
        ...     value: int
        ...     mesh: int
        ...     micro_batch: int | None
        >>> LineReader((Move,)).read("move 3 to 1")
        Move(value=3, mesh=1, micro_batch=None)
        >>> Move(3, 1, 0).to_text()
        'move 3 to 1 mb 0'
    """

    __slots__ = ()

    form: ClassVar[str]
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    op: ClassVar[str]
    """The first word."""

    def __init_subclass__(cls) -> None:
        if "form" in cls.__dict__:
            cls.op = re.split("[ {]", cls.form)[0]

    def to_text(self) -> str:
        """The line."""
        text = ""
        for part in _parts(self.form):
            kind, value = self.kinds[part.kind], getattr(self, part.name)
            if not part.may_be_missing or value != kind.absent:
                text += part.before + kind.write(value)
        return text


@cache
def _parts(form: str) -> tuple[_Part, ...]:
    fields = re.finditer(r"(\[?)([^{\[\]]*)\{(\w+):(\w+)\}\]?", form)
    return tuple(_Part(f[2], f[3], f[4], bool(f[1])) for f in fields)


def pattern_of(line: type[Line]) -> str:
    """The regular expression of a class of lines, with a group for each field."""
    text = ""
    for part in _parts(line.form):
        before = re.sub(r"([.+*?()|])", r"\\\1", part.before)
        own = f"{before}({line.kinds[part.kind].pattern})"
        text += f"(?:{own})?" if part.may_be_missing else own
    return text


def form_of(line: type[Line]) -> str:
    """The form of a class of lines for people: `send SLOT to MESH tag TAG by RESHARD`."""
    text = ""
    for part in _parts(line.form):
        own = part.before + (line.kinds[part.kind].shown or part.kind)
        text += f"[{own}]" if part.may_be_missing else own
    return text


_Read = TypeVar("_Read", bound=Line)


class LineReader(Generic[_Read]):
    """Reads lines of some classes; equal tensors and lists are read once."""

    def __init__(self, classes: Sequence[type[_Read]], tensors: TensorReader | None = None) -> None:
        parse = (tensors or TensorReader()).parse

        @cache
        def reader(kind: Kind) -> Callable[[str], Any]:
            if kind.read is int or kind.read is str:
                return kind.read
            return parse if kind.read == TensorSpec.parse else cache(kind.read)

        def field(line: type[Line], part: _Part) -> Callable[[Any], Any]:
            kind = line.kinds[part.kind]
            read, absent = reader(kind), kind.absent
            if not part.may_be_missing:
                return read
            return lambda text: absent if text is None else read(text)

        self._known: dict[str, _Read] = {}
        self._classes = {
            line.op: (
                # Lines without numbers of their own, such as tags, come again and again.
                all(line.kinds[part.kind].write is numbers_text for part in _parts(line.form)),
                line,
                re.compile(pattern_of(line)).fullmatch,
                [field(line, part) for part in _parts(line.form)],
            )
            for line in classes
        }

    def read(self, line: str) -> _Read:
        """What a line says.

        Raises:
            ValueError: says what is wrong with the line.
        """
        op = line.partition(" ")[0]
        known = self._known.get(line)
        if known is not None:
            return known
        found = self._classes.get(op)
        if found is None:
            known = ", ".join(self._classes)
            raise ValueError(f"got {line!r}, expected one of {known} at its beginning")
        comes_again, made, fullmatch, fields = found
        match = fullmatch(line)
        if match is None:
            raise ValueError(f"got {line!r}, expected '{form_of(made)}'")
        result = made(*map(_call, fields, match.groups()))
        if comes_again:
            self._known[line] = result
        return result


# Instruction lists: one line of text an instruction, read when they are first asked for.


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
_Op = TypeVar("_Op", InputOp, OutputOp, AllReduceOp)


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

    def only(self, kind: type[_Op]) -> list[_Op]:
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

    def only(self, kind: type[_Op]) -> list[_Op]:
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
            try:
                runs.append((int(match[1]), int(match[2] or 1)))
            except ValueError:  # Of thousands of digits.
                raise line.error(f"got {part[:60]!r}..", "MESH or MESH*INSTRUCTIONS") from None
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
