"""Arrays that are not one array of JAX."""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from alpa_runtime import trees
from alpa_runtime.errors import DeletedArrayError
from alpa_runtime.jax_internals import accept_as_array
from alpa_runtime.plan.interface import PiecePlace, RowsInfo, to_place, whole_shape
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.text import spec_text
from alpa_runtime.worker_group import Reply

_jax: Any = jax
_jnp: Any = jax.numpy
# Of arrays in one place; what they say of `whole()` would be wrong of the array itself.
_OF_ONE_PLACE = frozenset(
    {"addressable_data", "addressable_shards", "committed", "device", "global_shards"}
    | {"is_fully_addressable", "is_fully_replicated", "sharding"}
)


class WholeArray(ABC):
    """What reads like an array of JAX wherever its elements are.

    Anything that reads it (NumPy, `jax.numpy`, functions under `jax.jit`, arithmetic,
    comparisons, `jax.device_get`, methods of arrays) gets the whole array, put together on the
    default device at that moment. So does what copies it: `copy.deepcopy` and `pickle` give an
    array of JAX, which a step does not use up with this one. It is a leaf of pytrees, like an
    array.

    Attributes:
        shape: of the whole array.
        dtype: NumPy's type of its elements.
    """

    shape: tuple[int, ...]
    dtype: Any
    # What compares its elements is no key of a dictionary, like an array of JAX.
    __hash__: Any = None

    def __init_subclass__(cls) -> None:
        accept_as_array(cls, operator.methodcaller("whole"))

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...

    @abstractmethod
    def is_deleted(self) -> bool:
        """Whether it was donated to a step."""

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
        """One array on the default device; copies everything."""
        return _jnp.asarray(np.asarray(self))

    def __jax_array__(self) -> jax.Array:
        return self.whole()

    def __getitem__(self, key: Any) -> jax.Array:
        return self.whole()[key]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.whole())

    def __contains__(self, value: Any) -> bool:
        return value in self.whole()

    def __copy__(self) -> WholeArray:
        return self  # Its elements do not change, and a second owner would free them twice.

    def __deepcopy__(self, memo: Any) -> Any:
        return self.whole()

    def __reduce__(self) -> tuple[Any, ...]:
        return _jnp.asarray, (np.asarray(self),)

    def __format__(self, form: str) -> str:
        return format(np.asarray(self)[()] if not self.shape else self.whole(), form)

    def __round__(self, ndigits: int | None = None) -> Any:
        whole: Any = self.whole()
        return round(whole, ndigits)

    def __index__(self) -> int:
        return operator.index(np.asarray(self))

    def __getattr__(self, name: str) -> Any:
        # Whether it has some other attribute is often asked, and must not fetch it.
        is_known = hasattr(jax.Array, name) or hasattr(np.ndarray, name)
        if name.startswith("_") or name in _OF_ONE_PLACE or not is_known:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.whole(), name)


def _binary(function: Callable[..., Any], reverse: bool = False) -> Callable[..., Any]:
    def apply(self: WholeArray, other: Any) -> Any:
        if isinstance(other, WholeArray):
            other = other.whole()
        return function(other, self.whole()) if reverse else function(self.whole(), other)

    return apply


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: WholeArray) -> Any:
        return function(self.whole())

    return apply


def _of_host(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: WholeArray) -> Any:
        return function(np.asarray(self))

    return apply


_divide: Any = divmod
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
):
    _function = getattr(operator, f"__{_name}__", _divide)
    setattr(WholeArray, f"__{_name}__", _binary(_function))
    setattr(WholeArray, f"__r{_name}__", _binary(_function, reverse=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(WholeArray, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(WholeArray, f"__{_name}__", _unary(getattr(operator, _name)))
for _name, _function in (("float", float), ("int", int), ("bool", bool), ("complex", complex)):
    setattr(WholeArray, f"__{_name}__", _of_host(_function))


class StackedArray(WholeArray):
    """An array in pieces along one dimension, each on the devices of the stage that owns it.

    The next step takes it as it is, without a copy. Anything else that reads it gets the whole
    array, put together on the default device at that moment.

    Attributes:
        pieces: the parts, in order. Their dimension 0 is dimension `axis` of the array, and
            together they have all of its rows.
        axis: see there.
        shape: of the whole array.
        dtype: NumPy's type of its elements.

    Example:
        >>> pieces = [jax.numpy.zeros((1, 3)), jax.numpy.ones((1, 3))]
        >>> StackedArray(pieces).shape
        (2, 3)
        >>> StackedArray(pieces, axis=1).shape
        (3, 2)
    """

    def __init__(self, pieces: Sequence[jax.Array], axis: int = 0) -> None:
        self.pieces: tuple[Any, ...] = tuple(pieces)
        self.axis = axis
        rows = sum(piece.shape[0] for piece in self.pieces)
        self.shape: tuple[int, ...] = whole_shape(self.pieces[0].shape, rows, axis)
        self.dtype: Any = self.pieces[0].dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each piece."""
        return tuple(piece.shape[0] for piece in self.pieces)

    @property
    def places(self) -> tuple[PiecePlace, ...]:
        """Where each piece lies."""
        return tuple(PiecePlace(sum(self.sizes[:i]), self.axis) for i in range(len(self.pieces)))

    def is_deleted(self) -> bool:
        """Whether a piece was donated to a step."""
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
        return StackedArray([copy.deepcopy(piece, memo) for piece in self.pieces], self.axis)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("an array in pieces cannot be read without a copy")
        rows = np.concatenate([np.asarray(piece) for piece in self.pieces])
        whole = np.ascontiguousarray(to_place(rows, self.axis))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"StackedArray({self.dtype}{list(self.shape)} in {len(self.pieces)} pieces)"


class RowArray(WholeArray):
    """A row of an array in which a plan has several arrays that are alike, such as the weights of
    equal layers.

    The next step takes all of them without a copy. Anything else that reads one gets an array of
    its own: of JAX, held by the same devices as the row, or from the workers that hold the stack.

    Attributes:
        stack: the array; its dimension 0 counts the rows.
        row: which of them.
        shape: of the row; a dimension of size 1 may stand for the rows' own.
        dtype: NumPy's type of its elements.

    Example:
        >>> row = RowArray(jax.numpy.ones((4, 3)), 2, (3,))
        >>> row.shape, float(row.sum())
        ((3,), 3.0)
    """

    def __init__(self, stack: Any, row: int, shape: tuple[int, ...]) -> None:
        self.stack = stack
        self.row = row
        self.shape: tuple[int, ...] = shape
        self.dtype: Any = stack.dtype
        self._is_dropped = False

    def is_deleted(self) -> bool:
        """Whether it was dropped, or the stack donated to a step."""
        return self._is_dropped or self.stack.is_deleted()

    def delete(self) -> None:
        """Drop it; the other rows stay."""
        self._is_dropped = True

    def block_until_ready(self) -> RowArray:
        self._check()
        self.stack.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        """Start to fetch the stack from its workers."""
        self._check()
        if not isinstance(self.stack, jax.Array):
            self.stack.copy_to_host_async()

    @property
    def spec(self) -> Any:
        """How the row is split, where its devices are those of this process."""
        (_, *others) = (*self.stack.sharding.spec, *(None,) * self.stack.ndim)[: self.stack.ndim]
        kept = len(self.shape) == self.stack.ndim
        return PartitionSpec(*((None, *others) if kept else others))

    def whole(self) -> jax.Array:
        self._check()
        if isinstance(self.stack, jax.Array):
            return _row_of(self.stack, self.row, self.shape)
        return _jnp.asarray(np.asarray(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._check()
        if copy is False:
            raise ValueError("a row of an array cannot be read without a copy")
        if isinstance(self.stack, jax.Array):
            row = np.asarray(self.whole())
        else:
            row = np.asarray(np.asarray(self.stack)[self.row]).reshape(self.shape)
        return np.array(row, dtype) if copy else row.astype(dtype or row.dtype, copy=False)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ONE_PLACE and isinstance(self.stack, jax.Array):
            return getattr(self.whole(), name)
        return super().__getattr__(name)

    def _check(self) -> None:
        if self._is_dropped:
            raise RuntimeError("the array was deleted")

    def __repr__(self) -> str:
        return f"RowArray({self.dtype}{list(self.shape)}, row {self.row} of {self.stack.shape[0]})"


def _take_row(stack: Any, row: Any, shape: tuple[int, ...]) -> Any:
    return _jax.lax.dynamic_index_in_dim(stack, row, keepdims=False).reshape(shape)


_row_of: Any = _jax.jit(_take_row, static_argnums=2)


def common_stack(values: Sequence[Any], rows: RowsInfo) -> Any:
    """The array of which the values are all rows, in their order; None if it is not so."""
    first = values[0]
    if not isinstance(first, RowArray) or first.stack.shape != rows.stacked:
        return None
    stack = first.stack
    for row, value in enumerate(values):
        is_next = isinstance(value, RowArray) and value.stack is stack and value.row == row
        if not is_next or value.shape != rows.shape or value.is_deleted():
            return None
    return stack


def of_pieces(
    pieces: Sequence[Any], axis: int = 0, row: int | None = None, shape: tuple[int, ...] = ()
) -> Any:
    """The caller's array that a plan has otherwise: in pieces along `axis`, or, of that shape, as a
    row of its one piece. One piece along dimension 0 is the array."""
    if row is not None:
        return RowArray(pieces[0], row, shape)
    return StackedArray(pieces, axis) if len(pieces) > 1 or axis else pieces[0]


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


def prefetch(tree: Any) -> None:
    """Start to copy arrays to the host, so that reading them does not wait for the copy.

    Args:
        tree: of results of steps, and of anything else, which is left alone.

    Example:
        >>> alpa_mlir.prefetch(loss)       # doctest: +SKIP
        >>> next_step()                    # doctest: +SKIP
        >>> float(loss)                    # doctest: +SKIP
    """
    for leaf in trees.leaves(tree):
        start = getattr(leaf, "copy_to_host_async", None)
        if start is not None:
            start()


# Arrays that live in workers, and typed PRNG keys whose data do.

if TYPE_CHECKING:  # Checkers do not know the type of JAX's, and so none that is made of it.
    _JaxSharding = object
else:
    _JaxSharding = jax.sharding.Sharding


@dataclass(frozen=True)
class ArraySharding(_JaxSharding):
    """How workers hold an array.

    Attributes:
        mesh: its devices, by number of the plan.
        spec: for each dimension, the axes of the mesh that split it.
    """

    mesh: MeshInfo
    spec: tuple[tuple[str, ...], ...]

    @property
    def num_devices(self) -> int:
        """Of this process, once the array is read."""
        return 1

    def as_text(self) -> str:
        """`[x, R] on a 1x2 mesh of devices 0 1`."""
        shape = "x".join(map(str, self.mesh.shape))
        devices = " ".join(map(str, self.mesh.devices))
        return f"{spec_text(self.spec)} on a {shape} mesh of devices {devices}"


class ArrayHome(Protocol):
    """Who knows the workers of an array."""

    def fetch(self, array: DistributedArray) -> list[Reply]:
        """Ask for its parts."""
        ...

    def gather(self, array: DistributedArray, replies: list[Reply]) -> NDArray[Any]:
        """The whole array from the answers; waits for them."""
        ...

    def wait(self, array: DistributedArray) -> None:
        """Returns when its value has been computed."""
        ...

    def release(self, uid: int, ranks: tuple[int, ...]) -> None:
        """Nobody needs it any more. Called from finalizers, in any thread: takes no lock."""
        ...


class DistributedArray(WholeArray):
    """An array in the memory of workers; nothing of it is here until it is read.

    The next step takes it where it is. Reading it (NumPy, `jax.device_get`, printing, arithmetic)
    fetches it once. It is dropped in the workers when it is deleted or garbage-collected, with
    the next step that is started.

    Attributes:
        name: of the result or argument that it is.
        shape, dtype: of the whole array.
        sharding: the mesh that holds it, and how.
        workers: ranks of the workers that hold parts of it.

    Raises:
        DeletedArrayError: it is read after a step used it up, or after `delete`.
    """

    def __init__(
        self,
        home: ArrayHome,
        uid: int,
        name: str,
        tensor: TensorSpec,
        dtype: Any,
        mesh: int,
        info: MeshInfo,
        workers: tuple[int, ...],
        placed_for: int | None = None,
    ) -> None:
        self.name = name
        self.shape: tuple[int, ...] = tensor.shape
        self.dtype: Any = dtype
        self.sharding: ArraySharding = ArraySharding(info, tensor.spec)
        self.mesh = info
        self.workers = workers
        self.uid = uid
        self.mesh_number = mesh
        self.placed_for = placed_for
        self.home = home
        self._replies: list[Reply] | None = None
        self._host: NDArray[Any] | None = None
        self._gone: str | None = None

    # For JAX: that it may put what it reads where it likes.
    _committed = False

    def is_deleted(self) -> bool:
        return self._gone is not None

    def delete(self) -> None:
        """Drop it in the workers now; it cannot be read any more."""
        if self._gone is None:
            self._lose("was deleted")
            self.home.release(self.uid, self.workers)

    def used_up(self, step: int) -> None:
        """A step has taken it: its workers drop it with that step."""
        self._lose(f"was donated to step {step}")

    def _lose(self, how: str) -> None:
        self._gone = how
        self._replies = self._host = None

    def check(self) -> None:
        """Raises a DeletedArrayError if it is gone."""
        if self._gone is not None:
            raise DeletedArrayError(
                f"the array {self._gone}",
                where=self.name,
                fix="use the state that the last step returned, or donate_state=False",
            )

    def copy_to_host_async(self) -> None:
        """Start to fetch it; reading it later takes what has come."""
        self.check()
        if self._host is None and self._replies is None:
            self._replies = self.home.fetch(self)

    def arrived(self, value: NDArray[Any]) -> None:
        """Its value has come without having been asked for."""
        if self._gone is None:
            self._host = value

    @property
    def is_being_read(self) -> bool:
        """Whether workers may still be reading it for this process."""
        return self._replies is not None and not all(reply.done() for reply in self._replies)

    def on_host(self) -> NDArray[Any]:
        """The whole array, read-only; waits for it, and keeps it."""
        self.check()
        while (host := self._host) is None:
            self.copy_to_host_async()
            replies = self._replies
            if replies is None:
                continue  # Another thread has read it meanwhile.
            try:
                host = self.home.gather(self, replies)
                host.setflags(write=False)
                self.arrived(host)
            finally:
                self._replies = None
            return host
        return host

    def block_until_ready(self) -> DistributedArray:
        """Waits until its value has been computed."""
        self.check()
        if self._host is None:
            self.home.wait(self)
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        host = self.on_host()
        if dtype is not None and np.dtype(dtype) != host.dtype:
            if copy is False:
                raise ValueError("another dtype takes a copy")
            return host.astype(dtype)
        return host.copy() if copy else host

    def __repr__(self) -> str:
        what = f"{self.dtype}{list(self.shape)} {self.sharding.as_text()}"
        if self._gone is not None:
            return f"DistributedArray({what}; {self._gone})"
        if self._host is not None and self.size <= 1000:
            text = np.array2string(self._host, separator=", ", prefix="DistributedArray(")
            return f"DistributedArray({text}, {what})"
        return f"DistributedArray({what})"

    def __str__(self) -> str:
        return str(self.on_host())

    def __del__(self) -> None:
        # A partly made array has no `_gone`; an interpreter that ends has no home.
        if getattr(self, "_gone", "") is None:
            self.home.release(self.uid, self.workers)


class DistributedKeys(WholeArray):
    """Keys in the memory of workers. The next step takes them where they are, functions under
    `jax.jit` and `jax.device_get` fetch them; those of `jax.random` itself take `whole()` of
    them.

    Attributes:
        data: their data; the last dimensions are those of one key.
        impl: name of their generator.
        shape, dtype: of the keys.
    """

    def __init__(
        self, data: DistributedArray | StackedArray, impl: str, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.data = data
        self.impl = impl
        self.shape = shape
        self.dtype = dtype

    def whole(self) -> jax.Array:
        """Typed keys on the default device."""
        return _jax.random.wrap_key_data(_jnp.asarray(np.asarray(self.data)), impl=self.impl)

    def is_deleted(self) -> bool:
        return self.data.is_deleted()

    def delete(self) -> None:
        """Drop them in the workers now."""
        self.data.delete()

    def copy_to_host_async(self) -> None:
        self.data.copy_to_host_async()

    def block_until_ready(self) -> DistributedKeys:
        self.data.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.whole()  # What `jax.device_get` gives of keys; NumPy refuses it.

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_jax.random.wrap_key_data, impl=self.impl), (np.asarray(self.data),)

    def __repr__(self) -> str:
        return f"DistributedKeys({self.impl}{list(self.shape)}, data {self.data!r})"


def in_workers(value: Any) -> bool:
    """Whether an array, or the pieces of one, live in workers."""
    pieces = value.pieces if isinstance(value, StackedArray) else (value,)
    return all(isinstance(piece, DistributedArray) for piece in pieces)


def keys_in_workers(data: DistributedArray | StackedArray, impl: str) -> DistributedKeys:
    """The keys of a generator that these are the data of."""
    form = _jax.ShapeDtypeStruct(data.shape, data.dtype)
    keys = _jax.eval_shape(partial(_jax.random.wrap_key_data, impl=impl), form)
    return DistributedKeys(data, impl, keys.shape, keys.dtype)
