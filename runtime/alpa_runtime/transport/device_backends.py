"""What brings bytes from device to device, past the host: contract, GPU memory, NCCL and NIXL."""

from __future__ import annotations

import contextlib
import importlib
import struct
import time
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from threading import Event, Lock
from typing import Any, Protocol

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.shared_memory import aligned, size_class


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


# From GPU to GPU by NCCL, called through CuPy: the extra `nccl`.
#
# Every channel has a communicator of two ranks for itself, used by one thread at each end, and a
# stream for itself, so that messages overlap with what XLA computes. Sends and receives are started
# only when the other end is about to start its part: what waits on a GPU waits for nothing else.

_SENDS, _RECEIVES = 0, 1  # Ranks of the two ends.


def load_nccl(_platform: str) -> Any:
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


class _NcclSource(_End):
    """A `Source`."""

    def put(self, memory: Memory, room: bytes) -> None:
        self._run(self._communicator.send, memory, _RECEIVES)


class _NcclSink(_End):
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
        self._cupy = load_nccl("gpu")
        self._ordinals = ordinals

    def invite(self, device: int) -> bytes:
        return bytes(self._cupy.cuda.nccl.get_unique_id())

    def source(self, device: int, invitation: bytes) -> _NcclSource:
        source = _NcclSource(self._cupy, self._ordinals[device], invitation, _SENDS)
        # The first message makes NCCL set up its connection, for which all else has to be quiet.
        with _ended_unless_open(source):
            source.put(CudaMemory(self._cupy, self._ordinals[device]).take(1), b"")
        return source

    def sink(self, device: int, invitation: bytes) -> _NcclSink:
        sink = _NcclSink(self._cupy, self._ordinals[device], invitation)
        with _ended_unless_open(sink):
            sink.take(sink.room(1)[0], Event())
        return sink

    def close(self) -> None:
        pass


# From device to device by NIXL, with UCX beneath it: the extra `nixl`.
#
# It moves memory of GPUs and of the host. The receiving end keeps memory registered, which the
# sending end writes to; what is sent is registered for as long as that takes.

_MODULES = ("nixl_cu12", "nixl_cu13", "nixl")
_ROOM = struct.Struct("<Q")  # An address; the memory's metadata follow.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2e-5, 1e-3
_LEAST_BYTES = 1 << 16


def load_nixl(platform: str) -> Any:
    """NIXL's Python module.

    Raises:
        TransportError: it is not installed, or, for GPUs, CuPy is not.
    """
    if platform == "gpu":
        import_cupy("NIXL")
    said = ""
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            said = said or str(error)
    raise TransportError(
        f"NIXL cannot be imported ({said})", where="NIXL", fix="pip install 'alpa-mlir[nixl]'"
    )


class _Agent:
    """NIXL's agent of this process, which all channels share; any thread may use it."""

    def __init__(self, platform: str) -> None:
        nixl = load_nixl(platform)
        config = nixl.nixl_agent_config(
            enable_prog_thread=False,  # It would keep a core busy.
            backends=["UCX"],
            sync_mode=nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        )
        self.nixl: Any = nixl.nixl_agent(f"alpa-mlir-{uuid.uuid4().hex}", config)
        self.kind = "VRAM" if platform == "gpu" else "DRAM"

    def register(self, address: int, nbytes: int, ordinal: int) -> Any:
        return self.nixl.register_memory([(address, nbytes, ordinal, "")], self.kind)

    def place(self, address: int, nbytes: int, ordinal: int) -> Any:
        return self.nixl.get_xfer_descs([(address, nbytes, ordinal)], self.kind)

    def close(self) -> None:
        """Ends UCX's connections."""
        self.nixl = None


class _Registered:
    """Memory that stays registered, so that what other ends know of it stays true."""

    def __init__(self, agent: _Agent, memory: Any, ordinal: int) -> None:
        self.memory = memory  # A CudaBlock, or an array of NumPy.
        on_host = agent.kind == "DRAM"
        self.address = int(memory.ctypes.data if on_host else memory.address)
        registered = agent.register(self.address, memory.nbytes, ordinal)
        self.metadata = bytes(agent.nixl.get_partial_agent_metadata(registered, False, ["UCX"]))


class _Block:
    """A `Block`: the first bytes of registered memory."""

    def __init__(self, registered: _Registered, nbytes: int, capsule: Callable[[], Any]) -> None:
        self.address = registered.address
        self.nbytes = nbytes
        self.capsule = capsule
        self.registered = registered

    def is_ready(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class _NixlSource:
    """A `Source`."""

    def __init__(self, agent: _Agent, ordinal: int, invitation: bytes) -> None:
        self._agent = agent
        self._ordinal = ordinal
        (self._theirs,) = _ROOM.unpack_from(invitation)
        self._peer = agent.nixl.add_remote_agent(invitation[_ROOM.size :])
        self._known: set[bytes] = set()
        self._ended = False

    def put(self, memory: Memory, room: bytes) -> None:
        agent, nixl = self._agent, self._agent.nixl
        (address,), metadata = _ROOM.unpack_from(room), room[_ROOM.size :]
        if metadata not in self._known:
            nixl.add_remote_agent(metadata)
            self._known.add(metadata)
        here = memory.address, memory.nbytes, self._ordinal
        registered = agent.register(*here)
        try:
            there = agent.place(address, memory.nbytes, self._theirs)
            handle = nixl.initialize_xfer("WRITE", agent.place(*here), there, self._peer)
            try:
                self._wait(handle)
            finally:
                handle.release()
        finally:
            nixl.deregister_memory(registered)

    def _wait(self, handle: Any) -> None:
        state, pause = self._agent.nixl.transfer(handle), _PAUSE_SECONDS
        while state == "PROC":
            if self._ended:
                raise TransportError("the channel has ended")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            state = self._agent.nixl.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL says {state} of a transfer")

    def end(self) -> None:
        self._ended = True


class _NixlSink:
    """A `Sink`. Memory comes back when its block is gone, and serves later messages."""

    def __init__(self, agent: _Agent, ordinal: int) -> None:
        self._agent = agent
        self._ordinal = ordinal
        self._cuda = None if agent.kind == "DRAM" else CudaMemory(import_cupy("NIXL"), ordinal)
        self._lock = Lock()
        self._returned: deque[_Registered] = deque()  # Filled by finalizers, which take no lock.
        self._idle: list[_Registered] = []

    def room(self, nbytes: int) -> tuple[_Block, bytes]:
        wanted = size_class(max(nbytes, _LEAST_BYTES))
        with self._lock:
            registered = self._idle_of(wanted) or self._new(wanted)
        memory = registered.memory
        capsule = memory[:nbytes].__dlpack__ if self._cuda is None else memory.first(nbytes).capsule
        block = _Block(registered, nbytes, capsule)
        weakref.finalize(block, self._returned.append, registered).atexit = False
        return block, _ROOM.pack(registered.address) + registered.metadata

    def _idle_of(self, wanted: int) -> _Registered | None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        for i, registered in enumerate(self._idle):
            if registered.memory.nbytes == wanted:
                return self._idle.pop(i)
        return None

    def _new(self, wanted: int) -> _Registered:
        memory = aligned(wanted) if self._cuda is None else self._cuda.take(wanted)
        return _Registered(self._agent, memory, self._ordinal)

    def take(self, block: Memory, written: Event) -> None:
        pause = _PAUSE_SECONDS
        while not written.wait(pause):
            self._agent.nixl.get_new_notifs()  # There are none, but UCX gets on.
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def end(self) -> None:
        pass


class NixlBackend:
    """A `DeviceBackend`.

    Args:
        platform: "gpu" for memory of GPUs, "cpu" for memory of the host.
        ordinals: the number in this process of each of its devices, by number of the plan.

    Raises:
        TransportError: NIXL, or for GPUs CuPy, is not installed.
    """

    kind = "nixl"
    one_sided = True

    def __init__(self, platform: str, ordinals: Mapping[int, int]) -> None:
        self._agent = _Agent(platform)
        # All of the host's memory is one device.
        self._ordinals = {n: ordinal if platform == "gpu" else 0 for n, ordinal in ordinals.items()}

    def invite(self, device: int) -> bytes:
        metadata = bytes(self._agent.nixl.get_agent_metadata())
        return _ROOM.pack(self._ordinals[device]) + metadata

    def source(self, device: int, invitation: bytes) -> _NixlSource:
        return _NixlSource(self._agent, self._ordinals[device], invitation)

    def sink(self, device: int, invitation: bytes) -> _NixlSink:
        return _NixlSink(self._agent, self._ordinals[device])

    def close(self) -> None:
        self._agent.close()
