"""Metrics beside the gradients, and counters in the state."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    WIDTH,
    classifier,
    cross_entropies,
    dense,
    labelled,
    layers,
    normal,
    one,
    padded,
    pairs,
    sgd,
)


def with_metrics(metrics, batch=labelled):
    """A step with a mean loss, and metrics of logits, losses and batch."""

    def loss(logits, b):
        losses = cross_entropies(logits, b["label"])
        return losses.mean(), metrics(logits, losses, b)

    return classifier(loss, batch, has_aux=True)


@style
def sums_and_counts():
    def metrics(logits, losses, b):
        right = logits.argmax(-1) == b["label"]
        return {
            "sum": losses.sum(),
            "int": right.sum(),
            "float": right.astype(jnp.float32).sum(),
            "mean_of_bools": right.mean(),
            "weighted": jnp.vdot(right, b["weight"]),
            "byte": right.sum(dtype=jnp.uint8),
        }

    return with_metrics(metrics)


@style
def ratios_of_sums():
    def metrics(logits, losses, b):
        kept = b["mask"] > 0
        right = (logits.argmax(-1) == b["label"]) & kept
        return {
            "accuracy": right.sum() / kept.sum(),
            "loss": (losses * b["mask"]).sum() / b["mask"].sum(),
            "f1": 2 * right.sum() / (kept.sum() + b["mask"].sum() + 1),
        }

    return with_metrics(metrics, padded)


@style
def per_example_outputs():
    def metrics(logits, losses, b):
        return {
            "losses": losses,
            "logits": logits,
            "best": logits.argmax(-1),
            "right": logits.argmax(-1) == b["label"],
            "top": jax.lax.top_k(logits, 2),
            "input": b["label"],
        }

    return with_metrics(metrics)


@style
def extremes():
    def metrics(logits, losses, b):
        return {
            "max": losses.max(),
            "min": losses.min(),
            "of_features": jnp.abs(logits).max(0),
            "any": (losses > 2).any(),
            "all": (losses > 0).all(),
            "int_max": b["label"].max(),
            "range": losses.max() - losses.min(),
            "product": jnp.prod(0.5 + jax.nn.sigmoid(losses)),
        }

    return with_metrics(metrics)


@style
def functions_of_means():
    def metrics(logits, losses, b):
        mean = losses.mean()
        return {
            "perplexity": jnp.exp(mean),
            "bits": mean / jnp.log(2.0),
            "std": jnp.sqrt((losses**2).mean() - mean**2 + 1),
            "norm": jnp.linalg.norm(logits),
            "length": jnp.sqrt(jnp.sum(logits.mean(0) ** 2)),
        }

    return with_metrics(metrics)


@style
def confusion_and_histograms():
    def metrics(logits, losses, b):
        best = logits.argmax(-1)
        return {
            "confusion": jnp.zeros((CLASSES, CLASSES), int).at[b["label"], best].add(1),
            "float": jnp.zeros((CLASSES, CLASSES)).at[b["label"], best].add(b["weight"]),
            "one_hot": jax.nn.one_hot(b["label"], CLASSES).T @ jax.nn.one_hot(best, CLASSES),
            "counts": jnp.bincount(best, length=CLASSES),
            "bins": jnp.histogram(losses, bins=5, range=(0.0, 5.0))[0],
            "by_class": jax.ops.segment_sum(losses, b["label"], CLASSES),
        }

    return with_metrics(metrics)


@style
def sizes_of_the_batch():
    def metrics(logits, losses, b):
        return {
            "size": logits.shape[0],
            "float": jnp.float32(logits.shape[0]),
            "elements": jnp.ones_like(logits).sum(),
            "length": jnp.asarray(len(losses)),
            "share": losses.sum() / losses.size,
        }

    return with_metrics(metrics)


@style
def variances():
    def metrics(logits, losses, b):
        return {"std": losses.std(), "variance": logits.var(0), "per_row": logits.var(-1)}

    return with_metrics(metrics)


@style
def places_of_extremes():
    def metrics(logits, losses, b):
        return {"hardest": losses.argmax(), "easiest": losses.argmin(), "feature": logits.argmax(0)}

    return with_metrics(metrics)


@style
def percentiles():
    def metrics(logits, losses, b):
        return {
            "median": jnp.median(losses),
            "percentile": jnp.percentile(losses, 90),
            "sorted": jnp.sort(losses),
            "top": jax.lax.top_k(losses, 3),
        }

    return with_metrics(metrics)


@style
def counters_in_the_state():
    def step(params, seen, b):
        def loss(params):
            return jnp.mean((dense(params, b["x"]) - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        n = b["x"].shape[0]
        seen = {
            "examples": seen["examples"] + n,
            "float": seen["float"] + float(n),
            "steps": seen["steps"] + 1,
            "positive": seen["positive"] + (b["x"] > 0).sum(),
            "mean": 0.9 * seen["mean"] + 0.1 * value,
        }
        return sgd(params, grads), seen, value

    seen = {"examples": 0, "float": 0.0, "steps": 0, "positive": 0, "mean": 0.0}
    seen = {k: jnp.asarray(v) for k, v in seen.items()}
    return Case(step, (layers(), seen), one(pairs), carried=2)


@style
def metrics_of_gradients():
    def step(params, b):
        def loss(params):
            losses = cross_entropies(dense(params, b["x"]), b["label"])
            return jnp.sum(losses * b["mask"]) / b["mask"].sum()

        value, grads = jax.value_and_grad(loss)(params)
        norms = [jnp.linalg.norm(g) for g in jax.tree.leaves(grads)]
        new = sgd(params, grads)
        return new, {
            "loss": value,
            "norms": norms,
            "largest": jnp.max(jnp.stack(norms)),
            "finite": jnp.isfinite(jnp.stack(norms)).all(),
            "ratio": norms[0] / jnp.linalg.norm(new[0]["w"]),
            "gradients": grads,
        }

    return Case(step, (layers(),), one(padded))


@style
def loss_after_the_update():
    """The new parameters are applied to the same batch."""

    def step(params, b):
        def loss(params):
            return jnp.mean((dense(params, b["x"]) - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        new = sgd(params, grads)
        return new, (value, loss(new))

    return Case(step, (layers(),), one(pairs))


@style
def softmax_over_the_batch():
    def metrics(logits, losses, b):
        return {"share": jax.nn.softmax(losses), "log_sum": jax.nn.logsumexp(losses)}

    return with_metrics(metrics)


@style
def correlations():
    def metrics(logits, losses, b):
        centred = logits - logits.mean(0)
        return {"covariance": centred.T @ centred / len(logits)}

    return with_metrics(metrics)


@style
def second_moments():
    """Not centred: a product of the batch with itself that is summed over the batch."""

    def step(params, moments, b):
        def loss(params):
            y = dense(params, b["x"])
            return jnp.mean((y - b["y"]) ** 2), y.T @ y / len(y)

        (value, gram), grads = jax.value_and_grad(loss, has_aux=True)(params)
        moments = 0.5 * moments + 0.5 * b["x"].T @ b["x"] / len(b["x"])
        return sgd(params, grads), moments, (value, gram)

    return Case(step, (layers(), normal(3, WIDTH, WIDTH)), one(pairs), carried=2)
