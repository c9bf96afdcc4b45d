"""MLP, LSTM and embedding models in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from .base import Model, PyTree, cross_entropy, training_model


def _normal(key: jax.Array, i: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(key, i), shape) / shape[0] ** 0.5


def make_mlp(
    name: str = "mlp",
    layers: int = 4,
    hidden: int = 32,
    tx: optax.GradientTransformation | None = None,
) -> Model:
    """`layers` square ReLU layers, mean squared error; plain SGD unless `tx` is given."""

    def init_params(key: jax.Array) -> PyTree:
        weights = [_normal(key, i, hidden, hidden) for i in range(layers)]
        return [{"kernel": w, "bias": jnp.zeros(hidden)} for w in weights]

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        x = batch["x"]
        for i, layer in enumerate(params):
            x = x @ layer["kernel"] + layer["bias"]
            x = jax.nn.relu(x) if i + 1 < layers else x
        return jnp.mean((x - batch["y"]) ** 2)

    def make_batch(key: jax.Array, batch_size: int) -> PyTree:
        return {"x": _normal(key, 0, batch_size, hidden), "y": _normal(key, 1, batch_size, hidden)}

    tags = frozenset({"mlp", "train"})
    return training_model(name, init_params, make_batch, loss, tx or optax.sgd(0.1), tags)


def make_lstm(name: str = "lstm") -> Model:
    """One LSTM layer over time by `scan`, then a classifier on the last state."""
    hidden, features, steps, classes = 16, 8, 6, 4

    def init_params(key: jax.Array) -> PyTree:
        return {
            "cell": {
                "input": _normal(key, 0, features, 4 * hidden),
                "hidden": _normal(key, 1, hidden, 4 * hidden),
                "bias": jnp.zeros(4 * hidden),
            },
            "out": _normal(key, 2, hidden, classes),
        }

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        cell = params["cell"]

        def body(carry: tuple[jax.Array, jax.Array], x: jax.Array):
            h, c = carry
            gates = x @ cell["input"] + h @ cell["hidden"] + cell["bias"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), None

        inputs = batch["x"].swapaxes(0, 1)
        zero = jnp.zeros((inputs.shape[1], hidden))
        (h, _), _ = jax.lax.scan(body, (zero, zero), inputs)
        return cross_entropy(h @ params["out"], batch["label"])

    def make_batch(key: jax.Array, batch_size: int) -> PyTree:
        return {
            "x": jax.random.normal(key, (batch_size, steps, features)),
            "label": jnp.arange(batch_size, dtype=jnp.int32) % classes,
        }

    tags = frozenset({"scan", "train"})
    return training_model(name, init_params, make_batch, loss, optax.adam(1e-2), tags)


def make_embedding(name: str = "embedding") -> Model:
    """Bags of ids looked up in a table: gather forward, scatter-add backward."""
    rows, hidden, bag, classes = 40, 8, 5, 4

    def init_params(key: jax.Array) -> PyTree:
        return {"table": _normal(key, 0, rows, hidden), "out": _normal(key, 1, hidden, classes)}

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        vectors = jnp.take(params["table"], batch["ids"], axis=0)
        logits = vectors.mean(1) @ params["out"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], axis=1)
        return -picked.mean()

    def make_batch(key: jax.Array, batch_size: int) -> PyTree:
        return {
            "ids": jax.random.randint(key, (batch_size, bag), 0, rows),
            "label": jnp.arange(batch_size, dtype=jnp.int32) % classes,
        }

    tags = frozenset({"gather", "train"})
    return training_model(name, init_params, make_batch, loss, optax.adagrad(0.1), tags)
