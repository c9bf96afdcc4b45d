"""Steps without gradients: metrics, predictions, one token of a generation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from exactness import language
from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    cross_entropies,
    dense,
    evaluated,
    labelled,
    layers,
    normal,
    one,
    padded,
    rows,
)


@style
def mean_losses():
    def function(logits, b):
        losses = cross_entropies(logits, b["label"])
        return {
            "loss": losses.mean(),
            "masked": (losses * b["mask"]).sum() / b["mask"].sum(),
            "accuracy": (logits.argmax(-1) == b["label"]).mean(),
            "perplexity": jnp.exp(losses.mean()),
        }

    return evaluated(function, padded)


@style
def logits_and_labels():
    def function(logits, b):
        return logits, logits.argmax(-1), jax.nn.softmax(logits), b["label"], logits > 0

    return evaluated(function)


@style
def top_five_accuracy():
    def function(logits, b):
        _, best = jax.lax.top_k(logits, 2)
        return (best == b["label"][:, None]).any(-1).mean()

    return evaluated(function)


@style
def confusion_of_an_evaluation():
    """Added to counts of earlier batches."""

    def step(counts, params, b):
        best = dense(params, b["x"]).argmax(-1)
        counts = counts.at[b["label"], best].add(1)
        return counts, jnp.diag(counts).sum() / counts.sum()

    return Case(step, (jnp.zeros((CLASSES, CLASSES), int), layers()), one(labelled))


@style
def area_under_the_curve():
    def function(logits, b):
        scores, positive = logits[:, 0], b["label"] == 0
        rank = jnp.argsort(jnp.argsort(scores)) + 1
        count = positive.sum()
        area = (rank * positive).sum() - count * (count + 1) / 2
        return area / (count * (len(scores) - count))

    return evaluated(function)


@style
def retrieval():
    def function(logits, b):
        apart = jnp.sum((logits[:, None] - logits) ** 2, -1) + 1e9 * jnp.eye(len(logits))
        return (b["label"][apart.argmin(-1)] == b["label"]).mean()

    return evaluated(function)


@style
def embeddings():
    def function(logits, b):
        return logits / jnp.linalg.norm(logits, axis=-1, keepdims=True)

    return evaluated(function)


@style
def nearest_of_a_gallery():
    """Embeddings are compared with those of an argument that is no batch."""

    def step(params, gallery, b):
        scores = dense(params, b["x"]) @ gallery.T
        return scores.argmax(-1), scores.max(-1).mean()

    return Case(step, (layers(), normal(5, 12, CLASSES)), one(labelled), carried=0)


@style(single=True)
def one_token_of_a_generation():
    """Keys and values of earlier tokens are of the batch, and are carried on."""

    def step(cache, place, params, ids):
        x = params["embed"][ids]
        new = jnp.stack([x @ params["k"], x @ params["v"]], 1)
        cache = jax.lax.dynamic_update_slice(cache, new[:, :, None], (0, 0, place, 0))
        scores = jnp.einsum("bd,btd->bt", x @ params["q"], cache[:, 0])
        scores = jnp.where(jnp.arange(cache.shape[2]) <= place, scores, -1e9)
        y = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), cache[:, 1])
        logits = (x + y) @ params["embed"].T
        return cache, place + 1, (logits, logits.argmax(-1))

    params = {name: normal(i, 8, 8, scale=0.35) for i, name in enumerate("qkv")}
    params["embed"] = normal(9, 16, 8)
    return Case(
        step,
        (jnp.zeros((8, 2, 6, 8)), jnp.zeros((), jnp.int32), params),
        lambda rng: (rng.integers(0, 16, 8, dtype="int32"),),
        carried=2,
        options={"batch_argnums": (0, 3)},
    )


@style(single=True)
def sampled_tokens():
    def step(key, params, ids):
        key, used = jax.random.split(key)
        logits = language.logits(params, ids)[:, -1]
        return key, jax.random.categorical(used, logits / 0.8)

    def batch(rng):
        return (rng.integers(0, 16, (8, language.LENGTH), dtype="int32"),)

    return Case(step, (jax.random.key(0), language.transformer(1)), batch)


@style
def perplexity_of_packed_sequences():
    def step(params, b):
        losses = cross_entropies(
            language.logits(params, b["tokens"][:, :-1], language.scanned), b["tokens"][:, 1:]
        )
        mean = language.token_mean(losses, b["mask"])
        by_place = (losses * b["mask"]).sum(0) / jnp.maximum(b["mask"].sum(0), 1)
        return jnp.exp(mean), by_place, b["mask"].sum()

    return Case(step, (language.transformer(),), one(language.tokens), carried=0)


@style
def calibration():
    """Confidence and accuracy of bins, and their weighted difference."""

    def function(logits, b):
        confidence = jax.nn.softmax(logits).max(-1)
        right = logits.argmax(-1) == b["label"]
        number = jnp.clip((confidence * 5).astype(int), 0, 4)
        count = jnp.zeros(5).at[number].add(1)
        apart = jnp.zeros(5).at[number].add(right - confidence)
        return jnp.abs(apart).sum() / count.sum(), count

    return evaluated(function)


@style(single=True)
def monte_carlo_dropout():
    """Several draws for each example; the mean and the spread over the draws."""

    def step(key, params, x):
        key, used = jax.random.split(key)

        def draw(key):
            kept = jax.random.bernoulli(key, 0.7, x.shape)
            return dense(params, jnp.where(kept, x / 0.7, 0))

        found = jax.vmap(draw)(jax.random.split(used, 5))
        return key, (found.mean(0), found.std(0))

    return Case(step, (jax.random.key(0), layers()), lambda rng: (rows(rng, 16, 8),))


@style
def gradients_of_examples_only():
    """Saliency: gradients with respect to the batch, none of the parameters."""

    def step(params, b):
        def loss(x):
            return cross_entropies(dense(params, x), b["label"]).sum()

        return jax.grad(loss)(b["x"])

    return Case(step, (layers(),), one(labelled), carried=0)
