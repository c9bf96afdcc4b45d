"""What goes out of a worker and comes in during transfers, over any transport.

Sends are started by threads that wait for the values, so that the thread that starts programs
never does. Received arrays are in memory that nobody changes as long as it is used: of the host,
or, where devices reach each other (transport/device.py), of the device that wants them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_runtime.backends.xla_runtime import Device, put_on
from alpa_runtime.errors import TransportError
from alpa_runtime.execution.device_check import check_channels
from alpa_runtime.execution.device_values import (
    Landing,
    bounds_of,
    cut_memory,
    is_carried,
    piece_sizes,
)
from alpa_runtime.execution.reshard_part import Incoming, Outgoing
from alpa_runtime.transport.channel import Outlet
from alpa_runtime.transport.device import DeviceTransport
from alpa_runtime.transport.device_backend import Block
from alpa_runtime.transport.ending_queue import EndingQueue
from alpa_runtime.transport.interface import Sending, Transport, description
from alpa_runtime.transport.memory import aligned, shaped

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


class Wires:
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


def is_transport_error(error: BaseException) -> bool:
    """Whether an error says that another worker is gone, and not what went wrong here."""
    return isinstance(error, TransportError)
