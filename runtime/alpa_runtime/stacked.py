"""Arrays whose rows live apart: what the caller sees of a stack of layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from alpa_runtime.arrays import WholeArray


class StackedArray(WholeArray):
    """An array in pieces along dimension 0, each on the devices of the stage that owns it.

    The next step takes it as it is, without a copy. Anything else that reads it gets the whole
    array, put together on the default device at that moment.

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
        self.pieces: tuple[Any, ...] = tuple(pieces)
        rows = sum(piece.shape[0] for piece in self.pieces)
        self.shape: tuple[int, ...] = (rows, *self.pieces[0].shape[1:])
        self.dtype: Any = self.pieces[0].dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each piece."""
        return tuple(piece.shape[0] for piece in self.pieces)

    def is_deleted(self) -> bool:
        """Whether a piece was given away to a step."""
        return any(piece.is_deleted() for piece in self.pieces)

    def delete(self) -> None:
        """Drop all pieces; the array cannot be read any more."""
        for piece in self.pieces:
            piece.delete()

    def block_until_ready(self) -> StackedArray:
        for piece in self.pieces:
            piece.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        for piece in self.pieces:
            piece.copy_to_host_async()

    def __deepcopy__(self, memo: Any) -> StackedArray:
        return StackedArray([copy.deepcopy(piece, memo) for piece in self.pieces])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("an array in pieces cannot be read without a copy")
        whole = np.concatenate([np.asarray(piece) for piece in self.pieces])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"StackedArray({self.dtype}{list(self.shape)} in {len(self.pieces)} pieces)"
