"""The two ends of a channel, which messages from one device to another go through in order."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.device_backend import Block, Memory, Sink, Source
from alpa_runtime.transport.ending_queue import EndingQueue
from alpa_runtime.transport.interface import Sending, check_tag

# Ends all messages of two ends; told whether something went wrong here: else the other end is gone.
Failed = Callable[[BaseException, bool], None]


class Sent:
    """A message on its way out; a `Sending`."""

    def __init__(self, tag: int, description: bytes, memory: Memory) -> None:
        self.tag = tag
        self.description = description
        self.nbytes: int = memory.nbytes
        self.memory: Memory | None = memory  # Until it may change.
        self._ended = Event()
        self._error: TransportError | None = None

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        self._ended.wait()
        if self._error is not None:
            raise TransportError(
                self._error.what, where=f"tag {self.tag}", peer=self._error.peer
            ) from self._error

    def finish(self) -> None:
        """Its memory is needed no more."""
        self.memory = None
        self._ended.set()

    def fail(self, error: TransportError) -> None:
        """It will not arrive."""
        if not self.done:
            self._error = error
            self.finish()


class Arrival:
    """A message that is on its way here.

    Args:
        number: of its sender, who counts them.
    """

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.written: Event = Event()  # See `Sink.take`.
        self.error: TransportError | None = None
        self._ended = Event()
        self._block: Block | None = None

    def wait(self, where: str) -> Block:
        """The bytes. Called once: nothing here holds them afterwards."""
        self._ended.wait()
        block, self._block = self._block, None
        if block is None:
            assert self.error is not None
            raise TransportError(self.error.what, where=where, peer=self.error.peer)
        return block

    def finish(self, block: Block) -> None:
        """All bytes are there."""
        self._block = block
        self._ended.set()

    def fail(self, error: TransportError) -> None:
        """It will not arrive."""
        if not self._ended.is_set():
            self.error = error
            self.written.set()
            self._ended.set()


class Outlet:
    """The sending end.

    One thread waits for values, another brings their bytes over once there is room.

    Args:
        devices: that messages leave and arrive at.
        offer: tells the other end that a value is there.
        written: called with the number of a message whose bytes have been brought over.
        failed: called when a message fails.
    """

    def __init__(
        self,
        devices: tuple[int, int],
        offer: Callable[[Sent], None],
        written: Callable[[int], None],
        failed: Failed,
    ) -> None:
        self.threads: list[Thread] = []
        self.count: int = 0  # Messages that were offered.
        self._devices = devices
        self._offer = offer
        self._written = written
        self._failed = failed
        self._waited = 0  # Changed by one thread only.
        self._values: EndingQueue[Sent] = EndingQueue()
        self._rooms: SimpleQueue[tuple[int, Sent, bytes] | None] = SimpleQueue()
        self._source: Source | None = None

    def start(self, source: Source) -> None:
        """The channel is open: begins to send."""
        self._source = source
        self._start(self._offer_values, "waits")
        self._start(self._put, "sends")

    def _start(self, run: Callable[[], None], what: str) -> None:
        name = f"alpa-mlir device {self._devices[0]} {what} for {self._devices[1]}"
        thread = Thread(target=run, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def send(self, tag: int, description: bytes, memory: Memory) -> Sending:
        """Sends bytes once they are there; returns at once.

        Args:
            tag: 0 to 2**63 - 1. Messages of a channel and tag arrive in the order of the calls, if
                one thread makes them.
            description: what they are; see `interface.description`.
            memory: at least one byte, which must not change before the returned `Sending` is done.

        Raises:
            TransportError: the receiver is known to be gone, or the tag is out of range.
            Exception: of the program that should have made the value, if that is known.
        """
        check_tag(tag << 1)
        sent = Sent(tag, description, memory)
        if self._values.count == self._waited and memory.is_ready():
            self._offer(sent)
            self.count += 1
            return sent
        if not self._values.put(sent):
            self._offer(sent)  # Raises what ended it.
        return sent

    def _offer_values(self) -> None:
        while (sent := self._values.get()) is not None:
            memory = sent.memory
            try:
                if memory is not None:
                    memory.wait()
                    self._offer(sent)
                    self.count += 1
            except BaseException as error:
                self._failed(error, not isinstance(error, TransportError))
                sent.fail(as_transport_error(error))
            self._waited += 1
            del sent, memory

    def put(self, number: int, sent: Sent, room: bytes) -> None:
        """The other end has made room for a message."""
        self._rooms.put((number, sent, room))

    def _put(self) -> None:
        source = self._source
        assert source is not None
        while (item := self._rooms.get()) is not None:
            number, sent, room = item
            memory = sent.memory
            try:
                if memory is not None:
                    source.put(memory, room)
                    self._written(number)
                    sent.finish()
            except BaseException as error:
                self._failed(as_transport_error(error), not isinstance(error, TransportError))
                sent.fail(as_transport_error(error))
            del item, sent, memory

    def end(self) -> None:
        """Nothing more is sent; what `offer` raises from now on is the reason."""
        self._values.end()
        self._rooms.put(None)
        if self._source is not None:
            self._source.end()


class Inlet:
    """The receiving end. One thread makes room for messages, and receives them.

    Args:
        room: tells the sender of a message by its number that there is room.
        arrived: called with the number of a message that is there.
        failed: called when a message fails.
    """

    def __init__(
        self,
        devices: tuple[int, int],
        room: Callable[[int, bytes], None],
        arrived: Callable[[int], None],
        failed: Failed,
    ) -> None:
        self.threads: list[Thread] = []
        self._devices = devices
        self._room = room
        self._arrived = arrived
        self._failed = failed
        self._offers: SimpleQueue[Arrival | None] = SimpleQueue()
        self._sink: Sink | None = None

    def start(self, sink: Sink) -> None:
        """The channel is open: begins to receive."""
        self._sink = sink
        name = f"alpa-mlir device {self._devices[1]} receives of {self._devices[0]}"
        thread = Thread(target=self._take, args=(sink,), name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def add(self, arrival: Arrival) -> None:
        """The sender has a message."""
        self._offers.put(arrival)

    def _take(self, sink: Sink) -> None:
        while (arrival := self._offers.get()) is not None:
            try:
                if arrival.error is None:
                    block, room = sink.room(arrival.nbytes)
                    self._room(arrival.number, room)
                    sink.take(block, arrival.written)
                    if arrival.error is None:
                        self._arrived(arrival.number)
                        arrival.finish(block)
                    del block
            except BaseException as error:
                self._failed(as_transport_error(error), not isinstance(error, TransportError))
                arrival.fail(as_transport_error(error))
            del arrival

    def end(self) -> None:
        """Nothing more is received."""
        self._offers.put(None)
        if self._sink is not None:
            self._sink.end()


def as_transport_error(error: BaseException) -> TransportError:
    """What those who wait are told."""
    if isinstance(error, TransportError):
        return error
    return TransportError(" ".join(f"{type(error).__name__}: {error}".split()))
