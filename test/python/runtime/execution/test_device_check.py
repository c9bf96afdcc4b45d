"""Ways from device to device that bring other bits than were sent are refused at load."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from alpa_mlir.errors import TransportError
from alpa_runtime.execution.transfers import check_channels
from alpa_runtime.transport import device_backends
from device_ends import Ends, cupy  # noqa: F401

CHANNELS = [(0, 1), (1, 0), (2, 1), (0, 3)]  # Of even devices to odd ones, and back.


@pytest.fixture
def ends():
    made = Ends(["nccl"], ["nccl"])
    made.open(*CHANNELS)
    yield made
    made.close()


def check(ends) -> list[BaseException | None]:
    """What each end says."""
    with ThreadPoolExecutor(ends.size) as pool:
        devices = [
            {n: device for n, device in enumerate(jax.devices()) if n % ends.size == rank}
            for rank in range(ends.size)
        ]
        pairs = zip(ends.device, devices, strict=True)
        calls = [pool.submit(check_channels, *pair) for pair in pairs]
        return [call.exception(timeout=60) for call in calls]


def test_good_ways_pass(ends):
    assert check(ends) == [None, None]
    assert [end.sent for end in ends.device] == [9, 3]  # Three through each channel.


@pytest.mark.parametrize("message", [0, 2])
def test_one_wrong_bit_is_found(ends, message, monkeypatch):
    """In what arrives on device 3, whichever of the messages it is."""
    real, seen = device_backends._NcclSink.take, []

    def take(self, block, written):
        real(self, block, written)
        sink = ends.device[1]._peers[0].inlets[0, 3]._sink
        if self is sink:
            if len(seen) == message:
                np.ctypeslib.as_array(pointer(block)).reshape(-1)[70_001] ^= 16
            seen.append(block.nbytes)

    monkeypatch.setattr(device_backends._NcclSink, "take", take)
    here, there = check(ends)
    assert here is None
    assert isinstance(there, TransportError)
    assert "nccl brings other bits from device 0 to device 3 than were sent" in str(there)
    assert "host" in str(there)
    assert len(seen) > message


def pointer(block):
    """The block's bytes, to be changed."""
    return ctypes.cast(block.address, ctypes.POINTER(ctypes.c_uint8 * block.nbytes)).contents
