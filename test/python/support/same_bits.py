"""Trees of arrays that are the same to the bit."""

from __future__ import annotations

import jax
import numpy as np


def bits(x):
    """dtype, shape and bytes of an array or key."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(x)), bits(jax.random.key_data(x))
    x = np.asarray(x)
    return str(x.dtype), x.shape, x.tobytes()


def check_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert bits(x) == bits(y), path
