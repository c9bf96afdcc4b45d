"""GShard mixture of experts: top-2 gating with capacity, dispatch and combine by einsum."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .base import Model, PyTree, cross_entropy, training_model

_GROUP, _HIDDEN, _EXPERTS, _FFN, _VOCAB, _LAYERS = 8, 16, 4, 32, 32, 2
_CAPACITY = 2 * _GROUP // _EXPERTS


def top2_gating(logits: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Route each token to its two best experts within their capacity.

    Args:
      logits: [groups, tokens, experts].
      capacity: slots per expert and group; tokens beyond it are dropped.

    Returns:
      combine weights [groups, tokens, experts, capacity], the dispatch mask of the same
      shape, and the scalar load-balancing loss.
    """
    experts = logits.shape[-1]
    gates = jax.nn.softmax(logits)
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), -1), experts)
    balance = jnp.mean(first.mean(1) * gates.mean(1)) * experts**2

    place_first = (jnp.cumsum(first, 1) - 1) * first
    used = first.sum(1, keepdims=True)
    place_second = (jnp.cumsum(second, 1) - 1 + used) * second
    first = first * (place_first < capacity)
    second = second * (place_second < capacity)

    weight_first = (gates * first).sum(-1)
    weight_second = (gates * second).sum(-1)
    total = jnp.maximum(weight_first + weight_second, 1e-9)

    def spread(weight: jax.Array, mask: jax.Array, place: jax.Array) -> jax.Array:
        slot = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity)
        return jnp.einsum("gs,gse,gsc->gsec", weight / total, mask, slot)

    combine = spread(weight_first, first, place_first) + spread(weight_second, second, place_second)
    return combine, (combine > 0).astype(logits.dtype), balance


def _init_params(key: jax.Array, scan: bool) -> PyTree:
    def normal(i: int, *shape: int) -> jax.Array:
        return 0.1 * jax.random.normal(jax.random.fold_in(key, i), shape)

    layers = [
        {
            "gate": normal(4 * i + 1, _HIDDEN, _EXPERTS),
            "up": normal(4 * i + 2, _EXPERTS, _HIDDEN, _FFN),
            "down": normal(4 * i + 3, _EXPERTS, _FFN, _HIDDEN),
            "scale": jnp.ones(_HIDDEN),
        }
        for i in range(_LAYERS)
    ]
    if scan:
        layers = jax.tree.map(lambda *weights: jnp.stack(weights), *layers)
    return {"embed": normal(0, _VOCAB, _HIDDEN), "layers": layers}


def _layer(carry: tuple[jax.Array, jax.Array], layer: PyTree) -> tuple[Any, None]:
    """One layer on (tokens, sum of balancing losses), as `lax.scan` wants its body."""
    x, balance = carry
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * layer["scale"]
    combine, dispatch, layer_balance = top2_gating(h @ layer["gate"], _CAPACITY)
    inputs = jnp.einsum("gsec,gsm->egcm", dispatch, h)
    hidden = jax.nn.relu(jnp.einsum("egcm,emf->egcf", inputs, layer["up"]))
    outputs = jnp.einsum("egcf,efm->egcm", hidden, layer["down"])
    return (x + jnp.einsum("gsec,egcm->gsm", combine, outputs), balance + layer_balance), None


def _loss(params: PyTree, batch: PyTree) -> jax.Array:
    carry = params["embed"][batch["tokens"]], jnp.float32(0)
    if isinstance(params["layers"], list):
        for layer in params["layers"]:
            carry, _ = _layer(carry, layer)
    else:
        carry, _ = jax.lax.scan(_layer, carry, params["layers"])
    x, balance = carry
    return cross_entropy(x @ params["embed"].T, batch["targets"]) + 0.01 * balance


def _make_batch(key: jax.Array, batch_size: int) -> PyTree:
    ids = jax.random.randint(key, (batch_size, _GROUP + 1), 0, _VOCAB)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def make_moe(name: str = "moe", scan: bool = False) -> Model:
    """Two GShard layers between a tied embedding; each sequence is one routing group."""
    tags = frozenset({"moe", "train"} | ({"scan"} if scan else set()))
    init_params = partial(_init_params, scan=scan)
    return training_model(name, init_params, _make_batch, _loss, optax.adamw(1e-3), tags)
