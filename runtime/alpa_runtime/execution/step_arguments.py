"""Arguments and results of a step as its caller sees them, and as the plan has them: in pieces."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy
import numpy as np

from alpa_runtime.arrays import StackedArray, WholeArray
from alpa_runtime.errors import ArgumentMismatchError, PlanMismatchError
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo, OutputInfo, PieceInfo

_jax: Any = jax
jnp: Any = jax.numpy


def result_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """The shape of a result of the plan, that of all micro-batches where they are joined."""
    info = plan.outputs[index]
    if info.reduction != "concat" or not info.shape:
        return info.shape
    return (info.shape[0] * plan.num_micro_batches, *info.shape[1:])


def input_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """The shape of input `index` of the plan, batches whole."""
    info = plan.inputs[index]
    if info.kind == "state" or not info.shape:
        return info.shape
    return (info.shape[0] * plan.num_micro_batches, *info.shape[1:])


def check_argument(x: Any, info: InputInfo, shape: tuple[int, ...]) -> Any:
    """The argument itself, or as a NumPy array if it is a Python number.

    Raises:
        ArgumentMismatchError: shape or dtype differ from the plan's.
    """
    if isinstance(x, bool | int | float | complex):
        x = np.asarray(x, jnp.dtype(info.dtype))
    found = tuple(np.shape(x))
    if found != shape:
        raise ArgumentMismatchError(
            f"shape {list(found)}, expected {list(shape)}",
            where=info.name,
            fix="give what the step was planned for, or plan it again for this shape",
        )
    dtype = _jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype != jnp.dtype(info.dtype):
        raise ArgumentMismatchError(
            f"dtype {dtype}, expected {info.dtype}",
            where=info.name,
            fix=f"convert it with .astype({info.dtype!r})",
        )
    return x if x.dtype == dtype else np.asarray(x, dtype)


@dataclass(frozen=True)
class Group:
    """The inputs or outputs of a plan that are one argument or result of the caller.

    Attributes:
        members: their numbers in the plan; one if it is not in pieces.
        sizes: rows of each piece; empty if it is not in pieces.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...] = ()


def _groups(infos: Sequence[InputInfo] | Sequence[OutputInfo], where: str) -> list[Group]:
    """What belongs together: pieces of one thing stand one after another, by rising rows."""
    groups: list[Group] = []
    last: PieceInfo | None = None
    for index, info in enumerate(infos):
        piece = info.piece
        if piece is None:
            groups.append(Group((index,)))
        elif piece.offset == 0:
            groups.append(Group((index,), (piece.size,)))
        elif last is None or (piece.of, piece.offset) != (last.of, last.offset + last.size):
            raise PlanMismatchError(
                f"rows {piece.offset} and on do not follow what stands before",
                where=f"{where}[{index}]",
            )
        else:
            group = groups[-1]
            groups[-1] = Group((*group.members, index), (*group.sizes, piece.size))
        if piece is not None and (
            piece.of != len(groups) - 1 or not info.shape or info.shape[0] != piece.size
        ):
            raise PlanMismatchError(
                f"a piece of {piece.size} rows of {piece.of}, but {list(info.shape)} of "
                f"{len(groups) - 1}",
                where=f"{where}[{index}]",
            )
        last = piece
    return groups


class Boundary:
    """Cuts the caller's stacks into the plan's pieces, and hands its pieces out as stacks.

    Args:
        check: `(argument, info, shape)` gives the argument, or raises ArgumentMismatchError.

    Raises:
        PlanMismatchError: the pieces do not make whole arrays.
    """

    def __init__(self, plan: Plan, check: Callable[[Any, InputInfo, tuple[int, ...]], Any]) -> None:
        self._plan = plan
        self._check = check
        self._inputs = _groups(plan.inputs, "inputs")
        self._outputs = _groups(plan.outputs, "outputs")
        self._stacks = [(number, group) for number, group in enumerate(self._inputs) if group.sizes]
        # Pieces of arrays that are not carried, so that they are cut and placed only once.
        self._kept: dict[int, tuple[Any, list[Any]]] = {}

    def take_apart(self, args: Sequence[Any], place: Callable[[int, Any], Any]) -> Sequence[Any]:
        """One array for each input of the plan.

        Args:
            place: puts an array for input `i` of the plan where it is wanted first.

        Raises:
            ArgumentMismatchError: another number of arguments, or a stack of another form.
        """
        if len(args) != len(self._inputs):
            raise ArgumentMismatchError(
                f"{len(args)} arguments, expected {len(self._inputs)}", where=self._plan.name
            )
        if not self._stacks:
            return args
        pieces: list[Any] = []
        for number, (x, group) in enumerate(zip(args, self._inputs, strict=True)):
            if not group.sizes:
                pieces.append(x)
            elif isinstance(x, StackedArray) and x.sizes == group.sizes:
                pieces += x.pieces
            else:
                pieces += self._cut(number, x, group, place)
        return pieces

    def _cut(
        self, number: int, x: Any, group: Group, place: Callable[[int, Any], Any]
    ) -> list[Any]:
        info = self._plan.inputs[group.members[0]]
        kept = self._kept.get(number)
        if kept is not None and kept[0]() is x and not x.is_deleted():
            return kept[1]
        whole = replace(info, name=info.name.removesuffix("[0]"))
        if isinstance(x, jax.Array | WholeArray) and x.is_deleted():
            raise ArgumentMismatchError(
                "the array was given away to an earlier step",
                where=whole.name,
                fix="use the state that the last step returned, or donate_state=False",
            )
        rows = np.asarray(self._check(x, whole, (sum(group.sizes), *info.shape[1:])))
        pieces: list[Any] = np.split(rows, np.cumsum(group.sizes)[:-1])
        if isinstance(x, jax.Array) and info.carried_by is None:
            placed = list(map(place, group.members, pieces))
            self._kept[number] = (weakref.ref(x), placed)
            return placed
        return pieces

    def put_together(self, results: list[Any]) -> list[Any]:
        """One array for each result of the caller."""
        if len(results) == len(self._outputs):  # A stack has two pieces at least.
            return results
        return [
            StackedArray([results[i] for i in group.members])
            if group.sizes
            else results[group.members[0]]
            for group in self._outputs
        ]
