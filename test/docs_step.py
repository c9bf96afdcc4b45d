"""A small training step, and an entry point that `alpa-mlir` takes: `step.py:entry`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

OPTIMIZER = optax.adam(1e-2)


def create_state(key, layers=4, width=32):
    keys = jax.random.split(key, layers)
    scale = width**-0.5
    params = {f"w{i}": scale * jax.random.normal(k, (width, width)) for i, k in enumerate(keys)}
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


def predict(params, batch):
    x = batch["x"]
    for name in sorted(params):
        x = jnp.tanh(x @ params[name])
    return x


def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(state["params"])
    updates, optimizer = OPTIMIZER.update(gradients, state["optimizer"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss


def batches(rows=16, width=32):
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(rows, width)).astype(np.float32)
        yield {"x": x, "y": np.sin(x)}


def entry(*, layers=4, width=32, rows=16):
    """The step, its arguments' shapes, and batches to run it on."""
    state = jax.eval_shape(lambda: create_state(jax.random.key(0), layers, width))
    return train_step, (state, next(batches(rows, width))), batches(rows, width)
