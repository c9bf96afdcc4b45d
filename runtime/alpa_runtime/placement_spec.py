"""Where a step wants its arguments and leaves its results, and arguments placed there ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jax.sharding import PartitionSpec

from alpa_runtime import trees
from alpa_runtime.arrays import StackedArray
from alpa_runtime.calling_convention import CallingConvention, groups, typed_value
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo, OutputInfo
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    InputOp,
    Instruction,
    OutputOp,
    RecvOp,
    ReshardOp,
    RunOp,
    ZeroOp,
)
from alpa_runtime.plan.tensor import TensorSpec


@dataclass(frozen=True)
class PlacementSpec:
    """How an argument or a result of a step lies on meshes.

    Attributes:
        shape, dtype: of the whole array; a batch at the size of one micro-batch, a typed key as
            its data.
        mesh_ids: of the plan's meshes, those that hold it or a piece of it; none if no mesh
            reads it.
        sharding_specs: on each of them, in axes of that mesh.
    """

    shape: tuple[int, ...]
    dtype: str
    mesh_ids: tuple[int, ...]
    sharding_specs: tuple[PartitionSpec, ...]


class Places(Protocol):
    """A loaded plan."""

    def put(self, index: int, x: Any) -> Any:
        """Place an array for an input of the plan."""
        ...


def input_placement(form: CallingConvention, plan: Plan) -> tuple[Any, ...]:
    """A tree of `PlacementSpec`s for each argument; None for static ones."""
    found: dict[int, dict[int, TensorSpec]] = {}
    for program in plan.programs:
        for op in program.only(InputOp):
            found.setdefault(op.arg, {}).setdefault(program.mesh, op.tensor)
    leaves = groups(plan.inputs, "inputs")[: len(form.in_leaves)]
    specs = [_spec(plan.inputs, leaf.members, found) for leaf in leaves]
    return with_static(form, trees.unflatten(form.in_tree, specs))


def output_placement(form: CallingConvention, plan: Plan) -> Any:
    """A tree of `PlacementSpec`s like the result."""
    found: dict[int, dict[int, TensorSpec]] = {}
    for program in plan.programs:
        held: dict[int, TensorSpec] = {}
        for op in program.instructions:
            if isinstance(op, OutputOp):
                found.setdefault(op.result, {}).setdefault(program.mesh, held[op.slot])
            else:
                held.update(_made(plan, op, held))
    specs = [_spec(plan.outputs, leaf.members, found) for leaf in groups(plan.outputs, "outputs")]
    return trees.unflatten(form.out_tree, specs)


def with_static(form: CallingConvention, dynamic: Sequence[Any], static: Sequence[Any] = ()) -> Any:
    """All arguments in order: those of the step, and Python values between them.

    Args:
        static: by position; None in their places if it is empty.
    """
    positions = [item.position for item in form.static]
    result: list[Any] = []
    rest = iter(dynamic)
    for position in range(len(dynamic) + len(positions)):
        if position in positions:
            result.append(static[position] if static else None)
        else:
            result.append(next(rest))
    return tuple(result)


def placed_arguments(
    form: CallingConvention, plan: Plan, loaded: Places, args: Sequence[Any]
) -> Any:
    """What `ParallelStep.place` returns."""
    flat = form.flatten_args(*args)
    values = trees.leaves(form.dynamic(args))
    result: list[Any] = []
    arguments = groups(plan.inputs, "inputs")
    for number, (leaf, argument) in enumerate(zip(form.in_leaves, arguments, strict=False)):
        if form.batches[number] and leaf.key_impl:
            result.append(values[number])  # Keys of a batch travel as their data, with the step.
            continue
        value, members = flat[number], argument.members
        if isinstance(value, StackedArray) and len(value.pieces) == len(members):
            pieces: list[Any] = list(value.pieces)
        else:
            pieces = [value] if len(members) == 1 else _rows(plan.inputs, members, value)
        pieces = [loaded.put(i, piece) for i, piece in zip(members, pieces, strict=True)]
        value = pieces[0] if len(pieces) == 1 else StackedArray(pieces)
        result.append(typed_value(value, leaf))
    return with_static(form, trees.unflatten(form.in_tree, result), args)


def _rows(inputs: Sequence[InputInfo], members: Sequence[int], value: Any) -> list[Any]:
    rows: list[Any] = []
    for index in members:
        piece = inputs[index].piece
        assert piece is not None
        rows.append(value[piece.offset : piece.offset + piece.size])
    return rows


def _spec(
    infos: Sequence[InputInfo] | Sequence[OutputInfo],
    members: Sequence[int],
    found: dict[int, dict[int, TensorSpec]],
) -> PlacementSpec:
    held: dict[int, TensorSpec] = {}
    for index in members:
        for mesh, tensor in found.get(index, {}).items():
            held.setdefault(mesh, tensor)
    first, rows = infos[members[0]], sum(infos[i].shape[0] for i in members[1:])
    shape = (first.shape[0] + rows, *first.shape[1:]) if rows else first.shape
    specs = [PartitionSpec(*[axes or None for axes in t.spec]) for t in held.values()]
    return PlacementSpec(shape, first.dtype, tuple(held), tuple(specs))


def _made(plan: Plan, op: Instruction, held: dict[int, TensorSpec]) -> dict[int, TensorSpec]:
    """What an instruction writes into slots."""
    match op:
        case InputOp() | RecvOp() | ReshardOp() | ZeroOp():
            return {op.slot: op.tensor}
        case RunOp():
            outputs = plan.stages[op.stage].functions[op.function].outputs
            return dict(zip(op.outputs, outputs, strict=True))
        case AccumulateOp():
            return {slot: held[left] for slot, left in zip(op.slots, op.lefts, strict=True)}
        case AllReduceOp():
            return {op.slot: held[op.operand]}
        case _:
            return {}
