"""From GPU to GPU by NCCL, called through CuPy: the extra `nccl`.

Every channel has a communicator of two ranks for itself, used by one thread at each end, and a
stream for itself, so that messages overlap with what XLA computes. Sends and receives are started
only when the other end is about to start its part: what waits on a GPU waits for nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Generator, Mapping
from threading import Event, Lock
from typing import Any

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.device_backend import CudaBlock, CudaMemory, Memory, import_cupy

_SENDS, _RECEIVES = 0, 1  # Ranks of the two ends.


def load(_platform: str) -> Any:
    """CuPy, with NCCL.

    Raises:
        TransportError: one of them is not installed.
    """
    cupy = import_cupy("NCCL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The error says it.
        nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise TransportError(
            "CuPy does not find NCCL's library", where="NCCL", fix="pip install 'alpa-mlir[nccl]'"
        )
    return cupy


class _End:
    """One end of a communicator, and its stream."""

    def __init__(self, cupy: Any, ordinal: int, invitation: bytes, rank: int) -> None:
        self._cupy = cupy
        self._nccl: Any = cupy.cuda.nccl
        self._lock = Lock()
        self._ended = False
        self._device: Any = cupy.cuda.Device(ordinal)
        with self._device:
            self._stream: Any = cupy.cuda.Stream(non_blocking=True)
            self._communicator: Any = self._nccl.NcclCommunicator(2, invitation, rank)

    def _run(self, start: Any, memory: Memory, peer: int) -> None:
        """Starts a send or a receive, and waits for it without the interpreter lock."""
        with self._device:
            with self._lock:
                self._check()
                kind = self._nccl.NCCL_UINT8
                start(memory.address, memory.nbytes, kind, peer, self._stream.ptr)
            done = self._cupy.cuda.Event(block=True, disable_timing=True)
            done.record(self._stream)
            done.synchronize()
        with self._lock:
            self._check()
            self._communicator.check_async_error()

    def _check(self) -> None:
        if self._ended:
            raise TransportError("the channel has ended")

    def end(self) -> None:
        """Whoever waits for the GPU gets on, as NCCL gives up what it has begun."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._communicator.abort()


class _Source(_End):
    """A `Source`."""

    def put(self, memory: Memory, room: bytes) -> None:
        self._run(self._communicator.send, memory, _RECEIVES)


class _Sink(_End):
    """A `Sink`."""

    def __init__(self, cupy: Any, ordinal: int, invitation: bytes) -> None:
        super().__init__(cupy, ordinal, invitation, _RECEIVES)
        self._memory = CudaMemory(cupy, ordinal)

    def room(self, nbytes: int) -> tuple[CudaBlock, bytes]:
        return self._memory.take(nbytes), b""

    def take(self, block: Memory, written: Event) -> None:
        self._run(self._communicator.recv, block, _SENDS)


@contextlib.contextmanager
def _ended_unless_open(end: _End) -> Generator[None]:
    try:
        yield
    except BaseException:
        end.end()
        raise


class NcclBackend:
    """A `DeviceBackend`.

    Args:
        ordinals: the number in this process of each of its GPUs, by number of the plan.

    Raises:
        TransportError: CuPy or NCCL is not installed.
    """

    kind = "nccl"
    one_sided = False

    def __init__(self, ordinals: Mapping[int, int]) -> None:
        self._cupy = load("gpu")
        self._ordinals = ordinals

    def invite(self, device: int) -> bytes:
        return bytes(self._cupy.cuda.nccl.get_unique_id())

    def source(self, device: int, invitation: bytes) -> _Source:
        source = _Source(self._cupy, self._ordinals[device], invitation, _SENDS)
        # The first message makes NCCL set up its connection, for which all else has to be quiet.
        with _ended_unless_open(source):
            source.put(CudaMemory(self._cupy, self._ordinals[device]).take(1), b"")
        return source

    def sink(self, device: int, invitation: bytes) -> _Sink:
        sink = _Sink(self._cupy, self._ordinals[device], invitation)
        with _ended_unless_open(sink):
            sink.take(sink.room(1)[0], Event())
        return sink

    def close(self) -> None:
        pass
