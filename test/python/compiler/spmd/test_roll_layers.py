"""Stages with loops over their equal layers compute what `jax.jit` does."""

from __future__ import annotations

import dataclasses

import alpa_mlir
import jax
import jax.numpy as jnp
import optax
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from test_equality import CLUSTER, assert_steps_of_jit, relative_difference, run

PAIR = [(1, 2), (1, 2)]
METHODS = {
    "two stages": PipeshardParallel(submeshes=PAIR, num_micro_batches=2),
    "two stages, collectives": PipeshardParallel(
        submeshes=PAIR, num_micro_batches=2, export="collectives"
    ),
    "backward in two": PipeshardParallel(submeshes=PAIR, num_micro_batches=4, schedule="zb-h1"),
    "one mesh": ShardParallel(mesh_shape=(2, 2), num_micro_batches=2),
    "zero-3": ShardParallel(mesh_shape=(2, 2), num_micro_batches=2, method="zero-3"),
    "one mesh, collectives": ShardParallel(mesh_shape=(2, 2), export="collectives"),
}
REMAT = ("two stages", "one mesh")  # Methods that the fast tests compute layers again with.


def compiled(config, method):
    model = zoo.make_gpt(config)
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    return model, state, batch, step


def loops(step):
    return [text.count("stablehlo.while") for text in step.plan.modules.values()]


@pytest.mark.parametrize("name", ["two stages", "one mesh"])
def test_layers_that_a_method_computes_again_are_loops(name):
    method = dataclasses.replace(METHODS[name], remat="all")
    assert min(loops(compiled(zoo.GPTConfig(layers=8, scan=True), method)[-1])) >= 2


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "remat"),
    [
        *((name, False) for name in METHODS),
        *(
            pytest.param(name, True, marks=() if name in REMAT else pytest.mark.slow)
            for name in METHODS
        ),
    ],
)
def test_loops_compute_what_layers_do(name, remat):
    config = zoo.GPTConfig(layers=8, scan=True, remat=remat, optimizer="sgd", learning_rate=0.1)
    model, state, batch, step = compiled(config, METHODS[name])
    assert min(loops(step)) >= 2  # Forward and backward.
    losses, params = run(step, state, batch)
    expected_losses, expected = run(jax.jit(model.step), state, batch)
    assert relative_difference(losses, expected_losses) < 1e-5
    assert relative_difference(params, expected, 1e-6) < 1e-5


def scanned(layer):
    """The SGD step of a scan over layers."""

    def step(params, batch):
        def loss(params):
            return jnp.mean(jax.lax.scan(layer, jnp.tanh(batch), params)[0] ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

    return step


@pytest.mark.parametrize(
    "method",
    [
        ShardParallel(
            mesh_shape=(2, 2),
            num_micro_batches=2,
            layers=8,
            remat=[4, 5, 6, 7],
            method="data-parallel",
        ),
        PipeshardParallel(
            submeshes=PAIR, num_micro_batches=2, layers=16, remat=[0, 1, 2, 3, 8, 9, 10, 11]
        ),
    ],
    ids=["one mesh", "two stages"],
)
def test_rematerialized_layers_are_a_loop_of_their_own(method):
    step = scanned(residual)
    params, batch = stack_params(method.layers), jax.random.normal(jax.random.key(1), (8, 16))
    compiled_step = alpa_mlir.compile(step, params, batch, cluster=CLUSTER, method=method)
    assert min(loops(compiled_step)) == 4
    assert_steps_of_jit(compiled_step, step, params, batch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["two stages", "one mesh"])
def test_modules_are_as_long_for_more_layers(name):
    """What a device compiles does not grow with the layers, the optimizer included."""
    lengths = []
    for layers in (8, 12):
        _, _, _, step = compiled(zoo.GPTConfig(layers=layers, scan=True), METHODS[name])
        assert min(loops(step)) >= 2
        lengths.append(sum(len(text.splitlines()) for text in step.plan.modules.values()))
    assert lengths[1] < 1.1 * lengths[0]


def test_no_layer_stays_beside_the_loop():
    """Where another layout of the first or last layer gains nothing, all are in the loop."""

    def planned(layers):
        config = zoo.GPTConfig(
            layers=layers, hidden=1024, heads=8, vocab=51200, seq=512, dtype="bfloat16", scan=True
        )
        model = zoo.make_gpt(config)
        method = ShardParallel(num_micro_batches=4)
        parallel = alpa_mlir.parallelize(model.step, cluster="dgx-h100", method=method, cache=False)
        (text,) = parallel.plan(*jax.eval_shape(lambda: model.init(64))).plan.modules.values()
        return text

    one, eight = planned(1), planned(8)
    assert eight.count("stablehlo.while") == 2
    assert eight.count("stablehlo.dot_general") == one.count("stablehlo.dot_general")


def rounded(x, layer):
    """Multiplies by weights that are rounded first, which the gradients multiply by again."""
    up, down = (layer[name].astype(jnp.bfloat16) for name in ("up", "down"))
    scale = jax.lax.rsqrt(1 + jnp.mean(x**2, -1, keepdims=True))
    hidden = (x.astype(jnp.bfloat16) @ up).astype(jnp.float32)
    return x + (jnp.tanh(hidden).astype(jnp.bfloat16) @ down).astype(jnp.float32) * scale, None


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", METHODS)
def test_converted_weights_become_a_stack(name):
    step = scanned(rounded)
    params, batch = stack_params(), jax.random.normal(jax.random.key(1), (8, 16))
    rolled, written_out = (
        alpa_mlir.compile(
            step,
            params,
            batch,
            cluster=CLUSTER,
            method=dataclasses.replace(METHODS[name], layer_loops=layer_loops),
        )
        for layer_loops in (True, False)
    )
    # A function with the products for the weights' gradients alone has too few ops a layer.
    assert (max if name == "backward in two" else min)(loops(rolled)) >= 2
    made = [
        line
        for text in rolled.plan.modules.values()
        for line in text.splitlines()
        if "dynamic_update_slice" in line and "bf16" in line
    ]
    assert made  # Rounded weights, which a loop makes for the backward pass.
    found = beside = expected = params
    for _ in range(2):
        found, value = rolled(found, batch)
        beside, value_beside = written_out(beside, batch)
        expected, expected_value = jax.jit(step)(expected, batch)
        assert relative_difference(value, value_beside) < 1e-6
        assert relative_difference(found, beside) < 1e-6
        # Collectives add what each device rounded.
        tolerance = 2e-2 if METHODS[name].export == "collectives" else 1e-5
        assert relative_difference(value, expected_value) < tolerance
        assert relative_difference(found, expected, 1e-6) < tolerance


def noisy(x, layer, key, rate):
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    x, _ = residual(jnp.where(keep, x / (1 - rate), 0), layer)
    return x


def keys_as_rows(params, x, key, remat):
    def body(x, row):
        return noisy(x, *row, 0.1), None

    keys = jax.random.split(key, len(params["up"]))
    return jax.lax.scan(jax.checkpoint(body) if remat else body, x, (params, keys))[0]


def keys_of_numbers(params, x, key, remat):
    def body(x, row):
        layer, number = row
        return noisy(x, layer, jax.random.fold_in(key, number), 0.1), None

    numbers = jnp.arange(len(params["up"]))
    return jax.lax.scan(jax.checkpoint(body) if remat else body, x, (params, numbers))[0]


def written_with_rates(params, x, key, remat):
    body = jax.checkpoint(noisy, static_argnums=3) if remat else noisy
    for number, layer in enumerate(params):
        x = body(x, layer, jax.random.fold_in(key, number), 0.02 * (1 + number))
    return x


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["two stages", "one mesh"])
@pytest.mark.parametrize(
    ("layers", "remat"),
    [(keys_as_rows, False), (keys_of_numbers, True), (written_with_rates, False)],
)
def test_layers_with_random_bits_of_their_own(layers, remat, name):
    def step(state, batch):
        params, seed = state

        def loss(params):
            return jnp.mean(layers(params, jnp.tanh(batch), jax.random.key(seed), remat) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return (jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), seed + 1), value

    params, batch = stack_params(), jax.random.normal(jax.random.key(1), (8, 16))
    if layers is written_with_rates:
        params = [jax.tree.map(lambda stack, i=i: stack[i], params) for i in range(10)]
    state = params, jnp.int32(7)
    method = dataclasses.replace(METHODS[name], layer_loops="all")
    if name == "one mesh":  # Of so small a model, layers are split otherwise where that pays.
        method = dataclasses.replace(method, method="data-parallel")
    compiled_step = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    # Two products a layer, and four or six in the backward pass, of ten layers.
    products = [text.count("stablehlo.dot_general") for text in compiled_step.plan.modules.values()]
    assert sum(products) < (40 if remat else 30)
    found, expected = state, state
    for _ in range(2):
        found, value = compiled_step(found, batch)
        expected, expected_value = jax.jit(step)(expected, batch)
        assert relative_difference(value, expected_value) < 1e-5
        assert relative_difference(found[0], expected[0], 1e-6) < 1e-5


def stack_params(layers=10):
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "up": 0.3 * jax.random.normal(keys[0], (layers, 16, 32)),
        "down": 0.3 * jax.random.normal(keys[1], (layers, 32, 16)),
    }


def residual(x, layer):
    scale = jax.lax.rsqrt(1 + jnp.mean(x**2, -1, keepdims=True))
    return x + jnp.tanh(x @ layer["up"]) @ layer["down"] * scale, None


def in_frequencies(x, layer):
    """Keeps complex values for its gradient."""
    waves = jnp.fft.fft(x, axis=-1) * layer["up"][0, :16]
    waves = waves * (1 + 0.01 * jnp.abs(waves) ** 2)
    return jnp.tanh((x + jnp.fft.ifft(waves, axis=-1).real) @ layer["up"] @ layer["down"]), None


def some_clipped(params, grads):
    """The rest of a stack does not wait for the norm, so two functions make its rows."""
    clip = jnp.minimum(1, 0.1 / optax.tree.norm(grads))
    return jax.tree.map(
        lambda w, g: jnp.stack(
            [w[i] - 0.1 * g[i] * (clip if i in (1, 2, 6) else 1) for i in range(len(w))]
        ),
        params,
        grads,
    )


def after_sgd(change):
    return lambda params, grads: jax.tree.map(lambda w, g: change(w - 0.1 * g), params, grads)


UPDATES = {
    "rows": after_sgd(lambda w: w),
    "reversed": after_sgd(lambda w: w[::-1]),
    "first from second": after_sgd(lambda w: w.at[0].set(w[1])),
    "less their mean": after_sgd(lambda w: w - w.mean(0)),
    "first decays": after_sgd(lambda w: jnp.concatenate([0.9 * w[:1], w[1:]])),
    "some clipped": some_clipped,
}


@pytest.mark.sweep(7)
@pytest.mark.parametrize("name", ["two stages", "one mesh"])
@pytest.mark.parametrize(
    ("layer", "update"), [(residual, name) for name in UPDATES] + [(in_frequencies, "rows")]
)
def test_updates_that_mix_the_rows_of_a_stack(layer, update, name):
    def step(params, batch):
        def loss(params):
            return jnp.mean(jax.lax.scan(layer, jnp.tanh(batch), params)[0] ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return UPDATES[update](params, grads), value

    params, batch = stack_params(), jax.random.normal(jax.random.key(1), (8, 16))
    compiled_step = alpa_mlir.compile(step, params, batch, cluster=CLUSTER, method=METHODS[name])
    assert_steps_of_jit(compiled_step, step, params, batch)
