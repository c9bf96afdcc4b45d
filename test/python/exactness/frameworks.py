"""Models and train states of Flax, Equinox and Optax as people write them."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState

from exactness.harness import Case, style
from exactness.models import cross_entropies, labelled, one, padded, pairs, sgd

SHAPE = (1, 8)


class Linen(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm(epsilon=1e-3)(nn.gelu(nn.Dense(8)(x)))
        x = nn.Dropout(self.rate, deterministic=self.rate == 0)(x)
        return nn.Dense(4)(nn.tanh(nn.Dense(8)(x)))


@style
def linen():
    def step(state, b):
        def loss(params):
            losses = cross_entropies(state.apply_fn(params, b["x"]), b["label"])
            return jnp.sum(losses * b["mask"]) / b["mask"].sum()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    params = Linen().init(jax.random.key(0), jnp.zeros(SHAPE))
    state = TrainState.create(apply_fn=Linen().apply, params=params, tx=optax.sgd(0.3, 0.9))
    return Case(step, (state,), one(padded))


@style(single=True)
def linen_with_dropout():
    model = Linen(rate=0.3)

    def step(params, key, b):
        key, used = jax.random.split(key)

        def loss(params):
            y = model.apply(params, b["x"], rngs={"dropout": used})
            return jnp.mean((y - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.2), key, value

    params = Linen().init(jax.random.key(0), jnp.zeros(SHAPE))
    return Case(step, (params, jax.random.key(1)), one(pairs), carried=2)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return jnp.tanh(nn.Dense(8)(x)), None


class Scanned(nn.Module):
    """Layers with weights of their own, by `nn.scan`."""

    @nn.compact
    def __call__(self, x):
        stack = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return nn.Dense(4)(stack()(x, None)[0])


@style
def linen_with_scanned_layers():
    def step(params, b):
        def loss(params):
            return jnp.mean((Scanned().apply(params, b["x"]) - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params = Scanned().init(jax.random.key(0), jnp.zeros(SHAPE))
    return Case(step, (params,), one(pairs))


class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=False, momentum=0.8)(x)
        return nn.Dense(4)(nn.tanh(x))


@style(couples="statistics of the whole batch normalize each example")
def linen_with_batch_norm():
    def step(state, b):
        def loss(params):
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            y, new = Normalized().apply(variables, b["x"], mutable=["batch_stats"])
            return jnp.mean((y - b["y"]) ** 2), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        return {"params": sgd(state["params"], grads), **new}, value

    state = Normalized().init(jax.random.key(0), jnp.zeros(SHAPE))
    return Case(step, (state,), one(pairs))


class Nnx(nnx.Module):
    def __init__(self, rate, rngs):
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs, deterministic=not rate)
        self.last = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.tanh(self.norm(self.first(x)))))


def nnx_case(rate):
    model = Nnx(rate, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.3, 0.9), wrt=nnx.Param)
    definition, state = nnx.split((model, optimizer))

    def step(state, b):
        model, optimizer = nnx.merge(definition, state)
        value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(b["x"]) - b["y"]) ** 2))(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return Case(step, (state,), one(pairs))


@style
def nnx_with_an_optimizer():
    return nnx_case(0.0)


@style(single=True)
def nnx_with_dropout():
    """The module holds key and counter of the draws."""
    return nnx_case(0.3)


class Metric(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(8, 4, rngs=rngs)
        self.metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average())


@style(one_stage="one layer")
def nnx_with_metrics_in_the_module():
    definition, state = nnx.split(Metric(nnx.Rngs(0)))

    def step(state, b):
        model = nnx.merge(definition, state)

        def loss(model):
            logits = model.linear(b["x"])
            return cross_entropies(logits, b["label"]).mean(), logits

        (value, logits), grads = nnx.value_and_grad(loss, has_aux=True)(model)
        model.metrics.update(logits=logits, labels=b["label"], values=value)
        params = nnx.state(model, nnx.Param)
        of_params = nnx.state(grads, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.5 * g, params, of_params))
        return nnx.state(model), model.metrics.compute()

    return Case(step, (state,), one(labelled))


@style
def equinox():
    """Modules of single examples, under vmap; activations are no part of the state."""
    model = eqx.nn.MLP(8, 4, 8, 2, activation=jnp.tanh, key=jax.random.key(0))
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def step(params, b):
        @eqx.filter_value_and_grad
        def loss(params):
            y = jax.vmap(eqx.combine(params, rest))(b["x"])
            return jnp.mean((y - b["y"]) ** 2)

        value, grads = loss(params)
        return eqx.apply_updates(params, jax.tree.map(lambda g: -0.5 * g, grads)), value

    return Case(step, (params,), one(pairs))


@style(single=True)
def equinox_with_keys_of_examples():
    first, last = jax.random.split(jax.random.key(0))
    model = [eqx.nn.Linear(8, 8, key=first), eqx.nn.Linear(8, 4, key=last)]
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    dropout = eqx.nn.Dropout(0.3)

    def step(params, key, b):
        key, used = jax.random.split(key)

        def loss(params):
            first, last = eqx.combine(params, rest)

            def of_one(x, key):
                return last(dropout(jnp.tanh(first(x)), key=key))

            y = jax.vmap(of_one)(b["x"], jax.random.split(used, len(b["x"])))
            return jnp.mean((y - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), key, value

    return Case(step, (params, jax.random.key(4)), one(pairs), carried=2)
