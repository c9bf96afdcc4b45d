"""Do the tables of a plan agree with each other, and instructions with the tables?"""

from __future__ import annotations

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.execution.actions import Value
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import AllReduceOp
from alpa_runtime.plan.tensor import TensorSpec


def check_tables(plan: Plan) -> None:
    """Check stages, meshes and specs by themselves, before any program is looked at."""
    for index, stage in enumerate(plan.stages):
        if stage.mesh >= len(plan.meshes):
            raise PlanMismatchError(
                f"mesh {stage.mesh}, but the plan has {len(plan.meshes)} meshes",
                where=f"stages[{index}].mesh",
            )
        for name, function in stage.functions.items():
            for kind, tensors in (("input", function.inputs), ("output", function.outputs)):
                for i, tensor in enumerate(tensors):
                    where = f"stages[{index}].functions.{name}: {kind} {i}"
                    check_spec(plan, stage.mesh, tensor, where)
    owners = [program.mesh for program in plan.programs]
    if sorted(owners) != list(range(len(plan.meshes))):
        raise PlanMismatchError(
            f"programs for meshes {owners}, expected one for each of {len(plan.meshes)} meshes",
            where="programs",
        )
    used: dict[int, int] = {}
    for index, mesh in enumerate(plan.meshes):
        for device in mesh.devices:
            if device in used:
                raise PlanMismatchError(
                    f"device {device} belongs to mesh {used[device]} as well",
                    where=f"meshes[{index}].devices",
                )
            used[device] = index


def check_spec(plan: Plan, mesh: int, tensor: TensorSpec, where: str) -> None:
    """A spec names axes of its mesh, each once, and splits dimensions evenly."""
    info = plan.meshes[mesh]
    sizes = dict(zip(info.axes, info.shape, strict=True))
    seen: set[str] = set()
    for dim, axes in enumerate(tensor.spec):
        parts = 1
        for axis in axes:
            if axis not in sizes:
                raise PlanMismatchError(
                    f"spec names axis {axis!r}, mesh {mesh} has {', '.join(info.axes)}", where=where
                )
            if axis in seen:
                raise PlanMismatchError(f"axis {axis!r} splits two dimensions", where=where)
            seen.add(axis)
            parts *= sizes[axis]
        if tensor.shape[dim] % parts:
            raise PlanMismatchError(
                f"dimension {dim} of size {tensor.shape[dim]} is split {parts} ways", where=where
            )


def check_members(plan: Plan, mesh: int, op: AllReduceOp, where: str) -> None:
    """An all-reduce names meshes that there are, its own among them, and its reshards."""
    if (
        len(op.members) < 2
        or list(op.members) != sorted(set(op.members))
        or op.members[-1] >= len(plan.meshes)
    ):
        raise PlanMismatchError(
            f"sums over the meshes {list(op.members)}, expected at least two of "
            f"{len(plan.meshes)}, each once and in order",
            where=where,
        )
    if mesh not in op.members:
        raise PlanMismatchError(
            f"a sum over the meshes {list(op.members)} in the program of mesh {mesh}", where=where
        )
    wanted = 0 if mesh == op.members[0] else 2
    if len(op.by) != wanted:
        raise PlanMismatchError(
            f"names {len(op.by)} reshards, expected "
            + ("the two to the first mesh and back" if wanted else "none on the first mesh"),
            where=where,
        )


def check_by(plan: Plan, by: int, source: Value, target: Value, where: str) -> None:
    """The reshard of a transfer goes from where and how the value is to where it should be."""
    if by >= len(plan.reshards):
        raise PlanMismatchError(f"reshard {by} of {len(plan.reshards)}", where=where)
    info = plan.reshards[by]
    for way, value, mesh, tensor in (
        ("takes", source, info.source_mesh, info.source),
        ("gives", target, info.target_mesh, info.target),
    ):
        if (value.mesh, value.tensor) != (mesh, tensor):
            raise PlanMismatchError(
                f"reshard {by} {way} {tensor.as_text()} on mesh {mesh}, here it is "
                f"{value.tensor.as_text()} on mesh {value.mesh}",
                where=where,
            )
