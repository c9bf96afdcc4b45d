"""What moves arrays between workers: the contract that every transport keeps.

NumPy and the standard library only: a transport knows host memory, not devices. Arrays of a GPU
come as `np.asarray` of a shard and go to `jax.device_put` on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from alpa_runtime.errors import TransportError

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


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
