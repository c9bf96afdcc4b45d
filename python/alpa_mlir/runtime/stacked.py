"""Arrays whose rows live apart: what the caller sees of a stack of layers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy
import numpy as np

_jax: Any = jax
_jnp: Any = jax.numpy


class StackedArray:
    """An array in pieces along dimension 0, each on the devices of the stage that owns it.

    The next step takes it as it is, without a copy. Anything else that reads it (NumPy,
    `jax.numpy`, arithmetic, `jax.device_get`, methods of arrays) gets the whole array, put
    together on the default device at that moment. It is a leaf of pytrees, like an array;
    `jax.jit` takes `whole()` of it.

    Attributes:
        pieces: the parts, in order; together they have `shape[0]` rows.
        shape: of the whole array.
        dtype: NumPy's type of its elements.

    Example:
        >>> pieces = [jax.numpy.zeros((1, 3)), jax.numpy.ones((1, 3))]
        >>> StackedArray(pieces).shape
        (2, 3)
    """

    def __init__(self, pieces: Sequence[jax.Array]) -> None:
        self.pieces = tuple(pieces)
        rows = sum(piece.shape[0] for piece in self.pieces)
        self.shape: tuple[int, ...] = (rows, *self.pieces[0].shape[1:])
        self.dtype: Any = self.pieces[0].dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each piece."""
        return tuple(piece.shape[0] for piece in self.pieces)

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
        """One array on the default device; copies every piece."""
        return _jnp.asarray(np.asarray(self))

    def is_deleted(self) -> bool:
        """Whether a piece was given away to a step."""
        return any(piece.is_deleted() for piece in self.pieces)

    def block_until_ready(self) -> StackedArray:
        for piece in self.pieces:
            piece.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        for piece in self.pieces:
            piece.copy_to_host_async()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("an array in pieces cannot be read without a copy")
        whole = np.concatenate([np.asarray(piece) for piece in self.pieces])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __jax_array__(self) -> jax.Array:
        return self.whole()

    def __getitem__(self, key: Any) -> jax.Array:
        return self.whole()[key]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"StackedArray({self.dtype}{list(self.shape)} in {len(self.pieces)} pieces)"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole(), name)


def _binary(function: Callable[..., Any], reverse: bool = False) -> Callable[..., Any]:
    def apply(self: StackedArray, other: Any) -> Any:
        if isinstance(other, StackedArray):
            other = other.whole()
        return function(other, self.whole()) if reverse else function(self.whole(), other)

    return apply


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: StackedArray) -> Any:
        return function(self.whole())

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(StackedArray, f"__{_name}__", _binary(getattr(operator, _name)))
    setattr(StackedArray, f"__r{_name}__", _binary(getattr(operator, _name), reverse=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(StackedArray, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "abs"):
    setattr(StackedArray, f"__{_name}__", _unary(getattr(operator, _name)))
