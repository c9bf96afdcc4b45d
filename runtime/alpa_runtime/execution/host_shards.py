"""Parts of arrays on the host: cut for devices, put on them, read back, and put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from alpa_runtime.backends.xla import Device, mesh_devices, named_sharding, put_on, put_shards
from alpa_runtime.errors import WorkerError
from alpa_runtime.jax_internals import as_any
from alpa_runtime.plan.reshard import Box, box_elements, box_text, contains, held_boxes
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.worker_group import Parts

_jax: Any = jax
Array = NDArray[Any]


def slices(box: Box, within: Box | None = None) -> tuple[slice, ...]:
    """Of a box, in an array that holds the whole tensor or the box around it."""
    origins = [begin for begin, _ in within] if within is not None else [0] * len(box)
    return tuple(
        slice(begin - origin, end - origin)
        for (begin, end), origin in zip(box, origins, strict=True)
    )


def covering(boxes: Iterable[Box]) -> list[Box]:
    """Few boxes that hold all of the given ones: the one around them, where that holds no more
    than they do together, or else those that lie in no other one.

    Example:
        >>> covering([((0, 2),), ((2, 4),), ((0, 1),)])
        [((0, 4),)]
    """
    distinct = list(dict.fromkeys(boxes))
    outer = [
        box
        for box in distinct
        if not any(other != box and contains(other, box) for other in distinct)
    ]
    around = tuple(
        (min(b for b, _ in dim), max(e for _, e in dim)) for dim in zip(*outer, strict=True)
    )
    if box_elements(around) <= sum(map(box_elements, outer)):
        return [around]
    return outer


class Cutter:
    """Puts what this process needs of a tensor on its devices of a mesh.

    Args:
        tensor: as the mesh holds it.
        info, mesh: the mesh, in the plan and as it is; some of its devices may be those of other
            processes.
        rows: where dimension 0 of the tensor begins in the arrays that are cut.
    """

    def __init__(self, tensor: TensorSpec, info: MeshInfo, mesh: Mesh, rows: int = 0) -> None:
        self._tensor = tensor
        self._sharding = named_sharding(mesh, tensor)
        boxes, process = held_boxes(tensor, info).values(), _jax.process_index()
        own = [
            (device, shifted(box, rows))
            for device, box in zip(mesh_devices(mesh), boxes, strict=True)
            if device.process_index == process
        ]
        self._devices = [device for device, _ in own]
        self.boxes: list[Box] = [box for _, box in own]
        # For boxes of parts that came before: part and place of each shard.
        self._cuts: dict[tuple[Box, ...], list[tuple[int, tuple[slice, ...]]]] = {}

    def filling(self) -> Filling:
        """The array, to be put on the devices part by part."""
        parts: dict[Box, list[Device]] = {}
        for device, box in zip(self._devices, self.boxes, strict=True):
            parts.setdefault(box, []).append(device)
        return Filling(self._tensor, self._sharding, parts)

    def put(self, parts: Parts, where: str) -> jax.Array:
        """The array, made of parts, which must not be changed afterwards.

        Raises:
            WorkerError: no part holds what a device needs.
        """
        outer = tuple(box for box, _ in parts)
        cuts = self._cuts.get(outer)
        if cuts is None:
            cuts = self._cuts[outer] = [_cut(outer, box, where) for box in self.boxes]
        shards = [np.asarray(parts[part][1][within], order="C") for part, within in cuts]
        return put_shards(self._tensor, self._sharding, shards, self._devices)


class Filling:
    """An array that is put on devices part by part, in any order.

    Args:
        tensor: its shape and dtype.
        sharding: how devices hold it.
        parts: for each of those that this process holds, the devices.
    """

    def __init__(
        self, tensor: TensorSpec, sharding: Any, parts: Mapping[Box, Sequence[Device]]
    ) -> None:
        self._tensor = tensor
        self._sharding = sharding
        self._devices = parts
        self._arrays: list[jax.Array] = []

    @property
    def boxes(self) -> list[Box]:
        """The parts, each once."""
        return list(self._devices)

    def put(self, box: Box, data: Array) -> None:
        """Put a part on its devices; none if it is no part of this array. When this returns, it
        is there. It must not be changed afterwards."""
        for device in self._devices.get(box, ()):
            put = put_on(data.shape, self._tensor.dtype, device, self._sharding.memory_kind)
            array = put(data)
            array.block_until_ready()
            self._arrays.append(array)

    def array(self) -> jax.Array:
        """The array, of all its parts."""
        return _jax.make_array_from_single_device_arrays(
            self._tensor.shape, self._sharding, self._arrays
        )


class RowFilling:
    """A row of an array that is put on devices when all of its rows are there.

    Args:
        stack: what the rows fill, with the parts of the array that are waiting for rows.
        row: which of them.
    """

    def __init__(self, stack: StackFilling, row: int) -> None:
        self._stack = stack
        self._row = row

    @property
    def boxes(self) -> list[Box]:
        """Parts of the row."""
        return self._stack.row_boxes

    def put(self, box: Box, data: Array) -> None:
        """Keep a part of the row, if it is one; the last row puts the array's part on devices."""
        self._stack.put(self._row, box, data)


class StackFilling:
    """An array on devices that is made of its rows, which nothing splits.

    Args:
        fillings: what its parts are put into.
        shape: of a row.
        count: of rows.
    """

    def __init__(self, fillings: Sequence[Filling], shape: Sequence[int], count: int) -> None:
        self._fillings = fillings
        self._count = count
        whole = list(dict.fromkeys(box for filling in fillings for box in filling.boxes))
        self._of_row = {
            (((0, 1),) if len(box) == len(shape) else ()) + box[1:]: box for box in whole
        }
        self._waiting: dict[Box, tuple[Array, set[int]]] = {}

    @property
    def row_boxes(self) -> list[Box]:
        """The parts of a row."""
        return list(self._of_row)

    def put(self, row: int, box: Box, data: Array) -> None:
        """Keep a part of a row."""
        outer = self._of_row.get(box)
        if outer is None:
            return
        if box not in self._waiting:
            shape = [self._count, *(end - begin for begin, end in outer[1:])]
            self._waiting[box] = np.empty(shape, data.dtype), set()
        whole, there = self._waiting[box]
        whole[row] = data.reshape(whole.shape[1:])
        there.add(row)
        if len(there) == self._count:
            del self._waiting[box]
            for filling in self._fillings:
                filling.put(outer, whole)


def whole_box(shape: Sequence[int]) -> Box:
    """The box of a whole array."""
    return tuple((0, size) for size in shape)


def as_parts(array: Any) -> Parts:
    """A whole array as one part."""
    return ((whole_box(array.shape), array),)


def shifted(box: Box, rows: int) -> Box:
    """The box, so many rows further down."""
    if not rows:
        return box
    (begin, end), *others = box
    return ((begin + rows, end + rows), *others)


def _cut(parts: Sequence[Box], box: Box, where: str) -> tuple[int, tuple[slice, ...]]:
    """Which part holds a box, and where."""
    for number, outer in enumerate(parts):
        if contains(outer, box):
            return number, slices(box, outer)
    raise WorkerError(f"has not been given {box_text(box)}", where=where)


def parts_of(array: jax.Array) -> Parts:
    """What this process has of an array, each part once over all processes; waits for it."""
    shape = array.shape
    return tuple(
        (_box(shard.index, shape), np.asarray(shard.data))
        for shard in as_any(array).addressable_shards
        if shard.replica_id == 0
    )


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    return tuple(
        (s.start or 0, size if s.stop is None else s.stop)
        for s, size in zip(index, shape, strict=True)
    )


def assembled(parts: Sequence[tuple[Box, Array]], shape: tuple[int, ...], dtype: Any) -> Array:
    """The whole array; `parts` are disjoint.

    Raises:
        WorkerError: a part is missing.
    """
    found = sum(box_elements(box) for box, _ in parts)
    wanted = box_elements(whole_box(shape))
    if found != wanted:
        raise WorkerError(f"{found} of {wanted} elements of {list(shape)} came back")
    if len(parts) == 1:
        return np.asarray(parts[0][1])
    whole = np.empty(shape, dtype)
    for box, data in parts:
        whole[slices(box)] = data
    return whole
