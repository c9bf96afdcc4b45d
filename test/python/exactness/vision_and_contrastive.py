"""Images and their statistics; losses that compare examples with each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    N,
    cross_entropies,
    dense,
    labels,
    layers,
    normal,
    one,
    rows,
    sgd,
    trained,
)

PAIRS = "every example is compared with all others"


def images(rng, n=N):
    return {"x": rows(rng, n, 6, 6, 2), "label": labels(rng, n)}


def views(rng, n=N):
    x = rows(rng, n, 8)
    return {"a": x, "b": x + 0.5 * rows(rng, n, 8)}


def normalized(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def convolve(x, kernel, stride=1):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=dims)


def kernels():
    return {
        "first": normal(0, 3, 3, 2, 4, scale=0.3),
        "second": normal(1, 3, 3, 4, 4, scale=0.2),
        "head": normal(2, 4, CLASSES, scale=0.5),
    }


@style
def convolutions():
    def loss(params, b):
        x = jax.nn.relu(convolve(b["x"], params["first"]))
        x = jax.nn.relu(convolve(x, params["second"], 2))
        return cross_entropies(x.mean((1, 2)) @ params["head"], b["label"]).mean()

    return Case(trained(loss), (kernels(),), one(images))


@style
def convolutions_with_pooling_and_group_norm():
    def loss(params, b):
        x = convolve(b["x"], params["first"])
        groups = x.reshape(*x.shape[:3], 2, 2)
        mean, var = (f(groups, (1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var))
        x = ((groups - mean) * jax.lax.rsqrt(var + 1e-3)).reshape(x.shape)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.lax.reduce_window(
            convolve(x, params["second"]), 0.0, jax.lax.add, (1, 3, 3, 1), (1, 3, 3, 1), "VALID"
        )
        return cross_entropies(x[:, 0, 0] @ params["head"], b["label"]).mean()

    return Case(trained(loss, rate=0.1), (kernels(),), one(images))


@style
def patches():
    """Images as sequences of patches, with a class token that is broadcast over the batch."""

    def loss(params, b):
        x = b["x"].reshape(-1, 2, 3, 2, 3, 2).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 4, 18)
        x = x @ params["patch"]
        token = jnp.broadcast_to(params["token"], (len(x), 1, 8))
        x = jnp.concatenate([token, x], 1) + params["places"]
        x = x + jax.nn.softmax(x @ x.swapaxes(1, 2) / 8) @ x
        return cross_entropies(x[:, 0] @ params["head"], b["label"]).mean()

    params = {
        "patch": normal(0, 18, 8, scale=0.2),
        "token": normal(1, 8),
        "places": normal(2, 5, 8),
        "head": normal(3, 8, CLASSES, scale=0.3),
    }
    return Case(trained(loss), (params,), one(images))


@style(couples="statistics of the whole batch normalize each example")
def batch_norm_with_running_statistics():
    def step(params, stats, b):
        def loss(params):
            x = convolve(b["x"], params["first"])
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            x = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-3) * params["scale"])
            found = x.mean((1, 2)) @ params["head"]
            new = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
            return cross_entropies(found, b["label"]).mean(), new

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return sgd(params, grads), stats, value

    params = {**kernels(), "scale": jnp.ones(4)}
    del params["second"]
    stats = {"mean": jnp.zeros(4), "var": jnp.ones(4)}
    return Case(step, (params, stats), one(images), carried=2)


@style
def batch_norm_with_fixed_statistics():
    """Statistics are read only, as in fine tuning."""

    def step(params, stats, b):
        def loss(params):
            x = convolve(b["x"], params["first"])
            x = jax.nn.relu((x - stats["mean"]) * jax.lax.rsqrt(stats["var"] + 1e-3))
            return cross_entropies(x.mean((1, 2)) @ params["head"], b["label"]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params = {name: x for name, x in kernels().items() if name != "second"}
    return Case(step, (params, {"mean": normal(7, 4), "var": jnp.ones(4)}), one(images))


@style
def statistics_of_inputs_beside_the_loss():
    """Running means of features that nothing is normalized with in this step."""

    def step(params, stats, b):
        def loss(params):
            hidden = jnp.tanh(b["a"] @ params[0]["w"])
            y = (hidden - stats["mean"]) @ params[1]["w"]
            new = {
                "mean": 0.9 * stats["mean"] + 0.1 * hidden.mean(0),
                "square": 0.9 * stats["square"] + 0.1 * (hidden**2).mean(0),
            }
            return jnp.mean((y - b["b"]) ** 2), new

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return sgd(params, grads), stats, value

    params = [{"w": layer["w"]} for layer in layers((8, 8, 8))]
    stats = {"mean": jnp.zeros(8), "square": jnp.zeros(8)}
    return Case(step, (params, stats), one(views), carried=2)


@style(meets=PAIRS)
def clip():
    def loss(params, b):
        image = normalized(dense(params["image"], b["a"]))
        text = normalized(dense(params["text"], b["b"]))
        scores = image @ text.T * jnp.exp(params["temperature"])
        label = jnp.arange(len(scores))
        return (cross_entropies(scores, label) + cross_entropies(scores.T, label)).mean() / 2

    params = {"image": layers(), "text": layers(seed=9), "temperature": jnp.float32(1.0)}
    return Case(trained(loss), (params,), one(views))


@style(meets=PAIRS)
def clip_with_sigmoids():
    def loss(params, b):
        scores = normalized(dense(params, b["a"])) @ normalized(dense(params, b["b"])).T
        signs = 2 * jnp.eye(len(scores)) - 1
        return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * (5 * scores - 1)), -1))

    return Case(trained(loss, rate=0.2), (layers(),), one(views))


@style(meets=PAIRS)
def simclr():
    """Two views joined along the batch, each with all others as negatives."""

    def loss(params, b):
        z = normalized(dense(params, jnp.concatenate([b["a"], b["b"]])))
        n = len(b["a"])
        scores = z @ z.T / 0.5 - 1e9 * jnp.eye(2 * n)
        return cross_entropies(scores, (jnp.arange(2 * n) + n) % (2 * n)).mean()

    return Case(trained(loss), (layers(),), one(views))


@style
def two_views_joined_and_split():
    """Joined along the batch for the network only; pairs are compared row by row."""

    def loss(params, b):
        z = normalized(dense(params["encoder"], jnp.concatenate([b["a"], b["b"]])))
        first, second = jnp.split(z, 2)
        guess = normalized(first @ params["predictor"])
        return 1 - jnp.mean(jnp.sum(guess * jax.lax.stop_gradient(second), -1))

    params = {"encoder": layers(), "predictor": normal(8, CLASSES, CLASSES)}
    return Case(trained(loss), (params,), one(views))


@style
def bootstrap_your_own_latent():
    """A second network that is the moving average of the first."""

    def step(state, b):
        wanted = normalized(dense(state["target"], b["b"]))

        def loss(online):
            guess = normalized(dense(online["encoder"], b["a"]) @ online["predictor"])
            return jnp.mean(2 - 2 * jnp.sum(guess * wanted, -1))

        value, grads = jax.value_and_grad(loss)(state["online"])
        online = sgd(state["online"], grads)
        target = jax.tree.map(lambda t, o: 0.9 * t + 0.1 * o, state["target"], online["encoder"])
        return {"online": online, "target": target}, value

    online = {"encoder": layers(), "predictor": normal(8, CLASSES, CLASSES)}
    return Case(step, ({"online": online, "target": layers(seed=30)},), one(views))


def queued(state, b):
    """Momentum contrast: negatives are the keys of earlier batches."""
    key = normalized(dense(state["target"], b["b"]))

    def loss(params):
        query = normalized(dense(params, b["a"]))
        near = jnp.sum(query * key, -1, keepdims=True)
        scores = jnp.concatenate([near, query @ state["queue"].T], 1) / 0.5
        return cross_entropies(scores, jnp.zeros(len(scores), int)).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    return sgd(state["params"], grads), key, value


def queue_state():
    queue = normalized(normal(44, 2 * N, CLASSES))
    return {"params": layers(), "target": layers(seed=30), "queue": queue}


@style
def queue_of_keys_by_concatenation():
    def step(state, b):
        params, key, value = queued(state, b)
        queue = jnp.concatenate([key, state["queue"]])[: 2 * N]
        return {"params": params, "target": state["target"], "queue": queue}, value

    return Case(step, (queue_state(),), one(views))


@style(single=True)
def queue_of_keys_with_a_pointer():
    def step(state, place, b):
        params, key, value = queued(state, b)
        queue = jax.lax.dynamic_update_slice(state["queue"], key, (place, 0))
        place = (place + N) % (2 * N)
        return {"params": params, "target": state["target"], "queue": queue}, place, value

    return Case(step, (queue_state(), jnp.int32(0)), one(views), carried=2)


@style(meets="the hardest of all examples are chosen")
def hard_examples():
    def loss(params, b):
        losses = cross_entropies(dense(params, b["x"].reshape(-1, 72)), b["label"])
        return jax.lax.top_k(losses, 5)[0].mean()

    return Case(trained(loss), (layers((72, 8, CLASSES)),), one(images))


@style(meets=PAIRS)
def hardest_triplets():
    def loss(params, b):
        z = dense(params, b["x"].reshape(-1, 72))
        apart = jnp.sum((z[:, None] - z) ** 2, -1)
        same = b["label"][:, None] == b["label"]
        far = jnp.where(same, apart, 0).max(1)
        near = jnp.where(same, 1e9, apart).min(1)
        return jax.nn.softplus(far - near).mean()

    return Case(trained(loss, rate=0.05), (layers((72, 8, 8)),), one(images))


@style(meets="the largest loss has all of the gradient")
def worst_example():
    def loss(params, b):
        losses = jnp.sum((dense(params, b["a"]) - b["b"]) ** 2, -1)
        return losses.max() / 10

    return Case(trained(loss), (layers((8, 8, 8)),), one(views))


@style
def smooth_worst_example():
    """The logarithm of a sum of exponentials: what is before the sum is of one example."""

    def loss(params, b):
        losses = jnp.mean((dense(params, b["a"]) - b["b"]) ** 2, -1)
        return jnp.log(jnp.sum(jnp.exp(losses)))

    return Case(trained(loss, rate=0.2), (layers((8, 8, 8)),), one(views))


@style(meets="the largest value is taken from all before the sum")
def shifted_worst_example():
    def loss(params, b):
        losses = jnp.mean((dense(params, b["a"]) - b["b"]) ** 2, -1)
        return jax.nn.logsumexp(losses)

    return Case(trained(loss, rate=0.2), (layers((8, 8, 8)),), one(views))


@style(meets="variances and covariances of the batch")
def vicreg():
    def loss(params, b):
        x, y = dense(params, b["a"]), dense(params, b["b"])
        total = jnp.mean((x - y) ** 2)
        for z in (x, y):
            z = z - z.mean(0)
            covariance = z.T @ z / (len(z) - 1)
            spread = jnp.sqrt(jnp.diag(covariance) + 1e-2)
            total += jax.nn.relu(1 - spread).mean() + 0.1 * jnp.sum(jnp.tril(covariance, -1) ** 2)
        return total

    # A bias of the last layer moves all examples alike.
    params = layers()
    del params[-1]["b"]

    def biased(params, b):
        return loss([*params[:-1], {**params[-1], "b": jnp.zeros(CLASSES)}], b)

    return Case(trained(biased), (params,), one(views))


@style(meets="the gradient of an example needs a sum over all")
def uncentred_decorrelation():
    """A product of the batch with itself is summed, and then squared."""

    def loss(params, b):
        x, y = dense(params, b["a"]), dense(params, b["b"])
        gram = x.T @ y / len(x)
        return jnp.sum((gram - jnp.eye(CLASSES)) ** 2)

    return Case(trained(loss, rate=0.05), (layers(),), one(views))


@style
def mixup_with_the_reversed_batch():
    def loss(params, b):
        x = 0.7 * b["x"] + 0.3 * b["x"][::-1]
        y = 0.7 * jax.nn.one_hot(b["label"], CLASSES)
        y += 0.3 * jax.nn.one_hot(b["label"][::-1], CLASSES)
        found = jax.nn.log_softmax(dense(params, x.reshape(-1, 72)))
        return -jnp.mean(jnp.sum(y * found, -1))

    return Case(trained(loss), (layers((72, 8, CLASSES)),), one(images))


@style
def images_flipped_by_their_place():
    """Every second example of the batch is mirrored."""

    def loss(params, b):
        odd = jnp.arange(len(b["x"])) % 2 == 1
        x = jnp.where(odd[:, None, None, None], b["x"][:, :, ::-1], b["x"])
        return cross_entropies(dense(params, x.reshape(len(x), -1)), b["label"]).mean()

    return Case(trained(loss), (layers((72, 8, CLASSES)),), one(images))


@style
def segmentation():
    """A loss for each pixel, with weights of classes, and intersections over unions."""

    def batch(rng):
        return {"x": rows(rng, 8, 6, 6, 2), "label": labels(rng, 8, 6, 6)}

    def loss(params, b):
        x = jax.nn.relu(convolve(b["x"], params["first"]))
        found = convolve(x, params["second"])
        weight = jnp.array([0.5, 1.0, 2.0, 1.5])[b["label"]]
        losses = cross_entropies(found, b["label"])
        best = jax.nn.one_hot(found.argmax(-1), CLASSES)
        true = jax.nn.one_hot(b["label"], CLASSES)
        both, either = ((f(best, true)).sum((0, 1, 2)) for f in (jnp.minimum, jnp.maximum))
        return (losses * weight).sum() / weight.sum(), (both / either).mean()

    params = {name: x for name, x in kernels().items() if name != "head"}
    return Case(trained(loss, has_aux=True), (params,), one(batch))
