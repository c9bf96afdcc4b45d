"""The arrays that a worker keeps between steps, under the numbers that its driver gave them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

import jax

from alpa_runtime.errors import TransportError, WorkerError
from alpa_runtime.plan.tensor import TensorSpec

# How an array is held: mesh, form, and the micro-batch if it is one's part.
Form = tuple[int, TensorSpec, int | None]
# An array may be held in several forms, where several meshes or micro-batches read it.
Held = Mapping[Form, jax.Array]

_REMEMBERED = 1 << 16  # Arrays that are gone, for the message of an error.


class ArrayStore:
    """Arrays by number, for several threads; it says why there will be no more once there are.

    Args:
        rank: of the worker, for messages.
    """

    def __init__(self, rank: int) -> None:
        self.error: BaseException | None = None
        self._rank = rank
        self._changed = threading.Condition()
        self._arrays: dict[int, Held] = {}
        self._gone: deque[int] = deque(maxlen=_REMEMBERED)
        self._closed = False

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, uid: int) -> Held | None:
        """An array, if it is here."""
        return self._arrays.get(uid)

    def keep(self, arrays: Mapping[int, Held]) -> None:
        """Add arrays."""
        with self._changed:
            self._arrays.update(arrays)
            self._changed.notify_all()

    def free(self, uids: Iterable[int]) -> None:
        """Drop arrays that nobody needs any more."""
        with self._changed:
            for uid in uids:
                if self._arrays.pop(uid, None) is not None:
                    self._gone.append(uid)
            self._changed.notify_all()

    def awaited(self, uid: int) -> Held:
        """An array; waits until it is here.

        Raises:
            WorkerError, TransportError: it is gone, or will never come.
        """
        with self._changed:
            self._changed.wait_for(lambda: uid in self._arrays or uid in self._gone or self.is_over)
            found = self._arrays.get(uid)
        if found is None:
            self.check_open()
            raise WorkerError(f"array {uid} is gone", where=f"worker {self._rank}")
        return found

    @property
    def is_over(self) -> bool:
        """Whether no array will be added."""
        return self._closed or self.error is not None

    def fail(self, error: BaseException) -> bool:
        """Nothing more will come, for this reason; False if there is one already."""
        with self._changed:
            if self.is_over:
                return False
            self.error = error
            self._changed.notify_all()
        return True

    def close(self) -> bool:
        """Drop everything; False if that has been done."""
        with self._changed:
            if self._closed:
                return False
            self._closed = True
            self._arrays.clear()
            self._changed.notify_all()
        return True

    def check_open(self) -> None:
        """Raises what ended it: of another worker's failure a TransportError, else a
        WorkerError."""
        if (error := self.error) is not None:
            kind = TransportError if isinstance(error, TransportError) else WorkerError
            raise kind(f"failed before: {error}", where=f"worker {self._rank}") from error
        if self._closed:
            raise WorkerError("is closed", where=f"worker {self._rank}")
