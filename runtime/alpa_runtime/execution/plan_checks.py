"""Do the tables of a plan, its instructions and its transfers agree with each other?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.execution.actions import Value
from alpa_runtime.execution.reference_reshard import target_tiles
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import AllReduceOp
from alpa_runtime.plan.reshard import (
    Box,
    PlacedTile,
    ReshardInfo,
    Tile,
    box_elements,
    box_text,
    contains,
    held_boxes,
    intersect,
    place_tiles,
)
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


def check_order(plan: Plan) -> None:
    """The order takes every instruction of every mesh once."""
    taken = dict.fromkeys(range(len(plan.meshes)), 0)
    for mesh, count in plan.order:
        if mesh not in taken:
            raise PlanMismatchError(f"mesh {mesh} of {len(plan.meshes)}", where="order")
        taken[mesh] += count
    for program in plan.programs:
        if taken[program.mesh] != len(program.instructions):
            raise PlanMismatchError(
                f"takes {taken[program.mesh]} of the {len(program.instructions)} instructions of "
                f"mesh {program.mesh}",
                where="order",
                fix="plan the step again: programs and their order are written together",
            )


def check_reshards(plan: Plan, meshes: Collection[int]) -> None:
    """Check every reshard from or to meshes; sends and receives are checked where they stand.

    Raises:
        PlanMismatchError: names the first that does not do what it says.
    """
    for index, info in enumerate(plan.reshards):
        if info.source_mesh not in meshes and info.target_mesh not in meshes:
            continue
        where = f"reshards[{index}]"
        for mesh, tensor in ((info.source_mesh, info.source), (info.target_mesh, info.target)):
            if mesh >= len(plan.meshes):
                raise PlanMismatchError(f"mesh {mesh} of {len(plan.meshes)}", where=where)
            check_spec(plan, mesh, tensor, where)
        if info.source_mesh == info.target_mesh:
            raise PlanMismatchError(
                f"mesh {info.source_mesh} is the source and the target", where=where
            )
        if (info.source.shape, info.source.dtype) != (info.target.shape, info.target.dtype):
            raise PlanMismatchError(
                f"makes {info.target.as_text()} of {info.source.as_text()}", where=where
            )
        try:
            tiles = place_tiles(info.steps)
            held = held_boxes(info.source, plan.meshes[info.source_mesh])
            _check_sources(info, held)
            wanted = held_boxes(info.target, plan.meshes[info.target_mesh])
            _check_targets(info, tiles, held, wanted)
        except ValueError as error:
            raise PlanMismatchError(
                str(error), where=where, fix="report this transfer as a defect of the compiler"
            ) from None


def _check_sources(info: ReshardInfo, held: Mapping[int, Box]) -> None:
    for number, step in enumerate(info.steps):
        if not isinstance(step, Tile):
            continue
        where = f"step {number} ({step.to_text()})"
        if step.device not in held:
            raise ValueError(f"{where}: device {step.device} is not in mesh {info.source_mesh}")
        shard = held[step.device]
        if len(step.box) != len(shard) or not contains(shard, step.box):
            raise ValueError(f"{where}: the device holds {box_text(shard)} only")


def _check_targets(
    info: ReshardInfo,
    tiles: Sequence[PlacedTile],
    held: Mapping[int, Box],
    wanted: Mapping[int, Box],
) -> None:
    for number, tile in enumerate(tiles):
        if tile.device not in wanted and tile.device not in held:
            raise ValueError(
                f"tile {number} goes to device {tile.device}, which is in neither of the meshes"
            )
    for device, own in target_tiles(info.steps, tiles, wanted).items():
        for i, number in enumerate(own):
            for other in own[:i]:
                if intersect(tiles[number].box, tiles[other].box) is not None:
                    raise ValueError(
                        f"tiles {other} and {number} bring device {device} the same elements"
                    )
        found = sum(box_elements(tiles[number].box) for number in own)
        if found != box_elements(wanted[device]):
            raise ValueError(
                f"brings {found} of {box_elements(wanted[device])} elements of "
                f"{box_text(wanted[device])} to device {device}"
            )
