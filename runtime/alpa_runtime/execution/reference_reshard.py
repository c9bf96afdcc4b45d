"""Carries the steps of a transfer out on NumPy arrays: the reference for what they mean.

Memory that nothing was written to holds poison, and every write is counted, so that a byte that is
missing, wrong or written twice cannot pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.plan.reshard import (
    AllGather,
    Box,
    Broadcast,
    PlacedTile,
    ReshardStep,
    SendTile,
    Tile,
    box_text,
    contains,
    intersect,
    place_tiles,
)

Array = NDArray[Any]
_POISON = 0xA5


class _Grid:
    """Where boxes lie in arrays: element by element, or with one element for each cell.

    Cells are what lies between neighbouring bounds of boxes; each box is a union of them.
    """

    def __init__(self, cells_of: Sequence[Box] = ()) -> None:
        dims = zip(*cells_of, strict=True)
        self._bounds = [sorted({bound for span in dim for bound in span}) for dim in dims]

    def spans(self, box: Box) -> Box:
        if not self._bounds:
            return box
        return tuple(
            (bisect_left(known, begin), bisect_left(known, end))
            for known, (begin, end) in zip(self._bounds, box, strict=True)
        )

    def shape(self, box: Box) -> tuple[int, ...]:
        return tuple(end - begin for begin, end in self.spans(box))

    def slices(self, box: Box, within: Box | None = None) -> tuple[slice, ...]:
        """Of a box, in an array of another one or of the whole tensor."""
        spans = self.spans(box)
        origins = [begin for begin, _ in self.spans(within)] if within else [0] * len(spans)
        return tuple(
            slice(begin - origin, end - origin)
            for (begin, end), origin in zip(spans, origins, strict=True)
        )


class _Memory:
    """An array on a device, every element of which is written once."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        poison = bytes([_POISON]) * dtype.itemsize
        self._data: Array = np.full(shape, np.frombuffer(poison, dtype)[0])
        self._written: Array = np.zeros(shape, bool)

    def write(self, at: tuple[slice, ...], values: Array, what: Box) -> None:
        if self._written[at].any():
            raise ValueError(f"{box_text(what)} is written twice")
        self._data[at] = values
        self._written[at] = True

    def whole(self, what: Box) -> Array:
        if not self._written.all():
            raise ValueError(f"parts of {box_text(what)} are missing")
        return self._data


def target_tiles(
    steps: Sequence[ReshardStep], placed: Sequence[PlacedTile], target: Mapping[int, Box]
) -> dict[int, list[int]]:
    """The tiles of which each device of the target mesh puts its shard together.

    They are the tiles that lie on it and within its shard, apart from those that were joined to a
    larger one there. A tile outside of the shard is one that the device only passes on.

    Raises:
        ValueError: a tile lies partly within a shard.
    """
    used_up = {tile for step in steps if isinstance(step, AllGather) for tile in step.operands}
    tiles: dict[int, list[int]] = {device: [] for device in target}
    for number, tile in enumerate(placed):
        shard = target.get(tile.device)
        if shard is None or number in used_up:
            continue
        if contains(shard, tile.box):
            tiles[tile.device].append(number)
        elif intersect(tile.box, shard) is not None:
            raise ValueError(
                f"tile {number} on device {tile.device} is {box_text(tile.box)}, which lies partly "
                f"within the device's shard {box_text(shard)}"
            )
    return tiles


def execute(
    steps: Sequence[ReshardStep],
    source: Mapping[int, Box],
    target: Mapping[int, Box],
    values: Array,
) -> dict[int, Array]:
    """The shards of the target mesh, made by the steps from those of the source mesh.

    Args:
        source, target: the box that each device holds, or has to hold in the end.
        values: the whole tensor; a source device has only its own part of it.

    Returns:
        The array of each device of the target mesh, of its box's shape.

    Raises:
        PlanMismatchError: a step reads what is not there, or a shard is not filled exactly once.

    Example:
        >>> from alpa_runtime.plan.reshard import read_step
        >>> steps = [read_step("tile 0 on 0 [1:3]"), read_step("send 1 = 0 to 5")]
        >>> execute(steps, {0: ((0, 4),)}, {5: ((1, 3),)}, np.arange(4))[5]
        array([1, 2])
    """
    return _execute(steps, source, target, values, _Grid())


def prove(
    steps: Sequence[ReshardStep], source: Mapping[int, Box], target: Mapping[int, Box]
) -> None:
    """Show that the steps fill every shard of the target mesh with the right elements.

    All boxes are unions of the cells between their bounds, so that one element for each cell stands
    for all: tensors of any size are proven with small arrays, in which each element is another.

    Raises:
        PlanMismatchError: as `execute`, or a device ends with a wrong element.
    """
    cut = [step.box for step in steps if isinstance(step, Tile)]
    boxes = [*source.values(), *target.values(), *cut]
    grid = _Grid(boxes)
    whole = tuple(
        (min(begin for begin, _ in dim), max(end for _, end in dim))
        for dim in zip(*boxes, strict=True)
    )
    shape = grid.shape(whole)
    values = np.arange(1, 1 + math.prod(shape)).reshape(shape)
    for device, result in _execute(steps, source, target, values, grid).items():
        if not np.array_equal(result, values[grid.slices(target[device])]):
            raise PlanMismatchError(
                f"wrong elements of {box_text(target[device])}", where=f"device {device}"
            )


def _execute(
    steps: Sequence[ReshardStep],
    source: Mapping[int, Box],
    target: Mapping[int, Box],
    values: Array,
    grid: _Grid,
) -> dict[int, Array]:
    shards = {device: values[grid.slices(box)].copy() for device, box in source.items()}
    try:
        placed = place_tiles(steps)
        wanted = target_tiles(steps, placed, target)
    except ValueError as error:
        raise PlanMismatchError(str(error)) from None
    tiles: dict[int, Array] = {}
    for number, step in enumerate(steps):
        try:
            match step:
                case Tile():
                    tiles[step.tile] = _cut(step, source, shards, grid)
                case SendTile():
                    tiles[step.tile] = tiles[step.source].copy()
                case Broadcast():
                    _broadcast(step, tiles, placed)
                case AllGather():
                    for tile in step.tiles:
                        tiles[tile] = _join(step.operands, placed[tile].box, tiles, placed, grid)
        except ValueError as error:
            where = f"step {number} ({step.to_text()})"
            raise PlanMismatchError(str(error), where=where) from None
    results: dict[int, Array] = {}
    for device, box in target.items():
        memory = _Memory(grid.shape(box), values.dtype)
        try:
            for tile in wanted[device]:
                part = placed[tile].box
                memory.write(grid.slices(part, box), tiles[tile], part)
            results[device] = memory.whole(box)
        except ValueError as error:
            raise PlanMismatchError(str(error), where=f"device {device}") from None
    return results


def _cut(step: Tile, source: Mapping[int, Box], shards: Mapping[int, Array], grid: _Grid) -> Array:
    held = source.get(step.device)
    if held is None:
        raise ValueError(f"device {step.device} is not in the source mesh")
    if not contains(held, step.box):
        raise ValueError(f"device {step.device} holds {box_text(held)} only")
    return shards[step.device][grid.slices(step.box, held)].copy()


def _broadcast(step: Broadcast, tiles: dict[int, Array], placed: Sequence[PlacedTile]) -> None:
    handed = tiles[step.source]
    for tile in step.tiles:
        # Each device has from its predecessor what that has received, piece by piece.
        memory = _Memory((handed.size,), handed.dtype)
        begin = 0
        for piece in np.array_split(handed.reshape(-1), step.chunks):
            memory.write((slice(begin, begin + piece.size),), piece, placed[tile].box)
            begin += piece.size
        handed = tiles[tile] = memory.whole(placed[tile].box).reshape(handed.shape)


def _join(
    operands: Sequence[int],
    box: Box,
    tiles: Mapping[int, Array],
    placed: Sequence[PlacedTile],
    grid: _Grid,
) -> Array:
    memory = _Memory(grid.shape(box), tiles[operands[0]].dtype)
    for operand in operands:
        part = placed[operand].box
        memory.write(grid.slices(part, box), tiles[operand], part)
    return memory.whole(box)
