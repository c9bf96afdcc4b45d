"""Does the plan of a transfer bring every device of the target mesh exactly its shard?

Asked by the algebra of boxes: tiles are cut from what devices of the source mesh hold, and those
that lie on a device of the target mesh in the end fill its shard without meeting each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.execution.plan_checks import check_spec
from alpa_runtime.execution.reference_reshard import target_tiles
from alpa_runtime.plan import Plan
from alpa_runtime.plan.reshard import (
    Box,
    PlacedTile,
    ReshardInfo,
    Tile,
    box_elements,
    box_text,
    contains,
    intersect,
    place_tiles,
    shard_boxes,
)
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec


def check_reshards(plan: Plan) -> None:
    """Check every reshard of a plan; sends and receives are checked where they stand.

    Raises:
        PlanMismatchError: names the first that does not do what it says.
    """
    for index, info in enumerate(plan.reshards):
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


def held_boxes(tensor: TensorSpec, mesh: MeshInfo) -> dict[int, Box]:
    """The box of a tensor that each device of a mesh holds, by device number in the mesh's order.

    Example:
        >>> mesh = MeshInfo((2,), ("x",), (4, 5))
        >>> held_boxes(TensorSpec((8,), "float32", (("x",),)), mesh)
        {4: ((0, 4),), 5: ((4, 8),)}
    """
    return dict(zip(mesh.devices, shard_boxes(tensor, mesh.axes, mesh.shape), strict=True))


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
