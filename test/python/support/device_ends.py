"""Ends of device transports in this process, for tests: real device backends, on CPU devices."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import fake_cupy
import jax
import numpy as np
import pytest
from alpa_runtime.transport import connect_in_process
from alpa_runtime.transport.device import DeviceTransport, connect_devices
from alpa_runtime.transport.device_backends import _MODULES, NcclBackend, NixlBackend
from alpa_runtime.transport.interface import description

BYTES = np.dtype(np.uint8)
HAS_NIXL = any(find_spec(name) is not None for name in _MODULES)
KINDS = [
    "nccl",
    pytest.param("nixl", marks=pytest.mark.skipif(not HAS_NIXL, reason="needs nixl")),
]
ORDINALS = {device: device for device in range(fake_cupy.DEVICES)}


def backend(kind: str):
    """A device backend of all devices; CuPy is the one of `fake_cupy`."""
    if kind == "nixl":
        return NixlBackend("cpu", ORDINALS)
    return NcclBackend(ORDINALS)


class Ends:
    """Connected ends; rank r has devices r, r + size, ..

    Args:
        has: kinds of device backends of each rank.
    """

    def __init__(self, *has: list[str]) -> None:
        self.size = len(has)
        self.host = connect_in_process(self.size)
        self.errors: list[list[BaseException]] = [[] for _ in has]
        with ThreadPoolExecutor(self.size) as pool:
            self.device: list[DeviceTransport] = list(
                pool.map(lambda e: connect_devices(e, self.size, has[e.rank], backend), self.host)
            )
        for end, errors in zip(self.device, self.errors, strict=True):
            end.watch(errors.append)

    def open(self, *channels: tuple[int, int]) -> None:
        """Opens channels between devices."""
        for source, target in channels:
            self.device[source % self.size].outlet(target % self.size, (source, target))
            self.device[target % self.size].inlet(source % self.size, (source, target))
        with ThreadPoolExecutor(self.size) as pool:
            list(pool.map(lambda end: end.open(), self.device))

    def send(self, channel: tuple[int, int], tag: int, value):
        source, target = channel
        memory = value if hasattr(value, "nbytes") and hasattr(value, "address") else held(value)
        outlet = self.device[source % self.size].outlet(target % self.size, channel)
        return outlet.send(tag, description(memory.shape, memory.dtype), memory)

    def receive(self, channel: tuple[int, int], tag: int, shape, dtype="uint8"):
        source, target = channel
        end = self.device[target % self.size]
        return end.receive(source % self.size, tag, tuple(shape), np.dtype(dtype))

    def close(self) -> None:
        for end in self.host:
            end.close()
        for end in self.device:
            end.close()


class Numbers:
    """An array of NumPy as memory of a device; `there` is set when it has its values."""

    def __init__(self, array: np.ndarray, there=None) -> None:
        self.array, self.there = np.ascontiguousarray(array), there
        self.shape, self.dtype = self.array.shape, self.array.dtype
        self.nbytes, self.address = self.array.nbytes, self.array.ctypes.data

    def is_ready(self) -> bool:
        return self.there is None or self.there.is_set()

    def wait(self) -> None:
        if self.there is not None:
            self.there.wait()


def eventually(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"this did not happen within {seconds} s"
        time.sleep(0.002)


def is_quiet(end: DeviceTransport) -> bool:
    """Whether an end knows of all that it was asked to send that it is there."""
    outlets = [outlet for _, outlet in end.outlets()]
    asked = all(outlet._values.count == outlet._waited for outlet in outlets)
    return asked and not any(peer._offered for peer in end._peers.values())


def held(array) -> Numbers:
    return Numbers(np.asarray(array))


def bytes_of(block) -> bytes:
    """A block's bytes, as JAX reads them."""
    from alpa_runtime.jax_internals import array_of_capsule

    return np.asarray(array_of_capsule(block.capsule(), jax.devices()[0])).tobytes()


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    """What device backends import is the CuPy of `fake_cupy`."""
    for name, module in fake_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
