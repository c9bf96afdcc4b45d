"""Copies between meshes keep every value, whatever the two shardings are."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from alpa_mlir.plan import TensorSpec
from alpa_mlir.runtime.transfer import plan_transfer
from alpa_mlir.runtime.xla import named_sharding
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4)]
SPECS = [
    tuple(map(tuple, dims))
    for dims in itertools.product([[], ["x"], ["y"], ["x", "y"], ["y", "x"]], repeat=2)
    if not set(dims[0]) & set(dims[1])
]


def mesh_of(shape, first):
    count = shape[0] * shape[1]
    return Mesh(np.array(jax.devices()[first : first + count]).reshape(shape), ("x", "y"))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.sampled_from(SPECS), st.sampled_from(SPECS)
)
def test_every_pair_of_shardings(source_shape, target_shape, source_spec, target_spec):
    source = named_sharding(mesh_of(source_shape, 0), TensorSpec((8, 4), "float32", source_spec))
    tensor = TensorSpec((8, 4), "float32", target_spec)
    target = named_sharding(mesh_of(target_shape, 4), tensor)
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    moved = plan_transfer(tensor, source, target)(jax.device_put(value, source))
    assert moved.sharding == target
    np.testing.assert_array_equal(moved, value)
    for shard in moved.addressable_shards:  # replicas too
        np.testing.assert_array_equal(shard.data, value[shard.index])


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "uint32", "int8"])
def test_scalars_and_types(dtype):
    tensor = TensorSpec((), dtype, ())
    source, target = (named_sharding(mesh_of(s, i), tensor) for s, i in (((1, 2), 0), ((2, 2), 4)))
    value = jax.device_put(jax.numpy.ones((), dtype), source)
    moved = plan_transfer(tensor, source, target)(value)
    assert moved.dtype == value.dtype
    assert bool(moved == 1)
