"""Memory of GPUs for what carriers bring, by CuPy: the extra `nccl`.

XLA's own memory is of no use for this: it may be handed out while programs that were started before
still use it. What comes lies in memory of CuPy's pool until XLA has copied it.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

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
