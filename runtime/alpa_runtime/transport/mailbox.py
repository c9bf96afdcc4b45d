"""Messages of one source: kept until they are asked for, handed to threads that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import prod
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.interface import Array, check_message, description
from alpa_runtime.transport.memory import shaped


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
