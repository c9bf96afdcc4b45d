"""Steps as `jax.jit`, `nnx.jit` and `eqx.filter_jit` take them, through `parallelize`."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from typing import Any

import alpa_mlir
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel, errors
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

CLUSTER = alpa_mlir.Cluster.nominal("two", "cpu", (2,), 1 << 30)
ONE_MESH = ShardParallel(num_micro_batches=2)
TWO_STAGES = PipeshardParallel(submeshes=[(1, 1), (1, 1)], layers=2, num_micro_batches=2)
METHODS = pytest.mark.parametrize("method", [ONE_MESH, TWO_STAGES], ids=["mesh", "stages"])
rng = np.random.default_rng(0)
X = rng.normal(size=(8, 6)).astype(np.float32)
Y = rng.normal(size=(8, 4)).astype(np.float32)
W = {
    "a": rng.normal(size=(6, 8)).astype(np.float32),
    "b": rng.normal(size=(8, 4)).astype(np.float32),
}


def parallel(fn, method=ONE_MESH, **options):
    return alpa_mlir.parallelize(fn, cluster=CLUSTER, method=method, cache=False, **options)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)


def predicted(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"]


def step(w, x, y, lr=0.1, *, flag=True):
    def loss_of(w):
        found = predicted(w, x)
        return jnp.mean((found - y) ** 2 if flag else jnp.abs(found - y))

    loss, gradients = jax.value_and_grad(loss_of)(w)
    return jax.tree.map(lambda p, g: p - lr * g, w, gradients), loss


def kinds(fn, *args, **named):
    """For each argument with arrays whether it is carried, a batch or neither."""
    traced = alpa_mlir.parallelize(fn, cluster=CLUSTER).trace(*args, **named).traced
    found = {}
    for item in traced.signature.inputs:
        name = item.name.split("[")[0].split(".")[0]
        found[name] = "carried" if item.carried_by is not None else item.kind
    return found


@METHODS
def test_predictions_of_inputs_make_no_state_of_them(method, caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")

    def predict(w, x, *, y):
        gradients = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        new = w - gradients
        return new, {"before": x @ w, "after": x @ new}

    def carry(w, hidden, y):
        gradients = jax.grad(lambda w: jnp.mean(((hidden + y) @ w - y) ** 2))(w)
        return w - gradients, jnp.tanh(hidden @ w + y)

    w, x, y = jnp.eye(6) / 2, jnp.array(X), np.cos(X)
    found = parallel(predict, method)
    for _ in range(2):
        assert_same(found(w, x, y=y), jax.jit(predict)(w, x, y=y))
    assert not x.is_deleted()
    assert "predict takes w as state (donated); x, y as the batch of 8 rows\n" in caplog.text
    assert_same(parallel(carry, method)(w, X, y), jax.jit(carry)(w, X, y))
    text = (
        "w, hidden as state (donated); y as the batch of 8 rows; batch_argnums says otherwise, if"
    )
    assert f"carry takes {text} hidden holds examples, too\n" in caplog.text


def test_arguments_by_name_with_defaults_and_flags(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")
    jitted = jax.jit(step, static_argnames="flag")
    found = parallel(step)
    assert_same(found(W, X, Y), jitted(W, X, Y))
    assert_same(found(W, y=Y, x=X, flag=False), jitted(W, y=Y, x=X, flag=False))
    assert_same(found(W, X, Y, flag=True, lr=0.2), jitted(W, X, Y, flag=True, lr=0.2))
    count = len(caplog.records)
    assert_same(found(W, X, Y, 0.3, flag=True), jitted(W, X, Y, 0.3, flag=True))
    assert len(caplog.records) == count  # Another number is no other step.
    text = caplog.text
    assert "step takes w as state (donated); x, y as the batch of 8 rows\n" in text
    assert "lr as whole for every micro-batch; flag=True as static" in text
    assert "anew: arguments w, x, y, flag instead of w, x, y\n" in text
    with pytest.raises(errors.ArgumentMismatchError, match="step: the argument 'z' is unknown"):
        found(W, X, z=Y)
    with pytest.raises(errors.ArgumentMismatchError, match="missing a required argument: 'y'"):
        found(W, X)


def test_keyword_only_arguments_behind_defaults():
    def behind(w, lr=0.1, *, x, y):
        return step(w, x, y, lr)

    def between(w, *, x, lr=0.1, y):
        return step(w, x, y, lr)

    def extra(w, *, x, **more):
        return step(w, x, more["y"], more.get("lr", 0.1))

    def last(w, lr, x, y):
        return step(w, x, y, lr)

    for fn in (behind, between, extra, functools.partial(last, lr=0.1)):
        found, jitted = parallel(fn), jax.jit(fn)
        for named in ({"x": X, "y": Y}, {"y": Y, "x": X}, {"lr": 0.3, "y": 2 * Y, "x": X}):
            assert_same(found(W, **named), jitted(W, **named))
        with pytest.raises(errors.ArgumentMismatchError, match=r"missing a required .*'x'"):
            found(W, y=Y)
    assert_same(parallel(between)(W, X, y=Y), step(W, X, Y))
    with pytest.raises(errors.ArgumentMismatchError, match="last: the argument 'z' is unknown"):
        parallel(functools.partial(last, lr=0.1))(W, z=X)
    with pytest.raises(errors.ArgumentMismatchError, match="behind: the argument 'w' is given twi"):
        parallel(behind)(W, x=X, y=Y, w=W)


def test_what_traces_anew_is_said(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")
    found = parallel(step, static_argnames=["lr"])
    found(W, X, Y, 0.1)
    found(W, X, Y, 0.25)
    found(W, X[:4], Y[:4], 0.25)
    assert "another static value of lr: 0.25, was 0.1" in caplog.text
    assert "x is float32[4,6], was float32[8,6]" in caplog.text
    assert_same(found(W, X, Y, 1), jax.jit(step)(W, X, Y, 1))
    assert_same(found(W, X, Y, 1.0), jax.jit(step)(W, X, Y, 1.0))
    assert "another static value of lr: 1.0, was 1\n" in caplog.text  # They promote otherwise.


@pytest.mark.parametrize("count", [1, 2])
def test_a_state_with_numbers_goes_on_in_another_plan(count):
    """A scale and Adam's count are of one device, which is not the first of all."""

    def two_layers(state, x):
        def loss(w):
            return jnp.mean((jnp.tanh(jnp.tanh(x @ w["first"]) @ w["second"]) * w["scale"]) ** 2)

        value, grads = jax.value_and_grad(loss)(state["w"])
        w = jax.tree.map(lambda p, g: p - 0.1 * g, state["w"], grads)
        return {"w": w, "scale": 0.9 * state["scale"] + grads["scale"]}, value

    method = alpa_mlir.PipeshardParallel(
        submeshes=[(1, 1), (1, 1)], layers=2, num_micro_batches=count
    )
    found = alpa_mlir.parallelize(two_layers, cluster=CLUSTER, method=method, cache=False)
    weights = {"first": np.eye(6, dtype=np.float32), "second": 2 * np.eye(6, dtype=np.float32)}
    given = expected = {
        "w": weights | {"scale": jnp.float32(1.5)},
        "scale": jnp.float32(0),
    }
    for rows in (8, 8, 4, 8):
        given, own = found(given, X[:rows])
        expected, value = jax.jit(two_layers)(expected, X[:rows])
        assert_same((given, own), (expected, value))


def test_static_fields_of_trees_trace_anew(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["power"])
    @dataclasses.dataclass
    class State:
        w: object
        power: int

    def train(state, x, y):
        w, loss = step(state.w, x * state.power, y)
        return State(w, state.power), loss

    found = parallel(train)
    for power in (1, 2):
        assert_same(found(State(W, power), X, Y), jax.jit(train)(State(W, power), X, Y))
    assert "anew: another static field of state" in caplog.text
    with pytest.raises(errors.MethodError, match=r"power: .*list cannot be hashed; fix"):
        parallel(lambda w, x, y, power: step(w, x, y), static_argnames="power")(W, X, Y, [1])
    with pytest.raises(errors.MethodError, match=r"no argument 'lrr'; fix: did you mean 'lr'\?"):
        parallel(step, static_argnames="lrr")


def test_a_step_takes_what_it_was_compiled_for():
    compiled = parallel(step).lower(W, X, Y, flag=True).compile()
    wanted = step(W, X, Y)
    assert_same(compiled(W, X, Y, flag=True), wanted)
    assert_same(compiled(W, y=Y, x=X, flag=True), wanted)
    with pytest.raises(errors.ArgumentMismatchError, match="another static value of flag: False"):
        compiled(W, X, Y, flag=False)
    with pytest.raises(errors.TraceError, match="within a transformation of JAX; fix: call"):
        jax.jit(lambda w: compiled(w, X, Y, flag=True))(W)
    with pytest.raises(errors.TraceError, match="within a transformation of JAX; fix: call"):
        jax.jit(compiled)(W, X, Y)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    with pytest.raises(errors.ArgumentMismatchError, match=r"x: got a ShapeDtypeStruct.*; shapes"):
        compiled(W, shape, Y, flag=True)


def test_arguments_by_shape_and_use():
    key, classes, lr = jax.random.key(0), np.ones(4, np.float32), np.float32(0.1)

    def train(w, opt, x, y, rng, weights, lr):
        x = x + jax.random.normal(rng, x.shape)
        w, loss = step(w, x, y * weights, lr)
        return w, jax.tree.map(lambda m: m * 0.9, opt), loss

    wanted = {"w": "carried", "opt": "carried", "x": "batch", "y": "batch"}
    others = {"rng": "state", "weights": "state", "lr": "state"}
    assert kinds(train, W, W, X, Y, key, classes, lr) == wanted | others
    assert kinds(train, W, W, X, Y, jax.random.PRNGKey(0), classes, 0.1) == wanted | others

    def with_state_behind(lr, x, y, w):
        w, loss = step(w, x, y, lr)
        return loss, w

    found = kinds(with_state_behind, lr, X, Y, W)
    assert found == {"lr": "state", "x": "batch", "y": "batch", "w": "carried"}
    assert kinds(step, W, X, Y, 0.1)["lr"] == "state"

    def adversarial(w, batch):
        grad = jax.grad(lambda w, batch: step(w, *batch)[1], (0, 1))
        gradients = grad(w, batch)
        w, batch = jax.tree.map(lambda p, g: p - 0.1 * g, (w, batch), gradients)
        return w, batch

    assert kinds(adversarial, W, (X, Y)) == {"w": "carried", "batch": "batch"}


def test_numbers_keep_weak_types():
    def train(w, x, y, lr):
        return jax.tree.map(lambda p: p - lr * p, w), lr + 1

    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), W)
    found = parallel(train)
    for lr in (0.1, np.float32(0.1)):  # Only the second makes the weights float32.
        assert_same(found(half, X, Y, lr), jax.jit(train)(half, X, Y, lr))
    assert found(half, X, Y, 0.1)[1].weak_type
    assert not found(half, X, Y, np.float32(0.1))[1].weak_type


@METHODS
def test_a_train_state_is_planned_once(method, caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Dropout(0.1, deterministic=not train)(nn.relu(nn.Dense(8)(x)))
            return nn.Dense(4)(x)

    model, tx = Model(), optax.adamw(1e-2)
    params = model.init(jax.random.key(0), X[:1], False)["params"]

    def train_step(state, batch, dropout_key):
        key = jax.random.fold_in(dropout_key, state.step)

        def loss_of(params):
            found = state.apply_fn({"params": params}, batch["x"], True, rngs={"dropout": key})
            return jnp.mean((found - batch["y"]) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=gradients), {"loss": loss}

    found, jitted = parallel(train_step, method), jax.jit(train_step)
    one = two = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    for _ in range(3):
        one, metrics = found(one, {"x": X, "y": Y}, jax.random.key(1))
        two, wanted = jitted(two, {"x": X, "y": Y}, jax.random.key(1))
        assert_same((one, metrics), (two, wanted))
    assert int(one.step) == 3
    assert "anew" not in caplog.text


@METHODS
def test_numbers_of_several_meshes_go_together(method):
    def train(w, count, x, y):
        w, loss = step(w, x, y)
        return w, count + 1, {"loss": loss, "norm": jnp.sum(w["a"] ** 2)}

    found, wanted = parallel(train, method), jax.jit(train)
    one, two = (W, jnp.zeros((), jnp.int32)), (W, jnp.zeros((), jnp.int32))
    for _ in range(3):
        *one, metrics = found(*one, X, Y)
        *two, other = wanted(*two, X, Y)
        assert_same(metrics["loss"] / metrics["norm"], other["loss"] / other["norm"])
        assert_same(metrics["loss"] + one[1], other["loss"] + two[1])
    kept = one
    one = found(*kept, X, Y)
    with pytest.raises(errors.ArgumentMismatchError, match="donated to an earlier step"):
        found(*kept, X, Y)


class Model(nnx.Module):
    """With weights that are used twice, and counters of its own."""

    def __init__(self, rngs):
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.inner = nnx.Linear(8, 8, rngs=rngs)
        self.again = self.inner
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(8, 4, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        x = self.dropout(jnp.tanh(self.inner(jnp.tanh(self.first(x)))))
        return self.last(jnp.tanh(self.again(x)))


def nnx_step(model, optimizer, metrics, batch):
    def loss_of(model):
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    metrics.update(loss=loss)
    optimizer.update(model, gradients)
    return loss


def nnx_objects():
    model = Model(nnx.Rngs(0))
    model.train()
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    return model, optimizer, nnx.MultiMetric(loss=nnx.metrics.Average("loss"))


def decorated(decorate):
    """A model with a step of training and one of evaluation."""

    class Trained(Model):
        @decorate
        def fit(self, batch, rate=0.1):
            loss, gradients = nnx.value_and_grad(
                lambda model: jnp.mean((model(batch["x"]) - batch["y"]) ** 2)
            )(self)
            weights = nnx.state(self, nnx.Param)
            nnx.update(self, jax.tree.map(lambda w, g: w - rate * g, weights, gradients))
            return loss

        @decorate
        def evaluate(self, x):
            return jnp.tanh(self.first(x)).mean()

    model = Trained(nnx.Rngs(0))
    model.train()
    return model


@METHODS
def test_methods_of_nnx_modules(method):
    ours, other = decorated(lambda fn: parallel(fn, method)), decorated(nnx.jit)
    for _ in range(3):
        assert_same(ours.fit({"x": X, "y": Y}), other.fit({"x": X, "y": Y}))
    assert_same(ours.fit({"x": X, "y": Y}, rate=0.2), other.fit({"x": X, "y": Y}, rate=0.2))
    assert_same(nnx.state(ours), nnx.state(other))
    assert_same(ours.evaluate(X), other.evaluate(X))
    kind = type(ours)
    assert_same(kind.evaluate(ours, X), other.evaluate(X))
    assert isinstance(kind.fit, alpa_mlir.ParallelFunction)
    assert kind.fit.trace(ours, {"x": X, "y": Y}).traced.names == ("self", "batch")


def test_methods_of_other_classes():
    class Trainer:
        def __init__(self, rate):
            self.rate = rate

        @functools.partial(parallel, static_argnames="self")
        def fit(self, w, x, y):
            return step(w, x, y, self.rate)

    class Net(eqx.Module):
        w: dict
        act: Any

        @parallel
        def loss(self, x, y):
            return jnp.mean((self.act(x @ self.w["a"]) @ self.w["b"] - y) ** 2)

    for rate in (0.1, 0.3):
        assert_same(Trainer(rate).fit(W, X, Y), step(W, X, Y, rate))
    assert_same(Net(W, jnp.tanh).loss(X, Y), step(W, X, Y)[1])


def test_methods_of_one_nnx_module_are_refused():
    model = decorated(lambda fn: fn)
    for entry in (alpa_mlir.parallelize, lambda fn: alpa_mlir.compile(fn, X)):
        with pytest.raises(
            errors.MethodError,
            match=r"evaluate: a method of one Trained, .* constants .*; fix: .* Trained\.evaluate,",
        ):
            entry(model.evaluate)


@METHODS
@pytest.mark.parametrize("wrap", [lambda f: f, nnx.jit], ids=["plain", "jitted"])
def test_nnx_objects_are_changed_in_place(method, wrap, caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")
    found, wanted = parallel(wrap(nnx_step), method), nnx.jit(nnx_step)
    mine, others = nnx_objects(), nnx_objects()
    weights = mine[0].first.kernel
    for _ in range(3):
        assert_same(found(*mine, {"x": X, "y": Y}), wanted(*others, {"x": X, "y": Y}))
    assert_same(nnx.state(mine), nnx.state(others))
    assert_same(mine[2].compute(), others[2].compute())
    assert int(mine[0].calls[...]) == 3
    assert mine[0].first.kernel is weights
    assert mine[0].again is mine[0].inner
    assert (
        "takes model, optimizer, metrics as state (donated); batch as the batch of 8 rows"
        in caplog.text
    )
    assert "anew" not in caplog.text


def test_nnx_objects_in_containers_and_in_results():
    def train(objects, x, y):
        model, optimizer = objects["model"], objects["optimizer"]
        _, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return model, jnp.sum(gradients["last"]["bias"][...])

    (model, optimizer, _), (other, its, _) = nnx_objects(), nnx_objects()
    found = parallel(train)
    for _ in range(2):
        returned, value = found({"model": model, "optimizer": optimizer}, X, Y)
        _, wanted = nnx.jit(train)({"model": other, "optimizer": its}, X, Y)
        assert returned is model
        assert_same(value, wanted)
    assert_same(nnx.state(model), nnx.state(other))
    compiled = found.compile({"model": model, "optimizer": optimizer}, X, Y)
    compiled({"model": model, "optimizer": optimizer}, X, Y)
    nnx.jit(train)({"model": other, "optimizer": its}, X, Y)
    assert_same(nnx.state(model), nnx.state(other))


def test_nnx_objects_of_another_structure_trace_anew(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")
    found, mine, others = parallel(nnx_step), nnx_objects(), nnx_objects()
    found(*mine, {"x": X, "y": Y})
    nnx.jit(nnx_step)(*others, {"x": X, "y": Y})
    for objects in (mine, others):
        objects[0].eval()
    found(*mine, {"x": X, "y": Y})
    nnx.jit(nnx_step)(*others, {"x": X, "y": Y})
    assert_same(nnx.state(mine), nnx.state(others))
    assert "anew: another static field of model, optimizer, metrics" in caplog.text


def test_nnx_objects_keep_their_structure():
    def adds(model, x, y):
        model.more = nnx.Variable(jnp.sum(x))
        return nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)[0]

    with pytest.raises(errors.TraceError, match=r"model: the step changes the structure .*; fix"):
        parallel(adds)(nnx_objects()[0], X, Y)


@METHODS
def test_variables_as_arguments(method):
    """By themselves, in a dictionary without a module, and shared with a module."""

    def train(model, weights, calls, x, y):
        def loss_of(w):
            return jnp.mean((model.last(jnp.tanh(x @ w)) - y) ** 2) + model.calls[...]

        loss, gradient = jax.value_and_grad(loss_of)(weights["w"][...])
        weights["w"][...] -= 0.1 * gradient
        calls[...] += 1
        model.calls[...] *= 2
        return loss, weights["w"]

    def arguments():
        model = Model(nnx.Rngs(0))
        return model, {"w": nnx.Param(W["a"])}, model.calls

    found, wanted, mine, others = parallel(train, method), nnx.jit(train), arguments(), arguments()
    for _ in range(2):
        loss, weights = found(*mine, X, Y)
        assert weights is mine[1]["w"]
        assert_same(loss, wanted(*others, X, Y)[0])
    assert int(mine[2][...]) == 6
    assert_same(nnx.state(mine), nnx.state(others))


def test_variables_of_a_state_are_left_alone():
    graph, state = nnx.split(nnx.Linear(6, 4, rngs=nnx.Rngs(0)))
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(state))

    def train(state, x, y):
        model = nnx.merge(graph, state)
        gradients = nnx.grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - g, nnx.state(model), gradients))
        return nnx.state(model)

    assert_same(parallel(train)(state, X, Y), jax.jit(train)(state, X, Y))
    assert_same(nnx.to_pure_dict(state), before)


@pytest.mark.parametrize("wrap", [lambda f: f, eqx.filter_jit], ids=["plain", "jitted"])
@METHODS
def test_equinox_modules_with_functions_and_numbers(method, wrap, caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")

    class Net(eqx.Module):
        layers: list
        slope: float

        def __init__(self, key):
            first, last = jax.random.split(key)
            self.layers = [eqx.nn.Linear(6, 8, key=first), jnp.tanh, eqx.nn.Linear(8, 4, key=last)]
            self.slope = 0.5

        def __call__(self, x):
            assert isinstance(self.slope, float)
            for layer in self.layers:
                x = layer(x)
            return x * self.slope

    optimizer = optax.adam(1e-2)

    def make_step(model, x, y, opt_state):
        loss, gradients = eqx.filter_value_and_grad(
            lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2)
        )(model)
        updates, opt_state = optimizer.update(
            gradients, opt_state, eqx.filter(model, eqx.is_inexact_array)
        )
        return loss, eqx.apply_updates(model, updates), opt_state

    model = other = Net(jax.random.key(0))
    state = its = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    found, wanted = parallel(wrap(make_step), method), eqx.filter_jit(make_step)
    for _ in range(3):
        loss, model, state = found(model, X, Y, state)
        same, other, its = wanted(other, X, Y, its)
        assert_same(loss, same)
    assert model.slope == 0.5
    assert model.layers[1] is jnp.tanh
    assert_same(*(eqx.filter(m, eqx.is_array) for m in (model, other)))
    assert "takes model, opt_state as state (donated); x, y as the batch of 8 rows" in caplog.text
    assert "anew" not in caplog.text


def test_equinox_modules_with_numbers_alone(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")

    class Net(eqx.Module):
        w: jax.Array
        layers: int
        slope: float

        def __call__(self, x):
            for _ in range(self.layers):
                x = jnp.tanh(x @ self.w)
            return x * self.slope if self.slope > 0 else x

    def train(state, x):
        model, count = state["model"], state["count"]
        loss, gradients = eqx.filter_value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        updates = jax.tree.map(lambda g: -0.1 * g, gradients)
        return {"model": eqx.apply_updates(model, updates), "count": count}, loss

    found, wanted = parallel(train), eqx.filter_jit(train)
    for slope in (0.5, -1.0):
        model = Net(0.5 * jnp.eye(6), 2, slope)
        mine = others = {"model": model, "count": jnp.zeros(())}
        for _ in range(2):
            (mine, loss), (others, same) = found(mine, X), wanted(others, X)
            assert_same(loss, same)
        assert (mine["model"].layers, mine["model"].slope) == (2, slope)
        assert_same(mine["model"].w, others["model"].w)
    assert caplog.text.count("anew: another static field of state") == 1


def test_python_values_that_may_change_are_refused():
    class Rate:
        lr = 0.1

        def of(self):
            return self.lr

    @dataclasses.dataclass(frozen=True)
    class Fixed:
        lr: float

    def train(w, options, x, y):
        rate = options["rate"] if isinstance(options, dict) else options
        return step(w, x, y, rate() if callable(rate) else rate.lr)

    rate, found = Rate(), parallel(train)
    for given, where in (
        (rate, "options"),
        ({"rate": rate}, r"options\['rate'\]"),
        (rate.of, "options"),
    ):
        with pytest.raises(errors.MethodError, match=f"{where}: .*compared by identity.*; fix"):
            found(W, given, X, Y)
    named = parallel(train, static_argnames="options")
    assert_same(named(W, rate, X, Y), jax.jit(train, static_argnames="options")(W, rate, X, Y))
    for lr in (0.1, 0.2):
        wanted = step(W, X, Y, lr)
        for given in (Fixed(lr), {"rate": Fixed(lr)}, lambda lr=lr: lr, jax.jit(lambda lr=lr: lr)):
            assert_same(found(W, given, X, Y), wanted)


def test_within_transformations_of_jax_a_step_is_the_function(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")
    found = parallel(step)
    assert_same(jax.jit(found)(W, X, Y), jax.jit(step)(W, X, Y))
    assert_same(jax.jit(lambda: found(W, X, Y))(), jax.jit(step)(W, X, Y))
    gradients = [jax.grad(lambda w, f=f: f(w, X, Y)[1])(W) for f in (found, step)]
    assert_same(*gradients)
    mapped = [jax.vmap(f, (None, 0, 0))(W, X[None], Y[None]) for f in (found, step)]
    assert_same(*mapped)
    assert jax.eval_shape(found, W, X, Y) == jax.eval_shape(step, W, X, Y)
    assert caplog.text.count("called within a transformation of JAX") == 1
    assert found.get_last_executable() is None


@METHODS
def test_reading_donated_state_says_so(method):
    def train(w, x, y):
        w, loss = step(w, x, y)
        return w, loss

    found, kept = parallel(train, method), parallel(train, method, donate_argnums=())
    old, loss = found(W, X, Y)
    new, _ = found(old, X, Y)
    assert all(x.is_deleted() for x in jax.tree.leaves(old))
    reads = (np.asarray, jax.device_get, str, lambda x: x + 1, lambda x: x[0], jax.jit(jnp.sum))
    reads += (jax.block_until_ready, lambda x: x.block_until_ready())
    for read in reads:
        with pytest.raises(errors.DeletedArrayError, match="array was donated to a step"):
            read(old["a"])
    # Of several arrays at once JAX's own words, which docs/troubleshooting.md explains.
    for read in (jax.block_until_ready, jax.device_get):
        with pytest.raises(RuntimeError, match="deleted"):
            read(old)
    assert np.isfinite(loss)
    for first in (W, kept(W, X, Y)[0]):  # Neither is used up: the caller's own, and kept ones.
        kept(first, X, Y)
        assert np.isfinite(first["a"]).all()
    found(new, X, Y)
    with pytest.raises(errors.ArgumentMismatchError, match="donated to an earlier step"):
        found(new, X, Y)


def test_deleted_arrays_are_not_called_donated():
    found = parallel(step)
    given = jax.tree.map(jnp.array, W)
    given["a"].delete()
    with pytest.raises(errors.ArgumentMismatchError, match=r"w\['a'\]: the array was deleted"):
        found(given, X, Y, 0.1)


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (np.ones(3, ">f4"), r"w\['z'\]: JAX has no arrays of dtype '>f4', whose bytes are"),
        (
            np.array([None, 1]),
            r"w\['z'\]: JAX has no arrays of dtype '\|O'; fix: make it an array of",
        ),
        (np.array(["a", "b"]), r"w\['z'\]: JAX has no arrays of dtype '<U1'"),
        (2**40, r"w\['z'\]: the number 1099511627776 has more than the 32 bits"),
    ],
)
def test_leaves_that_jax_does_not_take_are_named(leaf, message):
    with pytest.raises(errors.TraceError, match=message):
        parallel(step)({**W, "z": leaf}, X, Y, 0.1)


def test_donation_is_of_all_state_or_none():
    def train(w, m, x, y, lr):
        w, loss = step(w, x, y, lr)
        return w, jax.tree.map(lambda v: v * 0.5, m), loss

    for given, donates in (((), False), ((0, 1), True), ((0, 1, 2, 4), True)):
        traced = parallel(train, donate_argnums=given).trace(W, W, X, Y, 0.1)
        assert traced.options.donate_state is donates
    assert parallel(train, donate_argnames=("w", "m")).trace(W, W, X, Y, 0.1).options.donate_state
    with pytest.raises(errors.MethodError, match="donate w, but the step returns w, m anew; fix"):
        parallel(train, donate_argnums=0).trace(W, W, X, Y, 0.1)


def test_shardings_of_arguments_and_results_are_constraints():
    mesh = jax.sharding.AbstractMesh((2,), ("d",))
    rows, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    found = parallel(
        step, ShardParallel(num_micro_batches=1), in_shardings=(whole, rows, rows, None)
    )
    assert_same(found(W, X, Y, 0.1), jax.jit(step)(W, X, Y, 0.1))
    assert kinds(jax.jit(step, in_shardings=(whole, rows, rows, None)), W, X, Y, 0.1) == {
        "w": "carried",
        "x": "batch",
        "y": "batch",
        "lr": "state",
    }


def test_shardings_that_do_not_fit_are_named():
    def sharding(spec, size=2):
        return NamedSharding(jax.sharding.AbstractMesh((size,), ("d",)), spec)

    rows = sharding(P("d"))
    for given, message in (
        ((rows,), "in_shardings: got 1 for 4 arguments; fix: give a tuple of 4, for w, x, y, lr;"),
        ({"x": rows}, "in_shardings: got a dict for 4 arguments"),
        (
            (None, P("d"), None, None),
            r"in_shardings: P\('d',\) is of no mesh; fix: give jax.*Named",
        ),
        ((None, "d", None, None), "in_shardings: 'd' is no sharding"),
        (({"z": rows}, None, None, None), "in_shardings: the tree for w is not that of the arg"),
        (
            (None, sharding(P("d"), 3), None, None),
            r"in_shardings of x: P\('d',\) over {'d': 3} does not split \[.*\] evenly; fix: split",
        ),
    ):
        with pytest.raises(errors.MethodError, match=message):
            parallel(step, in_shardings=given).trace(W, X, Y, 0.1)
    with pytest.raises(errors.MethodError, match=r"out_shardings: P\(\) is of no mesh"):
        parallel(step, out_shardings=P()).trace(W, X, Y, 0.1)
    with jax.set_mesh(jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])):
        parallel(step, in_shardings=(None, P("d"), None, None)).trace(W, X, Y, 0.1)


@METHODS
def test_batches_with_explicit_axes_that_micro_batches_do_not_fill(method):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    x, y = (jax.device_put(v, NamedSharding(mesh, P("d"))) for v in (X, Y))
    wanted = jax.jit(step)(W, X, Y)
    assert_same(parallel(step, method)(W, x, y), wanted)
    with jax.set_mesh(mesh):
        found = parallel(step, method)(W, x, y)
    assert_same(found, wanted)


@METHODS
def test_a_compiled_step_says_what_it_takes(method):
    compiled = parallel(step, method).lower(W, X, Y, 0.1).compile()
    (w, x, _, lr), named = compiled.input_shardings
    assert named == {}
    assert {*w} == {"a", "b"}
    assert all(isinstance(s, NamedSharding) for s in (*w.values(), x, lr))
    state, _ = compiled.output_shardings
    found, loss = compiled(W, X, Y, 0.1)
    for name in W:
        assert found[name].sharding.is_equivalent_to(state[name], 2)
    placed = jax.device_put(W, w), jax.device_put(X, x)
    assert_same(compiled(*placed, Y, 0.1)[1], loss)
    assert compiled.in_tree == jax.tree.structure((W, X, Y, 0.1))
    assert compiled.out_tree == jax.tree.structure((W, loss))
    memory = compiled.memory_analysis()
    assert memory.total == max(compiled.loaded.memory_bytes().values())
    assert {*memory.programs} == {*compiled.loaded.memory_bytes()}
    assert compiled.peak_bytes() >= memory.total
    costs = compiled.cost_analysis()
    products = 2 * 8 * (6 * 8 + 8 * 4)  # Forward; the gradient of x is not needed.
    assert 3 * products - 2 * 8 * 6 * 8 <= costs["flops"] < 2 * 3 * products
    assert costs["optimal_seconds"] == compiled.plan.predicted["step_seconds"]


@METHODS
def test_objects_are_placed_ahead(method):
    (model, optimizer, metrics), others = nnx_objects(), nnx_objects()
    batch = {"x": X, "y": Y}
    compiled = parallel(nnx_step, method).compile(model, optimizer, metrics, batch)
    *placed, parts = compiled.place(model, optimizer, metrics, batch)
    assert [*map(id, placed)] == [id(model), id(optimizer), id(metrics)]
    for _ in range(2):
        assert_same(compiled(*placed, batch), nnx.jit(nnx_step)(*others, batch))
    assert_same(compiled(*placed, parts), nnx.jit(nnx_step)(*others, batch))
    assert_same(nnx.state(placed), nnx.state(others))


def test_what_is_planned_is_said(caplog):
    caplog.set_level(logging.INFO, "alpa_mlir")
    said = []
    parallel(step).compile(W, X, Y, progress=lambda *what: said.append(what))
    assert said[0] == (0, 1, "tracing")
    line = caplog.records[-1].getMessage()
    assert line.startswith("step is ready after ")
    assert " s: plan of step: 1 stage on 2 devices, 2 micro-batches" in line
    assert re.search(r"for cluster two; memory: \S+ \w+ on a device, as compiled; about ", line)


@pytest.mark.parametrize("option", ["static_argnums", "donate_argnums"])
@pytest.mark.parametrize("number", [5, -9])
def test_numbers_of_no_argument(option, number):
    """They are not taken for another one, five of three for the last one, say."""

    def step(weights, batch, rate):
        return weights - rate * jnp.mean(batch)

    said = f"{option}: argument {number} does not exist, step has 3 by position; fix: use -3 to 2"
    with pytest.raises(errors.MethodError, match=re.escape(said)):
        parallel(step, **{option: (0, number)})


@METHODS
def test_numbers_beside_flags_are_arrays(method, caplog):
    """A flag in the state makes no other number static, which would be another step each time."""
    caplog.set_level(logging.INFO, "alpa_mlir")

    def train(state, x, y):
        def loss_of(w):
            found = predicted(w, x)
            return jnp.mean((found - y) ** 2 if state["square"] else jnp.abs(found - y))

        gradients = jax.grad(loss_of)(state["w"])
        updated = jax.tree.map(lambda p, g: p - state["rate"] * g, state["w"], gradients)
        return {**state, "w": updated, "count": state["count"] + 1}, state["count"]

    found, state = parallel(train, method), {"w": W, "rate": 0.1, "count": 0, "square": True}
    wanted, other = jax.jit(lambda s, x, y: train({**s, "square": True}, x, y)), dict(state)
    del other["square"]
    for _ in range(3):
        state, count = found(state, X, Y)
        other, same = wanted(other, X, Y)
        assert other.pop("square")
        assert state["square"] is True
        assert_same([state["w"], state["count"], count], [other["w"], other["count"], same])
    assert "anew" not in caplog.text
