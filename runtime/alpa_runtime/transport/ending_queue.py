"""A queue between those who ask for something and the thread that does it, with an end."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

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
