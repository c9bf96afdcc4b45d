"""What each worker does of a transfer between meshes whose devices several workers hold.

All workers walk the same steps and number the messages alike, so that nobody has to be told.
A worker gets the data of a tile at most once, whatever the number of its devices that want it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from alpa_runtime.plan.reshard import (
    AllGather,
    Broadcast,
    ReshardInfo,
    SendTile,
    Tile,
    box_elements,
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
