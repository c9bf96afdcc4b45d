"""Moving an array from one mesh to another as a plan says, without going through the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy
import numpy as np
from jax.sharding import NamedSharding

from alpa_mlir.plan import MeshInfo, ReshardInfo
from alpa_mlir.plan_reshard import AllGather, Box, Broadcast, SendTile, Tile, place_tiles
from alpa_mlir.reshard.executor import target_tiles
from alpa_mlir.runtime.reshard_checks import held_boxes
from alpa_mlir.runtime.xla import Device, as_any, mesh_devices, put_on, put_shards, shards_of

_jax: Any = jax
_jnp: Any = jax.numpy
Buffers = list[Any]
Move = Callable[[jax.Array], jax.Array]
Offsets = tuple[tuple[int, ...], ...]


@cache
def _cutter(bounds: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> Callable[..., Any]:
    """A program that cuts boxes, each given by its begin and its end, out of a shard."""

    def cut(shard: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jax.lax.slice(shard, begin, end) for begin, end in bounds)

    return _jax.jit(cut)


@cache
def _assembler(shape: tuple[int, ...], begins: Offsets) -> Callable[..., Any]:
    """A program that puts tiles together, each at its begin."""

    def assemble(*tiles: jax.Array) -> jax.Array:
        whole = _jnp.zeros(shape, tiles[0].dtype)
        for tile, begin in zip(tiles, begins, strict=True):
            whole = _jax.lax.dynamic_update_slice(whole, tile, begin)
        return whole

    return _jax.jit(assemble)


def _relative(box: Box, outer: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin and end of a box, counted from the begin of the one around it."""
    pairs = list(zip(box, outer, strict=True))
    return tuple(a - lo for (a, _), (lo, _) in pairs), tuple(b - lo for (_, b), (lo, _) in pairs)


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


class _Binder:
    """Makes the list of what has to be started for one transfer.

    Buffers are the source's shards, then whatever is made, in order. A copy that nobody reads
    but the result is left to the one call that makes the result: it copies every shard that does
    not lie where it belongs.
    """

    def __init__(
        self,
        info: ReshardInfo,
        meshes: Sequence[MeshInfo],
        source: NamedSharding,
        target: NamedSharding,
    ) -> None:
        self.info = info
        self.target = target
        source_mesh, target_mesh = meshes[info.source_mesh], meshes[info.target_mesh]
        self.held = held_boxes(info.source, source_mesh)
        self.wanted = held_boxes(info.target, target_mesh)
        self.devices: dict[int, Device] = {
            number: device
            for mesh, sharding in ((source_mesh, source), (target_mesh, target))
            for number, device in zip(
                mesh.devices, mesh_devices(as_any(sharding).mesh), strict=True
            )
        }
        self.tiles = place_tiles(info.steps)
        self.final = target_tiles(info.steps, self.tiles, self.wanted)
        self.count = len(self.held)
        self.starts: list[Callable[[Buffers], None]] = []
        self.at: dict[int, int] = {}  # Buffer of a tile, perhaps still on another device.
        self.left: set[int] = set()  # Tiles whose copy is left to the end.

    def bind(self) -> Move:
        self.cut()
        read = self.read_tiles()
        for step in self.info.steps:
            match step:
                case SendTile():
                    self.copy(step.tile, step.source, step.tile in read)
                case Broadcast():
                    source = step.source
                    for tile, following in zip(step.tiles, (*step.tiles[1:], None), strict=True):
                        self.copy(tile, source, following is not None or tile in read)
                        source = tile
                case AllGather():
                    for tile in step.tiles:
                        self.assemble(tile, step.operands)
                case Tile():
                    pass
        shards = [self.shard(device, box) for device, box in self.wanted.items()]
        return self.mover(shards)

    def mover(self, shards: list[int]) -> Move:
        starts, target, tensor = self.starts, self.target, self.info.target
        devices = [self.devices[number] for number in self.wanted]

        def move(x: jax.Array) -> jax.Array:
            buffers: Buffers = shards_of(x)
            for start in starts:
                start(buffers)
            return put_shards(tensor, target, [buffers[i] for i in shards], devices)

        return move

    def read_tiles(self) -> set[int]:
        """Tiles that are needed where they lie: to be handed on, or to be put together."""
        read: set[int] = set()
        for step in self.info.steps:
            match step:
                case SendTile() | Broadcast():
                    read.add(step.source)
                case AllGather():
                    read.update(step.operands)
                case Tile():
                    pass
        for device, box in self.wanted.items():
            own = self.final[device]
            if [self.tiles[tile].box for tile in own] != [box]:
                read.update(own)
        return read

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def cut(self) -> None:
        """One program for each device that parts of its shard are wanted of."""
        for position, (device, shard) in enumerate(self.held.items()):
            wanted: dict[Box, list[int]] = {}
            for step in self.info.steps:
                if isinstance(step, Tile) and step.device == device:
                    wanted.setdefault(step.box, []).append(step.tile)
            boxes = [box for box in wanted if box != shard]
            if boxes:
                self.start_cut(position, tuple(_relative(box, shard) for box in boxes))
            made = dict(zip(boxes, range(self.count, self.count + len(boxes)), strict=True))
            self.count += len(boxes)
            for box, tiles in wanted.items():
                for tile in tiles:
                    self.at[tile] = made.get(box, position)

    def start_cut(
        self, position: int, bounds: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    ) -> None:
        program = _cutter(bounds)

        def start(buffers: Buffers) -> None:
            buffers += program(buffers[position])

        self.starts.append(start)

    def copy(self, tile: int, source: int, now: bool) -> None:
        if now:
            self.at[tile] = self.copied(self.at[source], tile, self.tiles[tile].device)
        else:
            self.at[tile] = self.at[source]

    def copied(self, buffer: int, tile: int, number: int) -> int:
        """A copy of a tile's buffer on a device."""
        put = put_on(_shape(self.tiles[tile].box), self.info.target.dtype, self.devices[number])

        def start(buffers: Buffers) -> None:
            buffers.append(put(buffers[buffer]))

        self.starts.append(start)
        return self.new()

    def assemble(self, tile: int, parts: Sequence[int]) -> None:
        """The tile of parts that lie on its device or are copied there."""
        placed = self.tiles[tile]
        here = [
            self.at[part]
            if self.tiles[part].device == placed.device
            else self.copied(self.at[part], part, placed.device)
            for part in parts
        ]
        self.at[tile] = self.put_together(here, parts, placed.box)

    def put_together(self, buffers_of: list[int], parts: Sequence[int], box: Box) -> int:
        begins = tuple(_relative(self.tiles[part].box, box)[0] for part in parts)
        program = _assembler(_shape(box), begins)

        def start(buffers: Buffers) -> None:
            buffers.append(program(*[buffers[i] for i in buffers_of]))

        self.starts.append(start)
        return self.new()

    def shard(self, device: int, box: Box) -> int:
        own = self.final[device]
        if not own:  # Nothing is brought of a tensor without elements.
            empty = np.zeros(_shape(box), _jnp.dtype(self.info.target.dtype))
            self.starts.append(lambda buffers: buffers.append(empty))
            return self.new()
        if len(own) == 1:
            return self.at[own[0]]
        return self.put_together([self.at[tile] for tile in own], own, box)


def bind_reshard(
    info: ReshardInfo, meshes: Sequence[MeshInfo], source: NamedSharding, target: NamedSharding
) -> Move:
    """A function that copies arrays from one mesh to another by the steps of a checked plan.

    Tiles are cut by one program on each source device and put together by one on each target
    device; a shard that arrives as one whole tile needs neither. Nothing in it waits for values.

    Args:
        meshes: those of the plan.
        source, target: how the arrays are held on both meshes.
    """
    return _Binder(info, meshes, source, target).bind()
