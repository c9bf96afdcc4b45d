"""What the step of a plan takes and gives: its arguments, its results, and how it is called."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from alpa_runtime.plan.tensor import mlir_name
from alpa_runtime.plan.text import Node


@dataclass(frozen=True)
class PieceInfo:
    """Rows [offset, offset + size) of dimension 0 of the caller's argument or result `of`."""

    of: int
    offset: int
    size: int

    @classmethod
    def read(cls, node: Node) -> PieceInfo | None:
        if not node.mapping():
            return None
        return cls(
            node.get("of").integer(), node.get("offset").integer(), node.get("size").integer(1)
        )


@dataclass(frozen=True)
class InputInfo:
    """An argument of the step; `shape` of a batch argument is that of one micro-batch.

    A stack of layers may be several inputs, one behind the other, each a `piece` of it. An input
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
        )

    @property
    def is_given(self) -> bool:
        """Whether callers give it, and the step does not add it by itself."""
        return not self.per_micro_batch and self.whole_of is None


@dataclass(frozen=True)
class OutputInfo:
    """A result of the step; `reduction` says how micro-batches become one value.

    A stack of layers may be several outputs, one behind the other, each a `piece` of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    reduction: str | None
    piece: PieceInfo | None = None

    @classmethod
    def read(cls, node: Node) -> OutputInfo:
        reduction = node.get("reduction")
        return cls(
            node.get("name").string(),
            node.get("shape").shape(),
            read_dtype(node.get("dtype")),
            None if reduction.value is None else reduction.choice("sum", "concat"),
            PieceInfo.read(node.optional("piece")),
        )


def read_dtype(node: Node) -> str:
    """NumPy's name of an element type that StableHLO has."""
    if mlir_name(node.string()) is None:
        raise node.error(f"got {node.value[:60]!r}", "an element type such as 'float32'")
    return node.string()


_Info = TypeVar("_Info", InputInfo, OutputInfo)


def check_pieces(infos: Sequence[InputInfo] | Sequence[OutputInfo], table: Node) -> None:
    """Whether the pieces of each stack stand one behind the other.

    Args:
        table: where they were read.

    Raises:
        PlanFormatError: names the first that does not.
    """
    before: PieceInfo | None = None
    for index, info in enumerate(infos):
        piece = info.piece
        if piece is not None:
            place = table.item(index).get("piece")
            if not info.shape or info.shape[0] != piece.size:
                raise place.error(f"{piece.size} rows of {list(info.shape)}", "all of its rows")
            after = None if before is None else (before.of, before.offset + before.size)
            if piece.offset and (piece.of, piece.offset) != after:
                raise place.error(f"rows from {piece.offset} on", "those behind the piece before")
        before = piece


def owner_numbers(infos: Sequence[InputInfo] | Sequence[OutputInfo]) -> list[int]:
    """For each input or output the number of the argument or result that it belongs to."""
    owners: list[int] = []
    for info in infos:
        begins = info.piece is None or info.piece.offset == 0
        owners.append((owners[-1] if owners else -1) + begins)
    return owners


def join_pieces(infos: Sequence[_Info]) -> list[_Info]:
    """The arguments or results themselves, of whose stacks the plan has pieces."""
    whole: list[_Info] = []
    for info in infos:
        if info.piece is None:
            whole.append(info)
        elif info.piece.offset == 0:
            whole.append(replace(info, name=info.name.removesuffix("[0]"), piece=None))
        else:
            rows, *rest = whole[-1].shape
            whole[-1] = replace(whole[-1], shape=(rows + info.piece.size, *rest))
    return whole


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
    """

    arguments: Any
    result: Any
    static: tuple[StaticArgument, ...]
    donate_state: bool
    input_keys: Mapping[int, str]
    output_keys: Mapping[int, str]
    interleaved: Mapping[int, int] = field(default_factory=dict[int, int])

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
        }
