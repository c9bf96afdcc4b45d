"""A batch that is on its devices already, part by part, when the step is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from alpa_runtime.arrays import WholeArray


class PlacedBatch(WholeArray):
    """An array of a batch, cut into the parts that a loaded plan reads and placed where it
    reads them.

    Steps of that plan take it as it is, any number of times. Anything else that reads it gets the
    whole array.

    Attributes:
        shape, dtype: of the whole array.
        home: the plan that it was placed for.
        parts: for each value of the plan's step that is a part of it, the array.
    """

    def __init__(
        self,
        home: Any,
        shape: tuple[int, ...],
        dtype: Any,
        parts: Mapping[int, jax.Array],
        by_micro_batch: Mapping[int | None, int],
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.home = home
        self.parts: Mapping[int, jax.Array] = parts
        self._by_micro_batch = by_micro_batch

    def is_deleted(self) -> bool:
        return not self.parts and self.size > 0

    def delete(self) -> None:
        """Drop the parts; it cannot be read any more."""
        self.parts = {}

    def block_until_ready(self) -> PlacedBatch:
        for part in self.parts.values():
            part.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.is_deleted():
            raise RuntimeError("the batch was deleted")
        if copy is False:
            raise ValueError("a batch in parts cannot be read without a copy")
        order = sorted(self._by_micro_batch.items(), key=lambda item: item[0] or 0)
        parts = [np.asarray(self.parts[value]) for _, value in order]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"PlacedBatch({self.dtype}{list(self.shape)} in {len(self.parts)} parts)"
