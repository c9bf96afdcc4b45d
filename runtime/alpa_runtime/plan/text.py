"""Texts of plans: JSON with errors that name the field, and shardings, seconds, bytes and tables
for people.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from alpa_runtime.errors import PlanFormatError

# What no plan reaches; with it sums and products of what one holds stay finite and exact.
_LARGEST_INTEGER = 2**63 - 1
_LARGEST_NUMBER = 1e30
_DEEPEST = 100  # Of values whose form is not known here.


def read_file(path: Path) -> bytes:
    """The bytes of a regular file: a pipe or a device may have no end, or nobody who writes to it.

    Raises:
        OSError: it is none, or cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return file.read()


def read_json(text: str, where: str) -> Node:
    """The value of a JSON text.

    Raises:
        PlanFormatError: it is none, or has letters that could not be written again.
    """
    try:
        value: Any = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(
            f"not JSON: {error}", where=where, fix="write the plan again with Plan.save"
        ) from None
    return Node(value, where)


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Node:
    """A JSON value together with its place, such as `plan.json: stages[0].mesh`.

    The place is put into words only when an error asks for it.
    """

    __slots__ = ("_key", "_parent", "value", "where")

    def __init__(
        self, value: Any, where: str, parent: Node | None = None, key: str | int | None = None
    ) -> None:
        self.value: Any = value
        self.where: str = where
        self._parent = parent
        self._key = key

    @property
    def path(self) -> str:
        """The fields on the way to this one."""
        before = self._parent.path if self._parent is not None else ""
        if self._key is None:
            return before
        if isinstance(self._key, int):
            return f"{before}[{self._key}]"
        return f"{before}.{self._key}" if before else self._key

    def error_text(self, what: str) -> PlanFormatError:
        """An error at this place."""
        return PlanFormatError(
            what, where=f"{self.where}: {self.path}" if self.path else self.where
        )

    def error(self, what: str, expected: str) -> PlanFormatError:
        return self.error_text(f"{what}, expected {expected}")

    def _wrong(self, expected: str) -> PlanFormatError:
        try:
            text = repr(self.value)
        except RecursionError:
            text = "a deeply nested value"
        return self.error(f"got {text if len(text) < 60 else text[:57] + '...'}", expected)

    def mapping(self) -> dict[str, Any]:
        value: object = self.value
        if not isinstance(value, dict):
            raise self._wrong("an object")
        return cast(dict[str, Any], value)

    def get(self, key: str) -> Node:
        """The field `key`; missing is an error."""
        fields = self.mapping()
        if key not in fields:
            raise self.error(f"field {key!r} is missing", f"one of {', '.join(sorted(fields))}")
        return Node(fields[key], self.where, self, key)

    def optional(self, key: str) -> Node:
        """The field `key`, or an empty value (reads as null, an empty list or object)."""
        value = self.mapping().get(key)
        kind = Node if value is not None else _EmptyNode
        return kind(value, self.where, self, key)

    def fields(self) -> Iterator[tuple[str, Node]]:
        for key in self.mapping():
            yield key, self.get(key)

    def list(self) -> list[Any]:
        value: object = self.value
        if not isinstance(value, list):
            raise self._wrong("a list")
        return cast(list[Any], value)

    def item(self, index: int) -> Node:
        return Node(self.list()[index], self.where, self, index)

    def items(self) -> list[Node]:
        return [Node(v, self.where, self, i) for i, v in enumerate(self.list())]

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def name(self) -> str:
        """A string that is no path."""
        if self.string() in ("", ".", "..") or any(c in self.string() for c in "/\\\0"):
            raise self._wrong("the name of a file beside it")
        return self.string()

    def optional_string(self) -> str | None:
        return None if self.value is None else self.string()

    def choice(self, *names: str) -> str:
        if not isinstance(self.value, str) or self.value not in names:
            raise self._wrong(" or ".join(map(repr, names)))
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self._wrong("true or false")
        return self.value

    def integer(self, minimum: int = 0, maximum: int = _LARGEST_INTEGER) -> int:
        if type(self.value) is not int or not minimum <= self.value <= maximum:
            most = "" if maximum == _LARGEST_INTEGER else f" and at most {maximum}"
            raise self._wrong(f"an integer of at least {minimum}{most}")
        return self.value

    def optional_integer(self) -> int | None:
        return None if self.value is None else self.integer()

    def dims(self) -> tuple[int, ...]:
        values = self.list()
        if all(type(value) is int and 0 <= value <= _LARGEST_INTEGER for value in values):
            return tuple(values)
        return tuple(item.integer() for item in self.items())

    def shape(self) -> tuple[int, ...]:
        """Dimensions of an array, whose elements can be counted."""
        dims = self.dims()
        if math.prod(dims) > _LARGEST_INTEGER:
            raise self._wrong("fewer than 2**63 elements")
        return dims

    def number(self) -> float:
        if type(self.value) not in (int, float) or not 0 <= self.value <= _LARGEST_NUMBER:
            raise self._wrong("a number of at least 0")
        return float(self.value)

    def signed(self) -> float:
        if type(self.value) not in (int, float) or not abs(self.value) <= _LARGEST_NUMBER:
            raise self._wrong("a number")
        return float(self.value)

    def plain(self, *, finite: bool = False) -> Any:
        """The value, whatever its form, if it can be walked through.

        Args:
            finite: numbers in it can be added.
        """
        level: list[Any] = [self.value]
        for _ in range(_DEEPEST):
            if not level:
                return self.value
            inner: list[Any] = []
            for value in level:
                if isinstance(value, dict):
                    inner += cast("dict[str, Any]", value).values()
                elif isinstance(value, list):
                    inner += cast("list[Any]", value)
                elif finite and type(value) in (int, float) and not abs(value) <= _LARGEST_NUMBER:
                    raise self.error("it holds a number without end", "finite ones")
            level = inner
        raise self.error(f"it is nested more than {_DEEPEST} times", "less of that")

    def numbers(self) -> Mapping[str, float]:
        return MappingProxyType({key: item.number() for key, item in self.fields()})


class _EmptyNode(Node):
    """Stands for an absent optional field."""

    __slots__ = ()

    def mapping(self) -> dict[str, Any]:
        return {}

    def list(self) -> list[Any]:
        return []


def pretty(value: Any, indent: int = 0, width: int = 100) -> str:
    """JSON text in which what fits into a line stays on one.

    Example:
        >>> pretty({"a": [1, 2]})
        '{"a": [1, 2]}'
    """
    if isinstance(value, tuple):
        value = list(cast("tuple[Any, ...]", value))
    if not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        parts = [f"{json.dumps(k)}: {pretty(v, indent + 1, width)}" for k, v in fields.items()]
        opening, closing = "{", "}"
    else:
        items = cast("list[Any]", value)
        if all(isinstance(item, str) for item in items):  # Such as instructions, one a line.
            text = json.dumps(items)
            if indent + len(text) <= width:
                return text
            lines = f",\n{inner}".join(map(json.dumps, items))
            return f"[\n{inner}{lines}\n{' ' * indent}]"
        parts = [pretty(item, indent + 1, width) for item in items]
        opening, closing = "[", "]"
    if indent + sum(map(len, parts)) + 2 * len(parts) <= width and not any(
        "\n" in part for part in parts
    ):
        return opening + ", ".join(parts) + closing
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * indent}{closing}"


# Text of what plans hold: shardings, ranges, seconds, bytes, tables.


def spec_text(spec: Sequence[Sequence[str]]) -> str:
    """Short form of a spec: `[x, R]`, `R` for a dimension that is not split, `x*y` for one that
    several axes split."""
    return "[" + ", ".join("*".join(axes) if axes else "R" for axes in spec) + "]"


def ranges_text(numbers: tuple[int, ...]) -> str:
    """`0-3`, or `0, 2, 5` when the numbers are not one run."""
    if len(numbers) > 1 and numbers == tuple(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def seconds_text(seconds: float) -> str:
    """`1.25 ms`: three figures and the unit that suits them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{_figures(seconds / scale)} {unit}"
    return f"{_figures(seconds / 1e-9)} ns" if seconds else "0 s"


def bytes_text(count: float) -> str:
    """`1.5 MiB`: three figures and the unit that suits them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{_figures(count)} {unit}"
        count /= 1024
    return f"{_figures(count)} TiB"


def _figures(value: float) -> str:
    """Three, or all of a whole number: 1000, not 1e+03."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells in columns, rows apart by rules; a cell may have several lines."""
    cells = [[cell.split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[c]) for c in range(len(header))]
    rule = "-+-".join("-" * width for width in widths)
    lines: list[str] = []
    for row in cells:
        for i in range(max(map(len, row))):
            parts = [col[i] if i < len(col) else "" for col in row]
            line = " | ".join(p.ljust(w) for p, w in zip(parts, widths, strict=True))
            lines.append(line.rstrip())
        lines.append(rule)
    return "\n".join(lines)


_LOCATION = re.compile(r' loc\((?:"(?:[^"\\]|\\.)*"|[^()"]|\([^()]*\))*\)')


def without_locations(text: str) -> str:
    """A module's text without where its ops come from: moved lines do not make another step.

    Example:
        >>> without_locations('%0 = "a"() : () -> i1 loc("sum:"(#loc3))\\n#loc3 = loc("f.py":1:2)')
        '%0 = "a"() : () -> i1'
    """
    text = re.sub(r" loc\(#loc\d*\)", "", text)  # Nearly all of them; the rest takes longer.
    return _LOCATION.sub("", re.sub(r"^#loc.*\n?", "", text, flags=re.M)).rstrip()
