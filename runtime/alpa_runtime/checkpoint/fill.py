"""Parts of arrays, read from a checkpoint and put where they belong as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax.numpy
import numpy as np

from alpa_runtime.checkpoint.manifest import LeafRecord
from alpa_runtime.checkpoint.store import check_chunks, read_boxes
from alpa_runtime.errors import CheckpointError
from alpa_runtime.execution.host_shards import shifted
from alpa_runtime.plan.reshard import Box

_jnp: Any = jax.numpy
Array = np.ndarray[Any, Any]


class Place(Protocol):
    """What is made of parts, such as a `Filling`."""

    @property
    def boxes(self) -> Sequence[Box]:
        """The parts that it needs."""
        ...

    def put(self, box: Box, data: Array) -> None:
        """Takes a part, which may be one that it does not need."""
        ...


@dataclass(frozen=True)
class Piece:
    """What is wanted of a leaf.

    Attributes:
        dtype: of the parts.
        row: where the places' first row is in the leaf.
    """

    leaf: LeafRecord
    dtype: str
    row: int
    places: Sequence[Place]


def fill(folder: Path, pieces: Sequence[Piece]) -> Iterator[None]:
    """Read every part once, and put it in all places that need it; yields after each piece.

    Raises:
        CheckpointError: a shard is missing or damaged.
    """
    if not pieces:
        return
    parts = [list({box: None for at in piece.places for box in at.boxes}) for piece in pieces]
    there = [
        (piece.leaf, [shifted(box, piece.row) for box in boxes])
        for piece, boxes in zip(pieces, parts, strict=True)
    ]
    check_chunks(folder, there)
    data = read_boxes(folder, [(leaf, box) for leaf, boxes in there for box in boxes])
    for piece, boxes in zip(pieces, parts, strict=True):
        for box in boxes:
            part = _as_dtype(next(data), piece.dtype, piece.leaf.name)
            for place in piece.places:
                place.put(box, part)
            del part
        yield


def _as_dtype(data: Array, dtype: str, name: str) -> Array:
    """A Python number as the type that is wanted; other arrays have it.

    Raises:
        CheckpointError: the number does not fit.
    """
    wanted = _jnp.dtype(dtype)
    if data.dtype == wanted:
        return data
    if wanted.kind in "iu" and not np.iinfo(wanted).min <= data.item() <= np.iinfo(wanted).max:
        raise CheckpointError(f"{data.item()} does not fit {dtype}", where=name)
    return data.astype(wanted)
