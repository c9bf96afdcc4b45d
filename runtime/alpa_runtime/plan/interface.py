"""What the step of a plan takes and gives: its arguments, its results, and how it is called."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np

from alpa_runtime.plan.reshard import Box
from alpa_runtime.plan.tensor import mlir_name
from alpa_runtime.plan.text import Node


@dataclass(frozen=True)
class PiecePlace:
    """Where a piece lies in its array: rows from `row` on of dimension `axis`, which is
    dimension 0 of the piece.

    Example:
        >>> PiecePlace(row=4, axis=1).box(((0, 2), (0, 8)))
        ((0, 8), (4, 6))
    """

    row: int = 0
    axis: int = 0

    def box(self, box: Box) -> Box:
        """A box of the piece as one of the array."""
        if not box:
            return box
        (begin, end), *others = box
        others.insert(self.axis, (begin + self.row, end + self.row))
        return tuple(others)

    def cut(self, whole: Any, size: int) -> Any:
        """So many rows of an array, as a piece."""
        return to_front(whole, self.axis)[self.row : self.row + size]


def to_front(array: Any, axis: int) -> Any:
    """The array with a dimension in front, as its pieces have it."""
    dims = [axis, *(dim for dim in range(len(array.shape)) if dim != axis)]
    return array.transpose(dims) if axis else array


def to_place(array: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    """The array with dimension 0 where it was before `to_front`."""
    return np.moveaxis(array, 0, axis) if axis else array


def whole_shape(shape: Sequence[int], rows: int, axis: int) -> tuple[int, ...]:
    """That of an array, of which a piece of this shape is some of so many rows."""
    _, *others = shape
    others.insert(axis, rows)
    return tuple(others)


@dataclass(frozen=True)
class PieceInfo:
    """Rows [offset, offset + size) of dimension `axis` of the caller's argument or result `of`.

    They are dimension 0 of the piece; its other dimensions are in the caller's order.
    """

    of: int
    offset: int
    size: int
    axis: int = 0

    @property
    def place(self) -> PiecePlace:
        return PiecePlace(self.offset, self.axis)

    @classmethod
    def read(cls, node: Node) -> PieceInfo | None:
        if not node.mapping():
            return None
        return cls(
            node.get("of").integer(),
            node.get("offset").integer(),
            node.get("size").integer(1),
            node.get("axis").integer() if "axis" in node.mapping() else 0,
        )


@dataclass(frozen=True)
class RowsInfo:
    """Arguments or results of the caller that are the rows of one input or output, in order.

    Attributes:
        shape: of each. A dimension for the rows stands before it; where its own first dimension
            has size 1, that one becomes the rows.
        of: their numbers.
        names: of the arguments or results.
    """

    shape: tuple[int, ...]
    of: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def read(cls, node: Node) -> RowsInfo | None:
        if not node.mapping():
            return None
        of = tuple(item.integer() for item in node.get("of").items())
        names = tuple(item.string() for item in node.get("names").items())
        return cls(node.get("shape").shape(), of, names)

    @property
    def stacked(self) -> tuple[int, ...]:
        """The shape of all rows."""
        begin = 1 if self.shape[:1] == (1,) else 0
        return (len(self.of), *self.shape[begin:])


@dataclass(frozen=True)
class InputInfo:
    """An argument of the step; `shape` of a batch argument is that of one micro-batch.

    A stack of layers may be several inputs, one behind the other, each a `piece` of it. Arguments
    that are alike, as the weights of equal layers, may be the `rows` of one input. An input
    that is `per_micro_batch` has one element for each micro-batch, its number; one with `whole_of`
    is all rows of the batch argument of that name. Callers give neither.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    carried_by: int | None
    piece: PieceInfo | None = None
    per_micro_batch: bool = False
    whole_of: str | None = None
    rows: RowsInfo | None = None

    @classmethod
    def read(cls, node: Node) -> InputInfo:
        return cls(
            node.get("name").string(),
            node.get("shape").shape(),
            read_dtype(node.get("dtype")),
            node.get("kind").choice("state", "batch"),
            node.get("carried_by").optional_integer(),
            PieceInfo.read(node.optional("piece")),
            "per_micro_batch" in node.mapping() and node.get("per_micro_batch").boolean(),
            node.optional("whole_of").optional_string(),
            RowsInfo.read(node.optional("rows")),
        )

    @property
    def is_given(self) -> bool:
        """Whether callers give it, and the step does not add it by itself."""
        return not self.per_micro_batch and self.whole_of is None


@dataclass(frozen=True)
class OutputInfo:
    """A result of the step; `reduction` says how micro-batches become one value.

    A stack of layers may be several outputs, one behind the other, each a `piece` of it, and
    several results may be the `rows` of one output.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    reduction: str | None
    piece: PieceInfo | None = None
    rows: RowsInfo | None = None

    @classmethod
    def read(cls, node: Node) -> OutputInfo:
        reduction = node.get("reduction")
        return cls(
            node.get("name").string(),
            node.get("shape").shape(),
            read_dtype(node.get("dtype")),
            None if reduction.value is None else reduction.choice("sum", "concat"),
            PieceInfo.read(node.optional("piece")),
            RowsInfo.read(node.optional("rows")),
        )


def read_dtype(node: Node) -> str:
    """NumPy's name of an element type that StableHLO has."""
    if mlir_name(node.string()) is None:
        raise node.error(f"got {node.value[:60]!r}", "an element type such as 'float32'")
    return node.string()


_Info = TypeVar("_Info", InputInfo, OutputInfo)


def check_pieces(infos: Sequence[InputInfo] | Sequence[OutputInfo], table: Node) -> None:
    """Whether the pieces of each stack stand one behind the other, and rows make whole inputs.

    Args:
        table: where they were read.

    Raises:
        PlanFormatError: names the first that does not.
    """
    before: PieceInfo | None = None
    count = sum(
        len(info.rows.of) if info.rows else info.piece is None or info.piece.offset == 0
        for info in infos
    )
    seen: set[int] = set()
    for index, info in enumerate(infos):
        piece, rows = info.piece, info.rows
        if rows is not None:
            place = table.item(index).get("rows")
            if piece is not None:
                raise place.error("rows of a piece", "either of them")
            if info.shape != rows.stacked or not rows.of:
                found = f"{len(rows.of)} rows of {list(rows.shape)}"
                raise place.error(found, f"those of {list(info.shape)}")
            if len(rows.names) != len(rows.of):
                raise place.get("names").error(f"{len(rows.names)} names", f"{len(rows.of)}")
            for number in rows.of:
                if number in seen or number >= count:
                    raise place.get("of").error(str(number), f"distinct numbers below {count}")
                seen.add(number)
        if piece is not None:
            place = table.item(index).get("piece")
            if not info.shape or info.shape[0] != piece.size:
                raise place.error(f"{piece.size} rows of {list(info.shape)}", "all of its rows")
            if piece.axis >= len(info.shape):
                raise place.error(f"dimension {piece.axis} of {list(info.shape)}", "one it has")
            after = before and (before.of, before.axis, before.offset + before.size)
            if piece.offset and (piece.of, piece.axis, piece.offset) != after:
                raise place.error(f"rows from {piece.offset} on", "those behind the piece before")
        before = piece


def owner_numbers(infos: Sequence[InputInfo | OutputInfo]) -> list[tuple[int, ...]]:
    """For each input or output the number of the argument or result that it belongs to, or those
    that are its rows."""
    taken = {number for info in infos if info.rows for number in info.rows.of}
    others = (number for number in itertools.count() if number not in taken)
    owners: list[tuple[int, ...]] = []
    last: tuple[int, ...] = ()
    for info in infos:
        if info.rows is not None:
            owners.append(info.rows.of)
            continue
        if info.piece is None or info.piece.offset == 0:
            last = (next(others),)
        owners.append(last)
    return owners


def join_pieces(infos: Sequence[_Info], results: Sequence[OutputInfo] = ()) -> list[_Info]:
    """The arguments or results themselves, of which the plan has pieces, or rows of one input.

    Args:
        results: the plan's, for arguments: what `carried_by` says of them counts the caller's.
    """
    whole: dict[int, _Info] = {}
    result_of = owner_numbers(results)
    for info, owners in zip(infos, owner_numbers(infos), strict=True):
        piece = info.piece
        carried = info.carried_by if isinstance(info, InputInfo) else None
        for row, number in enumerate(owners):
            changed: dict[str, Any] = {}
            if piece is not None:
                shape = whole_shape(info.shape, piece.offset + piece.size, piece.axis)
                if piece.offset:
                    whole[number] = replace(whole[number], shape=shape)
                    continue
                changed.update(name=info.name.removesuffix("[0]"), shape=shape, piece=None)
            if info.rows is not None:
                changed.update(name=info.rows.names[row], shape=info.rows.shape, rows=None)
            if carried is not None:
                changed.update(carried_by=result_of[carried][row])
            whole[number] = replace(info, **changed)
    return [whole[number] for number in sorted(whole)]


@dataclass(frozen=True)
class Exactness:
    """What micro-batches make of the whole batch.

    Attributes:
        exact: results are those of `jax.jit` on the whole batch.
        sums: source lines of the sums over examples that the update completes.
        scales: of the factors that are known behind the micro-batches only, and wait.
        joins: of the values whose examples the update needs together.
        repeats: of the values of the whole batch that each micro-batch computes, as counts of
            tokens.
        barriers: of the values that are needed of the whole batch before gradients can go back:
            all forward runs come first, then these are computed once.
        estimates: of the values that each micro-batch takes from its own examples, by the
            wish of who planned.
    """

    exact: bool = True
    sums: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    barriers: tuple[str, ...] = ()
    estimates: tuple[str, ...] = ()

    @classmethod
    def read(cls, node: Node) -> Exactness:
        fields = node.mapping()
        if not fields:
            return cls()

        def places(name: str) -> tuple[str, ...]:
            return tuple(item.string() for item in node.optional(name).items())

        return cls(
            "exact" not in fields or node.get("exact").boolean(),
            places("sums"),
            places("scales"),
            places("joins"),
            places("repeats"),
            places("barriers"),
            places("estimates"),
        )


@dataclass(frozen=True)
class StaticArgument:
    """An argument that is a Python value; `value` is its `repr` if that tells it apart."""

    position: int
    value: str | None


@dataclass(frozen=True)
class CallInfo:
    """How the step is called: trees (as `alpa_runtime.trees` writes them) and typed keys.

    Attributes:
        arguments: tree of the tuple of arguments that are not static.
        result: tree of the result.
        static: the arguments that are Python values.
        donate_state: whether a call uses up the state that it is given.
        input_keys, output_keys: generators of typed PRNG keys, by number of argument or result.
        interleaved: by number of a batch argument, the rounds between which the caller's rows
            alternate; the plan's input has those of one round behind those of another.
        batch_of_rounds: whether the first dimension of the batch arguments is the rounds of the
            step's own loop of gradient accumulation, and the second one each round's examples.
        names: of all arguments, static ones too; none in plans that do not say them.
        by_name: how many of the last ones the step takes by name alone.
    """

    arguments: Any
    result: Any
    static: tuple[StaticArgument, ...]
    donate_state: bool
    input_keys: Mapping[int, str]
    output_keys: Mapping[int, str]
    interleaved: Mapping[int, int] = field(default_factory=dict[int, int])
    batch_of_rounds: bool = False
    names: tuple[str, ...] = ()
    by_name: int = 0

    @classmethod
    def read(cls, node: Node) -> CallInfo:
        def keys(field: Node) -> Mapping[int, str]:
            found: dict[int, str] = {}
            for item in field.items():
                found[item.get("leaf").integer()] = item.get("generator").string()
            return found

        static: list[StaticArgument] = []
        for item in node.get("static").items():
            value = item.get("value")
            try:
                ast.literal_eval(value.optional_string() or "None")
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                shown = repr(value.value)
                text = shown if len(shown) < 60 else shown[:57] + "..."
                raise value.error(f"got {text}", "a Python name or number") from None
            static.append(StaticArgument(item.get("position").integer(), value.optional_string()))
        names = tuple(item.string() for item in node.optional("names").items())
        by_name = node.get("by_name").integer() if "by_name" in node.mapping() else 0
        if by_name > len(names):
            raise node.get("by_name").error(f"got {by_name}", f"at most {len(names)} names")
        return cls(
            node.get("arguments").plain(),
            node.get("result").plain(),
            tuple(static),
            node.get("donate_state").boolean(),
            keys(node.get("input_keys")),
            keys(node.get("output_keys")),
            {
                item.get("leaf").integer(): item.get("rounds").integer(minimum=1)
                for item in node.optional("interleaved").items()
            },
            "batch_of_rounds" in node.mapping() and node.get("batch_of_rounds").boolean(),
            names,
            by_name,
        )

    def to_json(self) -> dict[str, Any]:
        def keys(found: Mapping[int, str]) -> list[dict[str, Any]]:
            return [{"leaf": leaf, "generator": name} for leaf, name in found.items()]

        rounds = [{"leaf": leaf, "rounds": count} for leaf, count in self.interleaved.items()]
        return {
            "arguments": self.arguments,
            "result": self.result,
            "static": [asdict(item) for item in self.static],
            "donate_state": self.donate_state,
            "input_keys": keys(self.input_keys),
            "output_keys": keys(self.output_keys),
            **({"interleaved": rounds} if rounds else {}),
            **({"batch_of_rounds": True} if self.batch_of_rounds else {}),
            **({"names": list(self.names)} if self.names else {}),
            **({"by_name": self.by_name} if self.by_name else {}),
        }


class Batch(Protocol):
    """An argument with its whole batch: an `InputInfo`, or what a trace has for one."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kind(self) -> str: ...


def example_shape(shape: tuple[int, ...], of_rounds: bool) -> tuple[int, ...]:
    """The shape of a batch argument with its examples in front.

    Args:
        of_rounds: whether it is `[rounds, examples, ..]` (`CallInfo.batch_of_rounds`).

    Example:
        >>> example_shape((4, 32, 1024), True)
        (128, 1024)
    """
    return (shape[0] * shape[1], *shape[2:]) if of_rounds and len(shape) > 1 else shape


def tokens_of(
    inputs: Sequence[Batch], products: Sequence[Sequence[int]] = (), parts: int = 1
) -> tuple[int, str] | None:
    """Tokens of a step, and which argument was counted: the largest batch of integers of two
    dimensions, examples by positions; None if there is none.

    Integers beside each other are positions if products have rows for most of them. They may be
    categories, each with an embedding of its own, which become features of one row.

    Args:
        inputs: batches have their examples in front.
        products: shapes of results of the step's products; without any all integers are positions.
        parts: in so many micro-batches, products of one of them.

    Example:
        >>> ids = InputInfo("batch['ids']", (8, 128), "int32", "batch", None)
        >>> tokens_of([ids, InputInfo("batch['label']", (8,), "int32", "batch", None)])
        (1024, "8 x 128 of batch['ids']")
    """
    found = [
        item
        for item in inputs
        if item.kind == "batch"
        and len(item.shape) == 2
        and item.shape[1] > 1
        and item.dtype.startswith(("int", "uint"))
    ]
    if not found:
        return None
    largest = max(found, key=lambda item: item.shape[0] * item.shape[1])
    examples, positions = largest.shape
    rows = max((prod(shape[:-1]) for shape in products), default=None)
    if rows is not None and 2 * rows * parts <= examples * positions:
        return None
    return examples * positions, f"{examples} x {positions} of {largest.name}"
