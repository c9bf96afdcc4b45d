"""Lines of text that say one thing each, such as instructions: described once, read and written.

A class of lines has a `form`, which names its fields in their order, each with its kind. What
stands in square brackets may be missing; its field is None then, or an empty tuple.

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

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from alpa_runtime.plan.tensor import TENSOR_PATTERN, TensorReader, TensorSpec

_LARGEST = 10_000_000  # Of numbers in ranges: one must not fill the memory.


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
            raise ValueError(f"got the {what} {part}, expected a rising range")
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
    """What a line says. Subclasses are dataclasses, and have a form."""

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
        result = made(*[read(text) for read, text in zip(fields, match.groups(), strict=True)])
        if comes_again:
            self._known[line] = result
        return result
