"""How an end is reached, and how two ends make sure of each other before anything else is sent."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.framing import PROTOCOL


@dataclass(frozen=True)
class Address:
    """One end.

    Attributes:
        key: random; who connects has to know it.
        host: of processes that can share memory; see `host_identity`.
        local: name of a socket on that host, or "" if the end shares no memory.
        ip, port: of a TCP socket, or "" and 0.
    """

    protocol: int
    rank: int
    key: str
    host: str
    local: str
    ip: str
    port: int

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
        except (ValueError, TypeError, KeyError):
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
            f"rank {self.rank} can reach rank {other.rank} neither by shared memory nor by TCP",
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
    """The same for two processes that see each other's local sockets: one boot of one machine, and
    one network namespace. Empty where there are no such sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
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
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TransportError("its greeting is damaged")
    return cast(dict[str, Any], found)


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
    if own.through(peer) == "local":
        stream, place = socket.socket(socket.AF_UNIX), f"\0{peer.local}"
        where = f"rank {peer.rank} on this host"
    else:
        family = socket.AF_INET6 if ":" in peer.ip else socket.AF_INET
        stream, place = socket.socket(family), (peer.ip, peer.port)
        where = f"rank {peer.rank} at {peer.ip}:{peer.port}"
    try:
        stream.settimeout(max(0.001, deadline - time.monotonic()))
        stream.connect(place)
        set_options(stream)
        stream.sendall(_greeting(rank=own.rank, own=own.key, yours=peer.key))
        version, length = _length(_exactly(stream, _HEAD.size))
        answer = _fields(_exactly(stream, length))
        if version != PROTOCOL:
            raise other_version(version, where, peer.rank)
        if refusal := answer.get("refused"):
            raise TransportError(f"refused this end: {refusal}", where=where, peer=peer.rank)
        if answer.get("own") != peer.key:
            raise TransportError("another end answers there", where=where, peer=peer.rank)
    except OSError as error:
        stream.close()
        raise TransportError(
            f"cannot be reached ({error.strerror or error})",
            where=where,
            fix="start all workers, and open the way between their hosts",
            peer=peer.rank,
        ) from None
    except TransportError as error:
        stream.close()
        raise TransportError(
            error.what, where=error.where or where, fix=error.fix, peer=peer.rank
        ) from None
    except BaseException:
        stream.close()
        raise
    stream.settimeout(None)
    return stream


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = stream.recv(size - len(found))
        if not more:
            raise TransportError("closed the connection while greeting")
        found += more
    return found


def listen(rank: int, ip: str, *, local: bool, tcp: bool) -> tuple[Address, list[socket.socket]]:
    """An end's address, with a key of its own, and the sockets that listen there.

    Args:
        local: peers on this host connect by a local socket, where there are such.
        tcp: others may connect, at `ip`; they may if there are no local sockets.

    Raises:
        TransportError: nobody can listen on `ip`.
    """
    key, host = secrets.token_hex(16), host_identity()
    name = f"alpa-mlir-{key}" if local and host else ""
    listeners: list[socket.socket] = []
    port = 0
    try:
        if name:
            listeners.append(socket.socket(socket.AF_UNIX))
            listeners[0].bind(f"\0{name}")  # Such a name lasts as long as the socket.
            listeners[0].listen(_BACKLOG)
        if tcp or not name:
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
    return Address(PROTOCOL, rank, key, host, name, ip if port else "", port), listeners


@dataclass(eq=False)
class _Stranger:
    """Somebody who has connected and not yet greeted."""

    stream: socket.socket
    name: str
    found: bytes = b""

    def read(self) -> dict[str, Any] | None:
        """The greeting, once it is whole.

        Raises:
            TransportError: it is none, or of another version.
        """
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

    Args:
        listeners: sockets that listen.
        expected: who has to come, by rank.
    """

    own: Address
    listeners: Sequence[socket.socket]
    expected: Mapping[int, Address]
    came: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])
    refusals: list[str] = field(default_factory=list[str])

    def wait(
        self, deadline: float, given_up: Callable[[], bool] = lambda: False
    ) -> dict[int, socket.socket]:
        """The streams of all that are expected. Others are refused, and keep nobody waiting.

        Args:
            given_up: asked again and again; whether nobody needs them any more.

        Raises:
            TransportError: somebody did not come in time, or they were given up.
        """
        with selectors.DefaultSelector() as selector:
            for listener in self.listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            try:
                while len(self.came) < len(self.expected):
                    left = deadline - time.monotonic()
                    if given_up():
                        raise TransportError(f"rank {self.own.rank} was closed")
                    if left <= 0:
                        raise self._late()
                    for key, _ in selector.select(min(left, _LOOK_SECONDS)):
                        self._look_at(selector, key)
            except BaseException:
                for stream in self.came.values():
                    stream.close()
                raise
            finally:
                for key in list(selector.get_map().values()):
                    if key.data is not None:
                        key.data.stream.close()
        return self.came

    def _look_at(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        stranger: _Stranger | None = key.data
        if stranger is None:
            listener: Any = key.fileobj
            try:
                stream, address = listener.accept()
            except OSError:
                return  # Gone again.
            stream.setblocking(False)
            name = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local process"
            selector.register(stream, selectors.EVENT_READ, _Stranger(stream, name))
            return
        refused = ""
        try:
            greeting = stranger.read()
            if greeting is None:
                return
            refused = self._admit(stranger.stream, greeting)
        except TransportError as error:
            refused = error.what
        except OSError as error:
            refused = error.strerror or str(error)
        selector.unregister(stranger.stream)
        if refused:
            self.refusals.append(f"{stranger.name}: {refused}")
            with suppress(OSError):  # It has gone.
                stranger.stream.send(_greeting(refused=refused))
            stranger.stream.close()

    def _admit(self, stream: socket.socket, greeting: Mapping[str, Any]) -> str:
        """Takes a peer in, or says why not."""
        rank = greeting.get("rank")
        peer = self.expected.get(rank) if isinstance(rank, int) else None
        if greeting.get("yours") != self.own.key:
            return f"it does not know rank {self.own.rank}'s key"
        if peer is None or greeting.get("own") != peer.key:
            return f"it says that it is rank {rank}, and is not"
        if peer.rank in self.came:
            return f"rank {rank} is there already"
        stream.setblocking(True)
        set_options(stream)
        stream.sendall(_greeting(own=self.own.key))
        self.came[peer.rank] = stream
        return ""

    def _late(self) -> TransportError:
        missing = sorted(set(self.expected) - set(self.came))
        refused = f"; refused: {', '.join(self.refusals)}" if self.refusals else ""
        return TransportError(
            f"ranks {missing} did not connect to rank {self.own.rank} in time{refused}",
            fix="start all workers, and open the way between their hosts",
            peer=missing[0],
        )
