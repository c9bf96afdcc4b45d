"""Host memory for messages: aligned and used again, and shared by two processes of one host."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import addressof, c_char
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.framing import Kind, frame

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

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


LEAST_SHARED = 1 << 15  # Bytes. What is smaller is as fast through a socket.
SLOTS = mmap.PAGESIZE  # Blocks that can be lent to a peer at once.
_LEDGER = 0  # Number of the block that is the ledger.
_HUGE = 1 << 21  # Size of a huge page.


def _new_memory(size: int) -> tuple[Bytes, int]:
    """Memory without a name, and a file for another process to map."""
    file = os.memfd_create("alpa-mlir", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
        return _map(file, size), file
    except BaseException:
        os.close(file)
        raise


def _map(file: int, size: int) -> Bytes:
    memory = mmap.mmap(file, size)
    if size >= _HUGE:
        with suppress(OSError):  # A kernel without huge pages: only slower at first.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)  # Unmapped with the last array.


def can_share() -> bool:
    """Whether this process may make memory for others to map."""
    try:
        _, file = _new_memory(SLOTS)
    except (OSError, AttributeError):  # Forbidden, or a system without it.
        return False
    os.close(file)
    return True


@dataclass(frozen=True, eq=False)
class _Block:
    number: int  # Never used twice.
    slot: int  # Place in the ledger; used again when a block is dropped.
    memory: Bytes


@dataclass(frozen=True, eq=False)
class Loan:
    """A block for one message."""

    number: int
    memory: Bytes


class Budget:
    """Shared memory that an end may have, over all its peers.

    Args:
        limit_bytes: what is lent, and what is kept to be lent again.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.left: int = limit_bytes
        self.lock: Lock = Lock()  # Of all that the end lends.
        self.lenders: list[SharedBlocks] = []

    def take(self, size: int) -> bool:
        """Whether there are so many bytes left, perhaps after dropping idle blocks."""
        for lender in self.lenders:
            if size <= self.left:
                break
            lender.drop_idle(size)
        if size > self.left:
            return False
        self.left -= size
        return True


class SharedBlocks:
    """Blocks that this end lends to one peer, and those that it borrows from it.

    Args:
        budget: of this end.

    Raises:
        OSError: this process may not make memory to share.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._closed = False
        self._ledger, file = _new_memory(SLOTS)
        self._own: dict[int, list[_Block]] = {}  # By size.
        self._slots = list(range(SLOTS))
        self._next = _LEDGER + 1
        self._news = frame(Kind.NEW_BLOCK, 0, SLOTS, _LEDGER)  # Frames for the next message.
        self._files = [file]
        self._theirs: dict[int, tuple[int, Bytes]] = {}  # Slot and memory by number.
        self._their_ledger: Bytes | None = None
        budget.lenders.append(self)

    # --- Lending -------------------------------------------------------------------------------

    def lend(self, size: int) -> Loan | None:
        """A block of at least `size` bytes, or None if the data has to go through the socket.

        It has to if it is small, or if the budget is used up by what peers still have.
        """
        if size < LEAST_SHARED:
            return None
        wanted = size_class(size)
        with self._budget.lock:
            for block in self._own.get(wanted, ()):
                if not self._ledger[block.slot]:
                    break
            else:
                block = self._new_block(wanted)
            if block is None:
                return None
            self._ledger[block.slot] = 1
            return Loan(block.number, block.memory)

    def news(self) -> tuple[bytes, list[int]]:
        """Frames that must be sent before the next message, and the files that go with them.

        Called with the stream locked, so that they go out in this order.
        """
        if not self._news:
            return b"", []
        with self._budget.lock:
            news, files = self._news, self._files
            self._news, self._files = b"", []
            return news, files

    def _new_block(self, size: int) -> _Block | None:
        if self._closed or not self._slots or not self._budget.take(size):
            return None
        try:
            memory, file = _new_memory(size)
        except OSError:  # Out of memory, files or mappings.
            self._budget.left += size
            return None
        block = _Block(self._next, self._slots.pop(), memory)
        self._next += 1
        self._own.setdefault(size, []).append(block)
        self._news += frame(Kind.NEW_BLOCK, block.slot, size, block.number)
        self._files.append(file)
        return block

    def drop_idle(self, wanted: int) -> None:
        """Drops blocks that are not lent until `wanted` bytes are left. Budget locked."""
        for size, blocks in list(self._own.items()):
            for block in list(blocks):
                if self._budget.left >= wanted:
                    return
                if not self._ledger[block.slot]:
                    blocks.remove(block)
                    self._slots.append(block.slot)
                    self._budget.left += size
                    self._news += frame(Kind.DROP_BLOCK, block=block.number)

    def take_back(self) -> list[int]:
        """Drops everything, because the peer is gone; returns files that nobody was sent."""
        with self._budget.lock:
            if self._closed:
                return []
            self._closed = True
            self._budget.lenders.remove(self)
            self._budget.left += sum(size * len(blocks) for size, blocks in self._own.items())
            self._own.clear()
            files, self._files = self._files, []
            return files

    def forget(self) -> None:
        """Unmaps all that no array uses. Called last, when nobody reads."""
        self._theirs.clear()
        self._their_ledger = None
        self._ledger = self._ledger[:0].copy()

    # --- Borrowing: called by the thread that reads ----------------------------------------------

    def map(self, number: int, slot: int, size: int, file: int) -> None:
        """Learns of a block of the peer's.

        Raises:
            OSError: this process cannot map it.
        """
        try:
            memory = _map(file, size)
        finally:
            os.close(file)
        if number == _LEDGER:
            self._their_ledger = memory
        else:
            self._theirs[number] = slot, memory

    def unmap(self, number: int) -> None:
        """Forgets a block that the peer will not use again."""
        self._theirs.pop(number, None)

    def borrow(self, number: int, size: int) -> Bytes:
        """The first bytes of a block, given back when the array and all its aliases are gone.

        Raises:
            TransportError: there is no such block.
        """
        slot, memory = self._theirs.get(number, (SLOTS, None))
        ledger = self._their_ledger
        if memory is None or ledger is None or size > memory.size or slot >= SLOTS:
            raise TransportError(f"a message lies in block {number}, which was never announced")

        def give_back() -> None:
            ledger[slot] = 0

        return leased(memory, size, give_back)
