"""What every entry of the model zoo looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

PyTree = Any


@dataclass(frozen=True)
class Model:
    """One single-device training program, small and made by code alone.

    Attributes:
      name: key of the registry.
      forward: `(state, batch) -> outputs`, no gradients.
      step: `(state, batch) -> (state, metrics)`, a full training step; `metrics` holds
        the scalar `loss` whenever the entry trains something.
      init: `(batch_size=8) -> (state, batch)`, deterministic; every leaf of `batch` has
        `batch_size` as dimension 0.
      tags: features for tests to select by, such as `"gpt"`, `"scan"` or `"remat"`.

    Example:
      >>> model = zoo.get("mlp")
      >>> state, batch = model.init()
      >>> state, metrics = jax.jit(model.step)(state, batch)
    """

    name: str
    forward: Callable[[PyTree, PyTree], PyTree]
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    init: Callable[..., tuple[PyTree, PyTree]]
    tags: frozenset[str] = frozenset()


def training_model(
    name: str,
    init_params: Callable[[jax.Array], PyTree],
    make_batch: Callable[[jax.Array, int], PyTree],
    loss: Callable[[PyTree, PyTree], jax.Array],
    tx: optax.GradientTransformation,
    tags: frozenset[str] = frozenset(),
) -> Model:
    """Build the usual step around a loss: `state = {"params", "opt_state"}`."""

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        params = init_params(jax.random.PRNGKey(0))
        batch = make_batch(jax.random.PRNGKey(1), batch_size)
        return {"params": params, "opt_state": tx.init(params)}, batch

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return loss(state["params"], batch)

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state}, {"loss": value}

    return Model(name, forward, step, init, tags)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy in f32; `logits` [..., classes], `labels` [...] integers."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
    return losses.mean()
