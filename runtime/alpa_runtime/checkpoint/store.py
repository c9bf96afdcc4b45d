"""Arrays on disk as Zarr 3 by tensorstore: writing and reading boxes of them."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy
import numpy as np

from alpa_runtime.checkpoint.manifest import (
    ARRAYS,
    CRC_BYTES,
    OLDER,
    LeafRecord,
    Manifest,
    chunk_file,
    chunks_of,
    number_of,
)
from alpa_runtime.checkpoint.shards import Shard
from alpa_runtime.errors import CheckpointError, DamagedCheckpointError
from alpa_runtime.foreign_errors import StoreFailure, store_failure
from alpa_runtime.plan.reshard import Box, box_elements

_jnp: Any = jax.numpy
# More is not faster: a chunk has 64 MiB at most, and each is read or written by threads of its own.
MAX_BYTES_AHEAD = 128 << 20


def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError:
        raise CheckpointError(
            "checkpoints need tensorstore, which is not installed",
            fix="pip install 'alpa-mlir[checkpoint]'",
        ) from None
    return tensorstore


def require_tensorstore() -> None:
    """Raises CheckpointError where tensorstore is missing."""
    _tensorstore()


@dataclass(frozen=True)
class _Work:
    """What tensorstore is to do: a function that begins it, and its bytes."""

    begin: Callable[[], Any]
    bytes: int
    leaf: LeafRecord


def _in_order(work: Iterable[_Work]) -> Iterator[Any]:
    """Results, in order. Only so many bytes are begun ahead of who takes them."""
    begun: deque[tuple[Any, _Work]] = deque()
    ahead = 0

    def first() -> Any:
        nonlocal ahead
        future, done = begun.popleft()
        ahead -= done.bytes
        try:
            return future.result()
        except (ValueError, OSError, RuntimeError) as error:
            raise _error_of(error, done.leaf) from None

    for item in work:
        while begun and ahead + item.bytes > MAX_BYTES_AHEAD:
            yield first()
        begun.append((item.begin(), item))
        ahead += item.bytes
    while begun:
        yield first()


def _error_of(error: Exception, leaf: LeafRecord) -> CheckpointError:
    """An error of tensorstore."""
    failure, text = store_failure(error)
    if failure is StoreFailure.NO_ROOM:
        fix = "make room or give another folder; the checkpoints that were there are whole"
        return CheckpointError(text, where=leaf.name, fix=fix)
    if failure is StoreFailure.DAMAGED:
        return DamagedCheckpointError(text, where=leaf.name, fix=OLDER)
    return CheckpointError(
        text, where=leaf.name, fix=OLDER if failure is StoreFailure.UNREADABLE else ""
    )


def _open(ts: Any, context: Any, folder: Path, leaf: LeafRecord) -> Any:
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder / ARRAYS / leaf.folder}/"},
        "metadata": {
            "shape": leaf.shape,
            "data_type": leaf.stored_as,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": leaf.chunk}},
        },
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }
    return ts.open(spec, open=True, context=context)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in box)


def write_shards(
    folder: Path, leaves: Sequence[tuple[int, LeafRecord]], shards: Sequence[Sequence[Shard]]
) -> dict[int, dict[int, str]]:
    """Write what one process holds; others may write other chunks at the same time.

    Args:
        folder: of the checkpoint that is being written; its `zarr.json` files are there.
        leaves: those that this process has a part of, with their numbers in the manifest.
        shards: the parts of each. They are whole chunks.

    Returns:
        For each leaf, by number of the chunk, the checksum that the chunk's file ends with.

    Raises:
        CheckpointError: names the leaf that cannot be written.
    """
    ts = _tensorstore()
    context = ts.Context()
    opened = [_open(ts, context, folder, leaf) for _, leaf in leaves]

    def work() -> Iterator[_Work]:
        for (_, leaf), future, parts in zip(leaves, opened, shards, strict=True):
            store = future.result()
            for part in parts:
                if box_elements(part.box) == 0:
                    continue
                data = part.data if leaf.stored_as == leaf.dtype else part.data.view(np.uint8)
                write = partial(
                    store[_slices(part.box)].write,
                    data,
                    can_reference_source_data_indefinitely=True,
                )
                yield _Work(write, part.data.nbytes, leaf)

    for _ in _in_order(work()):
        pass
    crcs: dict[int, dict[int, str]] = {}
    for (number, leaf), parts in zip(leaves, shards, strict=True):
        found = crcs.setdefault(number, {})
        for part in parts:
            if box_elements(part.box):
                for chunk in chunks_of(part.box, leaf.chunk):
                    path = folder / ARRAYS / leaf.folder / chunk_file(chunk)
                    found[number_of(chunk, leaf.grid)] = _crc(path)
    return crcs


def read_boxes(
    folder: Path, wanted: Iterable[tuple[LeafRecord, Box]]
) -> Iterator[np.ndarray[Any, Any]]:
    """Read parts of arrays, each into memory of its own, as they are asked for.

    Besides what the caller keeps, this takes memory for `MAX_BYTES_AHEAD`, or for the largest
    part, and for as much again where chunks are being checked.

    Raises:
        DamagedCheckpointError: names the leaf and what is wrong with its chunk.
        CheckpointError: it cannot be read.
    """
    ts = _tensorstore()
    context = ts.Context()
    stores: dict[str, Any] = {}
    wanted = list(wanted)
    for leaf, _ in wanted:
        if leaf.folder not in stores:
            stores[leaf.folder] = _open(ts, context, folder, leaf)

    def work() -> Iterator[_Work]:
        for leaf, box in wanted:
            try:
                store = stores[leaf.folder].result()
            except (ValueError, OSError) as error:
                raise _error_of(error, leaf) from None
            size = box_elements(box) * _jnp.dtype(leaf.dtype).itemsize
            yield _Work(partial(store[_slices(box)].read, order="C"), size, leaf)

    for data, (leaf, _) in zip(_in_order(work()), wanted, strict=True):
        yield data if leaf.stored_as == leaf.dtype else data.view(_jnp.dtype(leaf.dtype))


def check_chunks(folder: Path, wanted: Iterable[tuple[LeafRecord, Iterable[Box]]]) -> None:
    """Look for the chunks of these boxes: their sizes, and the checksums that they end with.

    tensorstore would take a missing chunk for zeros. What stands in a chunk is compared with its
    checksum when it is read.

    Raises:
        DamagedCheckpointError: a chunk is missing, has another size, or is of another checkpoint.
        CheckpointError: it cannot be read.
    """
    for leaf, boxes in wanted:
        seen: set[tuple[int, ...]] = set()
        for box in boxes:
            if box_elements(box):
                seen.update(chunks_of(box, leaf.chunk))
        for chunk in sorted(seen):
            path = folder / ARRAYS / leaf.folder / chunk_file(chunk)
            _check_chunk(path, leaf, leaf.crc32c[number_of(chunk, leaf.grid)])


def _check_chunk(path: Path, leaf: LeafRecord, crc: str) -> None:
    problem, kind = "", DamagedCheckpointError
    try:
        size = path.stat().st_size
        if size != leaf.chunk_bytes:
            problem = f"has {size} bytes, expected {leaf.chunk_bytes}"
        elif (found := _crc(path)) != crc:
            problem = f"has the checksum {found}, expected {crc}"
    except FileNotFoundError:
        problem = "is missing"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        kind = DamagedCheckpointError if error.errno == errno.EIO else CheckpointError
    if problem:
        raise kind(f"the shard {path} {problem}", where=leaf.name, fix=OLDER)


def check_written(folder: Path, manifest: Manifest) -> None:
    """Every chunk of a checkpoint has its size; its writer may have been another machine.

    Raises:
        CheckpointError: a chunk is not there, or not whole.
    """
    for leaf in manifest.leaves:
        box = tuple((0, n) for n in leaf.shape)
        if 0 in leaf.shape:
            continue
        for chunk in chunks_of(box, leaf.chunk):
            path = folder / ARRAYS / leaf.folder / chunk_file(chunk)
            if not path.exists() or path.stat().st_size != leaf.chunk_bytes:
                raise CheckpointError(
                    f"the shard {path} was written, and is not here",
                    where=leaf.name,
                    fix="save to a folder that all workers and the driver share",
                )


def _crc(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(-CRC_BYTES, os.SEEK_END)
        return file.read(CRC_BYTES)[::-1].hex()
