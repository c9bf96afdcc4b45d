"""The leaves of a state as shards: which parts this process holds, arrays on disk, and what workers
do of saving and restoring.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy
import numpy as np

from alpa_runtime import trees
from alpa_runtime.arrays import (
    DistributedArray,
    DistributedKeys,
    RowArray,
    StackedArray,
    WholeArray,
)
from alpa_runtime.checkpoint.manifest import (
    ARRAYS,
    CRC_BYTES,
    OLDER,
    LeafRecord,
    Manifest,
    chunk_file,
    chunk_shape,
    chunks_of,
    folder_names,
    number_of,
)
from alpa_runtime.errors import AlpaError, CheckpointError, DamagedCheckpointError, TransportError
from alpa_runtime.foreign_errors import StoreFailure, store_failure
from alpa_runtime.jax_internals import as_any
from alpa_runtime.plan.interface import PiecePlace, to_front, to_place
from alpa_runtime.plan.reshard import Box, box_elements, shard_boxes
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.worker_group import Reply

_jax: Any = jax
Keys = tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Shard:
    """A part of an array, in host memory that nobody else writes to."""

    box: Box
    data: np.ndarray[Any, Any]


@dataclass(frozen=True)
class StateLeaf:
    """A leaf as it is to be stored.

    Attributes:
        pieces: (place, array) for each of its pieces; one if it is whole.
    """

    name: str
    keys: Keys
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[tuple[PiecePlace, Any], ...]
    key_impl: str | None = None
    number: str | None = None


def state_leaves(state: Any) -> list[StateLeaf]:
    """Every leaf of a tree.

    Raises:
        CheckpointError: a leaf is no array and no number, or was donated to a step.
    """
    return [_leaf(path, value) for path, value in trees.flatten_with_path(state)[0]]


def key_texts(path: Sequence[Any]) -> Keys:
    """A key path as orbax writes it."""
    keys: list[tuple[str, bool]] = []
    for entry in path:
        position = getattr(entry, "idx", None)
        if position is not None:
            keys.append((str(position), True))
        else:
            keys.append((str(getattr(entry, "key", getattr(entry, "name", entry))), False))
    return tuple(keys)


def _leaf(path: Sequence[Any], value: Any) -> StateLeaf:
    name, keys = trees.text(tuple(path)), key_texts(path)
    for kind in (bool, int, float, complex):
        if type(value) is kind:
            array = np.asarray(value)
            if array.dtype == object:
                raise CheckpointError(f"{value} has more than 64 bits", where=name)
            whole = ((PiecePlace(), array),)
            return StateLeaf(name, keys, (), str(array.dtype), whole, number=kind.__name__)
    if isinstance(value, jax.Array | WholeArray) and value.is_deleted():
        raise CheckpointError(
            "the array was donated to an earlier step",
            where=name,
            fix="save the state that the last step returned",
        )
    if isinstance(value, StackedArray):
        pieces = tuple(zip(value.places, value.pieces, strict=True))
        return StateLeaf(name, keys, value.shape, str(value.dtype), pieces)
    if isinstance(value, DistributedArray | RowArray):
        return StateLeaf(name, keys, value.shape, str(value.dtype), ((PiecePlace(), value),))
    if isinstance(value, DistributedKeys):
        return replace(_leaf(path, value.data), key_impl=value.impl)
    impl: str | None = None
    if isinstance(value, jax.Array) and _jax.dtypes.issubdtype(value.dtype, _jax.dtypes.prng_key):
        impl, value = str(_jax.random.key_impl(value)), _jax.random.key_data(value)
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic)
    array: Any = as_any(value)
    if not is_array or not _is_storable(array.dtype):
        dtype = f" of {array.dtype}" if is_array else ""
        raise CheckpointError(
            f"a {type(array).__name__}{dtype}, expected an array of JAX's types or a number",
            where=name,
            fix="save a tree of arrays, and keep other things beside the checkpoint",
        )
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        raise CheckpointError(
            "a part of the array lies in another process",
            where=name,
            fix="let the step's workers save it",
        )
    if not isinstance(value, jax.Array):
        array = np.asarray(array, array.dtype.newbyteorder("="))
    whole = ((PiecePlace(), array),)
    return StateLeaf(name, keys, tuple(array.shape), str(array.dtype), whole, impl)


def _is_storable(dtype: Any) -> bool:
    """Whether JAX knows the type: NumPy's numbers of up to 64 bits a part, and those of
    ml_dtypes."""
    if dtype.kind == "V":
        return dtype.fields is None and dtype.subdtype is None and dtype.type is not np.void
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def index_box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """A tuple of slices as a box."""
    bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]
    return tuple((begin, end) for begin, end, _ in bounds)


def held_boxes(leaf: StateLeaf) -> set[Box]:
    """The parts that devices hold of a leaf."""
    boxes: set[Box] = set()
    for place, array in leaf.pieces:
        if isinstance(array, RowArray):
            stack = replace(leaf, shape=array.stack.shape, pieces=((PiecePlace(), array.stack),))
            boxes.update(row_box(box, array) for box in held_boxes(stack))
            continue
        whole = tuple((0, n) for n in array.shape)
        found = {whole}
        if isinstance(array, DistributedArray):
            tensor = TensorSpec(array.shape, str(array.dtype), array.sharding.spec)
            found = set(shard_boxes(tensor, array.mesh.axes, array.mesh.shape))
        elif isinstance(array, jax.Array):
            sharding: Any = array.sharding
            indices = sharding.devices_indices_map(array.shape).values()
            found = {index_box(index, array.shape) for index in indices}
        boxes.update(map(place.box, found))
    return boxes


def row_box(box: Box, row: RowArray) -> Box:
    """The part of a row in a part of its stack, which has all rows."""
    return (((0, 1),) if len(row.shape) == len(box) else ()) + box[1:]


def copied_shards(pieces: Iterable[tuple[PiecePlace, Any]]) -> list[Shard]:
    """Copies of the parts that this process holds, each part once.

    They are copies on the CPU too, where NumPy would see the array's own memory, which the next
    step may write to.
    """
    shards: list[Shard] = []
    for place, array in pieces:
        if isinstance(array, DistributedArray):
            continue  # Its workers copy it.
        if isinstance(array, RowArray):
            parts = _parts_of_row(array)
        elif isinstance(array, jax.Array):
            parts = [
                (index_box(shard.index, array.shape), shard.data)
                for shard in array.addressable_shards
                if shard.replica_id == 0
            ]
        else:
            parts = [(tuple((0, n) for n in array.shape), array)]
        for box, part in parts:
            data = np.array(to_place(np.asarray(part), place.axis), order="C")
            shards.append(Shard(place.box(box), data))
    return shards


def _parts_of_row(array: RowArray) -> list[tuple[Box, Any]]:
    """The parts of a row that this process holds."""
    stack: Any = array.stack
    parts: list[tuple[Box, Any]] = []
    for shard in () if isinstance(stack, DistributedArray) else stack.addressable_shards:
        if shard.replica_id == 0:
            box = row_box(index_box(shard.index, stack.shape), array)
            row = np.asarray(shard.data)[array.row].reshape([end - begin for begin, end in box])
            parts.append((box, row))
    return parts


def start_copies(leaves: Iterable[StateLeaf]) -> None:
    """Begin to bring arrays to the host, all at the same time."""
    for leaf in leaves:
        for _, array in leaf.pieces:
            whole = array.stack if isinstance(array, RowArray) else array
            if isinstance(whole, jax.Array):
                whole.copy_to_host_async()


def new_manifest(
    step: int, state: Any, leaves: Sequence[StateLeaf], boxes: Sequence[Iterable[Box]]
) -> Manifest:
    """What the checkpoint of a state will be, before anything is written.

    Args:
        leaves: of the state, in the order of its tree.
        boxes: the parts of each leaf that processes hold.
    """
    folders = folder_names([leaf.keys for leaf in leaves])
    records: list[LeafRecord] = []
    for leaf, held, folder in zip(leaves, boxes, folders, strict=True):
        chunk = chunk_shape(leaf.shape, held, np.dtype(leaf.dtype).itemsize)
        records.append(
            LeafRecord(
                leaf.name,
                leaf.keys,
                folder,
                leaf.shape,
                leaf.dtype,
                chunk,
                leaf.key_impl,
                leaf.number,
            )
        )
    tree = trees.encode(trees.structure(state))
    return Manifest(step, tree, _empty_nodes(state), tuple(records))


def _empty_nodes(state: Any) -> tuple[tuple[Keys, str], ...]:
    """Containers that hold nothing, and what they are."""

    def is_empty(node: Any) -> bool:
        structure = trees.structure(node)
        return structure.node_data() is not None and not structure.children()

    def kind(node: Any) -> str:
        is_plain = type(node) in (dict, list, tuple)
        return type(node).__name__.capitalize() if is_plain else "None"

    found = trees.flatten_with_path(state, is_leaf=is_empty)[0]
    return tuple((key_texts(path), kind(node)) for path, node in found if is_empty(node))


# Arrays on disk as Zarr 3 by tensorstore: writing and reading boxes of them.

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


# What workers do of saving and restoring: parts of arrays, read and put where they belong.

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
        at: where it lies in the leaf. Boxes and parts of `places` are those of the piece.
    """

    leaf: LeafRecord
    dtype: str
    at: PiecePlace
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
        (piece.leaf, list(map(piece.at.box, boxes)))
        for piece, boxes in zip(pieces, parts, strict=True)
    ]
    check_chunks(folder, there)
    data = read_boxes(folder, [(leaf, box) for leaf, boxes in there for box in boxes])
    for piece, boxes in zip(pieces, parts, strict=True):
        for box in boxes:
            part = _as_dtype(next(data), piece.dtype, piece.leaf.name)
            part = np.ascontiguousarray(to_front(part, piece.at.axis)) if piece.at.axis else part
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
        pieces: (place, number of the array) for each piece of the leaf that it has a part of.
        row: of the array, the one that the leaf is; None if it is all of it.
    """

    number: int
    leaf: LeafRecord
    pieces: tuple[tuple[PiecePlace, int], ...]
    row: int | None = None


@dataclass(frozen=True)
class RestoreTask:
    """What a worker reads of a leaf.

    Attributes:
        uid: the number under which the array is kept.
        index: of the plan's input that it is.
        leaf: of the checkpoint.
        at: where the array lies in the leaf.
        dtype: that of the array, which differs from the leaf's only for Python numbers.
        of: of the array, the row that the leaf is; None if it is all of it.
    """

    uid: int
    index: int
    leaf: LeafRecord
    at: PiecePlace
    dtype: str
    of: int | None = None


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
        self,
        ticket: str,
        leaves: Sequence[tuple[int, LeafRecord, Sequence[tuple[PiecePlace, Any]]]],
    ) -> None:
        self._ticket = ticket
        tasks: dict[tuple[Home, int], list[SaveTask]] = {}
        for number, leaf, pieces in leaves:
            own: dict[tuple[Home, int], list[tuple[PiecePlace, int]]] = {}
            of: int | None = None
            for place, array in pieces:
                if isinstance(array, RowArray):
                    array, of = array.stack, array.row
                if isinstance(array, DistributedArray):
                    for rank in array.workers:
                        home: Any = array.home
                        own.setdefault((home, rank), []).append((place, array.uid))
            for key, found in own.items():
                tasks.setdefault(key, []).append(SaveTask(number, leaf, tuple(found), of))
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
            return _results(writing)
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


def _results(replies: Sequence[Any]) -> list[Any]:
    """Those of all; the first error is raised when none of them writes any more."""
    found: list[Any] = []
    errors: list[AlpaError] = []
    for reply in replies:
        try:
            found.append(reply.result())
        except AlpaError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return found


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

    def piece(task: SaveTask, uid: int) -> Any:
        array = array_of(uid)
        return array if task.row is None else RowArray(array, task.row, task.leaf.shape)

    shards = [copied_shards([(at, piece(task, uid)) for at, uid in task.pieces]) for task in tasks]
    return Copies(tasks, shards)
