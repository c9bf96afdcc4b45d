"""Host memory for received arrays: aligned, and used again once nothing aliases it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from ctypes import addressof, c_char
from threading import Lock
from typing import Any

import numpy as np

from alpa_runtime.transport.interface import Array, Bytes

ALIGNMENT = 64
_byte: Any = c_char
_SMALL = 1 << 16  # The allocator hands out less than this without new pages.


def _place(memory: Bytes) -> int:
    """Address of the first byte of an array that is not empty."""
    # A quarter of the time that NumPy's own ways take.
    return addressof(_byte.from_buffer(memory))


class _Lease:
    """Stands behind an array as its base: NumPy and JAX keep it as long as they keep an alias."""

    __slots__ = ("__array_interface__", "_give_back", "_memory")

    def __init__(self, memory: Bytes, size: int, give_back: Callable[[], None]) -> None:
        self._memory = memory
        self._give_back = give_back
        self.__array_interface__ = {
            "version": 3,
            "data": (_place(memory), False),
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        self._give_back()


def leased(memory: Bytes, size: int, give_back: Callable[[], None]) -> Bytes:
    """The first `size` bytes of a piece of memory.

    Args:
        give_back: called once when the array and all its aliases are gone, in any thread and at
            any moment: it must take no lock.
    """
    return np.asarray(_Lease(memory, size, give_back))


def shaped(data: Bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Bytes as an array of a shape and dtype."""
    return data.view(dtype).reshape(shape)


def as_bytes(data: Array) -> Bytes:
    """An array's bytes in row-major order; copies only if they do not lie so."""
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def aligned(size: int) -> Bytes:
    """New memory, 64-byte aligned, not set to anything."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -_place(memory) % ALIGNMENT
    return memory[begin : begin + size]


def size_class(size: int) -> int:
    """Size to allocate so that similar sizes share memory: at most an eighth more."""
    step = max(1 << 12, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


class MemoryPool:
    """Memory of arrays that come and go with the same sizes, step after step.

    New pages cost as much as copying into them. Small arrays come from the allocator.

    Args:
        idle_bytes: how much memory that nobody uses is kept.

    Example:
        >>> pool = MemoryPool()
        >>> pool.take(100).shape
        (100,)
    """

    def __init__(self, idle_bytes: int = 1 << 30) -> None:
        self._idle_bytes = idle_bytes
        self._lock = Lock()
        # Filled by finalizers, which may run anywhere, even below `take`: appending needs no lock.
        self._returned: deque[Bytes] = deque()
        self._idle: deque[Bytes] = deque()

    def take(self, size: int) -> Bytes:
        """Memory of `size` bytes, 64-byte aligned, that no other array uses."""
        if size < _SMALL:
            return aligned(size)
        wanted = size_class(size)
        with self._lock:
            memory = self._idle_of(wanted)
        if memory is None:
            memory = aligned(wanted)
        returned = self._returned
        return leased(memory, size, lambda: returned.append(memory))

    def _idle_of(self, wanted: int) -> Bytes | None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        found = None
        for memory in reversed(self._idle):
            if memory.size == wanted:
                found = memory
                break
        if found is not None:
            self._idle = deque(m for m in self._idle if m is not found)
        kept = sum(memory.size for memory in self._idle)
        while kept > self._idle_bytes:
            kept -= self._idle.popleft().size
        return found
