"""CuPy as far as device backends call it, on memory of the host: GPUs that every machine has.

Streams are threads. A communicator has two ranks, in one process or in two. As NCCL's, it knows no
tags: what one rank sends goes to what the other one receives next, and neither is done before the
other has begun. `abort` ends what has begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import secrets
import socket
import sys
import threading
import time
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np

DEVICES = 8
current = threading.local()


class NcclError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class Device:
    def __init__(self, ordinal):
        if not 0 <= ordinal < DEVICES:
            raise NcclError(f"cudaErrorInvalidDevice: {ordinal}")
        self.id = ordinal
        self._before = threading.local()

    def __enter__(self):
        self._before.stack = [*getattr(self._before, "stack", []), getattr(current, "device", 0)]
        current.device = self.id

    def __exit__(self, *_):
        current.device = self._before.stack.pop()


_streams: WeakValueDictionary[int, Stream] = WeakValueDictionary()


class Stream:
    def __init__(self, non_blocking=False):
        assert non_blocking
        self.ptr = id(self)
        self.device = current.device
        self.queue = SimpleQueue()
        _streams[self.ptr] = self
        threading.Thread(
            target=_run_stream, args=(self.queue,), name="fake stream", daemon=True
        ).start()

    def __del__(self):
        self.queue.put(None)


def _run_stream(queue):
    while (work := queue.get()) is not None:
        with contextlib.suppress(OSError):  # Aborted.
            work()
        del work  # What it holds may be all that keeps the stream.


class Event:
    def __init__(self, block=False, disable_timing=False):
        assert block
        assert disable_timing
        self._there = threading.Event()

    def record(self, stream):
        assert current.device == stream.device
        stream.queue.put(self._there.set)

    def synchronize(self):
        self._there.wait()


class MemoryPool:
    limit = 1 << 40

    def __init__(self):
        self._idle = {}

    def malloc(self, nbytes):
        if nbytes > self.limit:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        idle = self._idle.setdefault((current.device, nbytes), [])
        memory = idle.pop() if idle else np.empty(nbytes + 64, np.uint8)
        return _Pointer(memory, idle)


class _Pointer:
    """Gives its memory back when nobody holds it, whatever arrays were made of it: as CuPy does
    where a program of XLA still reads them."""

    def __init__(self, memory, idle):
        self.memory, self.idle = memory, idle
        self.first = -memory.ctypes.data % 64
        self.ptr = memory.ctypes.data + self.first

    def __del__(self):
        self.memory[:] = 0xEE  # Who reads it now has wrong numbers.
        self.idle.append(self.memory)


class Exported:
    def __init__(self, shape, dtype, memory):
        self._array = memory.memory[memory.first : memory.first + shape[0]].view(dtype)

    def __dlpack__(self, stream=None):
        assert stream == -1
        return self._array.__dlpack__()


class NcclCommunicator:
    def __init__(self, ndev, unique_id, rank):
        assert ndev == 2
        assert len(unique_id) == 128
        self.rank, self.device = rank, current.device
        name = b"\0fake-nccl-" + unique_id[:32]
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(name)
                listener.listen(1)
                self._stream, _ = listener.accept()
        else:
            deadline = time.monotonic() + 20
            while True:
                self._stream = socket.socket(socket.AF_UNIX)
                try:
                    self._stream.connect(name)
                    break
                except OSError:
                    self._stream.close()
                    assert time.monotonic() < deadline, "the other rank does not come"
                    time.sleep(0.001)
        self._error = None

    def _start(self, stream, peer, work):
        assert peer == 1 - self.rank
        assert current.device == self.device == _streams[stream].device

        def run():
            try:
                work()
            except OSError as error:
                self._error = NcclError(f"NCCL_ERROR: {error}")

        _streams[stream].queue.put(run)

    def send(self, address, count, datatype, peer, stream):
        def work():
            if self._stream.recv(1, socket.MSG_WAITALL) != b"r":  # The other one receives now.
                raise OSError("the other rank is gone")
            self._stream.sendall((ctypes.c_char * count).from_address(address))

        self._start(stream, peer, work)

    def recv(self, address, count, datatype, peer, stream):
        def work():
            self._stream.sendall(b"r")
            memory = (ctypes.c_char * count).from_address(address)
            if self._stream.recv_into(memory, count, socket.MSG_WAITALL) != count:
                raise OSError("the other rank is gone")

        self._start(stream, peer, work)

    def check_async_error(self):
        if self._error is not None:
            raise self._error

    def abort(self):
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


def module(available=True) -> ModuleType:
    """The module."""
    cupy = ModuleType("cupy")
    cupy.ndarray = Exported
    nccl = SimpleNamespace(
        available=available,
        NcclCommunicator=NcclCommunicator,
        NCCL_UINT8=1,
        get_unique_id=lambda: secrets.token_bytes(128),
    )
    cupy.cuda = SimpleNamespace(
        Device=Device,
        Stream=Stream,
        Event=Event,
        MemoryPool=MemoryPool,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        nccl=nccl,
    )
    return cupy


def modules(available=True) -> dict[str, object]:
    """What imports CuPy finds, by name."""
    cupy = module(available)
    return {"cupy": cupy, "cupy.cuda": cupy.cuda, "cupy.cuda.nccl": cupy.cuda.nccl}


def install() -> None:
    """What imports CuPy gets this one from now on."""
    sys.modules.update(modules())
