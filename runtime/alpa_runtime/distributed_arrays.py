"""Arrays that live in workers, and typed PRNG keys whose data do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy
import numpy as np
from numpy.typing import NDArray

from alpa_runtime.arrays import StackedArray, WholeArray
from alpa_runtime.errors import DeletedArrayError
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.units import spec_text
from alpa_runtime.worker_group import Reply

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
        self._lose(f"was used up by step {step}")

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


_jax: Any = jax
_jnp: Any = jax.numpy


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
