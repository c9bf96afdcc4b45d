"""Messages to and from peers over stream sockets: addresses, handshake and connections."""

from __future__ import annotations

import errno
import hmac
import json
import os
import secrets
import select
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, cast

import numpy as np

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.framing import (
    HEADER,
    PROTOCOL,
    Kind,
    close_files,
    frame,
    receive_some,
    send_some,
)
from alpa_runtime.transport.interface import (
    DONE,
    Mailbox,
    Message,
    Sending,
    Transport,
    check_peer,
    check_tag,
    description,
)
from alpa_runtime.transport.shared_memory import (
    Array,
    Budget,
    Bytes,
    MemoryPool,
    SharedBlocks,
    as_bytes,
    can_share,
    shaped,
)
from alpa_runtime.transport.tls import TlsStream, listening_context, secure


@dataclass(frozen=True)
class Address:
    """One end.

    Attributes:
        key: random, and secret: who connects has to know it.
        host: of processes that can share memory; see `host_identity`.
        local: name of a socket on that host, which everybody there can see, or "" if the end
            shares no memory.
        ip, port: of a TCP socket, or "" and 0.
        name: what errors call it; by default its rank.
        tls: whether it speaks TLS over TCP, and nothing else.
    """

    protocol: int
    rank: int
    key: str
    host: str
    local: str
    ip: str
    port: int
    name: str = ""
    tls: bool = False

    @property
    def title(self) -> str:
        """Names it in errors."""
        return self.name or f"rank {self.rank}"

    def to_text(self) -> str:
        """As JSON on one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str, rank: int) -> Address:
        """Reads the address of a rank.

        Raises:
            TransportError: it is not an address of this version, or of another rank.
        """
        where = f"address of rank {rank}"
        try:
            fields: Any = json.loads(text)
            if fields["protocol"] != PROTOCOL:
                raise other_version(fields["protocol"], where)
            address = Address(**fields)
            if any(
                type(value) is not type(getattr(_EXAMPLE, key)) for key, value in fields.items()
            ):
                raise TypeError
            if not -1 <= address.port < 1 << 16:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise TransportError(
                f"{text!r} is not what `address()` gives",
                where=where,
                fix="give connect() the addresses that make_transport's ends give",
            ) from None
        if address.rank != rank:
            raise TransportError(f"it is the address of rank {address.rank}", where=where)
        return address

    def through(self, other: Address) -> str:
        """How this end and another one reach each other: "local" or "tcp".

        Raises:
            TransportError: in no way.
        """
        if self.local and other.local and self.host == other.host:
            return "local"
        if self.port and other.port:
            return "tcp"
        raise TransportError(
            f"{self.title} can reach {other.title} neither by shared memory nor by TCP",
            fix="allow both kinds",
            peer=other.rank,
        )


_EXAMPLE = Address(PROTOCOL, 0, "", "", "", "", 0)


def other_version(found: int, where: str, peer: int | None = None) -> TransportError:
    """The error of an end that speaks another version of the protocol."""
    return TransportError(
        f"version {found} of the transport's protocol, expected {PROTOCOL}",
        where=where,
        fix="install the same version of alpa_mlir in all workers",
        peer=peer,
    )


def host_identity() -> str:
    """The same for two processes that may use each other's local sockets: one boot of one machine,
    one network namespace, one user. Empty where there are no such sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network, users = (os.stat(f"/proc/self/ns/{name}").st_ino for name in ("net", "user"))
        return f"{boot}:{network}:{users}:{os.geteuid()}"
    except OSError:
        return ""


def own_ip() -> str:
    """The address of this host on the network that other hosts are on, as far as it can tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing: it only finds the route.
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


# The same in all versions: magic, version, length of the JSON text that follows.
_HEAD = struct.Struct("<8sHI")
_MAGIC = b"alpa-trn"
_LONGEST = 4096
_BACKLOG = 1024
_LOOK_SECONDS = 0.1  # Whether who waits is still needed.
_GREETING_SECONDS = 20.0  # From connecting to the end of the greeting.
_MOST_STRANGERS = 64  # Besides those that are expected, at a time.
_MOST_REFUSALS = 8  # That are named.
_CREDENTIALS = struct.Struct("3i")  # Process, user and group at the other end.


def _greeting(**fields: Any) -> bytes:
    text = json.dumps(fields).encode()
    return _HEAD.pack(_MAGIC, PROTOCOL, len(text)) + text


def _length(head: bytes) -> tuple[int, int]:
    """Version, and length of the text.

    Raises:
        TransportError: it is no greeting.
    """
    magic, version, length = _HEAD.unpack(head)
    if magic != _MAGIC or length > _LONGEST:
        raise TransportError("it does not greet like a transport of alpa_mlir")
    return version, length


def _fields(text: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TransportError("its greeting is damaged")
    return cast(dict[str, Any], found)


def _is_key(found: object, key: str) -> bool:
    """Compares in a time that does not tell how much of a guess is right."""
    said = found if isinstance(found, str) else ""
    return hmac.compare_digest(said.encode(errors="surrogatepass"), key.encode())


def _check_user(stream: socket.socket) -> None:
    """Refuses another user at the other end of a local socket, where the system names it.

    Raises:
        TransportError: it is not this process's user.
    """
    if stream.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    found = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(found)[1]
    if user != os.geteuid():
        raise TransportError(f"it belongs to user {user}, not {os.geteuid()}")


def set_options(stream: socket.socket) -> None:
    """Options of a TCP stream: small messages at once, and a host that vanished is noticed."""
    if stream.family != socket.AF_UNIX:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def dial(own: Address, peer: Address, deadline: float) -> socket.socket:
    """Connects to a peer that listens.

    Args:
        deadline: of `time.monotonic`.

    Raises:
        TransportError: it cannot be reached, is another one than its address says, or refuses.
    """
    family, place = socket.AF_UNIX, f"\0{peer.local}"
    where = f"{peer.title} on this host"
    if own.through(peer) == "tcp":
        family = socket.AF_INET6 if ":" in peer.ip else socket.AF_INET
        place = (peer.ip, peer.port)
        where = f"{peer.title} at {peer.ip}:{peer.port}"
        if own.tls != peer.tls:
            raise TransportError(
                "one end encrypts, the other one does not",
                where=where,
                fix="let all ends encrypt, or none",
                peer=peer.rank,
            )
    stream: socket.socket | None = None
    try:
        stream = socket.socket(family)
        stream.settimeout(max(0.001, deadline - time.monotonic()))
        stream.connect(place)
        _check_user(stream)
        set_options(stream)
        if own.tls and stream.family != socket.AF_UNIX:
            stream = secure(stream, peer.key, deadline)
        stream.sendall(_greeting(rank=own.rank, own=own.key, yours=peer.key))
        version, length = _length(_exactly(stream, _HEAD.size, deadline))
        answer = _fields(_exactly(stream, length, deadline))
        if version != PROTOCOL:
            raise other_version(version, where, peer.rank)
        if refusal := answer.get("refused"):
            raise TransportError(f"refused this end: {refusal}", where=where, peer=peer.rank)
        if not _is_key(answer.get("own"), peer.key):
            raise TransportError("another end answers there", where=where, peer=peer.rank)
    except BaseException as error:
        if stream is not None:
            stream.close()
        if isinstance(error, TransportError):
            raise TransportError(
                error.what, where=error.where or where, fix=error.fix, peer=peer.rank
            ) from None
        if isinstance(error, OSError):
            raise TransportError(
                f"cannot be reached ({error.strerror or error})",
                where=where,
                fix="start all workers, and open the way between their hosts",
                peer=peer.rank,
            ) from None
        raise
    if isinstance(stream, TlsStream):
        stream.deadline = None
    stream.settimeout(None)
    return stream


def _exactly(stream: socket.socket, size: int, deadline: float) -> bytes:
    found = b""
    while len(found) < size:
        stream.settimeout(max(0.001, deadline - time.monotonic()))
        more = stream.recv(size - len(found))
        if not more:
            raise TransportError("closed the connection while greeting")
        found += more
    return found


def listen(
    rank: int, ip: str, *, local: bool, tcp: bool, name: str = "", encrypt: bool = False
) -> tuple[Address, list[socket.socket]]:
    """An end's address, with a key of its own, and the sockets that listen there.

    Args:
        local: peers on this host connect by a local socket, where there are such.
        tcp: others may connect, at `ip`; they may if there are no local sockets.
        name: what errors call the end.
        encrypt: speak TLS over TCP.

    Raises:
        TransportError: nobody can listen on `ip`, or there is no certificate for TLS.
    """
    if encrypt:
        listening_context()
    key, host = secrets.token_hex(16), host_identity()
    place = f"alpa-mlir-{secrets.token_hex(16)}" if local and host else ""
    listeners: list[socket.socket] = []
    port = 0
    try:
        if place:
            listeners.append(socket.socket(socket.AF_UNIX))
            listeners[0].bind(f"\0{place}")  # Such a name lasts as long as the socket.
            listeners[0].listen(_BACKLOG)
        if tcp or not place:
            family = socket.AF_INET6 if ":" in ip else socket.AF_INET
            listeners.append(socket.create_server((ip, 0), family=family, backlog=_BACKLOG))
            port = int(listeners[-1].getsockname()[1])
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise TransportError(
            f"cannot listen on {ip} ({error.strerror or error})",
            fix="give make_transport an `ip` of this host",
        ) from None
    own = Address(PROTOCOL, rank, key, host, place, ip if port else "", port, name, encrypt)
    return own, listeners


@dataclass(eq=False)
class _Stranger:
    """Somebody who has connected and not yet greeted."""

    stream: socket.socket
    name: str
    deadline: float
    found: bytes = b""

    def read(self) -> dict[str, Any] | None:
        """The greeting, once it is whole.

        Raises:
            TransportError: it is none, or of another version.
        """
        if isinstance(self.stream, TlsStream) and not self.stream.is_secure:
            self.stream.shake_hands()
            self.stream.show_proof()
        more = self.stream.recv(_LONGEST)
        if not more:
            raise TransportError("closed the connection while greeting")
        self.found += more
        if len(self.found) < _HEAD.size:
            return None
        version, length = _length(self.found[: _HEAD.size])
        if version != PROTOCOL:
            raise other_version(version, "")
        text = self.found[_HEAD.size :]
        return _fields(text) if len(text) >= length else None


@dataclass(eq=False)
class Reception:
    """Waits for peers that connect to this end.

    Who has not shown the key can hold a bounded number of connections, each for a bounded time
    with a bounded number of bytes, and nothing that it sends ends the wait.

    Args:
        listeners: sockets that listen.
        expected: who has to come, by rank.
    """

    own: Address
    listeners: Sequence[socket.socket]
    expected: Mapping[int, Address]
    came: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])
    refusals: list[str] = field(default_factory=list[str])
    # By descriptor, the oldest first.
    _strangers: dict[int, _Stranger] = field(init=False, default_factory=dict[int, _Stranger])
    _not_named: int = field(init=False, default=0)

    def wait(
        self,
        deadline: float,
        given_up: Callable[[], bool] = lambda: False,
        least: int | None = None,
    ) -> dict[int, socket.socket]:
        """The streams of all that are expected. Others are refused, and keep nobody waiting.

        Args:
            least: so many are enough.
            given_up: asked again and again; whether nobody needs them any more.

        Raises:
            TransportError: somebody did not come in time, or they were given up.
        """
        wanted = len(self.expected) if least is None else min(least, len(self.expected))
        with selectors.DefaultSelector() as selector:
            for listener in self.listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            try:
                while len(self.came) < wanted:
                    left = deadline - time.monotonic()
                    if given_up():
                        raise TransportError(f"{self.own.title} was closed")
                    if left <= 0:
                        raise self._late()
                    for key, _ in selector.select(min(left, _LOOK_SECONDS)):
                        if key.fd in self._strangers:
                            self._hear(selector, self._strangers[key.fd])
                        elif key.fileobj in self.listeners:  # Else it was refused meanwhile.
                            self._accept(selector, key.fileobj)
                    self._refuse_slow(selector)
            except BaseException:
                for stream in self.came.values():
                    stream.close()
                raise
            finally:
                for stranger in self._strangers.values():
                    stranger.stream.close()
                self._strangers.clear()
        return self.came

    def _accept(self, selector: selectors.BaseSelector, listener: Any) -> None:
        if len(self._strangers) >= len(self.expected) + _MOST_STRANGERS:
            self._make_room(selector)
        try:
            stream, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room(selector):
                time.sleep(_LOOK_SECONDS)  # Others of this process have all files open.
            return  # Gone again.
        name = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local process"
        stranger = _Stranger(stream, name, time.monotonic() + _GREETING_SECONDS)
        try:
            stream.setblocking(False)
            _check_user(stream)
            if self.own.tls and stream.family != socket.AF_UNIX:
                stream = stranger.stream = TlsStream(stream, self.own.key, listening=True)
        except (OSError, TransportError) as error:
            self._refuse(stranger, error)
            return
        self._strangers[stream.fileno()] = stranger
        selector.register(stream, selectors.EVENT_READ)
        self._hear(selector, stranger)  # Most have greeted by now.

    def _hear(self, selector: selectors.BaseSelector, stranger: _Stranger) -> None:
        refused: Exception | None = None
        try:
            greeting = stranger.read()
            if greeting is None:
                return
            self._admit(stranger.stream, greeting)
        except BlockingIOError:
            return
        except Exception as error:  # Whatever it sends ends its own connection only.
            refused = error
        self._forget(selector, stranger)
        if refused is not None:
            self._refuse(stranger, refused)

    def _forget(self, selector: selectors.BaseSelector, stranger: _Stranger) -> None:
        del self._strangers[stranger.stream.fileno()]
        selector.unregister(stranger.stream)

    def _refuse(self, stranger: _Stranger, error: Exception) -> None:
        if isinstance(error, OSError):
            why = error.strerror or str(error)
        else:
            why = error.what if isinstance(error, TransportError) else "its greeting is damaged"
        if len(self.refusals) < _MOST_REFUSALS:
            self.refusals.append(f"{stranger.name}: {why}")
        else:
            self._not_named += 1
        stream = stranger.stream
        with suppress(OSError):  # It has gone.
            if isinstance(stream, TlsStream) and not stream.is_secure:
                stream.send_in_clear(_greeting(refused=why))
            else:
                stream.send(_greeting(refused=why))
        stranger.stream.close()

    def _refuse_slow(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for stranger in [s for s in self._strangers.values() if s.deadline < now]:
            self._forget(selector, stranger)
            self._refuse(stranger, TransportError(f"no greeting for {_GREETING_SECONDS:g} s"))

    def _make_room(self, selector: selectors.BaseSelector) -> bool:
        """Refuses the oldest connection that has not greeted; false if there is none."""
        for stranger in self._strangers.values():
            self._forget(selector, stranger)
            self._refuse(stranger, TransportError("too many connect and do not greet"))
            return True
        return False

    def _admit(self, stream: socket.socket, greeting: Mapping[str, Any]) -> None:
        """Takes a peer in.

        Raises:
            TransportError: why not.
        """
        if not _is_key(greeting.get("yours"), self.own.key):
            raise TransportError(f"it does not know {self.own.title}'s key")
        rank = greeting.get("rank")
        peer = self.expected.get(rank) if isinstance(rank, int) else None
        if peer is None or not _is_key(greeting.get("own"), peer.key):
            said = f"rank {rank}" if peer is None else peer.title
            raise TransportError(f"it says that it is {said}, and is not")
        if peer.rank in self.came:
            raise TransportError(f"{peer.title} is there already")
        stream.setblocking(True)
        set_options(stream)
        stream.sendall(_greeting(own=self.own.key))
        self.came[peer.rank] = stream

    def _late(self) -> TransportError:
        missing = sorted(set(self.expected) - set(self.came))
        names = ", ".join(self.expected[rank].title for rank in missing)
        more = f" and {self._not_named} more" if self._not_named else ""
        refused = f"; refused: {', '.join(self.refusals)}{more}" if self.refusals else ""
        return TransportError(
            f"{names} did not connect to {self.own.title} in time{refused}",
            fix="start all workers, and open the way between their hosts",
            peer=missing[0],
        )


# Messages to and from peers over stream sockets, each reached in the best way that there is.

_SCRATCH = 1 << 16
_SMALL = 1 << 14  # Bytes that are copied behind their header, to be sent with one call.
_DATA, _BLOCK = int(Kind.DATA), int(Kind.BLOCK)
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_view: Any = memoryview  # NumPy's types do not say that arrays have memory to view.
_WAITING = int(socket.MSG_NOSIGNAL)
_WHOLE = int(socket.MSG_WAITALL)
_SECONDS_TO_LEAVE = 10.0


@dataclass(eq=False)
class _Queued:
    """What the writing thread sends when the socket has room."""

    parts: list[bytes | memoryview]
    files: list[int]
    is_taken: bool = False  # By that thread, which closes the files.


class Connection:
    """One peer. Small messages are written by the thread that sends them.

    What the socket has no room for is left to a thread, which is started when it is first needed.

    Args:
        stream: connected to the peer; closed by `close`.
        pool: memory for data that comes through the socket.
        blocks: for large data, if the peer can map this process's memory.
    """

    def __init__(
        self,
        rank: int,
        peer: int,
        stream: socket.socket,
        pool: MemoryPool,
        blocks: SharedBlocks | None = None,
    ) -> None:
        self.peer = peer
        self.stream = stream
        self.mailbox: Mailbox = Mailbox(peer, self._read)
        self._rank = rank
        self._pool = pool
        self._blocks = blocks
        self._lock = Lock()  # Of all that concerns sending.
        self._failure: TransportError | None = None
        self._queue: deque[_Queued] = deque()
        self._more = Event()
        self._writer: Thread | None = None
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._begin = self._end = 0  # Of what was read into it and not looked at.
        self._files: deque[int] = deque()

    @property
    def failure(self) -> TransportError | None:
        """Why nothing can be sent any more, if so."""
        return self._failure

    # --- Sending -------------------------------------------------------------------------------

    def send(self, tag: int, said: bytes, data: Array) -> None:
        """Sends an array with what is said of it; afterwards the array may change.

        It never waits for the receiver: what is not taken at once is copied.
        """
        if self._failure is not None:
            raise self._cannot_send(tag, self._failure)
        size = data.nbytes
        loan = self._blocks.lend(size) if self._blocks is not None else None
        parts: list[bytes | memoryview]
        if loan is not None:
            np.copyto(shaped(loan.memory[:size], data.shape, data.dtype), data)
            parts = [frame(Kind.BLOCK, tag, size, loan.number, said)]
        elif size <= _SMALL:
            parts = [frame(Kind.DATA, tag, size, 0, said) + data.tobytes()]
        else:
            parts = [frame(Kind.DATA, tag, size, 0, said), _view(as_bytes(data))]
        with self._lock:
            if self._failure is not None:
                raise self._cannot_send(tag, self._failure)
            news, files = self._blocks.news() if self._blocks is not None else (b"", [])
            if news:
                parts.insert(0, news)
            lost: TransportError | None = None
            if not self._queue:
                try:
                    parts = send_some(self.stream, parts, files, _AT_ONCE)
                except BlockingIOError:
                    pass
                except OSError as error:
                    close_files(files)
                    lost = self._lost(error)
                if not parts:
                    return
            if lost is None:
                self._write_later(parts, files)
                return
        self.hang_up(lost)
        raise self._cannot_send(tag, lost)

    def _write_later(self, parts: list[bytes | memoryview], files: list[int]) -> None:
        self._queue.append(_Queued([self._copy(part) for part in parts], files))
        if self._writer is None:
            name = f"alpa-mlir-send-{self._rank}-{self.peer}"
            self._writer = Thread(target=self._write_queued, name=name, daemon=True)
            self._writer.start()
        self._more.set()

    def _copy(self, part: bytes | memoryview) -> bytes | memoryview:
        if isinstance(part, bytes):
            return part
        copy = self._pool.take(part.nbytes)
        copy[:] = np.frombuffer(part, np.uint8)
        return _view(copy)

    def _write_queued(self) -> None:
        """The writing thread: blocks in the socket, where it needs no interpreter lock."""
        while True:
            self._more.wait()
            with self._lock:
                if self._failure is not None:
                    return
                if not self._queue:
                    self._more.clear()
                    continue
                item = self._queue[0]
                item.is_taken = True
            parts = item.parts
            try:
                while parts:
                    parts = send_some(self.stream, parts, item.files, _WAITING)
            except OSError as error:
                self.hang_up(self._lost(error))
                return
            finally:
                close_files(item.files)  # Those that were sent are closed already.
            with self._lock:
                if self._queue and self._queue[0] is item:
                    self._queue.popleft()

    def _lost(self, error: OSError) -> TransportError:
        return TransportError(
            f"rank {self.peer} is gone ({error.strerror or error})", peer=self.peer
        )

    def _cannot_send(self, tag: int, failure: TransportError) -> TransportError:
        return failure.at(f"tag {tag} to rank {self.peer}")

    # --- Receiving -----------------------------------------------------------------------------

    def _read(self, tag: int, said: bytes, size: int) -> tuple[int, Message]:
        """Waits for a message, and takes nothing behind it; see Mailbox."""
        try:
            if self._begin == self._end and size <= _SMALL:
                message = self._read_wanted(tag, said, size)
                if message is not None:
                    return tag, message
            while True:
                if self._end - self._begin < HEADER.size:
                    self._fill(HEADER.size)
                kind, length, block, tag, size = HEADER.unpack_from(self._scratch, self._begin)
                if self._end - self._begin < HEADER.size + length:
                    self._fill(HEADER.size + length)
                begin = self._begin + HEADER.size
                self._begin = begin + length
                said = self._scratch[begin : self._begin].tobytes()
                if kind == _DATA:
                    return tag, Message(said, self._read_payload(size))
                if self._blocks is None:
                    raise self._nonsense(kind)
                if kind == _BLOCK:
                    return tag, Message(said, self._blocks.borrow(block, size))
                if kind == Kind.NEW_BLOCK and self._files:
                    self._blocks.map(block, tag, size, self._files.popleft())
                elif kind == Kind.DROP_BLOCK:
                    self._blocks.unmap(block)
                else:
                    raise self._nonsense(kind)
        except OSError as error:
            raise self._lost(error) from None

    def _read_wanted(self, tag: int, said: bytes, size: int) -> Message | None:
        """Waits for a small message with all prepared that is done with it, should it be the one
        that is wanted; else, what was read lies in the scratch memory."""
        wanted = frame(Kind.DATA, tag, size, 0, said)
        data = self._pool.take(size)
        head, payload = self._scratch[: len(wanted)], _view(data)
        count = receive_some(self.stream, [head, payload], self._files)
        if count == len(wanted) + size and bytes(head) == wanted:
            return Message(said, data)
        self._check_alive(count)
        self._begin, self._end = 0, count
        if count > len(wanted):
            self._scratch[len(wanted) : count] = payload[: count - len(wanted)]
        return None

    def _nonsense(self, kind: int) -> TransportError:
        return TransportError(f"rank {self.peer} sent a frame of kind {kind}", peer=self.peer)

    def _fill(self, wanted: int) -> None:
        """Reads until `wanted` bytes lie in the scratch memory."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin + max(wanted, HEADER.size) > _SCRATCH:
            left = self._end - self._begin
            self._scratch[:left] = self._scratch[self._begin : self._end]
            self._begin, self._end = 0, left
        while self._end - self._begin < wanted:
            room = self._scratch[self._end :]
            if self._blocks is None:
                count = self.stream.recv_into(room)
            else:
                count = receive_some(self.stream, [room], self._files)
            self._check_alive(count)
            self._end += count

    def _check_alive(self, count: int) -> None:
        if count == 0:
            raise self._failure or TransportError(f"rank {self.peer} is gone", peer=self.peer)

    def _read_payload(self, size: int) -> Bytes:
        data = self._pool.take(size)
        there = min(size, self._end - self._begin)
        view = _view(data)
        view[:there] = self._scratch[self._begin : self._begin + there]
        self._begin += there
        while there < size:
            count = self.stream.recv_into(view[there:], 0, _WHOLE)
            self._check_alive(count)
            there += count
        return data

    # --- The end -------------------------------------------------------------------------------

    def hang_up(self, error: TransportError) -> None:
        """Nothing can be sent any more; what came before can still be received."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            for item in self._queue:
                if not item.is_taken:  # Else their numbers are in use, and not for other files.
                    close_files(item.files)
            self._queue.clear()
            self._more.set()
        if self._blocks is not None:
            close_files(self._blocks.take_back())

    def close(self) -> None:
        """Ends the connection; threads that wait in it raise."""
        error = TransportError(f"rank {self._rank} was closed")
        self.hang_up(error)
        self.mailbox.fail(error)
        with suppress(OSError):  # The peer was faster.
            self.stream.shutdown(socket.SHUT_RDWR)  # Wakes who reads or writes.
        if self._writer is not None:
            self._writer.join(_SECONDS_TO_LEAVE)
        # The number of a closed socket may soon be that of another file: nobody must be in it.
        if self.mailbox.reading.acquire(timeout=_SECONDS_TO_LEAVE):
            close_files(self._files)
            self.stream.close()
            if self._blocks is not None:
                self._blocks.forget()
            self.mailbox.reading.release()


KINDS = ("shared_memory", "tcp")
_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class _SocketTransport:
    """One end. It has no threads but those that write what sockets have no room for."""

    def __init__(
        self,
        rank: int,
        ip: str,
        kinds: Collection[str],
        shared_bytes: int,
        idle_bytes: int,
        connect_seconds: float,
        encrypt: bool,
    ) -> None:
        self.rank = rank
        self._connect_seconds = connect_seconds
        self._budget = Budget(shared_bytes)
        self._pool = MemoryPool(idle_bytes)
        self._lock = Lock()
        self._closed = False
        self._size = 0
        self._connections: dict[int, Connection] = {}
        self._connected = False
        local = "shared_memory" in kinds and can_share()
        self._own, self._listeners = listen(
            rank, ip, local=local, tcp="tcp" in kinds, encrypt=encrypt
        )

    def address(self) -> str:
        return self._own.to_text()

    def connect(self, addresses: Sequence[str]) -> None:
        with self._lock:
            if self._closed or self._size:
                state = "closed" if self._closed else "connected already"
                raise TransportError(f"rank {self.rank} is {state}")
            ends = [Address.from_text(text, rank) for rank, text in enumerate(addresses)]
            if not 0 <= self.rank < len(ends) or ends[self.rank] != self._own:
                raise TransportError(
                    f"the addresses of {len(ends)} ranks do not have this end's as rank {self.rank}"
                )
            self._size = len(ends)
        deadline = time.monotonic() + self._connect_seconds
        streams: dict[int, socket.socket] = {}
        made: dict[int, Connection] = {}
        try:
            for peer in ends[: self.rank]:
                streams[peer.rank] = dial(self._own, peer, deadline)
            expected = {end.rank: end for end in ends[self.rank + 1 :]}
            reception = Reception(self._own, tuple(self._listeners), expected)
            streams |= reception.wait(deadline, lambda: self._closed)
            for peer, stream in streams.items():
                made[peer] = self._connection(peer, stream)
            with self._lock:
                if self._closed:
                    raise TransportError(f"rank {self.rank} was closed")
                self._connections, self._connected = made, True
        except BaseException as error:
            for connection in made.values():
                connection.close()
            for stream in streams.values():
                stream.close()
            if self._closed and isinstance(error, Exception):  # What else fails follows from that.
                raise TransportError(f"rank {self.rank} was closed") from None
            self.close()
            raise
        self._stop_listening()

    def _connection(self, peer: int, stream: socket.socket) -> Connection:
        local = stream.family == socket.AF_UNIX
        blocks = SharedBlocks(self._budget) if local else None
        return Connection(self.rank, peer, stream, self._pool, blocks)

    def _to(self, peer: int) -> Connection:
        connection = self._connections.get(peer)
        if connection is None:
            if self._closed:
                raise TransportError(f"rank {self.rank} was closed")
            if not self._connected:
                raise TransportError(f"rank {self.rank} is not connected")
            check_peer(self.rank, peer, self._size)
            raise AssertionError("a peer without a connection")
        return connection

    def send(self, to: int, tag: int, data: Array) -> Sending:
        connection = self._to(to)
        check_tag(tag)
        connection.send(tag, description(data.shape, data.dtype), data)
        return DONE

    def receive(self, source: int, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        connection = self._to(source)
        check_tag(tag)
        return connection.mailbox.receive(tag, shape, dtype)

    def failed(self) -> frozenset[int]:
        connections = {c.stream.fileno(): c for c in list(self._connections.values())}
        poll = select.poll()
        for number, connection in connections.items():
            if number >= 0 and connection.failure is None:
                poll.register(number, _HUNG_UP)
        for number, _ in poll.poll(0):
            peer = connections[number].peer
            connections[number].hang_up(TransportError(f"rank {peer} is gone", peer=peer))
        failures = (connection.failure for connection in connections.values())
        return frozenset(f.peer for f in failures if f is not None and f.peer is not None)

    def _stop_listening(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop_listening()
        for connection in self._connections.values():
            connection.close()


def make_transport(
    rank: int,
    *,
    ip: str = "",
    kinds: Collection[str] = KINDS,
    shared_bytes: int = 1 << 31,
    idle_bytes: int = 1 << 30,
    connect_seconds: float = 60.0,
    encrypt: bool = False,
) -> Transport:
    """One end, to be connected to those of other processes.

    Peers on the same host get large data through shared memory, all others through TCP.

    Args:
        rank: this end's number, counted from 0.
        ip: address of this host for workers on others; by default that of the default route.
        kinds: what may be used, of `KINDS`.
        shared_bytes: the most shared memory that this end lends; beyond it, data goes through
            sockets, which is slower.
        idle_bytes: the most memory that is kept for data that comes through sockets.
        connect_seconds: how long `connect` waits for the others.
        encrypt: speak TLS over TCP; the same at all ends.

    Raises:
        TransportError: an unknown kind, nobody can listen on `ip`, or TLS needs the program
            `openssl`.

    Example:
        >>> end = make_transport(0)
        >>> end.connect([end.address()])  # A world of one.
        >>> end.close()
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise TransportError(f"kinds {unknown or '[]'}, expected some of {list(KINDS)}")
    return _SocketTransport(
        rank, ip or own_ip(), kinds, shared_bytes, idle_bytes, connect_seconds, encrypt
    )
