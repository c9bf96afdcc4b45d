"""Small models, batches and updates that several styles share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from exactness.harness import Case

N, WIDTH, CLASSES = 16, 8, 4
LAYERS = (WIDTH, WIDTH, WIDTH, CLASSES)


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    draws = np.random.default_rng(seed).normal(size=shape) * scale
    return jnp.asarray(draws, jnp.float32)


def layers(widths: Sequence[int] = LAYERS, seed: int = 0) -> list[dict[str, jax.Array]]:
    """Weights and biases of dense layers."""
    return [
        {"w": normal(seed + i, a, b, scale=a**-0.5), "b": normal(seed + i + 100, b, scale=0.1)}
        for i, (a, b) in enumerate(itertools.pairwise(widths))
    ]


def dense(params: Sequence[Any], x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def labels(rng: np.random.Generator, *shape: int, classes: int = CLASSES) -> np.ndarray:
    return rng.integers(0, classes, shape, dtype=np.int32)


def pairs(rng: np.random.Generator, n: int = N, width: int = WIDTH, out: int = CLASSES) -> Any:
    """A batch for regression."""
    x = rows(rng, n, width)
    return {"x": x, "y": np.sin(3 * x[:, :out]) + 0.5}


def labelled(rng: np.random.Generator, n: int = N, width: int = WIDTH) -> Any:
    """A batch for classification, with weights of examples."""
    weight = rng.uniform(0.5, 2, n).astype(np.float32)
    return {"x": rows(rng, n, width), "label": labels(rng, n), "weight": weight}


def padded(rng: np.random.Generator, n: int = N) -> Any:
    """Examples with a mask; the first half of the batch is all padding but for one."""
    batch = labelled(rng, n)
    mask = (rng.uniform(size=n) < 0.7).astype(np.float32)
    mask[: n // 2] = 0
    mask[[n // 2 - 1, n - 1]] = 1
    return {**batch, "mask": mask}


def one(batch: Callable[..., Any], *args: Any) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """A batch of one argument."""
    return lambda rng: (batch(rng, *args),)


def sgd(params: Any, gradients: Any, rate: float = 0.5) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g.astype(p.dtype), params, gradients)


def cross_entropies(logits: jax.Array, label: jax.Array) -> jax.Array:
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probs, label[..., None], -1)[..., 0]


def trained(loss: Callable[..., Any], has_aux: bool = False, rate: float = 0.5) -> Callable:
    """A step of gradient descent: `(params, *batch) -> (params, loss)`."""

    def step(params: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss, has_aux=has_aux)(params, *batch)
        return sgd(params, gradients, rate), value

    return step


def classifier(loss: Callable[[jax.Array, Any], Any], batch: Any = labelled, **options: Any):
    """The case of a dense classifier: `loss` is of logits and batch."""
    step = trained(lambda params, batch: loss(dense(params, batch["x"]), batch), **options)
    return Case(step, (layers(),), one(batch))


def evaluated(function: Callable[[jax.Array, Any], Any], batch: Any = labelled) -> Case:
    """The case of an evaluation: `function` is of logits and batch."""

    def step(params: Any, batch: Any) -> Any:
        return function(dense(params, batch["x"]), batch)

    return Case(step, (layers(),), one(batch), carried=0)
