"""Experts with a capacity: tokens into buffers of `[experts, places]`, and back."""

from __future__ import annotations

import re

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import MicroBatchError
from test_experts import step_of_layers

LAYERS, EXPERTS, CHOSEN, WIDTH, INNER = 2, 8, 2, 16, 32
GROUPS, TOKENS = 16, 12
PLACES = 4  # Of an expert in a group: fewer than some experts are asked for.
METHODS = {
    "1 x 8": ShardParallel(num_micro_batches=1, mesh_shape=(1, 8)),
    "2 x 4": ShardParallel(num_micro_batches=2, mesh_shape=(2, 4), export="collectives"),
    "2 x 2 x 2": ShardParallel(num_micro_batches=1, num_mesh_axes=3),
    "micro-batches": ShardParallel(num_micro_batches=4),
    "two stages": PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2),
}


def parameters(width=WIDTH, inner=INNER, experts=EXPERTS, dtype=jnp.float32):
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def weights(*shape):
        return (jax.random.normal(next(keys), shape) * shape[-2] ** -0.5).astype(dtype)

    return [
        {
            "router": weights(width, experts),
            "up": weights(experts, width, inner),
            "down": weights(experts, inner, width),
            "shared": weights(width, width),
        }
        for _ in range(LAYERS)
    ]


def batch(groups=GROUPS, tokens=TOKENS, width=WIDTH, dtype=jnp.float32):
    first, second = jax.random.split(jax.random.key(1))
    shape = (groups, tokens, width)
    return {
        "x": jax.random.normal(first, shape, dtype),
        "y": jax.random.normal(second, shape, dtype),
    }


def experts(layer, buffer):
    hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", buffer, layer["up"]))
    return jnp.einsum("ecf,efd->ecd", hidden, layer["down"])


def route(layer, x):
    top, chosen = jax.lax.top_k(x @ layer["router"], CHOSEN)
    return jax.nn.softmax(top), chosen


def by_sort(layer, x, places):
    """Sorted tokens, their place from where their expert begins."""
    count, width = layer["router"].shape[1], x.shape[1]
    share, chosen = route(layer, x)
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    expert = flat[order]
    begins = jnp.searchsorted(expert, jnp.arange(count))
    place = jnp.arange(flat.size) - begins[expert]
    kept = place < places
    slot = jnp.where(kept, expert * places + place, count * places)
    buffer = jnp.zeros((count * places, width), x.dtype)
    buffer = buffer.at[slot].set(x[order // CHOSEN], mode="drop")
    made = experts(layer, buffer.reshape(count, places, width)).reshape(buffer.shape)
    rows = jnp.where(kept[:, None], made[jnp.where(kept, slot, 0)], 0)
    return jnp.zeros_like(x).at[order // CHOSEN].add(rows * share.reshape(-1)[order][:, None])


def by_counting(layer, x, places):
    """A running count of each expert's tokens; those without a place share one row more."""
    count, width = layer["router"].shape[1], x.shape[1]
    share, chosen = route(layer, x)
    flat = chosen.reshape(-1)
    wanted = jax.nn.one_hot(flat, count, dtype=jnp.int32)
    place = ((jnp.cumsum(wanted, 0) - 1) * wanted).sum(1)
    slot = jnp.where(place < places, flat * places + place, count * places)
    buffer = jnp.zeros((count * places + 1, width), x.dtype)
    buffer = buffer.at[slot].set(jnp.repeat(x, CHOSEN, axis=0))
    made = experts(layer, buffer[:-1].reshape(count, places, width)).reshape(-1, width)
    rows = jnp.concatenate([made, jnp.zeros((1, width), x.dtype)])[slot]
    return jnp.einsum("tkd,tk->td", rows.reshape(-1, CHOSEN, width), share)


def by_two_sorts(layer, x, places):
    """Places from the inverse order; experts and places are two indices of a scatter."""
    count, width = layer["router"].shape[1], x.shape[1]
    share, chosen = route(layer, x)
    flat = chosen.reshape(-1)
    sizes = jnp.bincount(flat, length=count)
    place = jnp.argsort(jnp.argsort(flat)) - (jnp.cumsum(sizes) - sizes)[flat]
    buffer = jnp.zeros((count, places, width), x.dtype)
    buffer = buffer.at[flat, place].add(jnp.repeat(x, CHOSEN, axis=0), mode="drop")
    rows = experts(layer, buffer).at[flat, place].get(mode="fill", fill_value=0)
    return jnp.einsum("tkd,tk->td", rows.reshape(-1, CHOSEN, width), share)


def by_mask(layer, x, places):
    """GShard's masks of `[tokens, experts, places]`."""
    count = layer["router"].shape[1]
    share, chosen = route(layer, x)
    wanted = jax.nn.one_hot(chosen.reshape(-1), count, dtype=jnp.int32)
    place = ((jnp.cumsum(wanted, 0) - 1) * wanted).sum(1)
    mask = wanted[:, :, None] * jax.nn.one_hot(place, places, dtype=jnp.int32)[:, None, :]
    mask = mask.reshape(-1, CHOSEN, count, places).astype(x.dtype)
    made = experts(layer, jnp.einsum("tkec,td->ecd", mask, x))
    return jnp.einsum("tkec,tk,ecd->td", mask, share, made)


def by_experts(layer, x, places):
    """Experts choose their tokens."""
    share, token = jax.lax.top_k(jax.nn.softmax(x @ layer["router"]).T, places)
    made = experts(layer, x[token]) * share[..., None]
    return jnp.zeros_like(x).at[token.reshape(-1)].add(made.reshape(-1, x.shape[1]))


FORMS = {f.__name__: f for f in (by_sort, by_counting, by_two_sorts, by_mask, by_experts)}


def step_of(form, places=PLACES, grouped=True, remat=False):
    def layer_of(layer, x):
        if grouped:
            made = jax.vmap(lambda rows: form(layer, rows, places))(x)
        else:
            made = form(layer, x.reshape(-1, x.shape[-1]), places * len(x)).reshape(x.shape)
        return x + made + jnp.tanh(x @ layer["shared"])

    return step_of_layers(layer_of, remat)


def assert_equals_jit(step, method):
    state, examples = parameters(), batch()
    want = jax.jit(step)(state, examples)
    got = alpa_mlir.parallelize(step, method=method, cache=False)(state, examples)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("form", "method"),
    [
        *(("by_sort", method) for method in METHODS),
        ("by_counting", "2 x 4"),
        ("by_two_sorts", "micro-batches"),
        ("by_mask", "2 x 4"),
        ("by_experts", "micro-batches"),
        *(
            pytest.param(form, method, marks=pytest.mark.slow)
            for form, method in [
                ("by_counting", "micro-batches"),
                ("by_two_sorts", "2 x 4"),
                ("by_mask", "micro-batches"),
                ("by_experts", "2 x 4"),
            ]
        ),
    ],
)
def test_groups_with_places_of_their_own(form, method):
    assert_equals_jit(step_of(FORMS[form]), METHODS[method])


def test_groups_recomputed():
    assert_equals_jit(step_of(by_sort, remat=True), METHODS["two stages"])


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", FORMS)
def test_places_of_the_whole_batch(form):
    """Whether a token finds a place depends on those before it, in all of the batch."""
    step = step_of(FORMS[form], grouped=False)
    assert_equals_jit(step, METHODS["1 x 8"])
    with pytest.raises(MicroBatchError, match="couples examples"):
        alpa_mlir.parallelize(step, method=METHODS["micro-batches"], cache=False).plan(
            parameters(), batch()
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 4])
def test_buffers_are_exchanged(form, count):
    """Groups are split over devices, and so are experts: buffers go from one to the other."""
    parallel = alpa_mlir.parallelize(
        step_of(FORMS[form], places=80),
        cluster="dgx-h100",
        method=ShardParallel(mesh_shape=(1, 8), num_micro_batches=count),
        cache=False,
    )
    dtype = jnp.bfloat16
    shapes = jax.eval_shape(
        lambda: (parameters(2048, 4096, 64, dtype), batch(32, 2048, 2048, dtype))
    )
    plan = parallel.plan(*shapes).plan
    told = str(alpa_mlir.explain(plan))
    assert "strategy: expert 8" in told
    seconds = {
        name: float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]
        for name, value, unit in re.findall(
            r"^ +([\w-]+) +over \w+ +\d+ times .* ([\d.]+) (\w+)$", told, re.MULTILINE
        )
    }
    assert seconds["all-to-all"] > 3 * sum(
        value for name, value in seconds.items() if name != "all-to-all"
    )
