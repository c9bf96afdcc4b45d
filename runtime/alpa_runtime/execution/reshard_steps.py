"""The steps of a transfer: what each worker does of them, and the reference for what they mean.

All workers walk the same steps and number the messages alike, so that nobody has to be told.
A worker gets the data of a tile at most once, whatever the number of its devices that want it.

The reference carries the steps out on NumPy arrays. Memory that nothing was written to holds
poison, and every write is counted, so that a byte that is missing, wrong or written twice cannot
pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.plan.reshard import (
    AllGather,
    Box,
    Broadcast,
    PlacedTile,
    ReshardInfo,
    ReshardStep,
    SendTile,
    Tile,
    box_elements,
    box_text,
    contains,
    intersect,
    place_tiles,
)

# Chains of workers hand a tile on in pieces of at least this size.
PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class Outgoing:
    """Send the data of a tile that lies here to another worker, in pieces.

    Attributes:
        devices: on which it lies here, and where the other worker wants it first.
    """

    tile: int
    to: int
    message: int
    pieces: int
    devices: tuple[int, int]


@dataclass(frozen=True)
class Incoming:
    """Receive the data of a tile from another worker, and hand each piece on as it comes.

    Attributes:
        devices: on which it lies there, and where it is wanted here first.
    """

    tile: int
    source: int
    message: int
    pieces: int
    devices: tuple[int, int]
    forward: tuple[Outgoing, ...] = ()


@dataclass(frozen=True)
class CopyTile:
    """Tile `tile`, on a device of this worker, has the data of tile `source`.

    That one lies on a device of this worker too, or has been received.
    """

    tile: int
    source: int


@dataclass(frozen=True)
class Join:
    """Tile `tile`, on a device of this worker, is what others join to, which are as above."""

    tile: int
    parts: tuple[int, ...]


Op = Outgoing | Incoming | CopyTile | Join


@dataclass(frozen=True)
class ReshardPart:
    """What one worker does of a transfer.

    Attributes:
        first: what it sends of its devices' shards; needs no other worker.
        then: the rest, in order.
    """

    first: tuple[Outgoing, ...]
    then: tuple[Op, ...]


def reshard_part(
    info: ReshardInfo, owners: Mapping[int, int], rank: int, itemsize: int
) -> ReshardPart:
    """The part of worker `rank`.

    Args:
        owners: the worker of each device.
        itemsize: bytes of an element.

    Example:
        >>> from alpa_runtime.plan.tensor import TensorSpec
        >>> from alpa_runtime.plan.reshard import read_step
        >>> x, steps = TensorSpec.parse("float32[8][R]"), ["tile 0 on 0 [0:8]", "send 1 = 0 to 5"]
        >>> info = ReshardInfo(0, x, 1, x, "", 0.0, tuple(map(read_step, steps)))
        >>> reshard_part(info, {0: 0, 5: 1}, 0, 4).first
        (Outgoing(tile=0, to=1, message=0, pieces=1, devices=(0, 5)),)
    """
    return _Walk(info, owners, rank, itemsize).run()


class _Walk:
    def __init__(
        self, info: ReshardInfo, owners: Mapping[int, int], rank: int, itemsize: int
    ) -> None:
        self.info = info
        self.tiles = place_tiles(info.steps)
        self.owners = owners
        self.rank = rank
        self.itemsize = itemsize
        self.messages = 0
        self.first: list[Outgoing] = []
        self.then: list[Op] = []
        self.data: dict[int, int] = {}  # The tile whose data a tile has.
        self.present: dict[
            tuple[int, int], int
        ] = {}  # Data, the workers that have them, and where.
        self.received: dict[int, int] = {}  # Data that came here: its place in `then`.

    def run(self) -> ReshardPart:
        for step in self.info.steps:
            match step:
                case Tile():
                    self.made(step.tile)
                case SendTile():
                    self.copy(step.tile, step.source, 1)
                case Broadcast():
                    self.chain(step)
                case AllGather():
                    for tile in step.tiles:
                        self.gather(tile, step.operands)
        return ReshardPart(tuple(self.first), tuple(self.then))

    def owner(self, tile: int) -> int:
        return self.owners[self.tiles[tile].device]

    def made(self, tile: int) -> None:
        """A tile with data of its own."""
        self.data[tile] = tile
        self.present[tile, self.owner(tile)] = self.tiles[tile].device

    def chain(self, step: Broadcast) -> None:
        hops = [self.owner(step.source), *map(self.owner, step.tiles)]
        crossings = sum(a != b for a, b in pairwise(hops))
        size = box_elements(self.tiles[step.source].box) * self.itemsize
        pieces = min(step.chunks, max(1, size // PIECE_BYTES))
        source = step.source
        for tile in step.tiles:
            self.copy(tile, source, pieces if crossings > 1 else 1)
            source = tile

    def copy(self, tile: int, source: int, pieces: int) -> None:
        self.bring(source, self.tiles[tile].device, pieces)
        self.data[tile] = self.data[source]
        if self.owner(tile) == self.rank:
            self.then.append(CopyTile(tile, self.here(source)))

    def gather(self, tile: int, parts: tuple[int, ...]) -> None:
        for part in parts:
            self.bring(part, self.tiles[tile].device, 1)
        self.made(tile)
        if self.owner(tile) == self.rank:
            self.then.append(Join(tile, tuple(map(self.here, parts))))

    def here(self, tile: int) -> int:
        """Where this worker has the data of a tile."""
        return tile if self.owner(tile) == self.rank else self.data[tile]

    def bring(self, tile: int, device: int, pieces: int) -> None:
        """Let the worker of a device have the data of a tile, on that device if it has not."""
        data, source, to = self.data[tile], self.owner(tile), self.owners[device]
        if (data, to) in self.present:
            return
        self.present[data, to] = device
        devices = self.present[data, source], device
        message = self.messages
        self.messages += 1
        if self.rank == to:
            self.received[data] = len(self.then)
            self.then.append(Incoming(data, source, message, pieces, devices))
        elif self.rank == source:
            self.send(Outgoing(data, to, message, pieces, devices))

    def send(self, outgoing: Outgoing) -> None:
        position = self.received.get(outgoing.tile)
        if position is not None:
            incoming = self.then[position]
            assert isinstance(incoming, Incoming)
            self.then[position] = replace(incoming, forward=(*incoming.forward, outgoing))
        elif isinstance(self.info.steps[self.tiles[outgoing.tile].step], Tile):
            self.first.append(outgoing)
        else:
            self.then.append(outgoing)


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
