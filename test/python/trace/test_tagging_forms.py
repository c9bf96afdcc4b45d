"""Tagging under the forms in which people call gradients; each must keep its numbers."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir.trace import tagging
from flax import nnx

_KEY = jax.random.PRNGKey(0)
_W = jax.random.normal(_KEY, (4, 4))
_X = jax.random.normal(jax.random.fold_in(_KEY, 1), (6, 4))


def _loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scaled(factor, x):
    return factor * x


_scaled.defvjp(lambda factor, x: (factor * x, None), lambda factor, _, g: (g * factor * 0.5,))


def _per_example(w, x):
    return jax.vmap(jax.grad(_loss), (None, 0))(w, x[:, None])


def _accumulated_by_hand(w, x):
    def body(total, part):
        return total + jax.grad(_loss)(w, part), None

    return jax.lax.scan(body, jnp.zeros_like(w), x.reshape(3, 2, 4))[0]


def _hessian_vector(w, x):
    return jax.jvp(lambda w: jax.grad(_loss)(w, x), (w,), (jnp.ones_like(w),))


def _integers(w, x):
    def loss(tree):
        return _loss(tree["w"], x) * tree["i"]

    value, grads = jax.value_and_grad(loss, allow_int=True)({"w": w, "i": jnp.int32(3)})
    return value, grads["w"]


def _holomorphic(w, x):
    return jax.grad(lambda z: jnp.sum(z * z * x[0, 0]), holomorphic=True)(w.astype(jnp.complex64))


def _custom_rule_over_closure(w, x):
    def loss(w):
        hidden = x @ w

        @jax.custom_vjp
        def gate(v):
            return v * x.mean()

        gate.defvjp(lambda v: (gate(v), v), lambda v, g: (g + 0.0 * v,))
        return jnp.sum(gate(jnp.sin(jax.lax.stop_gradient(hidden)) + w.sum()))

    return jax.grad(lambda w: loss(w) + jnp.sum(_scaled(3.0, w)))(w)


def _rule_that_indexes_a_constant(w, x):
    @jax.custom_vjp
    def scale(v, times):
        return v * times.sum()

    def backward(residual, g):
        (times,) = residual
        summed = jax.lax.fori_loop(0, 2, lambda i, c: c + times[i] * g, jnp.zeros_like(g))
        return summed + times.at[0].get(), jnp.zeros_like(times)

    scale.defvjp(lambda v, times: (scale(v, times), (times,)), backward)
    return jax.grad(lambda w: jnp.sum(scale(x @ w, jnp.array([0.0, 1.0])) ** 2))(w)


def _public_vjp(w, x):
    value, pullback = jax.vjp(lambda w: jnp.tanh(x @ w), w)
    return pullback(value)


def _inner_jits(w, x):
    @partial(jax.jit, static_argnames="power", donate_argnums=0)
    def inner(v, power):
        return jax.jit(jnp.sin)(v) ** power

    return jax.jit(jax.grad(lambda w, x: inner(x @ w, power=3).sum()))(w, x)


def _stacked_layers(w, x):
    block = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), h.sum()))

    def loss(ws):
        h, sums = jax.lax.scan(block, x, ws)
        return h.mean() + sums.sum() * 1e-3

    return jax.value_and_grad(loss)(jnp.stack([w, w.T, w]))


def _keyword_and_tuple(w, x):
    def loss(first, second, *, x):
        return _loss(first["w"] + second[0], x), {"second": second, "text": "t"}

    function = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, aux), grads = function({"w": w, "none": None}, (w, ()), x=x)
    return value, aux["second"], grads


def _modules(w, x):
    net = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    graph, state = nnx.split(net)

    @nnx.jit
    def run(net, x):
        return nnx.grad(lambda net: jnp.mean(net(x) ** 2))(net)

    return jax.tree.leaves(run(nnx.merge(graph, state), x @ w))


def _constant_loss(w, x):
    return jax.value_and_grad(lambda w: 1.0)(w)


_FORMS = [
    _accumulated_by_hand,
    _constant_loss,
    _custom_rule_over_closure,
    _hessian_vector,
    _holomorphic,
    _inner_jits,
    _integers,
    _keyword_and_tuple,
    _modules,
    _per_example,
    _public_vjp,
    _rule_that_indexes_a_constant,
    _stacked_layers,
]


@pytest.mark.parametrize("form", _FORMS, ids=lambda form: form.__name__.strip("_"))
def test_form(form):
    want = jax.jit(form)(_W, _X)
    with tagging.tag_gradients() as session:
        got = jax.jit(form)(_W, _X)
    assert session.functions >= 1
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_errors_of_the_loss_keep_their_type_and_place():
    def loss(w):
        return w @ jnp.ones(7)

    with tagging.tag_gradients(), pytest.raises(TypeError, match="dot_general") as info:
        jax.jit(jax.grad(loss))(_W)
    assert any(entry.name == "loss" for entry in info.traceback)


@pytest.mark.parametrize("loss", [lambda w: w, lambda w: 3], ids=["vector", "integer"])
def test_losses_that_jax_refuses_are_refused_alike(loss):
    with pytest.raises(TypeError) as plain:
        jax.jit(jax.grad(loss))(_W)
    with tagging.tag_gradients(), pytest.raises(TypeError) as tagged:
        jax.jit(jax.grad(loss))(_W)
    assert str(tagged.value).splitlines()[0] == str(plain.value).splitlines()[0]
