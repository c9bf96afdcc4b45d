"""Ends in threads of one process: for workers that share it, and the reference for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.interface import (
    DONE,
    Array,
    Sending,
    Transport,
    check_peer,
    check_tag,
    description,
)
from alpa_runtime.transport.mailbox import Mailbox, Message
from alpa_runtime.transport.memory import MemoryPool, shaped


class _End:
    """One of the ends. A message is copied when it is sent: its sender may donate the original."""

    def __init__(self, rank: int, size: int, world: str, pool: MemoryPool) -> None:
        self.rank = rank
        self._world = world
        self._pool = pool
        self._from = [Mailbox(source) for source in range(size)]
        self._peers: Sequence[_End] = ()

    def join(self, ends: Sequence[_End]) -> None:
        """Makes the other ends known."""
        self._peers = ends

    def address(self) -> str:
        return f"in-process:{self._world}:{self.rank}"

    def connect(self, addresses: Sequence[str]) -> None:
        expected = [end.address() for end in self._peers]
        if list(addresses) != expected:
            raise TransportError(f"addresses {list(addresses)}, expected {expected}")

    def send(self, to: int, tag: int, data: Array) -> Sending:
        check_peer(self.rank, to, len(self._peers))
        check_tag(tag)
        said = description(data.shape, data.dtype)
        if (failure := self._from[to].failure) is not None:
            raise failure.at(f"tag {tag} to rank {to}")
        copy = self._pool.take(data.nbytes)
        np.copyto(shaped(copy, data.shape, data.dtype), data)
        self._peers[to].deliver(self.rank, tag, Message(said, copy))
        return DONE

    def deliver(self, source: int, tag: int, message: Message) -> None:
        """Takes a message that another end sends."""
        self._from[source].deliver(tag, message)

    def receive(self, source: int, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        check_peer(self.rank, source, len(self._peers))
        check_tag(tag)
        return self._from[source].receive(tag, shape, dtype)

    def failed(self) -> frozenset[int]:
        return frozenset(
            box.source
            for box in self._from
            if box.failure is not None and box.failure.peer == box.source
        )

    def fail(self, peer: int, error: TransportError) -> None:
        """Learns that nothing more will come from a peer."""
        self._from[peer].fail(error)

    def close(self) -> None:
        for peer in self._peers:
            self.fail(peer.rank, TransportError(f"rank {self.rank} was closed"))
            gone = TransportError(f"rank {self.rank} is gone", peer=self.rank)
            peer.fail(self.rank, gone)


def connect_in_process(size: int) -> list[Transport]:
    """Connected ends of `size` ranks, for threads of this process.

    Example:
        >>> first, second = connect_in_process(2)
        >>> first.send(1, 7, np.arange(3)).wait()
        >>> second.receive(0, 7, (3,), np.dtype("int64"))
        array([0, 1, 2])
    """
    world, pool = uuid4().hex, MemoryPool()
    ends = [_End(rank, size, world, pool) for rank in range(size)]
    for end in ends:
        end.join(ends)
    return list(ends)
