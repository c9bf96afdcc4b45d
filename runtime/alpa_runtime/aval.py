"""Arrays of a step's arguments and results, as JAX sees them and as the module has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from alpa_runtime.errors import TraceError

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax


@dataclass(frozen=True)
class Leaf:
    """One array of an argument or a result as JAX sees it.

    Attributes:
        name: tree path.
        shape: logical shape.
        dtype: JAX dtype; an extended one for typed PRNG keys.
        data_shape: shape of the array that stands for the leaf in the module.
        data_dtype: NumPy's name of that array's dtype.
        key_impl: generator of a typed PRNG key, else None. Keys travel as their data.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    data_shape: tuple[int, ...]
    data_dtype: str
    key_impl: str | None = None


def is_typed_key(aval: Any) -> bool:
    """Whether an array or an abstract one holds typed PRNG keys."""
    return bool(_jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.prng_key))


def make_leaf(name: str, aval: Any) -> Leaf:
    """Describe an abstract array; a typed PRNG key is described by its data too."""
    shape = tuple(aval.shape)
    if not _jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.extended):
        return Leaf(name, shape, aval.dtype, shape, str(np.dtype(aval.dtype)))
    if not _jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.prng_key):
        raise TraceError(f"the dtype {aval.dtype} has no array form", where=name)
    impl: list[str] = []

    def data(key: Any) -> Any:
        impl.append(str(_jax.random.key_impl(key)))
        return _jax.random.key_data(key)

    array = _jax.eval_shape(data, aval)
    return Leaf(name, shape, aval.dtype, tuple(array.shape), str(array.dtype), impl[0])
