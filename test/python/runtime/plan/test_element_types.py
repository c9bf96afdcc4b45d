"""Names of element types: those of the compiler, of plans and of XLA are one."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_runtime.plan import tensor
from alpa_runtime.plan.tensor import mlir_name, numpy_name
from jaxlib.mlir import ir

NAMES = {
    "i1": "bool",
    "i8": "int8",
    "ui32": "uint32",
    "si16": "int16",
    "i4": "int4",
    "f64": "float64",
    "bf16": "bfloat16",
    "f8E5M2": "float8_e5m2",
    "complex<f64>": "complex128",
    "index": None,
    "f80": None,
}


def test_names():
    assert {name: numpy_name(name) for name in NAMES} == NAMES
    assert mlir_name("float8_e4m3fn") == "f8E4M3FN"
    assert mlir_name("float80") is None


@pytest.mark.parametrize("dtype", sorted(tensor._MLIR_NAMES))
def test_names_are_those_of_the_libraries(dtype):
    element = mlir_name(dtype)
    assert numpy_name(element) == dtype
    assert str(jnp.dtype(dtype)) == dtype
    with ir.Context():
        assert str(ir.Type.parse(element)) == element


def test_arrays_of_small_floats_run():
    def step(w, x):
        def loss(a):
            y = x.astype(jnp.float32) @ a * w["scale"].astype(jnp.float32)
            return jnp.mean(jnp.tanh(y) ** 2)

        value, grad = jax.value_and_grad(loss)(w["a"])
        half = (w["scale"].astype(jnp.float32) * 0.5).astype(w["scale"].dtype)
        return {"a": w["a"] - 0.1 * grad, "scale": half}, value

    w = {"a": np.full((8, 4), 0.1, np.float32), "scale": jnp.ones((4,), jnp.float8_e4m3fn)}
    x = np.linspace(-1, 1, 64).reshape(8, 8).astype(jnp.float8_e5m2)
    method = alpa_mlir.ShardParallel(mesh_shape=(1, 2))
    planned = alpa_mlir.parallelize(step, cluster="cpu-test", method=method).plan(w, x)
    expected, loss = jax.jit(step)(w, x)
    found, found_loss = planned.load()(w, x)
    assert found["scale"].dtype == jnp.float8_e4m3fn
    np.testing.assert_array_equal(found["scale"], expected["scale"])
    np.testing.assert_allclose(found["a"], expected["a"], rtol=1e-5)
    np.testing.assert_allclose(found_loss, loss, rtol=1e-5)
