"""Moving an array from one mesh to another as a plan says, and what goes out of a worker and comes
in for that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import jax
import jax.numpy
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from alpa_runtime.backends.xla import Device, mesh_devices, put_on, put_shards
from alpa_runtime.errors import TransportError
from alpa_runtime.execution.reshard_steps import (
    CopyTile,
    Incoming,
    Join,
    Outgoing,
    ReshardPart,
    reshard_part,
    target_tiles,
)
from alpa_runtime.jax_internals import array_of_capsule, as_any, shards_of
from alpa_runtime.plan.reshard import Box, ReshardInfo, Tile, held_boxes, place_tiles
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.transport.device import DeviceTransport, EndingQueue, Outlet
from alpa_runtime.transport.device_backends import Block
from alpa_runtime.transport.interface import Sending, Transport, description
from alpa_runtime.transport.shared_memory import aligned, shaped

_jax: Any = jax
_jnp: Any = jax.numpy
_NAMED = ("bfloat16", "float8_")  # Of ml_dtypes, with whole bytes for each element.


def is_carried(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a dtype have a byte or more to themselves on every device."""
    return dtype.kind in "biufc" or dtype.name.startswith(_NAMED)


def piece_sizes(count: int, pieces: int) -> tuple[int, ...]:
    """Elements of each piece, as `np.array_split` has them.

    Example:
        >>> piece_sizes(7, 3)
        (3, 2, 2)
    """
    small, more = divmod(count, pieces)
    return (small + 1,) * more + (small,) * (pieces - more)


class DeviceMemory:
    """A value of one device as `Memory`, or a part of it.

    Args:
        value: an array of one device, in row-major order.
        begin, end: bytes.
    """

    def __init__(self, value: Any, begin: int, end: int) -> None:
        self._value = value
        self._begin = begin
        self.nbytes: int = end - begin

    @property
    def address(self) -> int:
        return int(self._value.unsafe_buffer_pointer()) + self._begin

    def is_ready(self) -> bool:
        return bool(self._value.is_ready())

    def wait(self) -> None:
        self._value.block_until_ready()


def cut_memory(value: Any, bounds: Sequence[int]) -> list[DeviceMemory]:
    """Neighbouring parts of a value, between bounds in bytes."""
    return [DeviceMemory(value, begin, end) for begin, end in pairwise(bounds)]


@cache
def _reader(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A program that makes an array of the bytes of its pieces, and something small that is there
    when it has read them all."""

    def read(*pieces: jax.Array) -> tuple[jax.Array, jax.Array]:
        data = _jnp.concatenate(pieces)
        done = data[0]
        if dtype.kind == "b":
            value = data != 0
        elif dtype.kind == "c":
            part = np.dtype(f"float{4 * dtype.itemsize}")
            halves = data.reshape(-1, 2, part.itemsize)
            halves = _jax.lax.bitcast_convert_type(halves, part)
            value = _jax.lax.complex(halves[:, 0], halves[:, 1])
        else:
            rows = data if dtype.itemsize == 1 else data.reshape(-1, dtype.itemsize)
            value = _jax.lax.bitcast_convert_type(rows, dtype)
        return value.reshape(shape), done

    return _jax.jit(read)


class Landing:
    """Copies what was received into arrays of XLA's own memory; one thread calls it.

    XLA does not say when the programs that were given memory of others have read it. So it is
    given no such memory but to copy it, and blocks are held until that is done.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[Sequence[Block], Any]] = deque()

    def land(
        self, blocks: Sequence[Block], shape: tuple[int, ...], dtype: np.dtype[Any], device: Device
    ) -> jax.Array:
        """An array on the device where the blocks lie; starts a program and returns.

        Args:
            blocks: its elements in row-major order.
        """
        held = self._held
        while held and held[0][1].is_ready():
            held.popleft()
        pieces = [array_of_capsule(block.capsule(), device) for block in blocks]
        value, done = _reader(shape, dtype)(*pieces)
        held.append((blocks, done))
        return as_any(value)


def bounds_of(shape: tuple[int, ...], dtype: np.dtype[Any], pieces: int) -> tuple[int, ...]:
    """Where the pieces of an array begin and end, in bytes.

    Example:
        >>> bounds_of((7,), np.dtype("float32"), 3)
        (0, 12, 20, 28)
    """
    bounds = [0]
    for size in piece_sizes(prod(shape), pieces):
        bounds.append(bounds[-1] + size * dtype.itemsize)
    return tuple(bounds)


_SHAPE = (1 << 16,)
_DTYPE = np.dtype(np.uint32)
_ROUNDS = 3  # The later ones find memory that was used before.
_TAG = 1 << 62  # Values have smaller ones.
_DEVICE_BITS = 20


def check_channels(transport: DeviceTransport, devices: Mapping[int, Device]) -> None:
    """Sends random bits through every channel, and looks at what arrives.

    Every worker calls it, once its channels are open.

    Args:
        devices: of this process, by number of the plan.

    Raises:
        TransportError: something else arrived than was sent; names both devices.
    """
    sendings: list[Sending] = []
    for number in range(_ROUNDS):
        for (source, target), outlet in transport.outlets():
            bits = _jax.device_put(_bits(source, target, number), devices[source])
            memory = DeviceMemory(bits, 0, bits.nbytes)
            said = description(_SHAPE, _DTYPE)
            sendings.append(outlet.send(_tag(source, target), said, memory))
    landing = Landing()
    for number in range(_ROUNDS):
        for peer, (source, target) in transport.inlets():
            block = transport.receive(peer, _tag(source, target), _SHAPE, _DTYPE)
            found = landing.land([block], _SHAPE, _DTYPE, devices[target])
            del block
            if not np.array_equal(np.asarray(found), _bits(source, target, number)):
                raise TransportError(
                    f"{transport.backend_of(peer)} brings other bits from device {source} to "
                    f"device {target} than were sent",
                    fix='give device_transport="host"',
                    peer=peer,
                )
    for sending in sendings:
        sending.wait()


def _tag(source: int, target: int) -> int:
    return _TAG | source << _DEVICE_BITS | target


def _bits(source: int, target: int, number: int) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng((source, target, number))
    return generator.integers(0, 1 << 32, _SHAPE, _DTYPE)


Array = NDArray[Any]
# Messages of one copy: its number in the step is the rest of the tag.
_TAG_BITS = 24
_SMALL = 1 << 14  # Bytes of what is sent by the thread that starts programs.
# What is smaller is sooner there through the host: devices have to agree on a message first.
LEAST_DEVICE_BYTES = 1 << 16
_STARTED = threading.Event()
_STARTED.set()


@dataclass(eq=False)
class Ticket:
    """A send that has been asked for; `wait` returns when its buffer may be given away."""

    started: threading.Event = field(default_factory=threading.Event)
    sendings: list[Sending] = field(default_factory=list[Sending])
    error: BaseException | None = None

    def wait(self) -> None:
        """Waits for the value and for the transport.

        Raises:
            TransportError: the receiver is gone.
        """
        self.started.wait()
        if self.error is not None:
            raise self.error
        for sending in self.sendings:
            sending.wait()


def tag_of(copy: int, message: int) -> int:
    """The transport's tag of a message of a copy; both count from 0."""
    return copy << _TAG_BITS | message


def _is_there(value: Any) -> bool:
    """Whether a value can be sent as quickly as it can be handed to a thread."""
    return value.nbytes <= _SMALL and (isinstance(value, np.ndarray) or value.is_ready())


class _Sender(threading.Thread):
    """Sends values in the order in which they are asked for, each when it is there."""

    def __init__(self, transport: Transport, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="alpa-mlir sends", daemon=True)
        self.done = 0  # Changed by this thread only.
        self.asked: EndingQueue[tuple[Any, Outgoing, int, Ticket]] = EndingQueue()
        self._transport = transport
        self._failed = failed

    def ask(self, value: Any, outgoing: Outgoing, copy: int) -> Ticket:
        """Sends a value when it is there, and what was asked for before is sent."""
        ticket = Ticket()
        if self.asked.put((value, outgoing, copy, ticket)):
            return ticket
        return Ticket(_STARTED, error=TransportError("the worker was closed"))

    def run(self) -> None:
        while (item := self.asked.get()) is not None:
            value, outgoing, copy, ticket = item
            del item
            try:
                ticket.sendings = _send_pieces(self._transport, np.asarray(value), outgoing, copy)
            except BaseException as error:  # Of the program that makes the value, too.
                ticket.error = error
                self._failed(error)
            del value
            self.done += 1
            ticket.started.set()


def _send_pieces(transport: Transport, data: Array, op: Outgoing, copy: int) -> list[Sending]:
    tag = tag_of(copy, op.message)
    if op.pieces == 1:
        return [transport.send(op.to, tag, data)]
    flat = np.ascontiguousarray(data).reshape(-1)
    return [transport.send(op.to, tag, piece) for piece in np.array_split(flat, op.pieces)]


class PointToPoint:
    """The ends of one worker.

    What takes which way is settled when a step is bound: from device to device where both ends of
    a message can (`device`), else through the host.

    Args:
        failed: called by a sending thread with the error that ended a send.
        device: reaches devices of other workers.
    """

    def __init__(
        self,
        transport: Transport,
        failed: Callable[[BaseException], None],
        device: DeviceTransport | None = None,
    ) -> None:
        self._transport = transport
        self._failed = failed
        self._device = device
        self._landing = Landing()
        self._senders: dict[int, _Sender] = {}
        self._received = 0
        if device is not None:
            device.watch(failed)

    @property
    def messages(self) -> int:
        """How many have come, or were sent by threads, so far."""
        by_device = self._device.sent if self._device is not None else 0
        senders = list(self._senders.values())
        return self._received + by_device + sum(sender.done for sender in senders)

    def _reaching(
        self, peer: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> DeviceTransport | None:
        """What values go to another worker by, or come; None for the host's way. Both ends say the
        same."""
        device = self._device
        if device is None or not device.reaches(peer) or not is_carried(dtype):
            return None
        return device if prod(shape) * dtype.itemsize >= LEAST_DEVICE_BYTES else None

    def sender(
        self, mesh: int, outgoing: Outgoing, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Any, int], Ticket]:
        """A function that sends an array of one device once its value is there.

        It takes the value, and which of the step's copies it is, and returns at once.

        Args:
            mesh: one thread sends what is made on it, in order: no mesh waits for another.
        """
        device = self._reaching(outgoing.to, shape, dtype)
        if device is not None:
            return self._device_sender(device, outgoing, shape, dtype)
        sender = self._senders.get(mesh)
        if sender is None:
            sender = self._senders[mesh] = _Sender(self._transport, self._failed)
            sender.start()

        def send(value: Any, copy: int) -> Ticket:
            if sender.asked.count == sender.done and _is_there(value):
                return self._send_now(value, outgoing, copy)
            return sender.ask(value, outgoing, copy)

        return send

    def _send_now(self, value: Any, outgoing: Outgoing, copy: int) -> Ticket:
        try:
            sendings = _send_pieces(self._transport, np.asarray(value), outgoing, copy)
        except BaseException as error:
            self._failed(error)
            return Ticket(_STARTED, error=error)
        return Ticket(_STARTED, sendings)

    def _device_sender(
        self,
        device: DeviceTransport,
        outgoing: Outgoing,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> Callable[[Any, int], Ticket]:
        outlet, message = device.outlet(outgoing.to, outgoing.devices), outgoing.message
        said = [description(s, dtype) for s in _piece_shapes(shape, outgoing.pieces)]
        bounds = bounds_of(shape, dtype, outgoing.pieces)

        def send(value: Any, copy: int) -> Ticket:
            tag, pieces = tag_of(copy, message), cut_memory(value, bounds)
            try:
                sendings = [outlet.send(tag, *piece) for piece in zip(said, pieces, strict=True)]
            except BaseException as error:
                self._failed(error)
                return Ticket(_STARTED, error=error)
            return Ticket(_STARTED, sendings)

        return send

    def receiver(
        self,
        mesh: int,
        incoming: Incoming,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: Device,
    ) -> tuple[Callable[[int], Any], bool]:
        """A function that waits for the data of a tile, and hands on what goes further.

        It takes which of the step's copies it is.

        Args:
            mesh: as in `sender`, for what is handed on.
            device: where the tile is wanted.

        Returns:
            The function, and whether it gives an array on `device`; else one on the host.
        """
        by_device = self._reaching(incoming.source, shape, dtype)
        if by_device is not None:
            return self._device_receiver(by_device, mesh, incoming, shape, dtype, device), True
        transport, message, source = self._transport, incoming.message, incoming.source
        pieces = incoming.pieces
        streamed: list[Outgoing] = []
        later: list[Callable[[Any, int], object]] = []
        for outgoing in incoming.forward:
            if self._reaching(outgoing.to, shape, dtype) is not None:
                later.append(self._put_and_send(mesh, outgoing, shape, dtype, device))
            elif outgoing.pieces == pieces > 1:
                streamed.append(outgoing)
            else:
                later.append(self._forwarder(outgoing))

        def receive(copy: int) -> Array:
            tag = tag_of(copy, message)
            if pieces == 1:
                whole = transport.receive(source, tag, shape, dtype)
                self._received += 1
            else:
                memory = aligned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
                whole = shaped(memory, shape, dtype)
                for piece in np.array_split(whole.reshape(-1), pieces):
                    data = transport.receive(source, tag, piece.shape, dtype)
                    self._received += 1
                    for outgoing in streamed:
                        transport.send(outgoing.to, tag_of(copy, outgoing.message), data)
                    np.copyto(piece, data)
            for forward in later:
                forward(whole, copy)
            return whole

        return receive, False

    def _forwarder(self, outgoing: Outgoing) -> Callable[[Array, int], object]:
        return lambda whole, copy: _send_pieces(self._transport, whole, outgoing, copy)

    def _put_and_send(
        self,
        mesh: int,
        outgoing: Outgoing,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: Device,
    ) -> Callable[[Array, int], object]:
        put, send = put_on(shape, dtype.name, device), self.sender(mesh, outgoing, shape, dtype)
        return lambda whole, copy: send(put(whole), copy)

    def _device_receiver(
        self,
        by: DeviceTransport,
        mesh: int,
        incoming: Incoming,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: Device,
    ) -> Callable[[int], Any]:
        source, message, land = incoming.source, incoming.message, self._landing.land
        by.inlet(source, incoming.devices)
        pieces = [(s, description(s, dtype)) for s in _piece_shapes(shape, incoming.pieces)]
        streamed: list[tuple[Outlet, int]] = []
        later: list[Callable[[Any, int], object]] = []
        for outgoing in incoming.forward:
            reaching = self._reaching(outgoing.to, shape, dtype)
            if reaching is not None and outgoing.pieces == incoming.pieces:
                outlet = reaching.outlet(outgoing.to, outgoing.devices)
                streamed.append((outlet, outgoing.message))
            else:
                later.append(self.sender(mesh, outgoing, shape, dtype))

        def receive(copy: int) -> Any:
            tag, blocks = tag_of(copy, message), list[Block]()
            for piece, said in pieces:
                block = by.receive(source, tag, piece, dtype)
                self._received += 1
                for outlet, onward in streamed:
                    outlet.send(tag_of(copy, onward), said, block)
                blocks.append(block)
            value = land(blocks, shape, dtype, device)
            for forward in later:
                forward(value, copy)
            return value

        return receive

    def open(self, devices: Mapping[int, Device]) -> None:
        """Connects the devices that messages go between, and tries each way once; every worker
        calls it once all of its senders and receivers are made.

        Args:
            devices: of this worker, by number of the plan.

        Raises:
            TransportError: another worker is gone, or a way brings other bits than were sent.
        """
        if self._device is not None:
            self._device.open()
            check_channels(self._device, devices)

    def close(self) -> None:
        """Ends the threads; what has been asked for is sent before, if the transport is open."""
        for sender in self._senders.values():
            sender.asked.end()
        for sender in self._senders.values():
            if sender is not threading.current_thread():
                sender.join(timeout=10)
        self._senders = {}
        if self._device is not None:
            self._device.close()


def _piece_shapes(shape: tuple[int, ...], pieces: int) -> list[tuple[int, ...]]:
    """What each message has of a tile, as `_send_pieces` cuts it."""
    if pieces == 1:
        return [shape]
    return [(size,) for size in piece_sizes(prod(shape), pieces)]


# Moving an array from one mesh to another as a plan says.
#
# Between devices of one worker nothing goes through the host. Of a transfer between workers each
# binds its own part (reshard_steps.py).

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
