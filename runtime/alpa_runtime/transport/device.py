"""Messages from device to device: channels, which messages are in flight, and what ends them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from queue import SimpleQueue
from threading import Event, Lock, Thread, current_thread
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from alpa_runtime.errors import TransportError, is_out_of_memory
from alpa_runtime.transport.device_backends import (
    Block,
    DeviceBackend,
    Memory,
    NcclBackend,
    NixlBackend,
    Sink,
    Source,
    load_nccl,
    load_nixl,
)
from alpa_runtime.transport.interface import Mailbox, Message, Sending, Transport, check_tag

_T = TypeVar("_T")


class EndingQueue(Generic[_T]):
    """A queue behind whose end nothing is put: nobody would ever look at it.

    Attributes:
        count: items that were put so far.

    Example:
        >>> queue = EndingQueue[str]()
        >>> queue.put("first"), queue.end(), queue.put("late")
        (True, None, False)
        >>> queue.get(), queue.get()
        ('first', None)
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._items: SimpleQueue[_T | None] = SimpleQueue()
        self._lock = Lock()
        self._ended = False

    def put(self, item: _T) -> bool:
        """Whether the item is in the queue; not if that was ended."""
        with self._lock:
            if self._ended:
                return False
            self.count += 1
            self._items.put(item)
            return True

    def get(self) -> _T | None:
        """Waits for the next item; None at the end. Called by one thread."""
        return self._items.get()

    def end(self) -> None:
        """Nothing more is put. May be called again."""
        with self._lock:
            self._ended = True
            self._items.put(None)


# Ends all messages of two ends; told whether something went wrong here: else the other end is gone.
MessageFailed = Callable[[BaseException, bool], None]


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
            raise self._error.at(f"tag {self.tag}") from self._error

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
            raise self.error.at(where)
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
        failed: MessageFailed,
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
        failed: MessageFailed,
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
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return TransportError(text, out_of_memory=is_out_of_memory(error))


# Tags of the host's transport that values do not have.
_HELLO, _OPEN, _CONTROL = ((1 << 63) + i for i in range(3))
# Kind, length of the description, sending and receiving device, sequence number, tag, bytes, length
# of all the text; as much of the text as there is room for follows, the rest in a second message.
_HEADER = struct.Struct("<BxHIIQQQI")
_RECORD = 256
_BYTES = np.dtype(np.uint8)
_SECONDS_TO_LEAVE = 10.0
Failed = Callable[[BaseException], None]


class _Kind(IntEnum):
    INVITATION = 1
    OFFER = 2
    ROOM = 3
    WRITTEN = 4


class _Record(NamedTuple):
    """What one end says to the other of a message, or of a channel."""

    kind: int
    source_device: int = 0
    target_device: int = 0
    sequence: int = 0
    tag: int = 0
    nbytes: int = 0
    description: bytes = b""
    rest: bytes = b""

    def numbers(self) -> tuple[int, int, int, int, int]:
        return self.source_device, self.target_device, self.sequence, self.tag, self.nbytes


def _say(host: Transport, to: int, tag: int, record: _Record) -> None:
    """Sends a record. Called by one thread at a time for each peer and tag."""
    text = record.description + record.rest
    head = _HEADER.pack(record.kind, len(record.description), *record.numbers(), len(text))
    inline = _RECORD - len(head)
    host.send(to, tag, np.frombuffer((head + text[:inline]).ljust(_RECORD, b"\0"), np.uint8))
    if len(text) > inline:
        host.send(to, tag, np.frombuffer(text[inline:], np.uint8))


def _hear(host: Transport, source: int, tag: int) -> _Record:
    data = host.receive(source, tag, (_RECORD,), _BYTES).tobytes()
    kind, described, source_device, target_device, *rest = _HEADER.unpack_from(data)
    sequence, message_tag, nbytes, length = rest
    text = data[_HEADER.size : _HEADER.size + length]
    if missing := length - len(text):
        text += host.receive(source, tag, (missing,), _BYTES).tobytes()
    return _Record(
        kind,
        source_device,
        target_device,
        sequence,
        message_tag,
        nbytes,
        text[:described],
        text[described:],
    )


class _Peer:
    """Another end that some device backend reaches, and all that is under way between the two."""

    def __init__(self, host: Transport, rank: int, backend: DeviceBackend, failed: Failed) -> None:
        self.rank = rank
        self.backend = backend
        self.mailbox: Mailbox = Mailbox(rank)
        self.error: TransportError | None = None
        self.outlets: dict[tuple[int, int], Outlet] = {}
        self.inlets: dict[tuple[int, int], Inlet] = {}
        self._host = host
        self._failed = failed
        self._saying = Lock()
        self._lock = Lock()  # Of the next three.
        self._sequence = 0
        self._offered: dict[int, tuple[Outlet, Sent]] = {}
        self._arriving: dict[int, Arrival] = {}
        self._reader = Thread(target=self._read, name="alpa-mlir device messages", daemon=True)

    def outlet(self, devices: tuple[int, int]) -> Outlet:
        if devices not in self.outlets:
            self.outlets[devices] = Outlet(
                devices, lambda sent: self._offer(devices, sent), self._written, self.fail
            )
        return self.outlets[devices]

    def inlet(self, devices: tuple[int, int]) -> None:
        if devices not in self.inlets:
            self.inlets[devices] = Inlet(devices, self._room, self._arrived, self.fail)

    def open_source(self, devices: tuple[int, int]) -> None:
        record = _hear(self._host, self.rank, _OPEN)
        if (record.source_device, record.target_device) != devices:
            raise TransportError(
                f"rank {self.rank} opens a channel from device {record.source_device} to "
                f"{record.target_device}, expected {devices[0]} to {devices[1]}",
                fix="load the same plan in all workers",
                peer=self.rank,
            )
        self.outlets[devices].start(self.backend.source(devices[0], record.rest))

    def open_sink(self, devices: tuple[int, int]) -> None:
        invitation = self.backend.invite(devices[1])
        _say(self._host, self.rank, _OPEN, _Record(_Kind.INVITATION, *devices, rest=invitation))
        self.inlets[devices].start(self.backend.sink(devices[1], invitation))

    def start(self) -> None:
        if self._reader.ident is None:
            self._reader.start()

    # --- What this end says ----------------------------------------------------------------------

    def _tell(self, record: _Record) -> None:
        with self._saying:
            _say(self._host, self.rank, _CONTROL, record)

    def _offer(self, devices: tuple[int, int], sent: Sent) -> None:
        with self._lock:
            if self.error is not None:
                raise self.error.at()
            self._sequence = number = self._sequence + 1
            self._offered[number] = self.outlets[devices], sent
        nbytes = sent.nbytes
        self._tell(_Record(_Kind.OFFER, *devices, number, sent.tag, nbytes, sent.description))

    def _room(self, number: int, room: bytes) -> None:
        self._tell(_Record(_Kind.ROOM, sequence=number, rest=room))

    def _written(self, number: int) -> None:
        with self._lock:
            self._offered.pop(number, None)
        if self.backend.one_sided:
            self._tell(_Record(_Kind.WRITTEN, sequence=number))

    def _arrived(self, number: int) -> None:
        with self._lock:
            self._arriving.pop(number, None)

    # --- What it hears ---------------------------------------------------------------------------

    def _read(self) -> None:
        while self.error is None:
            try:
                record = _hear(self._host, self.rank, _CONTROL)
            except BaseException as error:
                self.fail(error, not isinstance(error, TransportError))
                return
            try:
                self._hear(record)
            except BaseException as error:
                self.fail(error, True)

    def _hear(self, record: _Record) -> None:
        if record.kind == _Kind.OFFER:
            devices = record.source_device, record.target_device
            arrival = Arrival(record.sequence, record.nbytes)
            with self._lock:
                if self.error is not None:
                    return  # Nobody is left who takes it; who asks for it is told why.
                self._arriving[record.sequence] = arrival
            self.mailbox.deliver(record.tag, Message(record.description, arrival))
            inlet = self.inlets.get(devices)
            if inlet is None:
                raise TransportError(
                    f"rank {self.rank} sends from device {devices[0]} to {devices[1]}, which this "
                    "end does not expect",
                    fix="load the same plan in all workers",
                    peer=self.rank,
                )
            inlet.add(arrival)
            return
        with self._lock:
            offered = self._offered.get(record.sequence)
            arrival = self._arriving.get(record.sequence)
        if record.kind == _Kind.ROOM and offered is not None:
            offered[0].put(record.sequence, offered[1], record.rest)
        elif record.kind == _Kind.WRITTEN and arrival is not None:
            arrival.written.set()
        else:
            raise TransportError(f"rank {self.rank} sent a record of kind {record.kind}")

    # --- The end ---------------------------------------------------------------------------------

    def fail(self, error: BaseException, here: bool) -> None:
        """Nothing more is sent or received; who waits raises.

        Args:
            here: something went wrong at this end, which always is reported. That the peer is gone
                is reported if something is on its way there; that this end was closed is not.
        """
        said = as_transport_error(error)
        with self._lock:
            if self.error is not None:
                return
            self.error = said
            offered, self._offered = list(self._offered.values()), {}
            arriving, self._arriving = list(self._arriving.values()), {}
        self.mailbox.fail(said)
        for _, sent in offered:
            sent.fail(said)
        for arrival in arriving:
            arrival.fail(said)
        for end in (*self.outlets.values(), *self.inlets.values()):
            end.end()
        if here or (offered and said.peer is not None):
            self._failed(error)

    def join(self) -> None:
        for thread in (self._reader, *(t for e in self.outlets.values() for t in e.threads)):
            _join(thread)
        for inlet in self.inlets.values():
            for thread in inlet.threads:
                _join(thread)


def _join(thread: Thread) -> None:
    if thread.is_alive() and thread is not current_thread():
        thread.join(_SECONDS_TO_LEAVE)


class DeviceTransport:
    """One end of a network of workers whose devices reach each other; see `Transport`.

    Every pair of devices that messages go between has a channel. All ends say which they need
    (`outlet`, `inlet`), then open them (`open`), then send and receive. Any thread may do that.
    The host's transport is closed first; `close` then ends what is left.

    Args:
        host: a connected transport, which lasts at least as long.
        device backends: what reaches each peer; the others are not reached.
    """

    def __init__(self, host: Transport, device_backends: Mapping[int, DeviceBackend]) -> None:
        self.rank: int = host.rank
        self._watchers: list[Failed] = []
        self._backends = {backend.kind: backend for backend in device_backends.values()}
        self._peers = {
            peer: _Peer(host, peer, backend, self._fail)
            for peer, backend in device_backends.items()
        }

    def reaches(self, peer: int) -> bool:
        """Whether devices of this rank reach those of another one; the same seen from there."""
        return peer in self._peers

    @property
    def sent(self) -> int:
        """Messages that this end has sent so far."""
        return sum(end.count for _, end in self.outlets())

    def outlets(self) -> list[tuple[tuple[int, int], Outlet]]:
        """The sending ends here: both devices, and the end."""
        return [item for peer in self._peers.values() for item in peer.outlets.items()]

    def inlets(self) -> list[tuple[int, tuple[int, int]]]:
        """The receiving ends here: the peer that sends, and both devices."""
        return [(rank, devices) for rank, peer in self._peers.items() for devices in peer.inlets]

    def backend_of(self, peer: int) -> str:
        """The kind of what reaches a peer."""
        return self._peers[peer].backend.kind

    def watch(self, failed: Failed) -> None:
        """Calls `failed` with the error when something under way here fails."""
        self._watchers.append(failed)

    def _fail(self, error: BaseException) -> None:
        for failed in self._watchers:
            failed(error)

    def outlet(self, to: int, devices: tuple[int, int]) -> Outlet:
        """Where messages from a device of this end to one of another end are sent."""
        return self._peers[to].outlet(devices)

    def inlet(self, source: int, devices: tuple[int, int]) -> None:
        """Expects messages from a device of another end to one of this end."""
        self._peers[source].inlet(devices)

    def open(self) -> None:
        """Opens all channels that have been asked for; every end calls it as often as the others.

        All ends go through their channels in the same order, one after the other: opening may wait
        for the other end, and for all that a device does.

        Raises:
            TransportError: an end is gone, or needs other channels.
        """
        found = [
            (devices, peer, outgoing)
            for peer in self._peers.values()
            for outgoing, ends in ((True, peer.outlets), (False, peer.inlets))
            for devices, end in ends.items()
            if not end.threads
        ]
        for devices, peer, outgoing in sorted(found, key=lambda item: item[0]):
            if outgoing:
                peer.open_source(devices)
            else:
                peer.open_sink(devices)
        for peer in self._peers.values():
            peer.start()

    def receive(self, source: int, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Block:
        """Waits, without the interpreter lock, for the next message of `source` with `tag`.

        What had come whole before its source was gone can still be received.

        Raises:
            TransportError: as `Transport.receive`.
        """
        check_tag(tag)
        arrival: Arrival = self._peers[source].mailbox.take(tag, shape, dtype)
        return arrival.wait(f"tag {tag} from rank {source}")

    def close(self) -> None:
        """Ends everything. May be called again."""
        closed = TransportError(f"rank {self.rank} was closed")
        for peer in self._peers.values():
            peer.fail(closed, False)
        for peer in self._peers.values():
            peer.join()
        for backend in self._backends.values():
            backend.close()
        self._backends = {}


def connect_devices(
    host: Transport, size: int, kinds: Sequence[str], make: Callable[[str], DeviceBackend]
) -> DeviceTransport:
    """Finds out which ends have what, and takes for each pair the best backend that both have.

    Every end of the network calls it, after `connect` and before anything is sent.

    Args:
        size: number of ends.
        kinds: device backends that this end has, of `DEVICE_BACKENDS`.
        make: called once for each kind that is used.

    Raises:
        TransportError: an end is gone.
    """
    others = [rank for rank in range(size) if rank != host.rank]
    hello = json.dumps(sorted(kinds)).encode()
    for peer in others:
        _say(host, peer, _HELLO, _Record(_Kind.INVITATION, rest=hello))
    made: dict[str, DeviceBackend] = {}
    chosen: dict[int, DeviceBackend] = {}
    try:
        for peer in others:
            theirs: Any = json.loads(_hear(host, peer, _HELLO).rest)
            common = [kind for kind in DEVICE_BACKENDS if kind in kinds and kind in theirs]
            if common:
                if common[0] not in made:
                    made[common[0]] = make(common[0])
                chosen[peer] = made[common[0]]
    except BaseException:
        for backend in made.values():
            backend.close()
        raise
    return DeviceTransport(host, chosen)


# Kinds, the best first, and the platforms whose memory they move.
DEVICE_BACKENDS: Mapping[str, tuple[str, ...]] = {"nccl": ("gpu",), "nixl": ("gpu", "cpu")}
# What users may ask for: any of them that all ends have, none, or one of them.
CHOICES = ("auto", "host", *DEVICE_BACKENDS)


def check_choice(choice: str) -> str:
    """The choice, if it is one of `CHOICES`.

    Raises:
        TransportError: it is not.
    """
    if choice not in CHOICES:
        raise TransportError(f"device_transport {choice!r}, expected one of {', '.join(CHOICES)}")
    return choice


def find_device_backends(choice: str, platform: str) -> tuple[str, ...]:
    """The kinds that this process can use of what was chosen; `auto` is for GPUs only.

    Raises:
        TransportError: the one that was asked for is not installed, or does not move memory of
            such devices.
    """
    if choice in DEVICE_BACKENDS:
        check_device_backend(choice, platform)
        return (choice,)
    found: list[str] = []
    for kind in DEVICE_BACKENDS if choice == "auto" and platform == "gpu" else ():
        with suppress(TransportError):
            check_device_backend(kind, platform)
            found.append(kind)
    return tuple(found)


def check_device_backend(kind: str, platform: str) -> None:
    """Whether a device backend can be used here for devices of a platform.

    Raises:
        TransportError: it does not move memory of such devices, or is not installed.
    """
    if platform not in DEVICE_BACKENDS[kind]:
        raise TransportError(
            f"{kind} moves memory of {' and '.join(DEVICE_BACKENDS[kind])} devices, "
            f"the workers have {platform} devices",
            fix='give device_transport="auto"',
        )
    (load_nccl if kind == "nccl" else load_nixl)(platform)


def make_device_backend(kind: str, platform: str, ordinals: Mapping[int, int]) -> DeviceBackend:
    """A device backend for this process's devices.

    Args:
        platform: what the devices are, "cpu" or "gpu".
        ordinals: for each of them, by number of the plan, its number in this process.

    Raises:
        TransportError: as `check_device_backend`.
    """
    check_device_backend(kind, platform)
    if kind == "nccl":
        return NcclBackend(ordinals)
    return NixlBackend(platform, ordinals)
