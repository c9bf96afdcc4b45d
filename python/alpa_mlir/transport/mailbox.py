"""Messages of one source: kept until they are asked for, handed to threads that wait."""

from __future__ import annotations

from collections import deque
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
class Waiter:
    """A thread that waits for a message."""

    tag: int
    gate: Any = field(default_factory=_closed_gate)  # Opened when there is something to look at.
    message: Message | None = None


class Mailbox:
    """What one source sent, in order for each tag."""

    def __init__(self, source: int) -> None:
        self.source = source
        self.lock = Lock()
        self.failure: TransportError | None = None
        self._queues: dict[int, deque[Message]] = {}
        self._waiting: dict[int, deque[Waiter]] = {}

    def deliver(self, tag: int, message: Message) -> None:
        """Keeps a message, or hands it to the first thread that waits for it."""
        with self.lock:
            if waiting := self._waiting.get(tag):
                waiter = waiting.popleft()
                if not waiting:
                    del self._waiting[tag]
                waiter.message = message
                waiter.gate.release()
            else:
                self._queues.setdefault(tag, deque()).append(message)

    def fail(self, error: TransportError) -> None:
        """Nothing more will come: threads that wait raise this, and so do later ones."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
            waiting = [waiter for queue in self._waiting.values() for waiter in queue]
            self._waiting.clear()
        for waiter in waiting:
            waiter.gate.release()

    def receive(self, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Waits for the next message with a tag; see `Transport.receive`."""
        message = self._next(tag)
        check_message(message.description, shape, dtype, self.source, tag)
        return shaped(message.data, shape, dtype)

    def _next(self, tag: int) -> Message:
        with self.lock:
            if queue := self._queues.get(tag):
                message = queue.popleft()
                if not queue:
                    del self._queues[tag]
                return message
            if self.failure is None:
                waiter = Waiter(tag)
                self._waiting.setdefault(tag, deque()).append(waiter)
            else:
                waiter = None
        if waiter is not None:
            self.wait(waiter)
            if waiter.message is not None:
                return waiter.message
        assert self.failure is not None
        raise TransportError(
            self.failure.what, where=f"tag {tag} from rank {self.source}", peer=self.failure.peer
        )

    def wait(self, waiter: Waiter) -> None:
        """Returns when the waiter has its message, or when nothing more will come."""
        waiter.gate.acquire()
