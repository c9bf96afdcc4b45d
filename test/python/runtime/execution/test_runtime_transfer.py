"""Transfers between meshes keep every value, whatever the two shardings and the steps are."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from alpa_runtime.backends.xla import named_sharding
from alpa_runtime.execution.transfers import bind_reshard
from alpa_runtime.plan.reshard import ReshardInfo, read_step
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from reshard_plans import STRATEGIES, reshard

SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4)]
SPECS = [
    tuple(map(tuple, dims))
    for dims in itertools.product([[], ["x"], ["y"], ["x", "y"], ["y", "x"]], repeat=2)
    if not set(dims[0]) & set(dims[1])
]


def mesh_of(shape, first) -> MeshInfo:
    return MeshInfo(shape, ("x", "y"), tuple(range(first, first + shape[0] * shape[1])))


def sharding_of(mesh: MeshInfo, tensor: TensorSpec):
    devices = np.array([jax.devices()[d] for d in mesh.devices]).reshape(mesh.shape)
    return named_sharding(Mesh(devices, mesh.axes), tensor)


def check(info: ReshardInfo, meshes, value):
    source = sharding_of(meshes[info.source_mesh], info.source)
    target = sharding_of(meshes[info.target_mesh], info.target)
    move = bind_reshard(info, meshes, source, target)
    for _ in range(2):
        moved = move(jax.device_put(value, source))
        assert moved.sharding == target
        assert moved.dtype == value.dtype
        np.testing.assert_array_equal(moved, value)
        for shard in moved.addressable_shards:  # replicas too
            np.testing.assert_array_equal(shard.data, value[shard.index])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.sampled_from(SHAPES),
    st.sampled_from(SPECS),
    st.sampled_from(SPECS),
    st.sampled_from(STRATEGIES),
)
def test_every_pair_of_shardings(source_shape, target_shape, source_spec, target_spec, strategy):
    meshes = mesh_of(source_shape, 0), mesh_of(target_shape, 4)
    source = TensorSpec((8, 4), "float32", source_spec)
    target = TensorSpec((8, 4), "float32", target_spec)
    info = reshard(source, meshes[0], target, meshes[1], strategy)
    check(info, meshes, np.arange(32, dtype=np.float32).reshape(8, 4))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "uint32", "int8", "complex64"])
def test_types(dtype, strategy):
    meshes = mesh_of((1, 2), 0), mesh_of((2, 2), 4)
    source, target = TensorSpec((4,), dtype, (("y",),)), TensorSpec((4,), dtype, ((),))
    value = np.array([1, 0, 1, 1]).astype(jax.numpy.dtype(dtype))
    check(reshard(source, meshes[0], target, meshes[1], strategy), meshes, value)


def test_scalars_and_tensors_without_elements():
    meshes = mesh_of((1, 2), 0), mesh_of((2, 2), 4)
    for shape in ((), (0, 4)):
        tensor = TensorSpec(shape, "float32", ((),) * len(shape))
        info = reshard(tensor, meshes[0], tensor, meshes[1], "broadcast")
        check(info, meshes, np.ones(shape, np.float32))


def test_tiles_that_no_cut_parts():
    """Around the middle of a pinwheel; its arms are sent, handed on and gathered."""
    meshes = mesh_of((1, 1), 0), mesh_of((1, 2), 4)
    tensor = TensorSpec((3, 3), "float32", ((), ()))
    lines = [
        "tile 0 on 0 [0:1,0:2]",
        "broadcast 1-2 = 0 to 4 5 chunks 2",
        "tile 3 on 0 [0:2,2:3]",
        "send 4 = 3 to 4",
        "send 5 = 4 to 5",
        "tile 6 on 0 [2:3,1:3]",
        "broadcast 7-8 = 6 to 5 4 chunks 1",
        "tile 9 on 0 [1:2,0:1]",
        "tile 10 on 0 [2:3,0:1]",
        "send 11 = 9 to 4",
        "send 12 = 10 to 5",
        "all_gather 13-14 = 11 12",
        "tile 15 on 0 [1:2,1:2]",
        "broadcast 16-17 = 15 to 4 5 chunks 1",
    ]
    steps = tuple(map(read_step, lines))
    info = ReshardInfo(0, tensor, 1, tensor, "by hand", 0.0, steps)
    check(info, meshes, np.arange(9, dtype=np.float32).reshape(3, 3))


def test_whole_tiles_are_neither_cut_nor_put_together(monkeypatch):
    """Equal shardings take one call: it copies all shards."""
    import alpa_runtime.execution.transfers as transfer

    meshes = mesh_of((2, 2), 0), mesh_of((2, 2), 4)
    tensor = TensorSpec((8, 4), "float32", (("x",), ("y",)))
    info = reshard(tensor, meshes[0], tensor, meshes[1], "send")
    for name in ("_cutter", "_assembler", "put_on"):
        monkeypatch.setattr(transfer, name, None)
    check(info, meshes, np.arange(32, dtype=np.float32).reshape(8, 4))
