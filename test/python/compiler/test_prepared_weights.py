"""What micro-batches read of weights is made once a step, in all kinds of plans.

Results equal those of `jax.jit`.

Weights are scaled in float32 instead of converted to bfloat16, so that results can be compared
sharply.
"""

from __future__ import annotations

from dataclasses import replace

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, InfeasiblePlanError, PipeshardParallel, ShardParallel
from test_equality import CLUSTER

WIDTH, HIDDEN, VOCABULARY, BATCH, LAYERS = 256, 512, 512, 16, 4
STAGES = {"submeshes": [(1, 4), (1, 4)], "layers": 4, "layer_ranges": [(0, 2), (2, 4)]}
METHODS = {
    "auto": ShardParallel(num_micro_batches=4),
    "collectives": ShardParallel(num_micro_batches=4, export="collectives"),
    "zero-3": ShardParallel(num_micro_batches=4, method="zero-3"),
    "megatron-zero-1": ShardParallel(
        num_micro_batches=2, method="megatron-zero-1", mesh_shape=(4, 2)
    ),
    "stages": PipeshardParallel(num_micro_batches=4, **STAGES),
    "stages, rematerialized": PipeshardParallel(num_micro_batches=2, remat="all", **STAGES),
    "zb-h1": PipeshardParallel(num_micro_batches=4, schedule="zb-h1", **STAGES),
    "written out": PipeshardParallel(num_micro_batches=4, layer_loops=False, **STAGES),
}


def step_of(style):
    def layer(x, weights):
        up, down = weights
        return x + 0.1 * jax.nn.gelu(x @ (up * 1.01)) @ (down * 0.99)

    def forward(params, tokens):
        x = (params["embedding"] * 0.98)[tokens]
        each = jax.checkpoint(layer) if style == "checkpoint" else layer
        if style == "scan":
            x, _ = jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, params["layers"])
        else:
            for weights in zip(*params["layers"], strict=True):
                x = each(x, weights)
        # Of the first layer and of the last.
        return x @ (params["embedding"] * 0.98).T

    def step(params, batch):
        def loss(params):
            picked = jax.nn.log_softmax(forward(params, batch["tokens"]))
            return -jnp.mean(jnp.take_along_axis(picked, batch["next"][..., None], -1))

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

    return step


def arguments(style, layers=LAYERS):
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def stack(*shape):
        rows = jax.random.normal(next(keys), (layers, *shape)) / shape[0] ** 0.5
        return rows if style == "scan" else list(rows)

    params = {
        "embedding": jax.random.normal(next(keys), (VOCABULARY, WIDTH)),
        "layers": (stack(WIDTH, HIDDEN), stack(HIDDEN, WIDTH)),
    }
    tokens = jax.random.randint(next(keys), (2, BATCH, 8), 0, VOCABULARY)
    return params, {"tokens": tokens[0], "next": tokens[1]}


def assert_equal(found, expected, before):
    for got, wanted, was in zip(*map(jax.tree.leaves, (found, expected, before)), strict=True):
        moved = np.abs(np.asarray(wanted) - np.asarray(was)).max()
        assert np.abs(np.asarray(got) - np.asarray(wanted)).max() <= 5e-5 * moved


@pytest.mark.sweep(10)
@pytest.mark.parametrize(
    ("style", "method", "prepared"),
    [
        # Every style by every method, prepared in one of two ways.
        pytest.param(
            style, method, prepared, marks=() if (i + j + k) % 2 == 0 else pytest.mark.slow
        )
        for i, style in enumerate(["list", "scan", "checkpoint"])
        for j, method in enumerate(METHODS)
        for k, prepared in enumerate(["converted", "gathered"])
    ],
)
def test_steps_equal_those_of_one_device(style, method, prepared):
    step, (params, batch) = step_of(style), arguments(style)
    chosen = replace(METHODS[method], prepare_weights=prepared)
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=chosen, cache=False)
    planned = parallel.plan(params, batch)
    assert all("prepare" in stage.functions for stage in planned.plan.stages)
    expected = jax.jit(step)(params, batch)
    found = planned.load()(params, batch)
    assert_equal(found[0], expected[0], params)
    assert abs(found[1] - expected[1]) <= 1e-5 * abs(expected[1])


@pytest.mark.parametrize("name", ["auto", "zero-3", "stages"])
def test_layers_stay_a_loop(name):
    step, (params, batch) = step_of("scan"), arguments("scan", layers=8)
    method = METHODS[name]
    if name == "stages":
        method = replace(method, layers=8, layer_ranges=[(0, 4), (4, 8)])
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False)
    for text in parallel.plan(params, batch).plan.modules.values():
        assert text.count("stablehlo.while") == 2
        prepare = text[text.index("@prepare") :]
        prepare = prepare[: prepare.index("func.func", 1)]
        # Of two stacks and the embedding; of a layer of each stage, too, that is not in its loop.
        assert prepare.count("stablehlo.multiply") <= (7 if name == "stages" else 3)


SLOW = CLUSTER | {
    "links": {
        "intra_host": {"bandwidth": 1e8, "latency": 1e-6},
        "inter_host": {"bandwidth": 1e8, "latency": 1e-6},
    }
}


@pytest.mark.parametrize("name", ["auto", "zero-3"])
def test_gathers_once_a_step_where_that_pays(name):
    """Slow links: weights of half as many bytes are gathered, and once."""

    def step(state, x):
        def loss(params):
            for up, down in params:
                hidden = jax.nn.gelu(x.astype(jnp.bfloat16) @ up.astype(jnp.bfloat16))
                made = hidden @ down.astype(jnp.bfloat16)
            return jnp.mean(made.astype(jnp.float32) ** 2)

        params, moments = state
        value, grads = jax.value_and_grad(loss)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return (jax.tree.map(lambda w, m: w - 0.1 * m, params, moments), moments), value

    params = [(jnp.ones((WIDTH, HIDDEN)), jnp.ones((HIDDEN, WIDTH))) for _ in range(2)]
    state, x = (params, jax.tree.map(jnp.zeros_like, params)), jnp.ones((4096, WIDTH))
    seconds = {}
    for prepared in ("none", "converted", "gathered", "auto"):
        method = replace(METHODS[name], prepare_weights=prepared)
        parallel = alpa_mlir.parallelize(step, cluster=SLOW, method=method, cache=False)
        plan = parallel.plan(state, x).plan
        seconds[prepared] = plan.predicted["step_seconds"]
        if prepared == "gathered":
            assert plan.explanation(0)["weight_move_seconds"] == 0
    assert seconds["gathered"] < 0.95 * seconds["converted"] <= seconds["none"]
    # ZeRO-3 gathers weights where they are used.
    assert seconds["auto"] == seconds["gathered" if name == "auto" else "converted"]


def test_without_room_for_them_nothing_is_prepared():
    step, (params, batch) = step_of("list"), arguments("list")

    def plan(prepared, memory):
        small = CLUSTER["device_types"]["small"] | {"memory_bytes": memory}
        method = ShardParallel(num_micro_batches=4, prepare_weights=prepared, memory_fraction=1.0)
        cluster = CLUSTER | {"device_types": {"small": small}}
        parallel = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
        return parallel.plan(params, batch).plan

    peak = plan("none", 2**30).stages[0].predicted["peak_bytes"]
    with pytest.raises(InfeasiblePlanError):
        plan("converted", int(1.01 * peak))
    assert "prepare" not in plan("auto", int(1.01 * peak)).stages[0].functions


def test_one_micro_batch_prepares_nothing():
    step, (params, batch) = step_of("list"), arguments("list")
    method = AutoParallel(num_micro_batches=1)
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(params, batch).plan
    assert not any("prepare" in stage.functions for stage in plan.stages)


@pytest.mark.parametrize("of", ["own", "all"])
@pytest.mark.parametrize("method", ["auto", "data-parallel", "stages"])
def test_weights_scaled_by_norms(of, method):
    """The norm of all weights is no stage's own, and is not prepared."""

    def step(params, batch):
        x, wanted = batch

        def loss(params):
            square = sum(jnp.sum(w**2) for w in params)
            made = x
            for w in params:
                norm = jnp.sqrt(jnp.sum(w**2) if of == "own" else square)
                made = made + made @ (w / norm)
            return jnp.mean((made - wanted) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 1e4 * g, params, grads), value

    keys = jax.random.split(jax.random.key(0), 6)
    params = [jax.random.normal(key, (WIDTH, WIDTH)) for key in keys[:4]]
    batch = tuple(jax.random.normal(key, (BATCH, WIDTH)) for key in keys[4:])
    chosen = METHODS.get(method) or ShardParallel(num_micro_batches=4, method=method)
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=chosen, cache=False)
    planned = parallel.plan(params, batch)
    prepared = ["prepare" in stage.functions for stage in planned.plan.stages]
    assert prepared == [of == "own"] * len(prepared)
    assert all(stage.weights for stage in planned.plan.stages)
    assert_equal(planned.load()(params, batch)[0], jax.jit(step)(params, batch)[0], params)


def test_random_bits_of_the_state_are_not_weights():
    def step(state, x):
        params, key = state
        key, use = jax.random.split(key)

        def loss(params):
            kept = jax.random.bernoulli(use, 0.9, (BATCH, WIDTH))
            return jnp.mean((jnp.where(kept, x @ (params * 1.5), 0.0)) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return (params - grads, key), value

    state = (jax.random.normal(jax.random.key(1), (WIDTH, WIDTH)), jax.random.key(2))
    x = jax.random.normal(jax.random.key(3), (BATCH, WIDTH))
    method = ShardParallel(num_micro_batches=2)
    found = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)(state, x)
    expected = jax.jit(step)(state, x)
    assert_equal(found[0][0], expected[0][0], state[0])
