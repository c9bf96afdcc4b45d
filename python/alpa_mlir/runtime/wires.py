"""What goes out of a worker and comes in during transfers, over any transport.

Sends are started by threads that wait for the values, so that the thread that starts programs
never does. Received arrays are in memory that nobody changes as long as it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_mlir.errors import TransportError
from alpa_mlir.runtime.reshard_part import Incoming, Outgoing
from alpa_mlir.transport.interface import Sending, Transport
from alpa_mlir.transport.memory import aligned, shaped

Array = NDArray[Any]
# Messages of one copy: its number in the step is the rest of the tag.
_TAG_BITS = 24
_SMALL = 1 << 14  # Bytes of what is sent by the thread that starts programs.
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
        self.asked = self.done = 0  # Each is changed by one thread only.
        self.queue: SimpleQueue[tuple[Any, Outgoing, int, Ticket] | None] = SimpleQueue()
        self._transport = transport
        self._failed = failed

    def run(self) -> None:
        while (item := self.queue.get()) is not None:
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

    Args:
        failed: called by a sending thread with the error that ended a send.
    """

    def __init__(self, transport: Transport, failed: Callable[[BaseException], None]) -> None:
        self._transport = transport
        self._failed = failed
        self._senders: dict[int, _Sender] = {}
        self._received = 0

    @property
    def messages(self) -> int:
        """How many have come, or were sent by threads, so far."""
        return self._received + sum(sender.done for sender in list(self._senders.values()))

    def send(self, mesh: int, value: Any, outgoing: Outgoing, copy: int) -> Ticket:
        """Send an array of one device once its value is there; returns at once.

        Args:
            mesh: one thread sends what is made on it, in order: no mesh waits for another.
            copy: which of the step's copies it is.
        """
        sender = self._senders.get(mesh)
        if sender is None:
            sender = self._senders[mesh] = _Sender(self._transport, self._failed)
            sender.start()
        if sender.asked == sender.done and _is_there(value):
            return self._send_now(value, outgoing, copy)
        ticket = Ticket()
        sender.asked += 1
        sender.queue.put((value, outgoing, copy, ticket))
        return ticket

    def _send_now(self, value: Any, outgoing: Outgoing, copy: int) -> Ticket:
        try:
            sendings = _send_pieces(self._transport, np.asarray(value), outgoing, copy)
        except BaseException as error:
            self._failed(error)
            return Ticket(_STARTED, error=error)
        return Ticket(_STARTED, sendings)

    def receive(
        self, incoming: Incoming, copy: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """Wait for the data of a tile, and hand on what goes further."""
        transport, tag = self._transport, tag_of(copy, incoming.message)
        if incoming.pieces == 1:
            whole = transport.receive(incoming.source, tag, shape, dtype)
            self._received += 1
            for outgoing in incoming.forward:
                _send_pieces(transport, whole, outgoing, copy)
            return whole
        memory = aligned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        whole = shaped(memory, shape, dtype)
        streamed = [o for o in incoming.forward if o.pieces == incoming.pieces]
        for piece in np.array_split(whole.reshape(-1), incoming.pieces):
            data = transport.receive(incoming.source, tag, piece.shape, dtype)
            self._received += 1
            for outgoing in streamed:
                transport.send(outgoing.to, tag_of(copy, outgoing.message), data)
            np.copyto(piece, data)
        for outgoing in incoming.forward:
            if outgoing.pieces != incoming.pieces:
                _send_pieces(transport, whole, outgoing, copy)
        return whole

    def close(self) -> None:
        """Ends the threads; what has been asked for is sent before, if the transport is open."""
        for sender in self._senders.values():
            sender.queue.put(None)
        for sender in self._senders.values():
            if sender is not threading.current_thread():
                sender.join(timeout=10)
        self._senders = {}


def is_transport_error(error: BaseException) -> bool:
    """Whether an error says that another worker is gone, and not what went wrong here."""
    return isinstance(error, TransportError)
