"""How the value of a whole batch follows from those of its micro-batches.

An equation is looked at twice, at the size of a micro-batch and at that of the whole batch: a
dimension of the batch is one that grows from the one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal


@dataclass(frozen=True)
class Flow:
    """How the value of the whole batch follows from those of the micro-batches.

    Attributes:
        kind: `"same"`: it is every micro-batch's; `"part"`: theirs joined along `dim`; `"sum"`:
            `scale` times their sum; `"whole"`: made once, of sums over all micro-batches;
            `"own"`: there is none, because each draws random numbers of its own; `"none"`:
            there is none, for `reason`.
        is_zero: of `"same"`: it is known to be zero everywhere.
        ratio: of `"same"`: the whole batch's value by a micro-batch's, a number of the program.
        is_false: of `"part"`: it is known to be false everywhere.
        rows: of `"part"`: places along the last dimension that hold numbers of rows, which count
            from the micro-batch's first one instead of the batch's; `(-1,)` if all do.
    """

    kind: Literal["same", "part", "sum", "whole", "own", "none"]
    dim: int = -1
    scale: Fraction = Fraction(1)
    reason: str = ""
    is_zero: bool = False
    ratio: Fraction = Fraction(1)
    is_false: bool = False
    rows: tuple[int, ...] = ()


SAME = Flow("same")


class NoFlowError(Exception):
    """No value of the whole batch follows from those of the micro-batches; says why."""


@dataclass(frozen=True)
class Pair:
    """One equation at both sizes.

    Attributes:
        micro, full: the equation at the size of a micro-batch and of the whole batch.
        count: number of micro-batches.
    """

    micro: Any
    full: Any
    count: int

    @property
    def name(self) -> str:
        return str(self.micro.primitive.name)

    def shapes(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of an operand, at both sizes."""
        return tuple(self.micro.invars[place].aval.shape), tuple(self.full.invars[place].aval.shape)

    def params(self, key: str) -> tuple[Any, Any]:
        return self.micro.params[key], self.full.params[key]

    def equal(self, key: str) -> Any:
        """A parameter that must not depend on the batch's size."""
        micro, full = self.params(key)
        if micro != full:
            raise NoFlowError(f"its {key} depends on the size of the batch")
        return micro

    def all_equal(self, *but: str) -> None:
        """No parameter other than these may depend on the batch's size."""
        kept = (
            {k: v for k, v in eqn.params.items() if k not in (*but, "sharding", "out_sharding")}
            for eqn in (self.micro, self.full)
        )
        if str(next(kept)) != str(next(kept)):
            raise NoFlowError("it is another operation for another batch")

    def growth(self, place: int = 0) -> int:
        """The dimension of a result that grows with the batch; -1 if none does."""
        return growth(self.micro.outvars[place].aval, self.full.outvars[place].aval, self.count)


def growth(micro: Any, full: Any, count: int) -> int:
    """The dimension that grows from one abstract array to the other; -1 if none does.

    Raises:
        NoFlowError: several grow, or by another factor than `count`.
    """
    if micro.dtype != full.dtype or len(micro.shape) != len(full.shape):
        raise NoFlowError("it makes another kind of array for another batch")
    grown = [i for i, (a, b) in enumerate(zip(micro.shape, full.shape, strict=True)) if a != b]
    if not grown:
        return -1
    (dim, *more) = grown
    if more:
        raise NoFlowError("it pairs examples of the batch with one another")
    if micro.shape[dim] * count != full.shape[dim]:
        raise NoFlowError("it makes rows that are no examples of the batch")
    return dim


def part(dim: int, flows: Sequence[Flow] = ()) -> Flow:
    """Joined along `dim`; each micro-batch's own where nothing grows but draws differ."""
    if dim >= 0:
        return Flow("part", dim)
    return Flow("own") if any(f.kind == "own" for f in flows) else SAME


def no_rows(flows: Sequence[Flow]) -> None:
    if any(f.rows for f in flows):
        raise NoFlowError("it computes with the numbers of examples in the batch")


def linear(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    """Equations on scaled sums over the micro-batches, and on what all of them share."""
    sums = [f for f in flows if f.kind == "sum"]
    rest = [f for f in flows if f.kind != "sum"]
    scale = sums[0].scale
    if any(f.kind != "same" for f in rest):
        raise NoFlowError("it needs a value of the whole batch for each example")
    name, is_mean = pair.name, scale * pair.count == 1
    if any(s.scale != scale for s in sums):
        raise NoFlowError("it takes sums and means over the batch together")
    if name in ("mul", "div") and len(sums) == 1:
        pair.all_equal()
        place = next(i for i, f in enumerate(flows) if f.kind != "sum")
        is_whole = pair.micro.outvars[0].aval.dtype.kind not in "fcV"
        if name == "div" and (place == 0 or is_whole):
            raise NoFlowError("it is not linear in a sum over the batch")
        ratio = flows[place].ratio
        if ratio == 1:
            return [sums[0]]
        if is_whole:
            raise NoFlowError("it computes with the size of the batch")
        return [Flow("sum", scale=scale * ratio if name == "mul" else scale / ratio)]
    _settled(rest)
    pair.all_equal()
    if name == "convert_element_type":
        kinds = [v.aval.dtype.kind for v in (pair.micro.invars[0], pair.micro.outvars[0])]
        if kinds[1] not in "fcV" or (kinds[0] == "c" and kinds[1] != "c"):
            raise NoFlowError("it rounds a sum over the batch")
        return [sums[0]]
    if name in _LINEAR or (name in ("dot_general", "mul") and len(sums) == 1):
        return [sums[0]] * len(pair.micro.outvars)
    if name in ("dynamic_slice", "select_n") and flows[0].kind == (
        "sum" if name == "dynamic_slice" else "same"
    ):
        rest = rest if name == "select_n" else []
        return [_shared(sums[0], rest[1:], is_mean)]
    if name in ("add", "add_any", "sub", "concatenate"):
        return [_shared(sums[0], rest, is_mean)]
    if name == "dynamic_update_slice":
        return [_shared(sums[0], [f for f in flows[:2] if f.kind != "sum"], is_mean)]
    raise NoFlowError("it is not linear in a sum over the batch")


def _shared(total: Flow, rest: Sequence[Flow], is_mean: bool) -> Flow:
    """A mean of what all have is that; a sum is not."""
    if not is_mean and not all(f.is_zero for f in rest):
        raise NoFlowError("it adds what all micro-batches share to a sum over the batch")
    return total


def _settled(flows: Sequence[Flow]) -> None:
    if any(f.ratio != 1 for f in flows):
        raise NoFlowError("it computes with the size of the batch")


_LINEAR = (
    "neg",
    "reshape",
    "transpose",
    "squeeze",
    "broadcast_in_dim",
    "reduce_sum",
    "slice",
    "rev",
    "copy",
    "copy_p",
    "real",
    "imag",
    "cumsum",
    "optimization_barrier",
    "stop_gradient",
)
