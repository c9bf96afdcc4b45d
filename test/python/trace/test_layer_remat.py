"""Parts of a function that are computed again: same gradients, as many parts as asked for."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import MethodError, PipeshardParallel, automatic_remat, manual_remat
from alpa_mlir.trace.layer_markers import is_layer_marker
from alpa_runtime.jax_internals import params_of

CLUSTER = alpa_mlir.Cluster.nominal("two", "cpu", (2,), 1 << 30)


def loss_of(params, x, mark=lambda: None):
    for i, w in enumerate(params):
        if i:
            mark()
        x = jax.nn.gelu(x @ w)
    return jnp.mean(x**2), x[:, 0]


def marked(params, x):
    return jax.jit(lambda p, x: loss_of(p, x, alpa_mlir.mark_pipeline_boundary))(params, x)


def example(layers=4):
    keys = jax.random.split(jax.random.key(0), layers)
    return [jax.random.normal(k, (8, 8)) for k in keys], jnp.linspace(-1, 1, 32).reshape(4, 8)


def is_part(eqn):
    return eqn.primitive.name in ("checkpoint", "remat2", "call_hi_primitive")


def parts_of(fun, args):
    """Dots of each part, in order."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    found = []
    for eqn in jaxpr.eqns:
        if not is_layer_marker(eqn):
            assert is_part(eqn), eqn.primitive
            inner = params_of(eqn)["jaxpr"].eqns
            found.append(sum(e.primitive.name == "dot_general" for e in inner))
    return found


def check_gradients(fun):
    params, x = example()
    found = jax.value_and_grad(fun, has_aux=True)(params, x)
    wanted = jax.value_and_grad(loss_of, has_aux=True)(params, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_parts_between_marks():
    fun = manual_remat(marked)
    assert parts_of(fun, example()) == [1, 1, 1, 1]
    assert parts_of(manual_remat()(loss_of), example()) == [4]
    check_gradients(fun)


@pytest.mark.parametrize(("parts", "dots"), [(1, [4]), (2, [2, 2]), (4, [1, 1, 1, 1])])
def test_parts_of_like_flops(parts, dots):
    fun = automatic_remat(loss_of, layer_num=parts, eps=0.2)
    assert parts_of(fun, example()) == dots
    check_gradients(fun)


def test_parts_are_cut_where_the_fewest_bytes_cross():
    def narrow(x):
        for _ in range(4):
            x = jnp.tanh(x) + jnp.cos(x)  # Two values cross in the middle of this, one behind it.
        return jnp.sum(x)

    fun = automatic_remat(narrow, layer_num=2, eps=1.0)
    jaxpr = jax.make_jaxpr(fun)(jnp.ones(64)).jaxpr
    first, _second = (eqn for eqn in jaxpr.eqns if is_part(eqn))
    assert len(first.outvars) == 1


def test_parts_of_the_newer_checkpoint(newer_checkpoint):
    test_parts_between_marks()
    test_parts_of_like_flops(2, [2, 2])
    test_parts_are_cut_where_the_fewest_bytes_cross()


def test_static_arguments_and_bad_numbers():
    fun = automatic_remat(
        lambda x, power: jnp.sum(jnp.sin(x) ** power), layer_num=2, static_argnums=1
    )
    np.testing.assert_allclose(jax.grad(fun)(0.5, 3), 3 * np.sin(0.5) ** 2 * np.cos(0.5), rtol=1e-6)
    for bad in ({"layer_num": 0}, {"layer_num": 2, "eps": -1.0}):
        with pytest.raises(MethodError, match="automatic_remat: layer_num="):
            automatic_remat(loss_of, **bad)


def stages_of(function, args, method):
    parallel = alpa_mlir.parallelize(function, cluster=CLUSTER, method=method)
    return len(parallel.plan(*args).plan.stages)


def test_marks_without_values_make_layers():
    def step(params, x):
        (loss, _), gradients = jax.value_and_grad(marked, has_aux=True)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    args = example(2)
    method = PipeshardParallel(layer_option="manual", num_micro_batches=2)
    assert stages_of(step, args, method) == 2
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
    for a, b in zip(
        jax.tree.leaves(parallel(*args)), jax.tree.leaves(jax.jit(step)(*args)), strict=True
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    # Without gradients too.
    assert stages_of(lambda p, x: marked(p, x)[1], args, method) == 2


def test_a_pipeline_whose_parts_are_finer_than_its_layers():
    def step(params, x):
        fine = automatic_remat(loss_of, layer_num=4)
        (loss, _), gradients = jax.value_and_grad(fine, has_aux=True)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    args = example()
    method = PipeshardParallel(layers=2, submeshes=[(1, 1), (1, 1)], num_micro_batches=2)
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
    for a, b in zip(
        jax.tree.leaves(parallel(*args)), jax.tree.leaves(jax.jit(step)(*args)), strict=True
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    assert len(parallel.get_last_executable().plan.stages) == 2
