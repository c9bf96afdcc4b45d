"""What moves arrays between workers: the contract that every transport keeps, its messages, and
ends in threads of one process, the reference for the others.

NumPy and the standard library only: a transport knows host memory, not devices. Arrays of a GPU
come as `np.asarray` of a shard and go to `jax.device_put` on the other side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from threading import Lock
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import numpy as np

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.shared_memory import Array, MemoryPool, shaped


class Sending(Protocol):
    """A message on its way out. It gets done whether or not its receiver asks for it: programs may
    wait for it before they run what the receiver waits for."""

    @property
    def done(self) -> bool:
        """Whether the data may be changed or donated: the transport needs it no more."""
        ...

    def wait(self) -> None:
        """Returns when `done`.

        Raises:
            TransportError: the receiver is gone, or this end was closed, before all was taken.
        """
        ...


class Transport(Protocol):
    """One end of a network of workers, numbered by rank. Any thread may call any method."""

    rank: int

    def address(self) -> str:
        """What the other ends need to reach this one; text that any of them understands."""
        ...

    def connect(self, addresses: Sequence[str]) -> None:
        """Connects to all others; every end calls it once, before it sends or receives.

        Args:
            addresses: of all ranks in their order, this one's included.

        Raises:
            TransportError: an end cannot be reached, is another one than its address says, or
                speaks another version of the protocol.
        """
        ...

    def send(self, to: int, tag: int, data: Array) -> Sending:
        """Sends an array of any shape. Never waits for the receiver; may copy the data first.

        Args:
            tag: 0 to 2**64 - 1. Messages of one sender and tag arrive in the order of the calls.
            data: must not change before the returned `Sending` is done.

        Raises:
            TransportError: the receiver is known to be gone, `to` is not another rank, the tag is
                out of range, or the dtype is not one of numbers in this machine's byte order.
        """
        ...

    def receive(self, source: int, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Waits, without the interpreter lock, for the next message of `source` with `tag`.

        Returns:
            An array of that shape and dtype, writable and 64-byte aligned, so that JAX on the CPU
            takes it without a copy. Its memory is used again only when the array, its views and all
            that aliases them, such as a jax.Array, are gone.

        Raises:
            TransportError: the message has another shape or dtype (both are named), the source is
                gone and left no such message (`peer` is its rank), or this end was closed.
        """
        ...

    def failed(self) -> frozenset[int]:
        """Ranks that are known to be gone, whether they were closed or died.

        One whose bytes still wait to be received may become known only as they are.
        """
        ...

    def close(self) -> None:
        """Ends the connections; calls that wait raise a TransportError. May be called again."""
        ...


class _Done:
    done = True

    def wait(self) -> None:
        pass


DONE: Sending = _Done()  # Of data that was copied when `send` returned.


@lru_cache(maxsize=4096)
def description(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """What a message says of its data, such as b"bfloat16[4, 64]".

    Raises:
        TransportError: the dtype has Python objects, fields, text, or another byte order.
    """
    numbers = dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)
    if not numbers or not dtype.isnative:  # bfloat16 and its like are of kind V.
        raise TransportError(
            f"an array of dtype {dtype!s} cannot be sent",
            fix="send numbers in this machine's byte order",
        )
    return f"{dtype.name}[{', '.join(map(str, shape))}]".encode()


def check_message(found: bytes, wanted: bytes, source: int, tag: int) -> None:
    """Raises a TransportError if a message is not described as its receiver expects."""
    if found != wanted:
        raise TransportError(
            f"the message is {found.decode(errors='replace')}, expected {wanted.decode()}",
            where=f"tag {tag} from rank {source}",
            fix="load the same plan in all workers",
            peer=source,
        )


def check_peer(rank: int, peer: int, size: int) -> None:
    """Raises a TransportError unless `peer` is another of `size` ranks."""
    if peer == rank or not 0 <= peer < size:
        raise TransportError(f"rank {rank} has no peer {peer} among {size} ranks")


def check_tag(tag: int) -> None:
    """Raises a TransportError unless a tag fits in 64 bits."""
    if not 0 <= tag < 1 << 64:
        raise TransportError(f"tag {tag} is not in 0 to 2**64 - 1")


# Messages of one source: kept until they are asked for, handed to threads that wait.


class Message(NamedTuple):
    """What a sender said of its data, and the data: bytes as they came, or what waits for them."""

    description: bytes
    data: Any


Read = Callable[[int, bytes, int], tuple[int, Message]]


class _Waiter:
    """A thread that waits for another one to read."""

    __slots__ = ("gate", "message", "reads", "tag")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.message: Message | None = None
        self.reads = False  # Whether it shall read itself from now on.
        self.gate = Lock()  # Opened when there is something to look at.
        self.gate.acquire()


class Mailbox:
    """What one source sent, in order for each tag.

    Where messages have to be read from somewhere, a thread that waits for one does it, so that none
    has to be woken up; other threads that wait get theirs from it, and one of them reads on when it
    has its own. The thread that reads is always the first of those that wait for its tag.

    Args:
        read: waits for a message of the source, and returns it with its tag. Called by one thread
            at a time, with tag, description and bytes of the message that the thread waits for.
            Raises a TransportError when nothing more will come. None if others deliver.
    """

    def __init__(self, source: int, read: Read | None = None) -> None:
        self.source = source
        self.failure: TransportError | None = None
        self._read = read
        self.reading: Lock = Lock()  # Held by, or for, the thread that reads.
        self._lock = Lock()
        self._queues: dict[int, deque[Message]] = {}
        self._waiting: dict[int, deque[_Waiter]] = {}

    def deliver(self, tag: int, message: Message) -> None:
        """Keeps a message, or hands it to the first thread that waits for it."""
        with self._lock:
            if not self._given(tag, message):
                self._queues.setdefault(tag, deque()).append(message)

    def _given(self, tag: int, message: Message) -> bool:
        waiting = self._waiting.get(tag)
        if not waiting:
            return False
        waiter = waiting[0]
        self._remove(waiter)
        waiter.message = message
        _open(waiter)
        return True

    def fail(self, error: TransportError) -> None:
        """Nothing more will come: threads that wait raise this, and so do later ones."""
        with self._lock:
            if self.failure is None:
                self.failure = error
            for queue in self._waiting.values():
                for waiter in queue:
                    _open(waiter)
            self._waiting.clear()

    def receive(self, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Waits for the next message with a tag; see `Transport.receive`."""
        return shaped(self.take(tag, shape, dtype), shape, dtype)

    def take(self, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """The data of the next message with a tag, as it was delivered; else like `receive`."""
        said = description(shape, dtype)
        message = self._next(tag, said, prod(shape) * dtype.itemsize)
        check_message(message.description, said, self.source, tag)
        return message.data

    def _next(self, tag: int, said: bytes, size: int) -> Message:
        waiter = None
        with self._lock:
            if queue := self._queues.get(tag):
                message = queue.popleft()
                if not queue:
                    del self._queues[tag]
                return message
            if self.failure is not None:
                raise self._failed(tag)
            if self._read is None or not self.reading.acquire(False):
                waiter = _Waiter(tag)
                self._waiting.setdefault(tag, deque()).append(waiter)
        if waiter is not None:
            self._wait(waiter)
            if waiter.message is not None:
                return waiter.message
            if not waiter.reads:
                raise self._failed(tag)
        try:
            return self._read_until(tag, said, size)
        finally:
            self._hand_over()

    def _wait(self, waiter: _Waiter) -> None:
        """Returns when there is a message, the waiter shall read, or nothing will come."""
        try:
            waiter.gate.acquire()
        except BaseException:  # Such as KeyboardInterrupt: what it was given is for the next one.
            with self._lock:
                self._remove(waiter)
                if waiter.message is not None and not self._given(waiter.tag, waiter.message):
                    self._queues.setdefault(waiter.tag, deque()).appendleft(waiter.message)
            if waiter.reads:
                self._hand_over()
            raise

    def _read_until(self, tag: int, said: bytes, size: int) -> Message:
        """Reads until there is a message with the tag; others are delivered."""
        assert self._read is not None
        while self.failure is None:
            try:
                found, message = self._read(tag, said, size)
            except TransportError as error:
                self.fail(error)
            except BaseException:
                # Nobody knows how much of a message was read.
                self.fail(TransportError("reading was interrupted", peer=self.source))
                raise
            else:
                if found == tag:
                    return message
                self.deliver(found, message)
        raise self._failed(tag)

    def _hand_over(self) -> None:
        """Lets another thread that waits read on."""
        with self._lock:
            for queue in self._waiting.values():
                waiter = queue[0]
                self._remove(waiter)
                waiter.reads = True
                _open(waiter)
                return
            self.reading.release()

    def _remove(self, waiter: _Waiter) -> None:
        queue = self._waiting.get(waiter.tag)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[waiter.tag]

    def _failed(self, tag: int) -> TransportError:
        assert self.failure is not None
        return self.failure.at(f"tag {tag} from rank {self.source}")


def _open(waiter: _Waiter) -> None:
    """Wakes a waiter. Called with the mailbox locked, so nobody else opens the gate meanwhile."""
    if waiter.gate.locked():
        waiter.gate.release()


# Ends in threads of one process: for workers that share it, and the reference for the others.


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
