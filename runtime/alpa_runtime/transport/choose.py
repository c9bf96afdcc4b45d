"""An end that reaches each of its peers in the best way that there is."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Collection, Sequence
from threading import Lock
from typing import Any

import numpy as np

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.address import Address, own_ip
from alpa_runtime.transport.connection import Connection
from alpa_runtime.transport.handshake import Reception, dial, listen
from alpa_runtime.transport.interface import (
    DONE,
    Array,
    Sending,
    Transport,
    check_peer,
    check_tag,
    description,
)
from alpa_runtime.transport.memory import MemoryPool
from alpa_runtime.transport.shared_memory import Budget, SharedBlocks, can_share

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
        self._own, self._listeners = listen(rank, ip, local=local, tcp="tcp" in kinds)

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

    Raises:
        TransportError: an unknown kind, or nobody can listen on `ip`.

    Example:
        >>> end = make_transport(0)
        >>> end.connect([end.address()])  # A world of one.
        >>> end.close()
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise TransportError(f"kinds {unknown or '[]'}, expected some of {list(KINDS)}")
    return _SocketTransport(rank, ip or own_ip(), kinds, shared_bytes, idle_bytes, connect_seconds)
