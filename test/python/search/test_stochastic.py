"""Random numbers in steps of several micro-batches: those that `jax.jit` draws for the batch."""

from __future__ import annotations

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError
from flax import nnx
from test_equality import CLUSTER, relative_difference

RATE = 0.05
METHODS = {
    "one mesh": ShardParallel(mesh_shape=(2, 2), num_micro_batches=4),
    "data parallel": ShardParallel(mesh_shape=(1, 2), num_micro_batches=4, method="data-parallel"),
    "two stages": PipeshardParallel(submeshes=[(1, 2), (1, 1)], num_micro_batches=4),
}
X = jax.random.normal(jax.random.PRNGKey(1), (8, 8))


def sgd(params, gradients):
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def check(step, state, batch, method, tolerance=1e-5):
    """Two steps, each with the numbers of plain JAX; keys to the bit."""
    compiled = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method)
    reference = jax.jit(step)
    expected = state
    for _ in range(2):
        state, *found = compiled(state, batch)
        expected, *wanted = reference(expected, batch)
        assert relative_difference(found, wanted) < tolerance
        assert relative_difference(state, expected) < tolerance
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            if jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
                np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
            elif not jnp.issubdtype(b.dtype, jnp.floating):
                np.testing.assert_array_equal(a, b)
    return compiled


class Net(nn.Module):
    """Two blocks with dropout."""

    normalize: bool

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Dense(16, use_bias=False)(x)
            if self.normalize:
                x = nn.BatchNorm(use_running_average=False, momentum=0.8)(x)
            x = nn.Dropout(0.3, deterministic=False)(nn.tanh(x))
        return nn.Dense(4)(x)


def net_step(normalize):
    def loss_of(params, stats, batch, key):
        variables = {"params": params, "batch_stats": stats}
        y, new = Net(normalize).apply(
            variables, batch["x"], rngs={"dropout": key}, mutable=["batch_stats"]
        )
        error = (y - batch["y"]) ** 2
        correct = jnp.sum(jnp.argmax(y, -1) == jnp.argmax(batch["y"], -1))
        metrics = {"count": correct, "y": y, "largest": error.max()}
        return error.mean(), (new.get("batch_stats", {}), metrics)

    def step(state, batch):
        key, used = jax.random.split(state["key"])
        (loss, (stats, seen)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state["params"], state["stats"], batch, used
        )
        new = {"params": sgd(state["params"], gradients), "stats": stats, "key": key}
        return new, {"loss": loss, **seen}

    return step


def net_state(typed, normalize=False):
    key = jax.random.key(3) if typed else jax.random.PRNGKey(3)
    init = jax.jit(Net(normalize).init)
    variables = init({"params": key, "dropout": key}, jnp.ones((2, 8)))
    stats = variables.get("batch_stats", {})
    x = jax.random.normal(jax.random.PRNGKey(1), (16, 8))
    return {"params": variables["params"], "stats": stats, "key": key}, {
        "x": x,
        "y": jnp.sin(x[:, :4]),
    }


@pytest.mark.parametrize(
    ("method", "typed"), [("one mesh", True), ("data parallel", False), ("two stages", False)]
)
def test_flax(method, typed):
    check(net_step(False), *net_state(typed), METHODS[method], 2e-5)


def test_one_micro_batch_is_plain_jit():
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)])
    check(net_step(True), *net_state(False, normalize=True), method)


def test_statistics_of_the_batch_have_one_micro_batch():
    step, (state, batch) = net_step(True), net_state(True, normalize=True)
    with pytest.raises(MicroBatchError, match=r"couples examples.* than the whole batch"):
        alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=METHODS["one mesh"])
    compiled = check(step, state, batch, AutoParallel())
    assert compiled.plan.num_micro_batches == 1


def test_masks_of_all_micro_batches(tmp_path):
    def loss(w, key, x):
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.mean(jnp.where(kept, x, 0.0) @ w), kept.astype(jnp.float32)

    def step(state, x):
        key, used = jax.random.split(state["key"])
        (value, kept), g = jax.value_and_grad(loss, has_aux=True)(state["w"], used, x)
        return {"w": state["w"] - g, "key": key}, {"loss": value, "kept": kept}

    state, x = {"w": jnp.ones(8), "key": jax.random.key(0)}, jnp.ones((8, 8))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=4)
    compiled = alpa_mlir.compile(step, state, x, cluster=CLUSTER, method=method)
    assert any(x.per_micro_batch for x in compiled.plan.inputs)
    used = jax.random.split(state["key"])[1]
    np.testing.assert_array_equal(
        compiled(state, x)[1]["kept"], jax.random.bernoulli(used, 0.5, (8, 8))
    )
    # A saved plan is called alike: the micro-batches' numbers are not the caller's.
    function = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
    loaded = alpa_mlir.load(function.plan(state, x).save(tmp_path))
    assert relative_difference(loaded(state, x), compiled(state, x)) == 0


class Stochastic(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.4, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(nnx.relu(self.first(x))))


def test_nnx():
    """nnx keeps key and counter in the module: the counter rises once, the key stays."""
    graph, state = nnx.split(Stochastic(nnx.Rngs(0)))

    def step(state, x):
        net = nnx.merge(graph, state)
        loss, gradients = nnx.value_and_grad(lambda net: jnp.mean(net(x) ** 2))(net)
        params = jax.tree.map(lambda p, g: p - RATE * g, nnx.state(net, nnx.Param), gradients)
        nnx.update(net, params)
        return nnx.state(net), loss

    check(step, state, X, METHODS["two stages"])


def test_draws_outside_of_the_loss():
    """Noise on the batch, of its rows, and noise on the gradient."""

    def loss(w, x):
        return jnp.mean((x @ w) ** 2)

    def step(state, x):
        key, augment, private = jax.random.split(state["key"], 3)
        x = x + 0.1 * jax.random.normal(augment, x.shape)
        value, g = jax.value_and_grad(loss)(state["w"], x)
        g = g + 0.1 * jax.random.normal(private, g.shape)
        return {"w": state["w"] - RATE * g, "key": key}, value

    state = {"w": jnp.ones(8), "key": jax.random.PRNGKey(5)}
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=4)
    for form in (step, jax.jit(step)):
        check(form, state, X, method)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("count", [1, 4])
def test_without_gradients(impl, count):
    def step(key, x):
        return jax.random.split(key)[0], x + jax.random.uniform(key, x.shape)

    key, x = jax.random.key(2, impl=impl), jnp.zeros((8, 4))
    method = ShardParallel(mesh_shape=(1, 1), num_micro_batches=count)
    check(step, key, x, method, 1e-6)


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit])
def test_draws_in_whole_equations(wrap):
    """In bodies of loops, of checkpoints and of functions."""

    @wrap
    def block(w, key, x):
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.tanh(jnp.where(kept, x, 0.0) @ w)

    def loss(w, key, x):
        def body(h, one):
            return block(w, one, h), None

        return jnp.mean(jax.lax.scan(body, x, jax.random.split(key, 2))[0] ** 2)

    def step(state, x):
        key, used = jax.random.split(state["key"])
        value, g = jax.value_and_grad(loss)(state["w"], used, x)
        return {"w": state["w"] - RATE * g, "key": key}, value

    state = {"w": jnp.eye(8), "key": jax.random.PRNGKey(5)}
    check(step, state, X, ShardParallel(mesh_shape=(1, 2), num_micro_batches=4))


def test_a_loop_that_draws_and_makes_keys():
    def step(state, x):
        def body(key, _):
            key, used = jax.random.split(key)
            return key, jax.random.normal(used, x.shape)

        key, noise = jax.lax.scan(body, state["key"], length=3)
        g = jax.grad(lambda w: jnp.mean((x + noise.sum(0)) @ w))(state["w"])
        return {"w": state["w"] - g, "key": key}, noise.sum()

    state = {"w": jnp.ones(8), "key": jax.random.key(1)}
    check(step, state, X, ShardParallel(mesh_shape=(1, 2), num_micro_batches=2))


def test_a_seed_from_the_state():
    """A key made inside of the loss from a counter."""

    def loss(w, count, x):
        return jnp.mean(x @ w * jax.random.normal(jax.random.key(count), (x.shape[0],)))

    def step(state, x):
        value, g = jax.value_and_grad(loss)(state["w"], state["count"], x)
        return {"w": state["w"] - RATE * g, "count": state["count"] + 1}, value

    state = {"w": jnp.ones(8), "count": jnp.int32(7)}
    check(step, state, X, ShardParallel(mesh_shape=(1, 1), num_micro_batches=4))


def test_steps_without_draws_are_not_numbered():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(x @ w))(w), x.sum()

    w, method = jnp.ones((8, 2)), ShardParallel(mesh_shape=(1, 1), num_micro_batches=4)
    plan = check(step, w, X, method).plan
    assert not any(x.per_micro_batch for x in plan.inputs)


@pytest.mark.parametrize("counts", [(2, 4), None])
def test_automatic_counts_of_a_stochastic_step(counts):
    state, batch = net_state(typed=True)
    check(net_step(False), state, batch, AutoParallel(num_micro_batches=counts), 2e-5)
