"""Losses that go over parts of the batch in a loop are those of all parts at once."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError
from test_equality import CLUSTER, relative_difference

PARTS, ROWS, WIDTH = 4, 16, 8
TWO = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2)


def hidden(params, x):
    h = jnp.tanh(x @ params["a"])
    return jnp.tanh(h @ params["b"]) @ params["c"]


def loss_of(params, x):
    return jnp.mean((hidden(params, x) - x[:, ::-1]) ** 2)


def in_parts(x):
    return x.reshape(PARTS, -1, WIDTH)


def added_up(params, x, loss=loss_of):
    total, _ = jax.lax.scan(lambda c, part: (c + loss(params, part), None), 0.0, in_parts(x))
    return total / PARTS


def with_counts(params, x):
    """Several sums, one of integers, another value that goes on, and results of each part."""

    def body(carry, part):
        total, count, scale = carry
        each = loss_of(params, part)
        positive = jnp.sum(part > 0, dtype=jnp.int32)
        return (total + each, count + positive, scale), each

    start = (jnp.float32(0.5), jnp.int32(3), jnp.float32(2.0))
    (total, count, scale), each = jax.lax.scan(body, start, in_parts(x), reverse=True)
    weights = jnp.arange(1.0, PARTS + 1)
    return total / PARTS * scale + jnp.sum(each * weights), count


def mapped(params, x, batch_size=None):
    each = jax.lax.map(lambda row: loss_of(params, row[None]), x, batch_size=batch_size)
    return jnp.mean(each)


def with_keys(params, x):
    def body(total, args):
        part, key = args
        kept = jax.random.bernoulli(key, 0.8, part.shape)
        return total + loss_of(params, jnp.where(kept, part, 0.0)), None

    keys = jax.random.split(jax.random.key(1), PARTS)
    return jax.lax.scan(body, 0.0, (in_parts(x), keys))[0] / PARTS


def with_layers(params, x):
    """A scan over layers in each part."""
    stack = jnp.stack([params["a"], params["a"] * 0.5])

    def loss(_, part):
        h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w[:, :WIDTH]), None), part, stack)
        return jnp.mean(h**2)

    return added_up(params, x, loss)


LOSSES = {
    "added up": added_up,
    "checkpointed": functools.partial(added_up, loss=jax.checkpoint(loss_of)),
    "with counts": with_counts,
    "mapped": mapped,
    "mapped in blocks": functools.partial(mapped, batch_size=4),
    "with keys": with_keys,
    "with layers": with_layers,
}


def step_of(loss, *, has_aux=False):
    def step(params, x):
        value, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, x)
        return jax.tree.map(lambda w, g: w - 0.3 * g, params, grads), value

    return step


def start():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"a": (WIDTH, 2 * WIDTH), "b": (2 * WIDTH, 2 * WIDTH), "c": (2 * WIDTH, WIDTH)}
    params = {
        name: 0.4 * jax.random.normal(key, shape)
        for (name, shape), key in zip(shapes.items(), keys, strict=False)
    }
    return params, jax.random.normal(keys[3], (ROWS, WIDTH))


def plan_of(loss, method, **options):
    return alpa_mlir.compile(step_of(loss, **options), *start(), cluster=CLUSTER, method=method)


def loops_in(plan):
    return any("stablehlo.while" in text for text in plan.modules.values())


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("method", [ShardParallel(num_micro_batches=1), TWO])
def test_losses_of_parts_are_those_of_jit(name, method):
    options = {"has_aux": name == "with counts"}
    if name in ("with keys", "checkpointed") and method is TWO:  # Which is one layer.
        method = ShardParallel(num_micro_batches=4)
    compiled = plan_of(LOSSES[name], method, **options)
    first = compiled.plan.stages[0]
    assert first.predicted["forward_seconds"] > 0
    # The generator of keys has one, too.
    assert name in ("with layers", "with keys") or not loops_in(compiled.plan)
    params, x = start()
    found, expected = params, params
    for _ in range(2):
        found, value = compiled(found, x)
        expected, wanted = jax.jit(step_of(LOSSES[name], **options))(expected, x)
        assert relative_difference(value, wanted) < 1e-5
        assert relative_difference(found, expected, 1e-6) < 1e-5


def chosen(params, x):
    """Of a branch that is not taken `jax.vmap` would take the gradient as well: of sqrt, not a
    number."""

    def body(total, part):
        low = jnp.min(jnp.abs(part @ params["a"])) * 0.0
        root = jax.lax.cond(part[0, 0] > 100.0, jnp.sqrt, lambda v: v, low)
        return total + loss_of(params, part) + root, None

    return jax.lax.scan(body, 0.0, in_parts(x))[0] / PARTS


def carried_on(params, x):
    """Each part sees what came before."""

    def body(total, part):
        return total + jnp.tanh(total) * loss_of(params, part) + loss_of(params, part), None

    return jax.lax.scan(body, 0.1, in_parts(x))[0]


def half(params, x):
    """Its sum rounds after each part."""

    def body(total, part):
        return total + loss_of(params, part).astype(jnp.bfloat16), None

    return jax.lax.scan(body, jnp.bfloat16(0), in_parts(x))[0].astype(jnp.float32)


@pytest.mark.parametrize("loss", [chosen, carried_on, half])
def test_other_loops_stay(loss):
    step = alpa_mlir.compile(
        step_of(loss), *start(), cluster=CLUSTER, method=ShardParallel(num_micro_batches=1)
    )
    assert loops_in(step.plan)
    params, x = start()
    found, expected = step(params, x), jax.jit(step_of(loss))(params, x)
    assert np.isfinite(found[1])
    assert relative_difference(found[1], expected[1]) < 1e-5
    assert relative_difference(found[0], expected[0], 1e-6) < 1e-5
    with pytest.raises(MicroBatchError):
        plan_of(loss, ShardParallel(num_micro_batches=2))
