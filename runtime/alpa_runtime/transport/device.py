"""Messages from device to device: which are under way, in which order, and what ends them.

Bytes go as carriers bring them (carrier.py). Before a message moves, both ends agree on it by small
messages of the host's transport: the sender says what it has (OFFER) once the value is there, the
receiver makes room and says so (ROOM), and then both start at the same time. So a receive is posted
for every send, whether or not somebody asks for the message yet, nothing on a device waits for what
a program has yet to compute, and memory is made while nothing waits for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from threading import Lock, Thread, current_thread
from typing import Any, NamedTuple

import numpy as np

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.channel import Arrival, Inlet, Outlet, Sent, as_transport_error
from alpa_runtime.transport.device_backend import CARRIERS, Block, Carrier
from alpa_runtime.transport.interface import Transport, check_tag
from alpa_runtime.transport.mailbox import Mailbox, Message

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
    """Another end that some carrier reaches, and all that is under way between the two."""

    def __init__(self, host: Transport, rank: int, carrier: Carrier, failed: Failed) -> None:
        self.rank = rank
        self.carrier = carrier
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
        self.outlets[devices].start(self.carrier.source(devices[0], record.rest))

    def open_sink(self, devices: tuple[int, int]) -> None:
        invitation = self.carrier.invite(devices[1])
        _say(self._host, self.rank, _OPEN, _Record(_Kind.INVITATION, *devices, rest=invitation))
        self.inlets[devices].start(self.carrier.sink(devices[1], invitation))

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
                raise TransportError(self.error.what, peer=self.error.peer)
            self._sequence = number = self._sequence + 1
            self._offered[number] = self.outlets[devices], sent
        nbytes = sent.nbytes
        self._tell(_Record(_Kind.OFFER, *devices, number, sent.tag, nbytes, sent.description))

    def _room(self, number: int, room: bytes) -> None:
        self._tell(_Record(_Kind.ROOM, sequence=number, rest=room))

    def _written(self, number: int) -> None:
        with self._lock:
            self._offered.pop(number, None)
        if self.carrier.one_sided:
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
        carriers: what reaches each peer; the others are not reached.
    """

    def __init__(self, host: Transport, carriers: Mapping[int, Carrier]) -> None:
        self.rank: int = host.rank
        self._watchers: list[Failed] = []
        self._carriers = {carrier.kind: carrier for carrier in carriers.values()}
        self._peers = {
            peer: _Peer(host, peer, carrier, self._fail) for peer, carrier in carriers.items()
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

    def carrier_of(self, peer: int) -> str:
        """The kind of what reaches a peer."""
        return self._peers[peer].carrier.kind

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
        for carrier in self._carriers.values():
            carrier.close()
        self._carriers = {}


def connect_devices(
    host: Transport, size: int, kinds: Sequence[str], make: Callable[[str], Carrier]
) -> DeviceTransport:
    """Finds out which ends have what, and takes for each pair the best carrier that both have.

    Every end of the network calls it, after `connect` and before anything is sent.

    Args:
        size: number of ends.
        kinds: carriers that this end has, of `CARRIERS`.
        make: called once for each kind that is used.

    Raises:
        TransportError: an end is gone.
    """
    others = [rank for rank in range(size) if rank != host.rank]
    hello = json.dumps(sorted(kinds)).encode()
    for peer in others:
        _say(host, peer, _HELLO, _Record(_Kind.INVITATION, rest=hello))
    made: dict[str, Carrier] = {}
    chosen: dict[int, Carrier] = {}
    try:
        for peer in others:
            theirs: Any = json.loads(_hear(host, peer, _HELLO).rest)
            common = [kind for kind in CARRIERS if kind in kinds and kind in theirs]
            if common:
                if common[0] not in made:
                    made[common[0]] = make(common[0])
                chosen[peer] = made[common[0]]
    except BaseException:
        for carrier in made.values():
            carrier.close()
        raise
    return DeviceTransport(host, chosen)
