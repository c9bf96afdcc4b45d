"""Arguments are placed where steps read them, whatever they are: stacks, keys, Python values."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import ArgumentMismatchError, MethodError, PipeshardParallel
from alpa_runtime.arrays import StackedArray
from jax.sharding import PartitionSpec as P

CLUSTER = alpa_mlir.Cluster.nominal("two", "cpu", (2,), 1 << 30)


def predict(params, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params["w"])[0]


def step(state, x, scale):
    key, used = jax.random.split(state["key"])

    def loss_of(params):
        noise = jax.random.normal(used, x.shape)
        return jnp.mean((predict(params, x + 0.01 * noise) * scale) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradients)
    return {"params": params, "key": key}, loss


def example():
    weights = jax.random.normal(jax.random.key(1), (4, 8, 8))
    state = {"params": {"w": weights}, "key": jax.random.key(2, impl="rbg")}
    return state, np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), 2.0


@pytest.fixture(scope="module")
def parallel():
    ranges = [(0, 2), (2, 4)]
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], layers=4, layer_ranges=ranges)
    return alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, static_argnums=2)


def same(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)


def test_stacks_keys_and_static_arguments(parallel):
    wanted = jax.jit(step, static_argnums=2)(*example())
    placed = parallel.preshard_dynamic_args(*example())
    state, _x, scale = placed
    assert scale == 2.0
    assert isinstance(state["params"]["w"], StackedArray)
    assert jax.random.key_impl(state["key"]) == "rbg"
    same(state, example()[0])
    same(parallel(*placed), wanted)
    assert state["params"]["w"].is_deleted()
    # What a step returned is where it belongs already.
    again = parallel(*example())[0]
    assert parallel.preshard_dynamic_args(again, *example()[1:])[0]["params"]["w"].pieces == (
        again["params"]["w"].pieces
    )
    with pytest.raises(ArgumentMismatchError, match="no leaf"):
        parallel.get_last_executable().place({"params": {}}, *example()[1:])


def test_specs_of_stacks(parallel):
    executable = parallel.get_executable(*example())
    state, x, scale = executable.get_input_placement_specs()
    assert scale is None
    weights = state["params"]["w"]
    assert (weights.shape, weights.dtype, weights.mesh_ids) == ((4, 8, 8), "float32", (0, 1))
    assert weights.sharding_specs == (P(None, None, None),) * 2
    assert x.mesh_ids == (0,)
    assert executable.get_output_placement_specs()[0]["params"]["w"] == weights


def test_stacks_are_not_followed(parallel):
    parallel.get_executable(*example())
    follow = alpa_mlir.parallelize(predict, method=alpa_mlir.FollowParallel(parallel))
    with pytest.raises(MethodError, match="a stack of layers that lies on meshes 0, 1; fix: mark"):
        follow(*[example()[0]["params"], example()[1]])
