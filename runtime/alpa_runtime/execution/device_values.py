"""Values of JAX as memory of their device, and what was received there as values."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import jax
import jax.numpy
import numpy as np

from alpa_runtime.backends.xla_runtime import Device, array_of_capsule, as_any
from alpa_runtime.transport.device_backend import Block

_jax: Any = jax
_jnp: Any = jax.numpy
_NAMED = ("bfloat16", "float8_")  # Of ml_dtypes, with whole bytes for each element.


def is_carried(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a dtype have a byte or more to themselves on every device."""
    return dtype.kind in "biufc" or dtype.name.startswith(_NAMED)


def piece_sizes(count: int, pieces: int) -> tuple[int, ...]:
    """Elements of each piece, as `np.array_split` has them.

    Example:
        >>> piece_sizes(7, 3)
        (3, 2, 2)
    """
    small, more = divmod(count, pieces)
    return (small + 1,) * more + (small,) * (pieces - more)


class DeviceMemory:
    """A value of one device as `Memory`, or a part of it.

    Args:
        value: an array of one device, in row-major order.
        begin, end: bytes.
    """

    def __init__(self, value: Any, begin: int, end: int) -> None:
        self._value = value
        self._begin = begin
        self.nbytes: int = end - begin

    @property
    def address(self) -> int:
        return int(self._value.unsafe_buffer_pointer()) + self._begin

    def is_ready(self) -> bool:
        return bool(self._value.is_ready())

    def wait(self) -> None:
        self._value.block_until_ready()


def cut_memory(value: Any, bounds: Sequence[int]) -> list[DeviceMemory]:
    """Neighbouring parts of a value, between bounds in bytes."""
    return [DeviceMemory(value, begin, end) for begin, end in pairwise(bounds)]


@cache
def _reader(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A program that makes an array of the bytes of its pieces, and something small that is there
    when it has read them all."""

    def read(*pieces: jax.Array) -> tuple[jax.Array, jax.Array]:
        data = _jnp.concatenate(pieces)
        done = data[0]
        if dtype.kind == "b":
            value = data != 0
        elif dtype.kind == "c":
            part = np.dtype(f"float{4 * dtype.itemsize}")
            halves = data.reshape(-1, 2, part.itemsize)
            halves = _jax.lax.bitcast_convert_type(halves, part)
            value = _jax.lax.complex(halves[:, 0], halves[:, 1])
        else:
            rows = data if dtype.itemsize == 1 else data.reshape(-1, dtype.itemsize)
            value = _jax.lax.bitcast_convert_type(rows, dtype)
        return value.reshape(shape), done

    return _jax.jit(read)


class Landing:
    """Copies what was received into arrays of XLA's own memory; one thread calls it.

    XLA does not say when the programs that were given memory of others have read it. So it is
    given no such memory but to copy it, and blocks are held until that is done.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[Sequence[Block], Any]] = deque()

    def land(
        self, blocks: Sequence[Block], shape: tuple[int, ...], dtype: np.dtype[Any], device: Device
    ) -> jax.Array:
        """An array on the device where the blocks lie; starts a program and returns.

        Args:
            blocks: its elements in row-major order.
        """
        held = self._held
        while held and held[0][1].is_ready():
            held.popleft()
        pieces = [array_of_capsule(block.capsule(), device) for block in blocks]
        value, done = _reader(shape, dtype)(*pieces)
        held.append((blocks, done))
        return as_any(value)


def bounds_of(shape: tuple[int, ...], dtype: np.dtype[Any], pieces: int) -> tuple[int, ...]:
    """Where the pieces of an array begin and end, in bytes.

    Example:
        >>> bounds_of((7,), np.dtype("float32"), 3)
        (0, 12, 20, 28)
    """
    bounds = [0]
    for size in piece_sizes(prod(shape), pieces):
        bounds.append(bounds[-1] + size * dtype.itemsize)
    return tuple(bounds)
