"""The leaves of a state: what is written of them, and which parts this process holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from alpa_runtime import trees
from alpa_runtime.arrays import StackedArray, WholeArray
from alpa_runtime.checkpoint.manifest import LeafRecord, Manifest, chunk_shape, folder_names
from alpa_runtime.distributed_arrays import DistributedArray, DistributedKeys
from alpa_runtime.errors import CheckpointError
from alpa_runtime.execution.host_shards import shifted
from alpa_runtime.jax_internals import as_any
from alpa_runtime.plan.reshard import Box, shard_boxes
from alpa_runtime.plan.tensor import TensorSpec

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
        pieces: (first row, array) for each part along dimension 0; one at row 0 if it is whole.
    """

    name: str
    keys: Keys
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[tuple[int, Any], ...]
    key_impl: str | None = None
    number: str | None = None


def state_leaves(state: Any) -> list[StateLeaf]:
    """Every leaf of a tree.

    Raises:
        CheckpointError: a leaf is no array and no number, or was given away to a step.
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
            return StateLeaf(name, keys, (), str(array.dtype), ((0, array),), number=kind.__name__)
    if isinstance(value, jax.Array | WholeArray) and value.is_deleted():
        raise CheckpointError(
            "the array was given away to an earlier step",
            where=name,
            fix="save the state that the last step returned",
        )
    if isinstance(value, StackedArray):
        rows = np.cumsum([0, *value.sizes[:-1]]).tolist()
        pieces = tuple(zip(rows, value.pieces, strict=True))
        return StateLeaf(name, keys, value.shape, str(value.dtype), pieces)
    if isinstance(value, DistributedArray):
        return StateLeaf(name, keys, value.shape, str(value.dtype), ((0, value),))
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
    return StateLeaf(name, keys, tuple(array.shape), str(array.dtype), ((0, array),), impl)


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
    for rows, array in leaf.pieces:
        whole = tuple((0, n) for n in array.shape)
        found = {whole}
        if isinstance(array, DistributedArray):
            tensor = TensorSpec(array.shape, str(array.dtype), array.sharding.spec)
            found = set(shard_boxes(tensor, array.mesh.axes, array.mesh.shape))
        elif isinstance(array, jax.Array):
            sharding: Any = array.sharding
            indices = sharding.devices_indices_map(array.shape).values()
            found = {index_box(index, array.shape) for index in indices}
        boxes.update(shifted(box, rows) for box in found)
    return boxes


def copied_shards(pieces: Iterable[tuple[int, Any]]) -> list[Shard]:
    """Copies of the parts that this process holds, each part once.

    They are copies on the CPU too, where NumPy would see the array's own memory, which the next
    step may write to.
    """
    shards: list[Shard] = []
    for rows, array in pieces:
        if isinstance(array, DistributedArray):
            continue  # Its workers copy it.
        if not isinstance(array, jax.Array):
            whole = tuple((0, n) for n in array.shape)
            shards.append(Shard(shifted(whole, rows), np.array(array, order="C")))
            continue
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                box = shifted(index_box(shard.index, array.shape), rows)
                shards.append(Shard(box, np.array(np.asarray(shard.data), order="C")))
    return shards


def start_copies(leaves: Iterable[StateLeaf]) -> None:
    """Begin to bring arrays to the host, all at the same time."""
    for leaf in leaves:
        for _, array in leaf.pieces:
            if isinstance(array, jax.Array):
                array.copy_to_host_async()


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
