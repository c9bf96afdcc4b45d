"""Ways from device to device are tried before a plan uses them: what arrives are the bits sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from alpa_runtime.backends.xla_runtime import Device
from alpa_runtime.errors import TransportError
from alpa_runtime.execution.device_values import DeviceMemory, Landing
from alpa_runtime.transport.device import DeviceTransport
from alpa_runtime.transport.interface import Sending, description

_jax: Any = jax
_SHAPE = (1 << 16,)
_DTYPE = np.dtype(np.uint32)
_ROUNDS = 3  # The later ones find memory that was used before.
_TAG = 1 << 62  # Values have smaller ones.
_DEVICE_BITS = 20


def check_channels(transport: DeviceTransport, devices: Mapping[int, Device]) -> None:
    """Sends random bits through every channel, and looks at what arrives.

    Every worker calls it, once its channels are open.

    Args:
        devices: of this process, by number of the plan.

    Raises:
        TransportError: something else arrived than was sent; names both devices.
    """
    sendings: list[Sending] = []
    for number in range(_ROUNDS):
        for (source, target), outlet in transport.outlets():
            bits = _jax.device_put(_bits(source, target, number), devices[source])
            memory = DeviceMemory(bits, 0, bits.nbytes)
            said = description(_SHAPE, _DTYPE)
            sendings.append(outlet.send(_tag(source, target), said, memory))
    landing = Landing()
    for number in range(_ROUNDS):
        for peer, (source, target) in transport.inlets():
            block = transport.receive(peer, _tag(source, target), _SHAPE, _DTYPE)
            found = landing.land([block], _SHAPE, _DTYPE, devices[target])
            del block
            if not np.array_equal(np.asarray(found), _bits(source, target, number)):
                raise TransportError(
                    f"{transport.carrier_of(peer)} brings other bits from device {source} to "
                    f"device {target} than were sent",
                    fix='give device_transport="host"',
                    peer=peer,
                )
    for sending in sendings:
        sending.wait()


def _tag(source: int, target: int) -> int:
    return _TAG | source << _DEVICE_BITS | target


def _bits(source: int, target: int, number: int) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng((source, target, number))
    return generator.integers(0, 1 << 32, _SHAPE, _DTYPE)
