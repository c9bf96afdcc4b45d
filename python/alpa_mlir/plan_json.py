"""Reading and writing JSON with errors that name the field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from alpa_mlir.errors import PlanFormatError


@dataclasses.dataclass(frozen=True)
class Node:
    """A JSON value together with its place, such as `plan.json: stages[0].mesh`."""

    value: Any
    where: str
    path: str = ""

    def error(self, what: str, expected: str) -> PlanFormatError:
        place = f"{self.where}: {self.path}" if self.path else self.where
        return PlanFormatError(f"{what}, expected {expected}", where=place)

    def _wrong(self, expected: str) -> PlanFormatError:
        text = repr(self.value)
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
        return Node(fields[key], self.where, f"{self.path}.{key}" if self.path else key)

    def optional(self, key: str) -> Node:
        """The field `key`, or an empty value (reads as null, an empty list or object)."""
        value = self.mapping().get(key)
        return Node(value, self.where, f"{self.path}.{key}" if self.path else key).or_empty()

    def or_empty(self) -> Node:
        return self if self.value is not None else _EmptyNode(None, self.where, self.path)

    def fields(self) -> Iterator[tuple[str, Node]]:
        for key in self.mapping():
            yield key, self.get(key)

    def items(self) -> list[Node]:
        value: object = self.value
        if not isinstance(value, list):
            raise self._wrong("a list")
        values = cast(list[Any], value)
        return [Node(v, self.where, f"{self.path}[{i}]") for i, v in enumerate(values)]

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def choice(self, *names: str) -> str:
        if self.value not in names:
            raise self._wrong(" or ".join(map(repr, names)))
        return cast(str, self.value)

    def integer(self, minimum: int = 0) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < minimum:
            raise self._wrong(f"an integer of at least {minimum}")
        return self.value

    def optional_integer(self) -> int | None:
        return None if self.value is None else self.integer()

    def dims(self) -> tuple[int, ...]:
        return tuple(item.integer() for item in self.items())

    def numbers(self) -> Mapping[str, float]:
        result: dict[str, float] = {}
        for key, item in self.fields():
            if not isinstance(item.value, int | float):
                raise item._wrong("a number")
            result[key] = float(item.value)
        return MappingProxyType(result)


class _EmptyNode(Node):
    """Stands for an absent optional field."""

    def mapping(self) -> dict[str, Any]:
        return {}

    def items(self) -> list[Node]:
        return []


def encode(plan: Any, format_name: str, version: int) -> str:
    """The text of `plan.json` of a `Plan`."""
    fields = {f.name: _plain(getattr(plan, f.name)) for f in dataclasses.fields(plan)}
    del fields["modules"]
    return json.dumps({"format": format_name, "version": version, **fields}, indent=1) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        op = getattr(value, "op", None)
        result: dict[str, Any] = {"op": op} if op else {}
        for f in dataclasses.fields(value):
            item = _plain(getattr(value, f.name))
            if f.name == "tensor":
                result |= item
            else:
                result["from" if f.name == "source" else f.name] = item
        return result
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    return value
