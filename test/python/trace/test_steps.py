"""Steps of real training loops give the numbers of `jax.jit`, cut into stages and micro-batches."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import PipeshardParallel
from test_equality import CLUSTER, relative_difference


def two_stages(count):
    return PipeshardParallel(submeshes=[(1, 2), (1, 1)], num_micro_batches=count)


@pytest.mark.parametrize(
    ("name", "count"),
    [("deep_supervision", 2), ("two_losses", 2), ("optimizer_chain", 4), ("wide_resnet", 1)],
)
def test_steps(name, count):
    model = zoo.get(name)
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=two_stages(count))
    reference = jax.jit(model.step)
    expected_state = state
    for _ in range(3):
        state, metrics = step(state, batch)
        expected_state, expected = reference(expected_state, batch)
        assert relative_difference(metrics, expected) < 1e-4
    assert relative_difference(state, expected_state, 1e-3) < 1e-4


def test_sums_over_micro_batches():
    """Losses that are sums over the batch, and what the update makes of such sums."""
    weights = [0.3 * jax.random.normal(jax.random.key(i), (8, 8)) for i in range(3)]
    x = jax.random.normal(jax.random.key(7), (8, 8))

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.sum(x**2), jnp.sum(x > 0)

    def step(weights, x):
        (value, positive), grads = jax.value_and_grad(loss, has_aux=True)(weights, x)
        new = [w - 0.01 * g / positive for w, g in zip(weights, grads, strict=True)]
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
        return new, {
            "loss": value,
            "positive": positive,
            # Made once a step, of sums; and what no batch has a part in.
            "average": value / positive,
            "norm": norm,
            "is_large": (norm > 1).astype(int),
            "rate": jnp.float32(0.01),
            "old": weights[0][0],
        }

    planned = alpa_mlir.compile(step, weights, x, cluster=CLUSTER, method=two_stages(4))
    assert relative_difference(planned(weights, x), jax.jit(step)(weights, x)) < 1e-5


def test_a_jitted_step():
    """A step that the user jitted, or whose gradient is jitted, is cut like any other."""
    weights = [0.3 * jax.random.normal(jax.random.key(i), (8, 8)) for i in range(3)]
    batch = jax.random.normal(jax.random.key(7), (2, 8, 8))
    batch = {"x": batch[0], "y": batch[1]}

    def loss(weights, batch):
        x = batch["x"]
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - batch["y"]) ** 2)

    def step(gradient, weights, batch):
        value, grads = gradient(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    gradient = jax.value_and_grad(loss)
    expected = step(gradient, weights, batch)
    jitted = jax.jit(functools.partial(step, gradient))
    for form in (jitted, functools.partial(step, jax.jit(gradient))):
        planned = alpa_mlir.compile(form, weights, batch, cluster=CLUSTER, method=two_stages(4))
        assert all("backward" in stage.functions for stage in planned.plan.stages)
        assert relative_difference(planned(weights, batch), expected) < 1e-5


@pytest.mark.parametrize("count", [1, 4, 8])
def test_gradients_of_single_examples(count):
    """Clipped one by one, as in differentially private training (Abadi et al., 2016)."""
    weights = [jax.random.normal(jax.random.key(i), (8, 8)) for i in range(3)]
    batch = jax.random.normal(jax.random.key(7), (8, 8))

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(weight @ x)
        return 10 * jnp.sum(x**2)

    def step(weights, batch):
        grads = jax.vmap(jax.grad(loss), (None, 0))(weights, batch)
        norms = jnp.sqrt(sum(jnp.sum(g**2, (1, 2)) for g in grads))
        clipped = [g / jnp.maximum(norms, 1)[:, None, None] for g in grads]
        new = [w - 0.1 * g.mean(0) for w, g in zip(weights, clipped, strict=True)]
        return new, norms

    planned = alpa_mlir.compile(step, weights, batch, cluster=CLUSTER, method=two_stages(count))
    assert relative_difference(planned(weights, batch), jax.jit(step)(weights, batch)) < 1e-5


@pytest.mark.parametrize("name", ["gpt", "kv_cache"])
def test_inference(name):
    """No gradient anywhere: all of the function is forward."""
    model = zoo.get(name)
    state, batch = model.init()
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=1)
    planned = alpa_mlir.compile(model.forward, state, batch, cluster=CLUSTER, method=method)
    expected = jax.jit(model.forward)(state, batch)
    np.testing.assert_allclose(planned(state, batch), expected, rtol=1e-4, atol=1e-5)
    assert all("backward" not in stage.functions for stage in planned.plan.stages)
