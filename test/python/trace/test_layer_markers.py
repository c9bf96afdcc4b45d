"""Marks of layers: they change no numbers, and the compiler cuts where they stand."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import PipeshardParallel
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace
from test_equality import CLUSTER, relative_difference

WIDTH = 8
PARAMS = [0.3 * jax.random.normal(jax.random.key(i), (WIDTH, WIDTH)) for i in range(4)]
X = jax.random.normal(jax.random.key(9), (8, WIDTH))


def loss(params, x, mark):
    """Two layers, of one and of three products; the second under vmap and checkpoint."""
    h = mark(jnp.tanh(x @ params[0]))
    h = jax.vmap(jax.checkpoint(lambda row: jnp.tanh(row @ params[1])))(h)
    h = jax.jit(lambda h: jnp.tanh(h @ params[2]))(h)
    return jnp.mean((h @ params[3]) ** 2)


def make_step(mark):
    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x, mark)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value

    return step


def layers_of(step, *args):
    """Forward products in each layer, after clustering."""
    traced = trace(step, *args)
    module = Module(traced.text, "step")
    module.annotate(traced.signature.to_json())
    module.run("alpa-import,alpa-cluster-layers")
    found: dict[int, int] = {}
    for line in module.as_text().splitlines():
        if "dot_general" in line and '"forward"' in line:
            layer = int(line.split("alpa.layer = ")[1].split(" ")[0])
            found[layer] = found.get(layer, 0) + 1
    return found


def test_layers_are_cut_at_marks():
    assert layers_of(make_step(alpa_mlir.layer_boundary), PARAMS, X) == {0: 1, 1: 3}
    assert len(layers_of(make_step(lambda h: h), PARAMS, X)) == 4


def test_inference_is_cut_at_marks():
    def forward(params, x):
        return loss(params, x, alpa_mlir.layer_boundary)

    assert layers_of(forward, PARAMS, X) == {0: 1, 1: 3}


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, jax.checkpoint, jax.jit])
def test_values_and_gradients_pass(transform):
    def through(mark):
        def function(x):
            return jnp.sum(jnp.sin(transform(lambda h: mark({"h": jnp.exp(h)})["h"])(x)))

        return jax.jit(jax.value_and_grad(function))(X)

    found, expected = through(alpa_mlir.layer_boundary), through(lambda h: h)
    assert relative_difference(found, expected) < 1e-6


def test_marked_step_gives_the_numbers_of_jit():
    step = make_step(alpa_mlir.layer_boundary)
    method = PipeshardParallel(
        submeshes=[(1, 2), (1, 1)], layer_ranges=[(0, 1), (1, 2)], num_micro_batches=2
    )
    planned = alpa_mlir.compile(step, PARAMS, X, cluster=CLUSTER, method=method)
    assert relative_difference(planned(PARAMS, X), jax.jit(step)(PARAMS, X)) < 1e-5
