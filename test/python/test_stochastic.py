"""Random numbers, statistics and sums of micro-batches, against a plain loop over them."""

from __future__ import annotations

import functools

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import TraceError
from alpa_mlir.trace import trace
from flax import nnx
from test_equality import CLUSTER, relative_difference

RATE = 0.05
METHODS = {
    "one mesh": ShardParallel(mesh_shape=(2, 2), num_micro_batches=4),
    "data parallel": ShardParallel(mesh_shape=(1, 2), num_micro_batches=4, method="data-parallel"),
    "two stages": PipeshardParallel(submeshes=[(1, 2), (1, 1)], num_micro_batches=4),
}


@functools.cache
def reference_step(loss, update, count):
    """What a step over micro-batches means, as a loop in plain JAX.

    Args:
        loss: `(params, chained, batch, key) -> (loss, (chained, metrics))`; `chained` is state
            that every micro-batch gets from the one before, such as batch statistics.
        update: `(params, gradients) -> params`.
        count: number of micro-batches. With one the key is used as it is.
    """

    part_of_step = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def step(params, chained, key, batch):
        key, used = jax.random.split(key)
        parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
        losses, gradients, metrics = [], [], []
        for i in range(count):
            part = jax.tree.map(lambda x, i=i: x[i], parts)
            own = jax.random.fold_in(used, i) if count > 1 else used
            (value, (chained, seen)), gradient = part_of_step(params, chained, part, own)
            losses.append(value)
            gradients.append(gradient)
            metrics.append(seen)
        mean = functools.partial(jax.tree.map, lambda *xs: sum(xs) / count)
        return update(params, mean(*gradients)), chained, key, mean(*losses), metrics

    return step


def sgd(params, gradients):
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


class Net(nn.Module):
    """Two blocks with batch statistics and dropout."""

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Dense(16, use_bias=False)(x)
            x = nn.BatchNorm(use_running_average=False, momentum=0.8)(x)
            x = nn.Dropout(0.3, deterministic=False)(nn.tanh(x))
        return nn.Dense(4)(x)


def net_loss(params, stats, batch, key):
    variables = {"params": params, "batch_stats": stats}
    y, new = Net().apply(variables, batch["x"], rngs={"dropout": key}, mutable=["batch_stats"])
    error = (y - batch["y"]) ** 2
    correct = jnp.sum(jnp.argmax(y, -1) == jnp.argmax(batch["y"], -1))
    return error.mean(), (new["batch_stats"], {"count": correct, "y": y, "mean": error.max()})


def net_step(state, batch):
    key, used = jax.random.split(state["key"])
    (loss, (stats, seen)), gradients = jax.value_and_grad(net_loss, has_aux=True)(
        state["params"], state["stats"], batch, used
    )
    new = {"params": sgd(state["params"], gradients), "stats": stats, "key": key}
    return new, {"loss": loss, **seen}


def net_state(typed):
    key = jax.random.key(3) if typed else jax.random.PRNGKey(3)
    variables = jax.jit(Net().init)({"params": key, "dropout": key}, jnp.ones((2, 8)))
    state = {"params": variables["params"], "stats": variables["batch_stats"], "key": key}
    x = jax.random.normal(jax.random.PRNGKey(1), (16, 8))
    return state, {"x": x, "y": jnp.sin(x[:, :4])}


@pytest.mark.parametrize(
    ("method", "typed"), [("one mesh", True), ("data parallel", False), ("two stages", False)]
)
def test_flax(method, typed):
    state, batch = net_state(typed)
    method = METHODS[method]
    step = alpa_mlir.compile(net_step, state, batch, cluster=CLUSTER, method=method)
    reference = reference_step(net_loss, sgd, 4)
    params, stats, key = state["params"], state["stats"], state["key"]
    for _ in range(2):
        state, metrics = step(state, batch)
        params, stats, key, loss, seen = reference(params, stats, key, batch)
        assert relative_difference(state, {"params": params, "stats": stats, "key": key}) < 2e-5
        assert relative_difference(metrics["loss"], loss) < 1e-5
        assert metrics["count"] == sum(s["count"] for s in seen)
        assert relative_difference(metrics["y"], jnp.concatenate([s["y"] for s in seen])) < 1e-4
        assert relative_difference(metrics["mean"], sum(s["mean"] for s in seen) / 4) < 1e-5


def test_one_micro_batch_is_plain_jit():
    state, batch = net_state(typed=False)
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)])
    step = alpa_mlir.compile(net_step, state, batch, cluster=CLUSTER, method=method)
    assert relative_difference(step(state, batch), jax.jit(net_step)(state, batch)) < 1e-5


def test_masks_differ_between_micro_batches(tmp_path):
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
    parts = np.asarray(compiled(state, x)[1]["kept"]).reshape(4, -1)
    used = jax.random.split(state["key"])[1]
    for i in range(4):
        own = jax.random.bernoulli(jax.random.fold_in(used, i), 0.5, (2, 8))
        np.testing.assert_array_equal(parts[i], np.asarray(own).reshape(-1))
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
    x = jax.random.normal(jax.random.key(1), (8, 8))

    def step(state, x):
        net = nnx.merge(graph, state)
        loss, gradients = nnx.value_and_grad(lambda net: jnp.mean(net(x) ** 2))(net)
        params = jax.tree.map(lambda p, g: p - RATE * g, nnx.state(net, nnx.Param), gradients)
        nnx.update(net, params)
        return nnx.state(net), loss

    @jax.jit  # merged modules share their variables with the state outside of jit
    def part_of(state, i, part):
        net = nnx.merge(graph, state)
        net.dropout.rngs.key[...] = jax.random.fold_in(net.dropout.rngs.key[...], i)
        return nnx.value_and_grad(lambda net: jnp.mean(net(part) ** 2))(net)

    @jax.jit
    def reference(state, x):
        parts = [part_of(state, i, part) for i, part in enumerate(jnp.split(x, 4))]
        net = nnx.merge(graph, state)
        gradients = [gradient for _, gradient in parts]
        params = nnx.state(net, nnx.Param)
        nnx.update(net, jax.tree.map(lambda p, *g: p - RATE * sum(g) / 4, params, *gradients))
        net.dropout.rngs.count[...] += 1
        return nnx.state(net), sum(value for value, _ in parts) / 4

    compiled = alpa_mlir.compile(step, state, x, cluster=CLUSTER, method=METHODS["two stages"])
    found, expected = state, state
    for _ in range(2):
        found, loss = compiled(found, x)
        expected, wanted = reference(expected, x)
        assert relative_difference(loss, wanted) < 1e-5
        assert relative_difference(found, expected) < 1e-5


def test_draws_outside_of_the_loss():
    """Noise on the batch is drawn for each micro-batch, noise on the gradient once."""

    def loss(w, x):
        return jnp.mean((x @ w) ** 2)

    def step(state, x):
        key, augment, private = jax.random.split(state["key"], 3)
        x = x + 0.1 * jax.random.normal(augment, x.shape)
        value, g = jax.value_and_grad(loss)(state["w"], x)
        g = g + 0.1 * jax.random.normal(private, g.shape)
        return {"w": state["w"] - RATE * g, "key": key}, value

    state = {"w": jnp.ones(8), "key": jax.random.PRNGKey(5)}
    x = jax.random.normal(jax.random.PRNGKey(1), (8, 8))
    _, augment, private = jax.random.split(state["key"], 3)
    values, gradients = [], []
    for i, part in enumerate(jnp.split(x, 4)):
        noisy = part + 0.1 * jax.random.normal(jax.random.fold_in(augment, i), part.shape)
        value, gradient = jax.value_and_grad(loss)(state["w"], noisy)
        values.append(value)
        gradients.append(gradient)
    gradient = sum(gradients) / 4 + 0.1 * jax.random.normal(private, (8,))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=4)
    for jitted in (step, jax.jit(step)):
        compiled = alpa_mlir.compile(jitted, state, x, cluster=CLUSTER, method=method)
        new, value = compiled(state, x)
        assert relative_difference(value, sum(values) / 4) < 1e-5
        assert relative_difference(new["w"], state["w"] - RATE * gradient) < 1e-5
        np.testing.assert_array_equal(new["key"], jax.random.split(state["key"], 3)[0])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_without_gradients(impl):
    """A forward step folds where it draws; the carried key is split once."""

    def step(key, x):
        return jax.random.split(key)[0], x + jax.random.uniform(key, x.shape)

    key, x = jax.random.key(2, impl=impl), jnp.zeros((8, 4))
    method = ShardParallel(mesh_shape=(1, 1), num_micro_batches=4)
    compiled = alpa_mlir.compile(step, key, x, cluster=CLUSTER, method=method)
    new, y = compiled(key, x)
    folded = [jax.random.uniform(jax.random.fold_in(key, i), (2, 4)) for i in range(4)]
    np.testing.assert_allclose(y, jnp.concatenate(folded), rtol=1e-6)
    np.testing.assert_array_equal(
        jax.random.key_data(new), jax.random.key_data(jax.random.split(key)[0])
    )


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit])
def test_keys_in_whole_equations(wrap):
    """Keys are folded before they enter equations that are not looked into."""

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
    x = jax.random.normal(jax.random.PRNGKey(1), (8, 8))
    used = jax.random.split(state["key"])[1]
    expected = [
        loss(state["w"], jax.random.fold_in(used, i), part)
        for i, part in enumerate(jnp.split(x, 4))
    ]
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=4)
    compiled = alpa_mlir.compile(step, state, x, cluster=CLUSTER, method=method)
    assert relative_difference(compiled(state, x)[1], sum(expected) / 4) < 1e-5


def test_a_seed_from_the_state():
    """A key made inside of the loss from a counter is folded where it is made."""

    def loss(w, count, x):
        return jnp.mean(x @ w * jax.random.normal(jax.random.key(count), (x.shape[0],)))

    def step(state, x):
        value, g = jax.value_and_grad(loss)(state["w"], state["count"], x)
        return {"w": state["w"] - RATE * g, "count": state["count"] + 1}, value

    state = {"w": jnp.ones(8), "count": jnp.int32(7)}
    x = jax.random.normal(jax.random.PRNGKey(1), (8, 8))
    expected = [
        jnp.mean(
            part
            @ state["w"]
            * jax.random.normal(jax.random.fold_in(jax.random.key(7), i), (part.shape[0],))
        )
        for i, part in enumerate(jnp.split(x, 4))
    ]
    method = ShardParallel(mesh_shape=(1, 1), num_micro_batches=4)
    compiled = alpa_mlir.compile(step, state, x, cluster=CLUSTER, method=method)
    new, value = compiled(state, x)
    assert relative_difference(value, sum(expected) / 4) < 1e-5
    assert new["count"] == 8


def test_steps_without_draws_are_not_numbered():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(x @ w))(w)

    for array in (jnp.ones((8, 2)), jnp.ones((8, 2), jnp.uint32).astype(jnp.float32)):
        traced = trace(step, array, jnp.ones((4, 8)), num_micro_batches=2)
        assert len(traced.signature.inputs) == 2
    words = trace(lambda s, x: (s + 1, x.sum()), jnp.ones(2, jnp.uint32), X, num_micro_batches=2)
    assert len(words.signature.inputs) == 2


X = jnp.ones((8, 8))


def test_a_loop_that_draws_and_makes_keys():
    def step(state, x):
        def body(key, _):
            key, used = jax.random.split(key)
            return key, jax.random.normal(used, x.shape)

        key, noise = jax.lax.scan(body, state["key"], length=3)
        g = jax.grad(lambda w: jnp.mean((x + noise.sum(0)) @ w))(state["w"])
        return {"w": state["w"] - g, "key": key}

    state = {"w": jnp.ones(8), "key": jax.random.key(1)}
    with pytest.raises(TraceError, match=r"loop or branch outside of the loss.*fix: draw inside"):
        trace(step, state, X, num_micro_batches=2)


def test_automatic_counts_of_a_stochastic_step():
    state, batch = net_state(typed=True)
    method = AutoParallel(num_micro_batches=(2, 4))
    step = alpa_mlir.compile(net_step, state, batch, cluster=CLUSTER, method=method)
    count = step.plan.num_micro_batches
    new, metrics = step(state, batch)
    reference = reference_step(net_loss, sgd, count)
    params, _, key, loss, _ = reference(state["params"], state["stats"], state["key"], batch)
    assert relative_difference(metrics["loss"], loss) < 1e-5
    assert relative_difference(new["params"], params) < 2e-5
    assert relative_difference(new["key"], key) == 0
