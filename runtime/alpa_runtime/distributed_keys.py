"""Typed PRNG keys whose data live in workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy
import numpy as np

from alpa_runtime.arrays import WholeArray
from alpa_runtime.distributed_arrays import DistributedArray
from alpa_runtime.stacked import StackedArray

_jax: Any = jax
_jnp: Any = jax.numpy


class DistributedKeys(WholeArray):
    """Keys in the memory of workers. The next step takes them where they are, functions under
    `jax.jit` and `jax.device_get` fetch them; those of `jax.random` itself take `whole()` of
    them.

    Attributes:
        data: their data; the last dimensions are those of one key.
        impl: name of their generator.
        shape, dtype: of the keys.
    """

    def __init__(
        self, data: DistributedArray | StackedArray, impl: str, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.data = data
        self.impl = impl
        self.shape = shape
        self.dtype = dtype

    def whole(self) -> jax.Array:
        """Typed keys on the default device."""
        return _jax.random.wrap_key_data(_jnp.asarray(np.asarray(self.data)), impl=self.impl)

    def is_deleted(self) -> bool:
        return self.data.is_deleted()

    def delete(self) -> None:
        """Drop them in the workers now."""
        self.data.delete()

    def copy_to_host_async(self) -> None:
        self.data.copy_to_host_async()

    def block_until_ready(self) -> DistributedKeys:
        self.data.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.whole()  # What `jax.device_get` gives of keys; NumPy refuses it.

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_jax.random.wrap_key_data, impl=self.impl), (np.asarray(self.data),)

    def __repr__(self) -> str:
        return f"DistributedKeys({self.impl}{list(self.shape)}, data {self.data!r})"


def in_workers(value: Any) -> bool:
    """Whether an array, or the pieces of one, live in workers."""
    pieces = value.pieces if isinstance(value, StackedArray) else (value,)
    return all(isinstance(piece, DistributedArray) for piece in pieces)


def keys_in_workers(data: DistributedArray | StackedArray, impl: str) -> DistributedKeys:
    """The keys of a generator that these are the data of."""
    form = _jax.ShapeDtypeStruct(data.shape, data.dtype)
    keys = _jax.eval_shape(partial(_jax.random.wrap_key_data, impl=impl), form)
    return DistributedKeys(data, impl, keys.shape, keys.dtype)
