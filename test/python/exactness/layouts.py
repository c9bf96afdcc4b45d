"""Batches behind transposes, reshapes, joins, lookups, and odd sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    WIDTH,
    N,
    classifier,
    cross_entropies,
    dense,
    labelled,
    labels,
    layers,
    normal,
    one,
    pairs,
    rows,
    trained,
)

TIME = 4


def series(rng, n=8):
    return {"x": rows(rng, n, TIME, WIDTH), "y": rows(rng, n, CLASSES)}


def recurrent():
    return {
        "in": normal(0, WIDTH, 8, scale=0.35),
        "again": normal(1, 8, 8, scale=0.35),
        "out": normal(2, 8, CLASSES, scale=0.35),
    }


def cell(params, h, x):
    return jnp.tanh(x @ params["in"] + h @ params["again"])


@style(one_stage="one loop")
def recurrence_over_time():
    """A scan over time, with the batch inside and transposed to the second place."""

    def loss(params, b):
        def advance(h, x):
            h = cell(params, h, x)
            return h, h @ params["out"]

        h = jnp.zeros((len(b["x"]), 8))
        _, found = jax.lax.scan(advance, h, b["x"].swapaxes(0, 1))
        return jnp.mean((found - b["y"]) ** 2)

    return Case(trained(loss), (recurrent(),), one(series))


@style
def recurrence_under_vmap():
    """A scan over time of each example; lengths differ."""

    def loss(params, b):
        def of_one(x, y, length):
            def advance(h, row):
                x, number = row
                return jnp.where(number < length, cell(params, h, x), h), None

            h, _ = jax.lax.scan(advance, jnp.zeros(8), (x, jnp.arange(TIME)))
            return jnp.mean((h @ params["out"] - y) ** 2)

        return jax.vmap(of_one)(b["x"], b["y"], b["length"]).mean()

    def batch(rng):
        return {**series(rng), "length": labels(rng, 8, classes=TIME) + 1}

    return Case(trained(loss), (recurrent(),), one(batch))


@style
def bidirectional_recurrence():
    def loss(params, b):
        x = b["x"].transpose(1, 0, 2)
        h = jnp.zeros((x.shape[1], 8))

        def advance(h, x):
            h = cell(params, h, x)
            return h, h

        _, ahead = jax.lax.scan(advance, h, x)
        _, back = jax.lax.scan(advance, h, x, reverse=True)
        found = jnp.concatenate([ahead, back], -1).max(0) @ params["both"]
        return jnp.mean((found - b["y"]) ** 2)

    params = {**recurrent(), "both": normal(6, 16, CLASSES, scale=0.3)}
    del params["out"]
    return Case(trained(loss), (params,), one(series))


@style(couples="the argument has time in its first place, and a loop over it")
def time_before_the_batch():
    def loss(params, b):
        h = jnp.zeros((b["x"].shape[1], 8))
        h, _ = jax.lax.scan(lambda h, x: (cell(params, h, x), None), h, b["x"])
        return jnp.mean((h @ params["out"]) ** 2)

    def batch(rng):
        return {"x": rows(rng, 8, 6, WIDTH)}

    return Case(trained(loss), (recurrent(),), one(batch))


@style(couples="a clip has examples of several micro-batches")
def layers_of_clips():
    """Rows are frames, each eight of which are a clip behind the first layer."""

    def loss(params, b):
        first, *others = params
        frames = jnp.tanh(b["x"] @ first["w"] + first["b"])
        return jnp.mean(jnp.tanh(dense(others, frames.reshape(-1, 8, WIDTH))) ** 2)

    return Case(trained(loss), (layers(),), one(pairs))


@style
def features_before_the_batch():
    """Columns are examples, from a transpose on."""

    def loss(params, b):
        x = b["x"].T
        for layer in params:
            x = jnp.tanh(layer["w"].T @ x + layer["b"][:, None])
        return jnp.mean((x - b["y"].T) ** 2)

    return Case(trained(loss), (layers(),), one(pairs))


@style
def rows_of_all_tokens():
    """Batch and time are one dimension in the network, and apart before and after."""

    def loss(params, b):
        x = b["x"].reshape(-1, WIDTH)
        y = dense(params, x).reshape(-1, TIME, CLASSES)
        return jnp.mean((y.mean(1) - b["y"]) ** 2)

    return Case(trained(loss), (layers(),), one(series))


@style
def rows_of_all_tokens_with_time_first():
    """As above, but time is the slower of the two, so that micro-batches are not in one place."""

    def loss(params, b):
        x = b["x"].swapaxes(0, 1).reshape(-1, WIDTH)
        y = dense(params, x).reshape(TIME, -1, CLASSES)
        return jnp.mean((y - b["y"]) ** 2)

    return Case(trained(loss), (layers(),), one(series))


@style
def batch_and_heads_together():
    def loss(params, b):
        x = b["x"]
        n = len(x)
        q = (x @ params["q"]).reshape(n, TIME, 2, 4).swapaxes(1, 2).reshape(2 * n, TIME, 4)
        y = jax.nn.softmax(q @ q.swapaxes(1, 2)) @ q
        y = y.reshape(n, 2, TIME, 4).swapaxes(1, 2).reshape(n, TIME, 8)
        return jnp.mean(((y @ params["out"]).sum(1) - b["y"]) ** 2)

    params = {"q": normal(0, WIDTH, 8, scale=0.4), "out": normal(1, 8, CLASSES, scale=0.4)}
    return Case(trained(loss, rate=0.1), (params,), one(series))


@style
def repeated_examples():
    """Each example twice, one after the other; and all of them twice, one batch after another."""

    def loss(params, b):
        near = dense(params, jnp.repeat(b["x"], 2, 0)) - jnp.repeat(b["y"], 2, 0)
        far = dense(params, jnp.tile(b["x"], (2, 1))) - jnp.tile(b["y"], (2, 1))
        return jnp.mean(near**2) + jnp.mean(jnp.abs(far))

    return Case(trained(loss), (layers(),), one(pairs))


@style
def rows_picked_by_their_numbers():
    def loss(logits, b):
        n = logits.shape[0]
        return -jax.nn.log_softmax(logits)[jnp.arange(n), b["label"]].mean()

    return classifier(loss)


@style
def rows_picked_in_other_ways():
    """One value of each row by vmap, one-hot products, masks and NumPy's arange."""

    def loss(logits, b):
        log_probs = jax.nn.log_softmax(logits)
        by_vmap = jax.vmap(lambda row, i: row[i])(log_probs, b["label"])
        by_product = jnp.einsum("nc,nc->n", log_probs, jax.nn.one_hot(b["label"], CLASSES))
        by_mask = jnp.where(jnp.arange(CLASSES) == b["label"][:, None], log_probs, 0).sum(-1)
        by_numpy = log_probs[np.arange(len(logits)), b["label"]]
        return -(by_vmap + by_product + 2 * by_mask + by_numpy).mean()

    return classifier(loss, rate=0.1)


@style
def lookups_in_tied_tables():
    """One table for two columns of the batch, and for the output."""

    def batch(rng):
        return {"user": labels(rng, N, classes=6), "item": labels(rng, N, classes=6)}

    def loss(params, b):
        user, item = params["table"][b["user"]], params["table"][b["item"]]
        found = jnp.tanh(jnp.concatenate([user, item], 1) @ params["w"]) @ params["table"].T
        return cross_entropies(found, b["item"]).mean()

    params = {"table": normal(0, 6, 8), "w": normal(1, 16, 8, scale=0.25)}
    return Case(trained(loss), (params,), one(batch))


@style(one_stage="one layer", couples="sentences are numbered across the batch")
def bags_of_words():
    """Words of all sentences in one list, with the number of their sentence."""

    def batch(rng):
        return {"words": labels(rng, 8, 6, classes=10), "label": labels(rng, 8)}

    def loss(params, b):
        n = len(b["words"])
        sentence = jnp.repeat(jnp.arange(n), 6)
        words = params["table"][b["words"].reshape(-1)]
        bags = jax.ops.segment_sum(words, sentence, n)
        return cross_entropies(bags @ params["w"], b["label"]).mean()

    params = {"table": normal(0, 10, 8, scale=0.5), "w": normal(1, 8, CLASSES, scale=0.3)}
    return Case(trained(loss), (params,), one(batch))


@style
def prototypes_of_classes():
    """Sums of features by class, made of the batch and returned; losses do not use them."""

    def loss(params, b):
        h = dense(params, b["x"])
        sums = jax.ops.segment_sum(h, b["label"], CLASSES)
        counts = jnp.bincount(b["label"], length=CLASSES)
        means = sums / jnp.maximum(counts, 1)[:, None]
        return cross_entropies(h, b["label"]).mean(), means

    return Case(trained(loss, has_aux=True), (layers(),), one(labelled))


@style(counts=(1, 3, 5))
def odd_batch():
    return classifier(lambda y, b: jnp.mean((y - b["y"]) ** 2), lambda rng: pairs(rng, 15))


@style(counts=(1, 2, 3, 6))
def batch_of_six_with_a_mask():
    def loss(logits, b):
        losses = cross_entropies(logits, b["label"])
        kept = b["weight"] > 0.8
        return (losses * kept).sum() / jnp.maximum(kept.sum(), 1)

    return classifier(loss, lambda rng: labelled(rng, 6))


@style(counts=(1, 7))
def batch_of_a_prime_size():
    return classifier(lambda y, b: jnp.sum((y - b["y"]) ** 2) / 7, lambda rng: pairs(rng, 7))


@style
def micro_batches_of_one_example():
    return classifier(
        lambda logits, b: cross_entropies(logits, b["label"]).mean(), lambda rng: labelled(rng, 8)
    )


@style
def batch_as_large_as_the_layers():
    """No size tells rows from features."""

    def loss(params, b):
        x = b["x"]
        for w in params:
            x = jnp.tanh(x @ w) + x
        return jnp.mean((x - b["y"]) ** 2), x.mean(0), x.mean(1)

    def step(params, b):
        def first(params):
            value, by_feature, by_row = loss(params, b)
            return value, (by_feature, by_row)

        value, grads = jax.value_and_grad(first, has_aux=True)(params)
        return [w - 0.5 * g for w, g in zip(params, grads, strict=True)], value

    def batch(rng):
        return {"x": rows(rng, 8, 8), "y": rows(rng, 8, 8)}

    return Case(step, ([normal(i, 8, 8, scale=0.3) for i in range(3)],), one(batch))


@style
def graphs_in_rows():
    """Each example is a graph with an adjacency matrix and a mask of nodes."""

    def batch(rng):
        edges = rng.uniform(size=(8, 5, 5)) < 0.4
        nodes = (np.arange(5) < rng.integers(1, 6, 8)[:, None]).astype(np.float32)
        return {
            "x": rows(rng, 8, 5, WIDTH),
            "edges": edges.astype(np.float32),
            "nodes": nodes,
            "y": rows(rng, 8, CLASSES),
        }

    def loss(params, b):
        x = b["x"]
        for layer in params[:-1]:
            degree = jnp.maximum(b["edges"].sum(-1, keepdims=True), 1)
            x = jnp.tanh((x + b["edges"] @ x / degree) @ layer["w"] + layer["b"])
        pooled = jnp.einsum("bnd,bn->bd", x, b["nodes"]) / b["nodes"].sum(-1, keepdims=True)
        return jnp.mean((pooled @ params[-1]["w"] + params[-1]["b"] - b["y"]) ** 2)

    return Case(trained(loss), (layers(),), one(batch))


def mixed(order):
    """Mixup: inputs and losses of each example and of another one, which `order` puts there."""

    def loss(params, b):
        logits = dense(params, 0.7 * b["x"] + 0.3 * order(b["x"]))
        own, other = (cross_entropies(logits, y) for y in (b["label"], order(b["label"])))
        return jnp.mean(0.7 * own + 0.3 * other)

    return Case(trained(loss), (layers(),), one(labelled))


@style
def mixup_with_the_batch_reversed():
    return mixed(lambda x: x[::-1])


@style
def mixup_with_the_batch_rolled():
    return mixed(lambda x: jnp.roll(x, 3, 0))


@style
def mixup_with_the_batch_permuted():
    return mixed(lambda x: x[jax.random.permutation(jax.random.key(5), len(x))])


@style
def layers_on_neighbours():
    """Layers that see the next example alone, and half of the batch."""

    def loss(params, b):
        shifted = dense(params, jnp.roll(b["x"], -1, 0))
        half = dense(params, b["x"][: len(b["x"]) // 2])
        return jnp.mean((shifted - b["y"]) ** 2) + 0.1 * jnp.mean(half**2)

    return Case(trained(loss), (layers(),), one(pairs))


@style(meets="tokens are the rows of the batch, and meet in sums by example")
def segments_by_lengths():
    """Rows of tokens, of which the batch says how many each example has."""

    def batch(rng, n=8):
        return {"tokens": rows(rng, 4 * n, WIDTH), "lengths": np.full(n, 4, np.int32)}

    def loss(params, b):
        n = len(b["lengths"])
        owner = jnp.repeat(jnp.arange(n), b["lengths"], total_repeat_length=4 * n)
        sums = jax.ops.segment_sum(dense(params, b["tokens"]), owner, n)
        return jnp.mean((sums / b["lengths"][:, None]) ** 2)

    return Case(trained(loss), (layers(),), one(batch))
