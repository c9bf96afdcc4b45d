"""Losses: means, sums, weights, several terms, and what stands behind the sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    LAYERS,
    N,
    classifier,
    cross_entropies,
    dense,
    labelled,
    layers,
    one,
    padded,
    pairs,
    rows,
    sgd,
    trained,
)


def per_example(logits, batch):
    return cross_entropies(logits, batch["label"])


@style
def mean_squared_error():
    return classifier(lambda y, b: jnp.mean((y - b["y"]) ** 2), pairs)


@style
def mean_cross_entropy():
    return classifier(lambda logits, b: per_example(logits, b).mean())


@style
def sum_of_squares():
    return classifier(lambda y, b: jnp.sum((y - b["y"]) ** 2), pairs, rate=0.02)


@style
def mean_by_batch_size():
    return classifier(lambda y, b: jnp.sum((y - b["y"]) ** 2) / b["x"].shape[0], pairs, rate=0.2)


@style
def mean_by_other_sizes():
    """Divided by rows and classes one after another, and by a size that does not grow."""

    def loss(y, b):
        error = (y - b["y"]) ** 2
        return error.mean(-1).sum() / len(error) + error.sum(0).mean() / y.size

    return classifier(loss, pairs)


@style
def masked_mean():
    def loss(logits, b):
        return jnp.sum(per_example(logits, b) * b["mask"]) / jnp.sum(b["mask"])

    return classifier(loss, padded)


@style
def masked_mean_of_at_least_one():
    def loss(logits, b):
        count = jnp.maximum(jnp.sum(b["mask"]), 1)
        return jnp.sum(jnp.where(b["mask"] > 0, per_example(logits, b), 0)) / count

    return classifier(loss, padded)


@style
def mean_where():
    return classifier(lambda o, b: jnp.mean(per_example(o, b), where=b["mask"] > 0), padded)


@style
def ignored_labels():
    """Labels of -100, as in PyTorch, counted as integers."""

    def batch(rng):
        found = padded(rng)
        return {**found, "label": np.where(found["mask"] > 0, found["label"], -100)}

    def loss(logits, b):
        valid = b["label"] != -100
        losses = cross_entropies(logits, jnp.where(valid, b["label"], 0))
        return jnp.where(valid, losses, 0).sum() / valid.sum()

    return classifier(loss, batch)


@style
def weighted_mean():
    def loss(logits, b):
        return jnp.average(per_example(logits, b), weights=b["weight"])

    return classifier(loss)


@style
def weights_normalized_first():
    """Each example's weight is a share of the whole batch."""

    def loss(logits, b):
        share = b["weight"] / b["weight"].sum()
        return jnp.sum(share * per_example(logits, b))

    return classifier(loss)


@style
def class_balanced():
    """Weights by how often a class is in the batch."""

    def loss(logits, b):
        counts = jnp.bincount(b["label"], length=CLASSES)
        weight = 1 / jnp.maximum(counts, 1)[b["label"]]
        return jnp.sum(weight * per_example(logits, b)) / CLASSES

    return classifier(loss)


@style
def z_loss():
    def loss(logits, b):
        log_z = jax.nn.logsumexp(logits, -1)
        total = jnp.sum(b["mask"])
        main = jnp.sum(per_example(logits, b) * b["mask"]) / total
        return main + 1e-1 * jnp.sum(log_z**2 * b["mask"]) / total

    return classifier(loss, padded)


@style
def different_denominators():
    """One loss over what a mask keeps, one over what it does not, one over all."""

    def loss(logits, b):
        losses, kept = per_example(logits, b), b["mask"]
        other = 1 - kept
        return (
            jnp.sum(losses * kept) / kept.sum()
            + 0.3 * jnp.sum(losses**2 * other) / other.sum()
            + 0.1 * jnp.mean(logits**2)
        )

    return classifier(loss, padded)


@style
def label_smoothing():
    def loss(logits, b):
        targets = 0.9 * jax.nn.one_hot(b["label"], CLASSES) + 0.1 / CLASSES
        return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), -1))

    return classifier(loss)


@style
def weight_decay_in_the_loss():
    def loss(params, b):
        decay = sum(jnp.sum(x**2) for x in jax.tree.leaves(params))
        return per_example(dense(params, b["x"]), b).mean() + 0.01 * decay

    return Case(trained(loss), (layers(),), one(labelled))


@style
def weight_decay_beside_a_masked_mean():
    def loss(params, b):
        losses = per_example(dense(params, b["x"]), b) * b["mask"]
        decay = sum(jnp.sum(layer["w"] ** 2) for layer in params)
        return losses.sum() / b["mask"].sum() + 0.01 * decay

    return Case(trained(loss), (layers(),), one(padded))


@style
def weight_decay_beside_a_sum():
    def loss(params, b):
        decay = sum(jnp.mean(jnp.abs(layer["w"])) for layer in params)
        return jnp.sum((dense(params, b["x"]) - b["y"]) ** 2) + decay

    return Case(trained(loss, rate=0.02), (layers(),), one(pairs))


@style
def static_loss_scale():
    scale = 1024.0

    def step(params, b):
        def loss(params):
            return scale * per_example(dense(params, b["x"]), b).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, jax.tree.map(lambda g: g / scale, grads)), value / scale

    return Case(step, (layers(),), one(labelled))


def dynamic_loss_scale(choose):
    """Steps whose gradients are finite count, and double the scale."""

    def step(params, scale, b):
        def loss(params):
            return scale * per_example(dense(params, b["x"]), b).mean()

        value, grads = jax.value_and_grad(loss)(params)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        new = choose(finite, sgd(params, grads), params)
        return new, jnp.where(finite, scale * 2, scale / 2), (value / scale, finite)

    return Case(step, (layers(), jnp.float32(64)), one(labelled), carried=2)


@style
def dynamic_loss_scale_by_select():
    def choose(finite, new, old):
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    return dynamic_loss_scale(choose)


@style
def dynamic_loss_scale_by_cond():
    def choose(finite, new, old):
        return jax.lax.cond(finite, lambda: new, lambda: old)

    return dynamic_loss_scale(choose)


@style
def root_mean_square():
    return classifier(lambda y, b: jnp.sqrt(jnp.mean((y - b["y"]) ** 2)), pairs)


@style
def log_of_a_mean():
    return classifier(lambda y, b: jnp.log(jnp.mean((y - b["y"]) ** 2) + 1), pairs)


@style(meets="the gradient of an example needs a sum over all")
def ratio_of_two_losses():
    """Both the sum above and the one below have gradients."""

    def loss(y, b):
        return jnp.sum((y - b["y"]) ** 2) / (1 + jnp.sum(y**2))

    return classifier(loss, pairs, rate=2.0)


@style(meets="the gradient of an example needs a sum over all")
def product_of_two_losses():
    def loss(y, b):
        return jnp.mean((y - b["y"]) ** 2) * (1 + jnp.mean(jnp.abs(y)))

    return classifier(loss, pairs)


@style(meets="the gradient of an example needs a sum over all")
def norm_of_a_mean():
    """Mean of features over the batch, then the length of the vector."""

    def loss(y, b):
        return jnp.sum((y - b["y"]).mean(0) ** 2)

    return classifier(loss, pairs)


@style(meets="the gradient of an example needs a sum over all")
def smallest_of_two_losses():
    def loss(y, b):
        error = y - b["y"]
        return jnp.minimum(jnp.mean(error**2), jnp.mean(jnp.abs(error)) + 3)

    return classifier(loss, pairs)


@style(meets="the gradient of an example needs a sum over all")
def soft_dice():
    """Overlap over the whole batch, class by class."""

    def loss(logits, b):
        p, t = jax.nn.softmax(logits), jax.nn.one_hot(b["label"], CLASSES)
        return 1 - jnp.mean((2 * (p * t).sum(0) + 1) / ((p + t).sum(0) + 1))

    return classifier(loss, rate=2.0)


@style
def weights_by_position():
    def loss(y, b):
        weight = 1 + jnp.arange(y.shape[0]) / y.shape[0]
        return jnp.mean(weight * jnp.sum((y - b["y"]) ** 2, -1))

    return classifier(loss, pairs, rate=0.2)


@style
def first_half_labelled():
    """Examples before a position have a label, the others only a penalty."""

    def loss(logits, b):
        known = jnp.arange(logits.shape[0]) < N // 2
        entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), -1)
        return jnp.where(known, per_example(logits, b), 0.1 * entropy).mean()

    return classifier(loss)


@style
def loss_under_pmean():
    """Gradients of single examples, with their mean taken under a name of `vmap`."""

    def step(params, b):
        def of_one(x, y):
            value, grads = jax.value_and_grad(lambda p: jnp.mean((dense(p, x) - y) ** 2))(params)
            return jax.lax.pmean((value, grads), "batch")

        value, grads = jax.vmap(of_one, axis_name="batch", out_axes=None)(b["x"], b["y"])
        return sgd(params, grads), value

    return Case(step, (layers(),), one(pairs))


@style
def huber_and_auxiliary_head():
    """Deep supervision: a loss after each layer, with one denominator."""

    def loss(params, b):
        x, total = b["x"], 0.0
        for layer, head in zip(params["layers"], params["heads"], strict=True):
            x = jnp.tanh(x @ layer["w"] + layer["b"])
            error = jnp.abs(x @ head["w"] - b["y"])
            total += jnp.where(error < 1, error**2 / 2, error - 0.5).mean(-1) @ b["weight"]
        return total / b["weight"].sum()

    def batch(rng):
        return {**pairs(rng), "weight": rng.uniform(0.5, 2, N).astype(np.float32)}

    params = {
        "layers": layers(LAYERS[:-1]),
        "heads": [{"w": layers((8, 4), seed)[0]["w"]} for seed in (5, 6)],
    }
    return Case(trained(loss), (params,), one(batch))


@style
def focal_loss_with_positive_count():
    """A detector's loss, divided by how many positives there are, at least one."""

    def loss(logits, b):
        positive = jax.nn.one_hot(b["label"], CLASSES)
        p = jax.nn.sigmoid(logits)
        near = jnp.where(positive > 0, 1 - p, p)
        losses = near**2 * jnp.where(positive > 0, -jax.nn.log_sigmoid(logits), jax.nn.softplus(p))
        count = jnp.maximum((b["label"] > 0).sum(), 1)
        return losses.sum() / count

    return classifier(loss)


@style
def best_of_each_column():
    """Equal bits are looked for in what is known of the whole batch and of its parts."""

    def loss(logits, b):
        s = jax.nn.softmax(2 * jax.nn.gelu(b["y"]))
        best = s == s.max(0)
        return jnp.sum(best * (logits - b["y"]) ** 2)

    return classifier(loss, pairs, rate=0.02)


@style(one_stage="one layer")
def largest_in_each_slot():
    """Equal bits are looked for in what all micro-batches know, and in their rows of it."""
    features = rows(np.random.default_rng(5), N, 8)

    def batch(rng):
        return {"slot": rng.integers(0, N, N, dtype=np.int32)}

    def loss(params, b):
        values = jax.nn.gelu(features @ params["w"])
        return jnp.zeros((N, 8)).at[b["slot"]].max(values).sum() / 10

    params = {"w": rows(np.random.default_rng(6), 8, 8) * 0.4}
    return Case(trained(loss, rate=0.05), (params,), one(batch))


@style
def triplets_of_rows():
    """Margins, and the mean over those that are violated."""

    def batch(rng):
        return {name: rows(rng, N, 8) for name in ("anchor", "near", "far")}

    def loss(params, b):
        anchor, near, far = (dense(params, b[name]) for name in ("anchor", "near", "far"))
        margin = jnp.sum((anchor - near) ** 2, -1) - jnp.sum((anchor - far) ** 2, -1) + 1
        active = margin > 0
        return jnp.where(active, margin, 0).sum() / jnp.maximum(active.sum(), 1), active.sum()

    # A bias of the last layer cancels in all distances.
    case = trained(loss, has_aux=True, rate=0.1)
    return Case(case, (layers(),), one(batch))


@style
def several_metrics_of_one_loss():
    def loss(logits, b):
        losses = per_example(logits, b)
        right = logits.argmax(-1) == b["label"]
        return losses.mean(), {"accuracy": right.mean(), "losses": losses, "correct": right.sum()}

    return classifier(loss, has_aux=True)
