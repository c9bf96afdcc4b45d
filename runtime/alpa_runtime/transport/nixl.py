"""From device to device by NIXL, with UCX beneath it: the extra `nixl`.

It moves memory of GPUs and of the host. The receiving end keeps memory registered, which the
sending end writes to; what is sent is registered for as long as that takes.
"""

from __future__ import annotations

import importlib
import struct
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from threading import Event, Lock
from typing import Any

from alpa_runtime.errors import TransportError
from alpa_runtime.transport.device_backend import CudaMemory, Memory, import_cupy
from alpa_runtime.transport.memory import aligned, size_class

_MODULES = ("nixl_cu12", "nixl_cu13", "nixl")
_ROOM = struct.Struct("<Q")  # An address; the memory's metadata follow.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2e-5, 1e-3
_LEAST_BYTES = 1 << 16


def load(platform: str) -> Any:
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
        nixl = load(platform)
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


class _Source:
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


class _Sink:
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

    def source(self, device: int, invitation: bytes) -> _Source:
        return _Source(self._agent, self._ordinals[device], invitation)

    def sink(self, device: int, invitation: bytes) -> _Sink:
        return _Sink(self._agent, self._ordinals[device])

    def close(self) -> None:
        self._agent.close()
