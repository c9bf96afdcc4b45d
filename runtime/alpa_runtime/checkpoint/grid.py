"""How an array on disk is cut into chunks, so that each is written by one process alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, gcd, prod

from alpa_runtime.plan.reshard import Box

MAX_CHUNK_BYTES = 64 << 20


def chunk_shape(
    shape: Sequence[int], boxes: Iterable[Box], itemsize: int, limit: int = MAX_CHUNK_BYTES
) -> tuple[int, ...]:
    """The chunks of a regular grid such that every box is made of whole ones.

    Chunks at an array's end may reach beyond it, as in Zarr.

    Args:
        shape: of the array.
        boxes: the parts that processes hold.
        itemsize: bytes of an element.
        limit: bytes of a chunk, as far as the grid allows it: whoever wants a part of a chunk
            has to read all of it.

    Returns:
        The size of a chunk in each dimension, at least 1.

    Example:
        >>> chunk_shape((8, 6), [((0, 4), (0, 6)), ((4, 8), (0, 3)), ((4, 8), (3, 6))], 4)
        (4, 3)
        >>> chunk_shape((1001, 8), [((0, 1001), (0, 8))], 4, limit=16000)
        (501, 8)
    """
    boxes = list(boxes)
    chunk: list[int] = []
    for dim, size in enumerate(shape):
        edges = {edge for box in boxes for edge in box[dim]} - {size}
        chunk.append(gcd(size, *edges) if any(edges) else size)
    for dim, size in enumerate(shape):
        parts = ceil(prod(chunk) * itemsize / limit)
        if parts <= 1:
            break
        wanted = max(1, ceil(chunk[dim] / parts))
        if chunk[dim] < size:  # Parts of it belong to several processes: only whole ones fit.
            divisor = _divisor(chunk[dim], wanted)
            wanted = divisor if 2 * divisor > wanted else chunk[dim]
        chunk[dim] = wanted
    return tuple(max(1, size) for size in chunk)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is not above `most`."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return max(d for s in small for d in (s, number // s) if d <= most)


def grid_shape(shape: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    """How many chunks there are in each dimension."""
    return tuple(ceil(size / part) for size, part in zip(shape, chunk, strict=True))


def chunks_of(box: Box, chunk: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The chunks that a box touches, row-major.

    Example:
        >>> list(chunks_of(((0, 4), (3, 6)), (2, 3)))
        [(0, 1), (1, 1)]
    """
    return itertools.product(
        *(
            range(begin // part, ceil(end / part))
            for (begin, end), part in zip(box, chunk, strict=True)
        )
    )


def number_of(chunk: Sequence[int], grid: Sequence[int]) -> int:
    """The place of a chunk in row-major order."""
    number = 0
    for index, count in zip(chunk, grid, strict=True):
        number = number * count + index
    return number


def chunk_file(index: Sequence[int]) -> str:
    """The chunk's file beside `zarr.json`.

    Example:
        >>> chunk_file((0, 1)), chunk_file(())
        ('c/0/1', 'c')
    """
    return "/".join(("c", *map(str, index)))
