"""What brings bytes from device to device, past the host: the contract, and GPU memory."""

from __future__ import annotations

import importlib
import warnings
from threading import Event
from typing import Any, Protocol

from alpa_runtime.errors import TransportError


def import_cupy(where: str) -> Any:
    """CuPy.

    Args:
        where: who needs it, for the error.

    Raises:
        TransportError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It warns of libraries that it does not find.
            return importlib.import_module("cupy")
    except ImportError as error:
        raise TransportError(
            f"CuPy cannot be imported ({error})", where=where, fix="pip install 'alpa-mlir[nccl]'"
        ) from None


class CudaBlock:
    """A `Block` of a GPU. Its pool has the memory back when the last reference to it is gone.

    Args:
        memory: CuPy's pointer to the memory.
    """

    def __init__(self, cupy: Any, memory: Any, nbytes: int) -> None:
        self.address: int = int(memory.ptr)
        self.nbytes: int = nbytes
        self._cupy = cupy
        self._memory = memory

    def is_ready(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def first(self, nbytes: int) -> CudaBlock:
        """A block of its first bytes."""
        return CudaBlock(self._cupy, self._memory, nbytes)

    def capsule(self) -> Any:
        data = self._cupy.ndarray((self.nbytes,), "uint8", self._memory)
        return data.__dlpack__(stream=-1)  # Nothing to wait for: the bytes are there.


class CudaMemory:
    """Blocks of one GPU.

    Args:
        ordinal: the GPU's number in this process.
    """

    def __init__(self, cupy: Any, ordinal: int) -> None:
        self._cupy = cupy
        self._device: Any = cupy.cuda.Device(ordinal)
        self._pool: Any = cupy.cuda.MemoryPool()

    def take(self, nbytes: int) -> CudaBlock:
        """Memory that nobody uses.

        Raises:
            MemoryError: the GPU has no more.
        """
        try:
            with self._device:
                return CudaBlock(self._cupy, self._pool.malloc(nbytes), nbytes)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(
                f"no memory on the GPU for a message of {nbytes} bytes ({error}); leave some "
                "beside XLA's, by XLA_PYTHON_CLIENT_MEM_FRACTION"
            ) from None


class Memory(Protocol):
    """Bytes of one device that lie in a row; kept alive by whoever holds this."""

    @property
    def address(self) -> int:
        """Of the first byte. Asked for when the bytes are there."""
        ...

    @property
    def nbytes(self) -> int: ...

    def is_ready(self) -> bool:
        """Whether the bytes are there, so that `wait` would return at once."""
        ...

    def wait(self) -> None:
        """Waits, without the interpreter lock, until the bytes are there; raises why they never
        will be."""
        ...


class Block(Memory, Protocol):
    """Memory for what is received. It is used again when nobody holds the block any more: whoever
    uses its bytes holds it until no program reads them."""

    def capsule(self) -> Any:
        """Its bytes for DLPack, as `uint8[nbytes]`."""
        ...


class Source(Protocol):
    """The sending end of a channel between two devices."""

    def put(self, memory: Memory, room: bytes) -> None:
        """Brings bytes to where there is room for them, which the other end's `take` waits for.

        Returns when the memory may change. Called by one thread, and waits without the interpreter
        lock.

        Args:
            room: what `Sink.room` said.
        """
        ...

    def end(self) -> None:
        """Ends what is under way; `put` and `take` raise. Any thread may call it, again too."""
        ...


class Sink(Protocol):
    """The receiving end of a channel between two devices."""

    def room(self, nbytes: int) -> tuple[Block, bytes]:
        """Memory for the next message, and what the sending end has to know of it."""
        ...

    def take(self, block: Block, written: Event) -> None:
        """Called when the sending end may `put`; returns when the bytes are there, or the message
        has failed.

        Args:
            written: is set when the message has failed, and, if the backend is one-sided, when the
                sending end has said that all bytes are there.
        """
        ...

    def end(self) -> None:
        """See `Source.end`."""
        ...


class DeviceBackend(Protocol):
    """One way to bring bytes from device to device. Devices are numbers of a plan.

    Attributes:
        kind: its name in `DEVICE_BACKENDS`.
        one_sided: only the sending end knows when all bytes are there, and has to say so.
    """

    kind: str
    one_sided: bool

    def invite(self, device: int) -> bytes:
        """What the sending end of a new channel needs to reach this end, which receives on a
        device."""
        ...

    def source(self, device: int, invitation: bytes) -> Source:
        """Opens the sending end of a channel; may wait for the other end to be opened."""
        ...

    def sink(self, device: int, invitation: bytes) -> Sink:
        """Opens the receiving end of a channel; may wait for the other end to be opened.

        Args:
            invitation: this end's own.
        """
        ...

    def close(self) -> None:
        """Gives up what all channels share; they have ended."""
        ...
