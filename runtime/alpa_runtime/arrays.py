"""Arrays that are not one array of JAX: read as a whole, they become one."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy
import numpy as np

from alpa_runtime.jax_internals import accept_as_array

_jnp: Any = jax.numpy
# Of arrays in one place; what they say of `whole()` would be wrong of the array itself.
_OF_ONE_PLACE = frozenset(
    {"addressable_data", "addressable_shards", "committed", "device", "global_shards"}
    | {"is_fully_addressable", "is_fully_replicated", "sharding"}
)


class WholeArray(ABC):
    """What reads like an array of JAX wherever its elements are.

    Anything that reads it (NumPy, `jax.numpy`, functions under `jax.jit`, arithmetic,
    comparisons, `jax.device_get`, methods of arrays) gets the whole array, put together on the
    default device at that moment. So does what copies it: `copy.deepcopy` and `pickle` give an
    array of JAX, which a step does not use up with this one. It is a leaf of pytrees, like an
    array.

    Attributes:
        shape: of the whole array.
        dtype: NumPy's type of its elements.
    """

    shape: tuple[int, ...]
    dtype: Any
    # What compares its elements is no key of a dictionary, like an array of JAX.
    __hash__: Any = None

    def __init_subclass__(cls) -> None:
        accept_as_array(cls, operator.methodcaller("whole"))

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

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.whole())

    def __contains__(self, value: Any) -> bool:
        return value in self.whole()

    def __copy__(self) -> WholeArray:
        return self  # Its elements do not change, and a second owner would free them twice.

    def __deepcopy__(self, memo: Any) -> Any:
        return self.whole()

    def __reduce__(self) -> tuple[Any, ...]:
        return _jnp.asarray, (np.asarray(self),)

    def __format__(self, form: str) -> str:
        return format(np.asarray(self)[()] if not self.shape else self.whole(), form)

    def __round__(self, ndigits: int | None = None) -> Any:
        whole: Any = self.whole()
        return round(whole, ndigits)

    def __index__(self) -> int:
        return operator.index(np.asarray(self))

    def __getattr__(self, name: str) -> Any:
        # Whether it has some other attribute is often asked, and must not fetch it.
        is_known = hasattr(jax.Array, name) or hasattr(np.ndarray, name)
        if name.startswith("_") or name in _OF_ONE_PLACE or not is_known:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
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


_divide: Any = divmod
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
):
    _function = getattr(operator, f"__{_name}__", _divide)
    setattr(WholeArray, f"__{_name}__", _binary(_function))
    setattr(WholeArray, f"__r{_name}__", _binary(_function, reverse=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(WholeArray, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(WholeArray, f"__{_name}__", _unary(getattr(operator, _name)))
for _name, _function in (("float", float), ("int", int), ("bool", bool), ("complex", complex)):
    setattr(WholeArray, f"__{_name}__", _of_host(_function))
