"""A scan over layers with all that such scans come with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from .base import Model, PyTree

_IN, _HIDDEN = 8, 16


def make_layer_stack(name: str = "layer_stack", layers: int = 5, axis: int = 0) -> Model:
    """Residual layers under one `lax.scan`, which are dimension `axis` of the state (0 or 1).

    Weights are converted before the scan and scaled by a number for each layer, the carry has
    a part that is no activation, each layer gives a loss and new running means, and gradients
    are clipped by their global norm. The head is the first projection again.
    """
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.05, momentum=0.9))

    def stacked(values: jax.Array) -> jax.Array:
        return jnp.moveaxis(values, 0, axis)

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(jax.random.PRNGKey(0), 4)
        params = {
            "project": jax.random.normal(keys[0], (_IN, _HIDDEN)) * 0.3,
            "layers": {
                "up": stacked(jax.random.normal(keys[1], (layers, _HIDDEN, _HIDDEN)) * 0.3),
                "bias": stacked(jnp.zeros((layers, _HIDDEN))),
                "gain": jnp.linspace(0.5, 1.5, layers),
            },
        }
        means = stacked(jnp.zeros((layers, _HIDDEN)))
        x = jax.random.normal(keys[2], (batch_size, _IN))
        state = {"params": params, "opt_state": tx.init(params), "means": means}
        return state, {"x": x, "y": jnp.sin(x)}

    def loss_fn(params: PyTree, means: jax.Array, batch: PyTree) -> tuple[jax.Array, PyTree]:
        stack = {k: jnp.moveaxis(v, min(axis, v.ndim - 1), 0) for k, v in params["layers"].items()}
        stack["up"] = (stack["up"] * stack["gain"][:, None, None]).astype(jnp.bfloat16)

        def layer(carry: PyTree, given: PyTree) -> tuple[PyTree, PyTree]:
            h, depth = carry
            weights, mean = given
            z = h.astype(jnp.bfloat16) @ weights["up"]
            z = z.astype(jnp.float32) + weights["bias"] - mean
            new = 0.9 * mean + 0.1 * jax.lax.stop_gradient(z.mean(0))
            h = h + jnp.tanh(z) / depth
            return (h, depth + 1.0), (jnp.mean(h * h), new)

        h = batch["x"] @ params["project"]
        (h, _), (sizes, new) = jax.lax.scan(
            layer, (h, jnp.float32(1)), (stack, jnp.moveaxis(means, axis, 0))
        )
        error = jnp.mean((h @ params["project"].T - batch["y"]) ** 2)
        return error + 1e-3 * sizes.sum(), {"means": stacked(new), "sizes": sizes}

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return loss_fn(state["params"], state["means"], batch)[0]

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            state["params"], state["means"], batch
        )
        updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        state = {"params": params, "opt_state": opt_state, "means": aux["means"]}
        return state, {"loss": loss, "sizes": aux["sizes"]}

    return Model(name, forward, step, init, frozenset({"train", "scan"}))
