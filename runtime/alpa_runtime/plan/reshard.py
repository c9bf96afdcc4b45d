"""Transfers between meshes in plan.json: which tiles of a tensor go where, one line a step.

A tile is a box of the tensor on one device. Devices are numbers of the cluster's, and boxes are in
coordinates of the whole tensor (`[]` for a scalar).

Tiles are numbered in the order in which the steps make them, from 0. What lies on a device of
the target mesh in the end is put together into the shard that it wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, get_args

from alpa_runtime.plan.program import KINDS, Kind, Line, LineReader, numbers_text
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorReader, TensorSpec
from alpa_runtime.plan.text import Node

Box = tuple[tuple[int, int], ...]


def box_text(box: Box) -> str:
    """`[0:4,32:64]`."""
    return f"[{','.join(f'{begin}:{end}' for begin, end in box)}]"


def _read_box(text: str) -> Box:
    box: list[tuple[int, int]] = []
    for part in text[1:-1].split(",") if len(text) > 2 else ():
        begin, end = map(int, part.split(":"))
        if begin > end:
            raise ValueError(f"got the box {text}, expected rising bounds")
        box.append((begin, end))
    return tuple(box)


_BOX = Kind(r"\[(?:\d+:\d+(?:,\d+:\d+)*)?\]", _read_box, box_text, "[BEGIN:END,..]")


@dataclass(frozen=True, slots=True)
class Tile(Line):
    """A box cut from the shard that a device of the source mesh holds."""

    form = "tile {tile:TILE} on {device:DEVICE} {box:BOX}"
    kinds: ClassVar[Mapping[str, Kind]] = {**KINDS, "BOX": _BOX}
    tile: int
    device: int
    box: Box


@dataclass(frozen=True, slots=True)
class SendTile(Line):
    """Tile `tile` is a copy of tile `source` on another device, sent from device to device."""

    form = "send {tile:TILE} = {source:TILE} to {device:DEVICE}"
    tile: int
    source: int
    device: int


@dataclass(frozen=True, slots=True)
class Broadcast(Line):
    """`tiles[i]` is a copy of tile `source` on `devices[i]`.

    The devices are a chain behind that of the source: each hands the tile on to the next, in
    `chunks` pieces, and sends one piece while it receives another.
    """

    form = "broadcast{tiles:TILES} = {source:TILE} to{devices:DEVICES} chunks {chunks:NUMBER}"
    tiles: tuple[int, ...]
    source: int
    devices: tuple[int, ...]
    chunks: int

    def __post_init__(self) -> None:
        if len(self.tiles) != len(self.devices):
            raise ValueError(f"makes {len(self.tiles)} tiles on {len(self.devices)} devices")
        if len(set(self.devices)) != len(self.devices):
            devices = " ".join(map(str, self.devices))
            raise ValueError(f"the devices {devices} are not different ones")
        if self.chunks < 1:
            raise ValueError("0 chunks, expected at least 1")


@dataclass(frozen=True, slots=True)
class AllGather(Line):
    """`tiles[i]` is what all operands join to, on the device of operand i."""

    form = "all_gather{tiles:TILES} ={operands:TILES}"
    tiles: tuple[int, ...]
    operands: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tiles) != len(self.operands):
            raise ValueError(f"makes {len(self.tiles)} tiles of {len(self.operands)}")


ReshardStep = Tile | SendTile | Broadcast | AllGather
STEPS: tuple[type[ReshardStep], ...] = get_args(ReshardStep)


def read_step(line: str) -> ReshardStep:
    """The step of a line, by itself; `place_tiles` looks at steps together.

    Raises:
        ValueError: says what is wrong with the line.

    Example:
        >>> read_step("broadcast 2-3 = 0 to 5 6 chunks 8").devices
        (5, 6)
    """
    return LineReader(STEPS).read(line)


@dataclass(frozen=True, slots=True)
class PlacedTile:
    """Where a tile lies, and the number of the step that makes it."""

    device: int
    box: Box
    step: int


def box_elements(box: Box) -> int:
    """Number of elements; that of a scalar is 1.

    Example:
        >>> box_elements(((0, 4), (32, 64)))
        128
    """
    return prod(end - begin for begin, end in box)


def intersect(a: Box, b: Box) -> Box | None:
    """What two boxes have in common, or None where that is nothing.

    Example:
        >>> intersect(((0, 4), (0, 8)), ((2, 6), (4, 6)))
        ((2, 4), (4, 6))
    """
    common = tuple((max(p, q), min(r, s)) for (p, r), (q, s) in zip(a, b, strict=True))
    return common if all(begin < end for begin, end in common) else None


def contains(outer: Box, box: Box) -> bool:
    """Whether all of a box lies in another one.

    Example:
        >>> contains(((0, 4), (0, 8)), ((2, 4), (4, 6)))
        True
    """
    return all(lo <= a and b <= hi for (a, b), (lo, hi) in zip(box, outer, strict=True))


def first_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """The places of the first two boxes that have something in common, or None.

    Example:
        >>> first_overlap([((0, 4),), ((4, 8),), ((6, 9),)])
        (1, 2)
    """
    for i, box in enumerate(boxes):
        for j, other in enumerate(boxes[:i]):
            if intersect(box, other) is not None:
                return j, i
    return None


def join(boxes: Sequence[Box]) -> Box:
    """The box that others are the parts of.

    Raises:
        ValueError: two of them overlap, or together they are no box.

    Example:
        >>> join([((0, 2), (0, 8)), ((2, 4), (0, 8))])
        ((0, 4), (0, 8))
    """
    if (overlap := first_overlap(boxes)) is not None:
        other, box = (boxes[i] for i in overlap)
        raise ValueError(f"{box_text(other)} and {box_text(box)} overlap")
    whole = tuple(
        (min(b for b, _ in dim), max(e for _, e in dim)) for dim in zip(*boxes, strict=True)
    )
    if sum(map(box_elements, boxes)) != box_elements(whole):
        parts = " ".join(map(box_text, boxes))
        raise ValueError(f"{parts} do not fill {box_text(whole)}")
    return whole


def sources_of(step: ReshardStep) -> tuple[int, ...]:
    """The tiles that a step reads."""
    match step:
        case Tile():
            return ()
        case AllGather():
            return step.operands
        case _:
            return (step.source,)


def place_tiles(steps: Sequence[ReshardStep]) -> tuple[PlacedTile, ...]:
    """Device and box of every tile, by its number.

    Raises:
        ValueError: says which step does not follow from those before it.

    Example:
        >>> place_tiles([read_step("tile 0 on 3 [0:4]"), read_step("send 1 = 0 to 5")])[1].device
        5
    """
    placed: list[PlacedTile] = []
    for number, step in enumerate(steps):
        try:
            new = _place(step, placed)
        except ValueError as error:
            raise ValueError(f"step {number} ({step.to_text()}): {error}") from None
        placed += [PlacedTile(device, box, number) for device, box in new]
    return tuple(placed)


def _place(step: ReshardStep, placed: Sequence[PlacedTile]) -> list[tuple[int, Box]]:
    made = (step.tile,) if isinstance(step, Tile | SendTile) else step.tiles
    if made != (expected := tuple(range(len(placed), len(placed) + len(made)))):
        raise ValueError(
            f"makes the tiles{numbers_text(made)}, expected{numbers_text(expected)} next"
        )
    for tile in sources_of(step):
        if tile >= len(placed):
            raise ValueError(f"tile {tile} is not there yet")
    match step:
        case Tile():
            if placed and len(step.box) != (rank := len(placed[0].box)):
                raise ValueError(f"a box of rank {len(step.box)}, but earlier ones have {rank}")
            return [(step.device, step.box)]
        case AllGather():
            parts = [placed[tile] for tile in step.operands]
            if len({part.device for part in parts}) != len(parts):
                raise ValueError("two of the gathered tiles lie on one device")
            box = join([part.box for part in parts])
            return [(part.device, box) for part in parts]
        case _:
            source = placed[step.source]
            devices = step.devices if isinstance(step, Broadcast) else (step.device,)
            if source.device in devices:
                raise ValueError(f"tile {step.source} lies on device {source.device} already")
            return [(device, source.box) for device in devices]


def shard_boxes(tensor: TensorSpec, axes: Sequence[str], sizes: Sequence[int]) -> tuple[Box, ...]:
    """The box that each device of a mesh holds, in the mesh's row-major order.

    Of several axes that split a dimension the first is the major one.

    Args:
        axes, sizes: names and sizes of the mesh's axes.

    Raises:
        ValueError: the mesh has no such axis, an axis splits twice, or parts would be unequal.

    Example:
        >>> shard_boxes(TensorSpec.parse("float32[4,6][R,x]"), ("x",), (2,))
        (((0, 4), (0, 3)), ((0, 4), (3, 6)))
    """
    used = [name for names in tensor.spec for name in names]
    for name in used:
        if name not in axes:
            raise ValueError(f"{tensor.to_text()}: the mesh has no axis {name}")
        if used.count(name) > 1:
            raise ValueError(f"{tensor.to_text()}: axis {name} splits twice")
    size_of = dict(zip(axes, sizes, strict=True))
    parts = [prod(size_of[name] for name in names) for names in tensor.spec]
    for dim, (size, count) in enumerate(zip(tensor.shape, parts, strict=True)):
        if size % count:
            raise ValueError(
                f"{tensor.to_text()}: dimension {dim} of size {size} is split in {count} parts"
            )
    boxes: list[Box] = []
    for device in range(prod(sizes)):
        place: dict[str, int] = {}
        for name, size in zip(reversed(axes), reversed(sizes), strict=True):
            device, place[name] = divmod(device, size)
        box: list[tuple[int, int]] = []
        for size, count, names in zip(tensor.shape, parts, tensor.spec, strict=True):
            index = 0
            for name in names:
                index = index * size_of[name] + place[name]
            box.append((index * (size // count), (index + 1) * (size // count)))
        boxes.append(tuple(box))
    return tuple(boxes)


def held_boxes(tensor: TensorSpec, mesh: MeshInfo) -> dict[int, Box]:
    """The box of a tensor that each device of a mesh holds, by device number in the mesh's order.

    Example:
        >>> mesh = MeshInfo((2,), ("x",), (4, 5))
        >>> held_boxes(TensorSpec((8,), "float32", (("x",),)), mesh)
        {4: ((0, 4),), 5: ((4, 8),)}
    """
    return dict(zip(mesh.devices, shard_boxes(tensor, mesh.axes, mesh.shape), strict=True))


def _check_bounds(step: Tile, tensor: TensorSpec) -> None:
    whole = tuple((0, size) for size in tensor.shape)
    inside = all(end <= size for (_, end), size in zip(step.box, tensor.shape, strict=False))
    if len(step.box) != len(whole) or not inside:
        raise ValueError(f"got the box {box_text(step.box)}, expected one in {box_text(whole)}")


@dataclass(frozen=True)
class ReshardInfo:
    """How a tensor gets from one mesh to another.

    Attributes:
        source_mesh, target_mesh: numbers of meshes of the plan.
        source, target: the tensor as the meshes hold it.
        strategy: which way of planning it came from; for people.
        seconds: what it takes by itself, as the cost model foresees.
        steps: in an order in which they may be taken; `place_tiles` accepts them.
    """

    source_mesh: int
    source: TensorSpec
    target_mesh: int
    target: TensorSpec
    strategy: str
    seconds: float
    steps: tuple[ReshardStep, ...]

    @classmethod
    def read(cls, node: Node, tensors: TensorReader) -> ReshardInfo:
        """One entry of plan.json's `reshards`; `PlanFormatError` names the field."""
        source, target = tensors.read(node.get("source")), tensors.read(node.get("target"))
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise node.get("target").error(
                f"got {target.to_text()}", f"the shape and dtype of {source.to_text()}"
            )
        lines, reader = node.get("steps"), LineReader(STEPS)
        steps: list[ReshardStep] = []
        for field in lines.items():
            try:
                step = reader.read(field.string())
                if isinstance(step, Tile):
                    _check_bounds(step, source)
                steps.append(step)
            except ValueError as error:
                raise field.error_text(str(error)) from None
        try:
            place_tiles(steps)
        except ValueError as error:
            raise lines.error_text(str(error)) from None
        return cls(
            node.get("source_mesh").integer(),
            source,
            node.get("target_mesh").integer(),
            target,
            node.get("strategy").string(),
            node.get("seconds").number(),
            tuple(steps),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "source_mesh": self.source_mesh,
            "source": self.source.to_text(),
            "target_mesh": self.target_mesh,
            "target": self.target.to_text(),
            "strategy": self.strategy,
            "seconds": self.seconds,
            "steps": [step.to_text() for step in self.steps],
        }
