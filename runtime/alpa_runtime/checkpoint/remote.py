"""What workers do of saving and restoring: parts of arrays, read and put where they belong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax.numpy
import numpy as np

from alpa_runtime.checkpoint.manifest import LeafRecord
from alpa_runtime.checkpoint.shards import Shard, copied_shards
from alpa_runtime.checkpoint.store import check_chunks, read_boxes, write_shards
from alpa_runtime.distributed_arrays import DistributedArray
from alpa_runtime.errors import AlpaError, CheckpointError, TransportError
from alpa_runtime.execution.host_shards import shifted
from alpa_runtime.plan.reshard import Box
from alpa_runtime.worker_group import Reply

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


@dataclass(frozen=True)
class SaveTask:
    """What a worker saves of a leaf.

    Attributes:
        number: of the leaf in the manifest.
        pieces: (first row, number of the array) for each part of the leaf that it has.
    """

    number: int
    leaf: LeafRecord
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RestoreTask:
    """What a worker reads of a leaf.

    Attributes:
        uid: the number under which the array is kept.
        index: of the plan's input that it is.
        leaf: of the checkpoint.
        row: the array's first row in the leaf.
        dtype: that of the array, which differs from the leaf's only for Python numbers.
    """

    uid: int
    index: int
    leaf: LeafRecord
    row: int
    dtype: str


class Home(Protocol):
    """The driver of the workers that an array lives in."""

    def ask(self, rank: int, method: str, *args: Any) -> Reply:
        """Call a method of a worker, in the order of all calls."""
        ...

    def synchronize(self) -> None:
        """Raises a WorkerError with the cause if a worker failed."""
        ...


class RemoteCopies:
    """Copies of arrays in the workers that have them, to be written there.

    Args:
        ticket: a name that no other save has.
        leaves: numbers, records and pieces; those pieces that live in workers are copied.
    """

    def __init__(
        self, ticket: str, leaves: Sequence[tuple[int, LeafRecord, Sequence[tuple[int, Any]]]]
    ) -> None:
        self._ticket = ticket
        tasks: dict[tuple[Home, int], list[SaveTask]] = {}
        for number, leaf, pieces in leaves:
            own: dict[tuple[Home, int], list[tuple[int, int]]] = {}
            for row, array in pieces:
                if isinstance(array, DistributedArray):
                    for rank in array.workers:
                        home: Any = array.home
                        own.setdefault((home, rank), []).append((row, array.uid))
            for key, found in own.items():
                tasks.setdefault(key, []).append(SaveTask(number, leaf, tuple(found)))
        self._asked = [
            (home, rank, home.ask(rank, "copy_state", ticket, own))
            for (home, rank), own in tasks.items()
        ]

    @property
    def is_needed(self) -> bool:
        """Whether any array lives in workers."""
        return bool(self._asked)

    def write(self, folder: Path) -> list[dict[int, dict[int, str]]]:
        """Let the workers write them; what each reports. Waits.

        Raises:
            CheckpointError, WorkerError: one of them failed.
        """
        try:
            for _, _, reply in self._asked:
                reply.result()
            writing = [
                home.ask(rank, "write_copies", self._ticket, str(folder))
                for home, rank, _ in self._asked
            ]
            return [reply.result() for reply in writing]
        except BaseException as error:
            self.drop()
            if isinstance(error, TransportError):  # Another worker is the cause.
                for home, _, _ in self._asked:
                    home.synchronize()
            raise

    def drop(self) -> None:
        """Let the workers forget them; those that are gone have."""
        for home, rank, _ in self._asked:
            with contextlib.suppress(AlpaError):
                home.ask(rank, "drop_copies", self._ticket)


@dataclass(frozen=True)
class Copies:
    """Copies of what a worker saves."""

    tasks: Sequence[SaveTask]
    shards: Sequence[Sequence[Shard]]

    def write(self, folder: str) -> dict[int, dict[int, str]]:
        """Write them; the checksums of their chunks."""
        leaves = [(task.number, task.leaf) for task in self.tasks]
        return write_shards(Path(folder), leaves, self.shards)


def copied(tasks: Sequence[SaveTask], array_of: Callable[[int], Any]) -> Copies:
    """Copy what a worker has of leaves.

    Args:
        array_of: the array of a number; waits for it.
    """
    shards = [copied_shards([(row, array_of(uid)) for row, uid in task.pieces]) for task in tasks]
    return Copies(tasks, shards)
