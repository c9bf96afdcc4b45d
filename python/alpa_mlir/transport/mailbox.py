"""Messages of one source: kept until they are asked for, handed to threads that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from alpa_mlir.errors import TransportError
from alpa_mlir.transport.interface import Array, Bytes, check_message
from alpa_mlir.transport.memory import shaped


@dataclass(frozen=True, eq=False)
class Message:
    """Data as it came, and what its sender said of it."""

    description: bytes
    data: Bytes


def _closed_gate() -> Any:
    gate = Lock()
    gate.acquire()
    return gate


@dataclass(eq=False)
class _Waiter:
    """A thread that waits for a message."""

    tag: int
    gate: Any = field(default_factory=_closed_gate)  # Opened when there is something to look at.
    message: Message | None = None
    reads: bool = False


class Mailbox:
    """What one source sent, in order for each tag.

    Where messages have to be read from somewhere, a thread that waits for one does it, so that none
    has to be woken up; other threads that wait get theirs from it, and one of them reads on when it
    has its own.

    Args:
        read: waits for something from the source, and delivers it. Called by one thread at a time.
            Raises a TransportError when nothing more will come. None if others deliver.
    """

    def __init__(self, source: int, read: Callable[[], None] | None = None) -> None:
        self.source = source
        self.failure: TransportError | None = None
        self._read = read
        self.reading = Lock()  # Held by, or for, the thread that reads.
        self._lock = Lock()
        self._queues: dict[int, deque[Message]] = {}
        self._waiting: dict[int, deque[_Waiter]] = {}

    def deliver(self, tag: int, message: Message) -> None:
        """Keeps a message, or hands it to the first thread that waits for it."""
        with self._lock:
            if waiting := self._waiting.get(tag):
                waiter = waiting[0]
                self._remove(waiter)
                waiter.message = message
                _open(waiter)
            else:
                self._queues.setdefault(tag, deque()).append(message)

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
        message = self._next(tag)
        check_message(message.description, shape, dtype, self.source, tag)
        return shaped(message.data, shape, dtype)

    def _next(self, tag: int) -> Message:
        with self._lock:
            if queue := self._queues.get(tag):
                message = queue.popleft()
                if not queue:
                    del self._queues[tag]
                return message
            if self.failure is not None:
                raise self._failed(tag, self.failure)
            waiter = _Waiter(tag)
            self._waiting.setdefault(tag, deque()).append(waiter)
            if self._read is not None:
                waiter.reads = self.reading.acquire(blocking=False)
        try:
            self._wait(waiter)
        except BaseException:  # Such as KeyboardInterrupt: a message must not go to nobody.
            with self._lock:
                self._remove(waiter)
                if waiter.message is not None:
                    self._queues.setdefault(tag, deque()).appendleft(waiter.message)
            raise
        finally:
            if waiter.reads:
                self._hand_over()
        if waiter.message is not None:
            return waiter.message
        assert self.failure is not None
        raise self._failed(tag, self.failure)

    def _wait(self, waiter: _Waiter) -> None:
        """Returns when the waiter has its message, or when nothing more will come."""
        while waiter.message is None and self.failure is None:
            if not waiter.reads:
                waiter.gate.acquire()
                continue
            assert self._read is not None
            try:
                self._read()
            except TransportError as error:
                self.fail(error)
            except BaseException:
                # Nobody knows how much of a message was read.
                self.fail(TransportError("reading was interrupted", peer=self.source))
                raise

    def _hand_over(self) -> None:
        """Lets another thread that waits read on."""
        with self._lock:
            for queue in self._waiting.values():
                queue[0].reads = True
                _open(queue[0])
                return
            self.reading.release()

    def _remove(self, waiter: _Waiter) -> None:
        queue = self._waiting.get(waiter.tag)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[waiter.tag]

    def _failed(self, tag: int, failure: TransportError) -> TransportError:
        where = f"tag {tag} from rank {self.source}"
        return TransportError(failure.what, where=where, peer=failure.peer)


def _open(waiter: _Waiter) -> None:
    """Wakes a waiter. Called with the mailbox locked, so nobody else opens the gate meanwhile."""
    if waiter.gate.locked():
        waiter.gate.release()
