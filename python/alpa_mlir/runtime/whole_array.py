"""Arrays that are not one array of JAX: read as a whole, they become one."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy
import numpy as np

_jax: Any = jax
_jnp: Any = jax.numpy


class WholeArray(ABC):
    """What reads like an array of JAX wherever its elements are.

    Anything that reads it (NumPy, `jax.numpy`, arithmetic, `jax.device_get`, methods of arrays)
    gets the whole array, put together on the default device at that moment. It is a leaf of
    pytrees, like an array; `jax.jit` takes `whole()` of it.

    Attributes:
        shape: of the whole array.
        dtype: NumPy's type of its elements.
    """

    shape: tuple[int, ...]
    dtype: Any

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...

    @abstractmethod
    def is_deleted(self) -> bool:
        """Whether it was given away to a step."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def whole(self) -> jax.Array:
        """One array on the default device; copies everything."""
        return _jnp.asarray(np.asarray(self))

    def __jax_array__(self) -> jax.Array:
        return self.whole()

    def __getitem__(self, key: Any) -> jax.Array:
        return self.whole()[key]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __format__(self, form: str) -> str:
        return format(np.asarray(self)[()] if not self.shape else self.whole(), form)

    def __index__(self) -> int:
        return operator.index(np.asarray(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole(), name)


def _binary(function: Callable[..., Any], reverse: bool = False) -> Callable[..., Any]:
    def apply(self: WholeArray, other: Any) -> Any:
        if isinstance(other, WholeArray):
            other = other.whole()
        return function(other, self.whole()) if reverse else function(self.whole(), other)

    return apply


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: WholeArray) -> Any:
        return function(self.whole())

    return apply


def _of_host(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: WholeArray) -> Any:
        return function(np.asarray(self))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(WholeArray, f"__{_name}__", _binary(getattr(operator, _name)))
    setattr(WholeArray, f"__r{_name}__", _binary(getattr(operator, _name), reverse=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(WholeArray, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "abs"):
    setattr(WholeArray, f"__{_name}__", _unary(getattr(operator, _name)))
for _name, _function in (("float", float), ("int", int), ("bool", bool), ("complex", complex)):
    setattr(WholeArray, f"__{_name}__", _of_host(_function))
