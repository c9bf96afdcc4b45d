"""Moving an array from one mesh to another as a plan says.

Between devices of one worker nothing goes through the host. Of a transfer between workers each
binds its own part (reshard_part.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy
import numpy as np
from jax.sharding import NamedSharding

from alpa_runtime.backends.xla import Device, mesh_devices, put_on, put_shards
from alpa_runtime.execution.point_to_point import PointToPoint, Ticket
from alpa_runtime.execution.reference_reshard import target_tiles
from alpa_runtime.execution.reshard_part import (
    CopyTile,
    Incoming,
    Join,
    Outgoing,
    ReshardPart,
    reshard_part,
)
from alpa_runtime.jax_internals import as_any, shards_of
from alpa_runtime.plan.reshard import Box, ReshardInfo, Tile, held_boxes, place_tiles
from alpa_runtime.plan.stage import MeshInfo

_jax: Any = jax
_jnp: Any = jax.numpy
Buffers = list[Any]
Start = Callable[[Buffers, int], None]
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


@dataclass(frozen=True)
class BoundPart:
    """What one worker does of a transfer, on its devices; `copy` counts the step's copies.

    Attributes:
        send: of the source's array and `copy`; starts what can be sent of it, returns at once.
        finish: of the source's array (None if `reads_source` is not set) and `copy`; receives what
            comes, hands on what goes further, and returns the target's array, or None where the
            target mesh has no device here.
        reads_source: whether `finish` reads the source's array.
    """

    send: Callable[[jax.Array, int], list[Ticket]]
    finish: Callable[[jax.Array | None, int], jax.Array | None]
    reads_source: bool


class _Binder:
    """Makes the lists of what has to be started for one transfer.

    Buffers are the source's shards, then whatever is made, in order. A copy that nobody reads
    but the result is left to the one call that makes the result: it copies every shard that does
    not lie where it belongs.
    """

    def __init__(
        self,
        info: ReshardInfo,
        meshes: Sequence[MeshInfo],
        part: ReshardPart,
        devices: Mapping[int, Device],
        wires: PointToPoint | None,
    ) -> None:
        self.info = info
        self.part = part
        self.devices = devices
        self.wires = wires
        held = held_boxes(info.source, meshes[info.source_mesh])
        wanted = held_boxes(info.target, meshes[info.target_mesh])
        self.tiles = place_tiles(info.steps)
        self.held = {device: box for device, box in held.items() if device in devices}
        self.wanted = {device: box for device, box in wanted.items() if device in devices}
        self.final = target_tiles(info.steps, self.tiles, wanted)
        self.dtype: np.dtype[Any] = np.dtype(_jnp.dtype(info.target.dtype))
        self.reads_source = True
        self.begin_phase()

    def begin_phase(self) -> None:
        self.starts: list[Start] = []
        self.count = len(self.held)
        self.at: dict[int, int] = {}  # Buffer of a tile, perhaps still on another device.
        self.received: dict[int, int | None] = {}  # The devices of received buffers; None: host.

    def bind_send(self) -> Callable[[Buffers, int], list[Ticket]]:
        self.begin_phase()
        wires, mesh = self.wires, self.info.source_mesh
        if wires is None or not self.part.first:
            return lambda buffers, copy: []
        self.cut({outgoing.tile for outgoing in self.part.first})
        sent = [
            (self.at[op.tile], wires.sender(mesh, op, _shape(self.tiles[op.tile].box), self.dtype))
            for op in self.part.first
        ]
        starts = self.starts

        def send(buffers: Buffers, copy: int) -> list[Ticket]:
            for start in starts:
                start(buffers, copy)
            return [send_one(buffers[at], copy) for at, send_one in sent]

        return send

    def bind_finish(self) -> Callable[[Buffers | None, int], Buffers]:
        self.begin_phase()
        read = self.read_tiles()
        self.reads_source = self.cut(read)
        for op in self.part.then:
            match op:
                case Incoming():
                    self.receive(op)
                case CopyTile():
                    self.copy(op.tile, op.source, op.tile in read)
                case Join():
                    self.join(op)
                case Outgoing():
                    self.send(op)
        shards = [self.shard(device, box) for device, box in self.wanted.items()]
        starts, empty = self.starts, len(self.held)

        def finish(buffers: Buffers | None, copy: int) -> Buffers:
            if buffers is None:
                buffers = [None] * empty
            for start in starts:
                start(buffers, copy)
            return [buffers[i] for i in shards]

        return finish

    def read_tiles(self) -> set[int]:
        """Tiles that are needed where they lie: to be handed on, or to be put together."""
        read: set[int] = set()
        for op in self.part.then:
            match op:
                case CopyTile():
                    read.add(op.source)
                case Join():
                    read.update(op.parts)
                case Outgoing():
                    read.add(op.tile)
                case Incoming():
                    pass
        for device, box in self.wanted.items():
            own = self.final[device]
            if [self.tiles[tile].box for tile in own] != [box]:
                read.update(own)
        return read

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def cut(self, tiles: Collection[int]) -> bool:
        """One program for each device that parts of its shard are wanted of; False for none."""
        found = False
        for position, (device, shard) in enumerate(self.held.items()):
            wanted: dict[Box, list[int]] = {}
            for step in self.info.steps:
                if isinstance(step, Tile) and step.device == device and step.tile in tiles:
                    wanted.setdefault(step.box, []).append(step.tile)
            boxes = [box for box in wanted if box != shard]
            if boxes:
                self.start_cut(position, tuple(_relative(box, shard) for box in boxes))
            made = dict(zip(boxes, range(self.count, self.count + len(boxes)), strict=True))
            self.count += len(boxes)
            for box, numbers in wanted.items():
                found = True
                for tile in numbers:
                    self.at[tile] = made.get(box, position)
        return found

    def start_cut(
        self, position: int, bounds: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    ) -> None:
        program = _cutter(bounds)

        def start(buffers: Buffers, _: int) -> None:
            buffers += program(buffers[position])

        self.starts.append(start)

    def receive(self, op: Incoming) -> None:
        wires, dtype, shape = self.wires, self.dtype, _shape(self.tiles[op.tile].box)
        assert wires is not None

        device = op.devices[1]
        receive, on_device = wires.receiver(
            self.info.target_mesh, op, shape, dtype, self.devices[device]
        )

        def start(buffers: Buffers, copy: int) -> None:
            buffers.append(receive(copy))

        self.starts.append(start)
        self.at[op.tile] = self.new()
        self.received[self.at[op.tile]] = device if on_device else None

    def send(self, op: Outgoing) -> None:
        wires, mesh, at = self.wires, self.info.target_mesh, self.at[op.tile]
        assert wires is not None
        send = wires.sender(mesh, op, _shape(self.tiles[op.tile].box), self.dtype)

        def start(buffers: Buffers, copy: int) -> None:
            send(buffers[at], copy)

        self.starts.append(start)

    def copy(self, tile: int, source: int, now: bool) -> None:
        device = self.tiles[tile].device
        if now and self.received.get(self.at[source]) != device:
            self.at[tile] = self.copied(self.at[source], tile, device)
        else:
            self.at[tile] = self.at[source]

    def copied(self, buffer: int, tile: int, number: int) -> int:
        """A copy of a tile's buffer on a device."""
        put = put_on(_shape(self.tiles[tile].box), self.info.target.dtype, self.devices[number])

        def start(buffers: Buffers, _: int) -> None:
            buffers.append(put(buffers[buffer]))

        self.starts.append(start)
        return self.new()

    def join(self, op: Join) -> None:
        """The tile of parts that lie on its device or are copied there."""
        placed = self.tiles[op.tile]
        here = [
            self.at[part]
            if self.received.get(self.at[part], self.tiles[part].device) == placed.device
            else self.copied(self.at[part], part, placed.device)
            for part in op.parts
        ]
        self.at[op.tile] = self.put_together(here, op.parts, placed.box)

    def put_together(self, buffers_of: list[int], parts: Sequence[int], box: Box) -> int:
        begins = tuple(_relative(self.tiles[part].box, box)[0] for part in parts)
        program = _assembler(_shape(box), begins)

        def start(buffers: Buffers, _: int) -> None:
            buffers.append(program(*[buffers[i] for i in buffers_of]))

        self.starts.append(start)
        return self.new()

    def shard(self, device: int, box: Box) -> int:
        own = self.final[device]
        if not own:  # Nothing is brought of a tensor without elements.
            empty = np.zeros(_shape(box), self.dtype)
            self.starts.append(lambda buffers, _: buffers.append(empty))
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
    devices: dict[int, Device] = {
        number: device
        for mesh, sharding in ((info.source_mesh, source), (info.target_mesh, target))
        for number, device in zip(
            meshes[mesh].devices, mesh_devices(as_any(sharding).mesh), strict=True
        )
    }
    part = reshard_part(info, dict.fromkeys(devices, 0), 0, 1)
    binder = _Binder(info, meshes, part, devices, None)
    finish, tensor = binder.bind_finish(), info.target
    to = [devices[number] for number in binder.wanted]

    def move(x: jax.Array) -> jax.Array:
        return put_shards(tensor, target, finish(shards_of(x), 0), to)

    return move


def bind_shards(
    info: ReshardInfo,
    meshes: Sequence[MeshInfo],
    part: ReshardPart,
    devices: Mapping[int, Device],
    wires: PointToPoint,
) -> tuple[
    Callable[[Buffers, int], list[Ticket]],
    Callable[[Buffers | None, int], Buffers],
    bool,
    tuple[int, ...],
]:
    """As `bind_part`, on arrays of one device each.

    Both functions take a list of their own with this worker's shards, which they use up.

    Returns:
        `send`, `finish`, `reads_source`, and the devices of which `finish` gives the shards; a
        shard may still be on another device, or on the host.
    """
    binder = _Binder(info, meshes, part, devices, wires)
    send, finish = binder.bind_send(), binder.bind_finish()
    return send, finish, binder.reads_source, tuple(binder.wanted)


def bind_part(
    info: ReshardInfo,
    meshes: Sequence[MeshInfo],
    part: ReshardPart,
    devices: Mapping[int, Device],
    target: NamedSharding | None,
    wires: PointToPoint,
) -> BoundPart:
    """A worker's part in a transfer between workers.

    Args:
        meshes: those of the plan.
        devices: this worker's devices, by number of the plan.
        target: how the target mesh holds the array; None if it has no device here.
    """
    send_shards, finish_shards, reads_source, numbers = bind_shards(
        info, meshes, part, devices, wires
    )
    tensor, to, sends = info.target, [devices[number] for number in numbers], bool(part.first)

    def send(x: jax.Array, copy: int) -> list[Ticket]:
        return send_shards(shards_of(x), copy) if sends else []

    def finish(x: jax.Array | None, copy: int) -> jax.Array | None:
        made = finish_shards(None if x is None else shards_of(x), copy)
        return None if target is None else put_shards(tensor, target, made, to)

    return BoundPart(send, finish, reads_source)
