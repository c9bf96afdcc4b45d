"""Steps that draw: noise, dropout, samples, with keys in the state, as arguments, or folded."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    LAYERS,
    WIDTH,
    N,
    cross_entropies,
    dense,
    labelled,
    layers,
    normal,
    one,
    pairs,
    sgd,
    trained,
)


def dropout(key, x, rate=0.3):
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


def dropped(params, x, key):
    for i, layer in enumerate(params[:-1]):
        x = dropout(jax.random.fold_in(key, i), jnp.tanh(x @ layer["w"] + layer["b"]))
    return x @ params[-1]["w"] + params[-1]["b"]


def keyed(loss, impl=None, state=layers, batch=pairs, split=jax.random.split):
    """A key in the state, one of whose parts the loss uses."""

    def step(params, key, b):
        key, used = split(key)
        value, grads = jax.value_and_grad(loss)(params, b, used)
        return sgd(params, grads), key, value

    return Case(step, (state(), jax.random.key(3, impl=impl)), one(batch), carried=2)


def dropped_loss(params, b, key):
    return jnp.mean((dropped(params, b["x"], key) - b["y"]) ** 2)


@style(single=True)
def dropout_with_a_key_in_the_state():
    return keyed(dropped_loss)


@style(single=True)
def dropout_with_rbg_keys():
    return keyed(dropped_loss, "rbg")


@style(single=True)
def dropout_with_unsafe_rbg_keys():
    return keyed(dropped_loss, "unsafe_rbg")


@style(single=True)
def dropout_with_raw_keys():
    def step(params, key, b):
        key, used = jax.random.split(key)
        value, grads = jax.value_and_grad(dropped_loss)(params, b, used)
        return sgd(params, grads), key, value

    return Case(step, (layers(), jax.random.PRNGKey(3)), one(pairs), carried=2)


@style(single=True)
def dropout_with_a_key_argument():
    def step(params, x, y, rng):
        value, grads = jax.value_and_grad(dropped_loss)(params, {"x": x, "y": y}, rng)
        return sgd(params, grads), value

    def batch(rng):
        found = pairs(rng)
        return found["x"], found["y"], jax.random.key(int(rng.integers(100)))

    return Case(step, (layers(),), batch, options={"batch_argnums": (1, 2)})


@style(single=True)
def dropout_with_a_key_folded_by_a_counter():
    def step(params, count, b):
        key = jax.random.fold_in(jax.random.key(11), count)
        value, grads = jax.value_and_grad(dropped_loss)(params, b, key)
        return sgd(params, grads), count + 1, value

    return Case(step, (layers(), jnp.int32(0)), one(pairs), carried=2)


@style(single=True)
def dropout_in_scanned_layers():
    def loss(params, b, key):
        def layer(x, arguments):
            w, key = arguments
            return dropout(key, jnp.tanh(x @ w), 0.2), None

        keys = jax.random.split(key, len(params["w"]))
        x, _ = jax.lax.scan(layer, b["x"], (params["w"], keys))
        return jnp.mean((x @ params["head"] - b["y"]) ** 2)

    params = {"w": normal(0, 3, 8, 8, scale=0.35), "head": normal(1, 8, 4, scale=0.35)}
    return keyed(loss, state=lambda: params)


@style(single=True)
def dropout_in_rematerialized_layers():
    def loss(params, b, key):
        @jax.checkpoint
        def block(layer, x, key):
            return dropout(key, jnp.tanh(x @ layer["w"] + layer["b"]))

        x = b["x"]
        for layer, k in zip(params[:-1], jax.random.split(key, len(params) - 1), strict=True):
            x = block(layer, x, k)
        return jnp.mean((x @ params[-1]["w"] - b["y"]) ** 2)

    # The bias of the last layer is not used.
    return keyed(loss, state=lambda: [*layers(LAYERS[:-1]), {"w": layers((8, 4))[0]["w"]}])


@style(single=True)
def dropout_of_whole_features():
    """One mask for all examples, as in variational dropout: drawn once a step."""

    def loss(params, b, key):
        x = dropout(key, jnp.ones((1, WIDTH))) * b["x"]
        return jnp.mean((dense(params, x) - b["y"]) ** 2)

    return keyed(loss)


@style(single=True)
def noise_on_the_batch():
    def loss(params, b, key):
        x = b["x"] + 0.1 * jax.random.normal(key, b["x"].shape)
        return jnp.mean((dense(params, x) - b["y"]) ** 2)

    return keyed(loss)


@style(single=True)
def noise_drawn_outside_of_the_loss():
    """Noise on the batch and noise on the gradients, of keys split before the loss."""

    def step(params, key, b):
        key, augment, private = jax.random.split(key, 3)
        x = b["x"] + 0.1 * jax.random.uniform(augment, b["x"].shape)

        def loss(params):
            return jnp.mean((dense(params, x) - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        leaves, tree = jax.tree.flatten(grads)
        keys = jax.random.split(private, len(leaves))
        noisy = [
            g + 0.01 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)
        ]
        return sgd(params, jax.tree.unflatten(tree, noisy)), key, value

    return Case(step, (layers(), jax.random.key(5)), one(pairs), carried=2)


@style(single=True)
def counts_that_a_loop_draws():
    """Poisson counts, by a loop with the largest int32 as its limit."""

    def loss(params, b, key):
        counts = jax.random.poisson(key, 2.0, b["x"].shape)
        return jnp.mean((dense(params, b["x"] * counts) - b["y"]) ** 2)

    return keyed(loss)


@style(single=True)
def variational_autoencoder():
    def loss(params, b, key):
        h = dense(params["encoder"], b["x"])
        mean, log_std = h[:, :2], 0.3 * jnp.tanh(h[:, 2:])
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        kl = jnp.sum(mean**2 / 2 + jnp.exp(2 * log_std) / 2 - log_std - 0.5, -1)
        return jnp.mean(jnp.sum((dense(params["decoder"], z) - b["x"]) ** 2, -1) + kl)

    return keyed(loss, state=lambda: {"encoder": layers((8, 8, 4)), "decoder": layers((2, 8, 8))})


@style(single=True)
def diffusion():
    """Times and noise are drawn for each example."""

    def loss(params, b, key):
        of_time, of_noise = jax.random.split(key)
        time = jax.random.randint(of_time, b["x"].shape[:1], 0, 10)
        alpha = jnp.linspace(0.99, 0.1, 10)[time][:, None]
        noise = jax.random.normal(of_noise, b["x"].shape)
        x = jnp.sqrt(alpha) * b["x"] + jnp.sqrt(1 - alpha) * noise
        x = jnp.concatenate([x, jnp.sin(time[:, None] * jnp.arange(1.0, 5))], -1)
        return jnp.mean((dense(params, x) - noise) ** 2)

    return keyed(loss, state=lambda: layers((12, 16, 8)))


@style(single=True)
def samples_of_categories():
    """REINFORCE with actions that are sampled in the step."""

    def loss(params, b, key):
        logits = dense(params, b["x"])
        action = jax.random.categorical(key, logits)
        reward = (action == b["label"]) * b["weight"]
        return jnp.mean(reward * cross_entropies(logits, action))

    return keyed(loss, batch=labelled)


@style(single=True)
def gumbel_softmax():
    def loss(params, b, key):
        logits = dense(params, b["x"])
        soft = jax.nn.softmax(logits + jax.random.gumbel(key, logits.shape))
        return jnp.mean((soft - jax.nn.one_hot(b["label"], CLASSES)) ** 2)

    return keyed(loss, batch=labelled)


@style(single=True)
def several_distributions():
    def loss(params, b, key):
        keys = jax.random.split(key, 5)
        x = b["x"]
        x = x + 0.1 * jax.random.truncated_normal(keys[0], -2, 2, x.shape)
        x = x * (1 + 0.1 * jax.random.exponential(keys[1], x.shape[:1])[:, None])
        x = x + jax.random.randint(keys[2], x.shape, 0, 3) / 10
        x = x + 0.1 * jax.random.laplace(keys[3], x.shape)
        x = x * jax.random.rademacher(keys[4], x.shape)
        return jnp.mean((dense(params, x) - b["y"]) ** 2)

    return keyed(loss)


@style(single=True)
def keys_of_examples():
    """As many keys as examples, and a vmap over both."""

    def loss(params, b, key):
        keys = jax.random.split(key, b["x"].shape[0])

        def of_one(x, y, key):
            return jnp.mean((dense(params, x + 0.1 * jax.random.normal(key, x.shape)) - y) ** 2)

        return jax.vmap(of_one)(b["x"], b["y"], keys).mean()

    return keyed(loss)


@style(single=True)
def samples_of_a_bayesian_network():
    """Noise on the weights, one draw a step; none of it is of the batch's size."""

    def loss(params, b, key):
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        drawn = [
            p * (1 + 0.1 * jax.random.normal(k, p.shape)) for p, k in zip(leaves, keys, strict=True)
        ]
        return jnp.mean((dense(jax.tree.unflatten(tree, drawn), b["x"]) - b["y"]) ** 2)

    return keyed(loss)


@style(single=True)
def permutation_of_the_batch():
    def loss(params, b, key):
        other = jax.random.permutation(key, b["x"].shape[0])
        x = 0.7 * b["x"] + 0.3 * b["x"][other]
        y = 0.7 * b["y"] + 0.3 * b["y"][other]
        return jnp.mean((dense(params, x) - y) ** 2)

    return keyed(loss)


@style(single=True)
def permutation_of_features():
    def loss(params, b, key):
        x = b["x"][:, jax.random.permutation(key, WIDTH)]
        return jnp.mean((dense(params, x) - b["y"]) ** 2)

    return keyed(loss)


@style(single=True)
def keys_in_a_loop():
    """A scan that splits its own key, outside of the loss."""

    def step(params, key, b):
        def noise(key, _):
            key, used = jax.random.split(key)
            return key, jax.random.normal(used, (N, WIDTH))

        key, drawn = jax.lax.scan(noise, key, length=3)

        def loss(params):
            return jnp.mean((dense(params, b["x"] + 0.1 * drawn.sum(0)) - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), key, value

    return Case(step, (layers(), jax.random.key(1)), one(pairs), carried=2)


@style(single=True)
def masked_examples_of_the_step():
    """A mean over the examples that the step itself has drawn."""

    def loss(params, b, key):
        kept = jax.random.bernoulli(key, 0.5, b["x"].shape[:1])
        losses = jnp.mean((dense(params, b["x"]) - b["y"]) ** 2, -1)
        return jnp.sum(losses * kept) / jnp.maximum(kept.sum(), 1)

    return keyed(loss)


@style(single=True)
def random_flips_and_crops():
    def batch(rng):
        return {"x": rng.normal(size=(N, 6, 6, 2)).astype("float32"), "y": pairs(rng)["y"]}

    def loss(params, b, key):
        of_flips, of_crops = jax.random.split(key)
        flip = jax.random.bernoulli(of_flips, 0.5, b["x"].shape[:1])
        x = jnp.where(flip[:, None, None, None], b["x"][:, :, ::-1], b["x"])
        start = jax.random.randint(of_crops, (x.shape[0], 2), 0, 3)
        crop = jax.vmap(lambda x, s: jax.lax.dynamic_slice(x, (s[0], s[1], 0), (4, 4, 2)))
        return jnp.mean((dense(params, crop(x, start).reshape(-1, 32)) - b["y"]) ** 2)

    return keyed(loss, state=lambda: layers((32, 8, 4)), batch=batch)


def generated(norm):
    """A GAN whose examples, and their classes, the step draws."""

    def step(state, key, b):
        key, used, of_classes = jax.random.split(key, 3)
        classes = jax.random.randint(of_classes, (N,), 0, CLASSES)

        def loss(state):
            z = jax.random.normal(used, (N, WIDTH)) + state["classes"][classes]
            fake = norm(dense(state["g"], z))
            of_fake = jax.nn.softplus(dense(state["d"], fake).sum(-1))
            of_real = jax.nn.softplus(-dense(state["d"], b["y"]).sum(-1))
            return of_fake.mean() + of_real.mean()

        value, grads = jax.value_and_grad(loss)(state)
        return sgd(state, grads), key, value

    state = {"g": layers(), "d": layers((CLASSES, 8, 2)), "classes": normal(9, CLASSES, WIDTH)}
    return Case(step, (state, jax.random.key(5)), one(pairs), carried=2)


@style(single=True)
def examples_that_are_drawn():
    return generated(lambda fake: fake)


@style(single=True)
def examples_that_are_drawn_and_normalized():
    """Statistics over drawn examples: all of them are needed at once."""
    return generated(lambda fake: (fake - fake.mean(0)) / (fake.std(0) + 0.1))


@style(single=True)
def examples_that_are_drawn_by_steps():
    """A model of energies: a loop moves what is drawn along its gradient."""

    def energy(params, x):
        return jnp.tanh(dense(params, x)).sum(-1)

    def loss(params, b, key):
        noise = jax.random.normal(key, (N, WIDTH))

        def move(i, x):
            return x - 0.1 * jax.grad(lambda x: energy(params, x).sum())(x) + 0.01 * noise

        drawn = jax.lax.stop_gradient(jax.lax.fori_loop(0, 3, move, noise))
        return energy(params, b["x"]).mean() - energy(params, drawn).mean()

    return keyed(loss)


@style
def examples_that_an_adversary_moves():
    """A loop within the loss that begins with zeros, and divides by the size of the batch."""

    def loss(params, b):
        def value(x):
            return jnp.mean((dense(params, x) - b["y"]) ** 2)

        def move(i, d):
            return d + 0.3 * jax.grad(value)(b["x"] + d)

        moved = jax.lax.fori_loop(0, 3, move, jnp.zeros_like(b["x"]))
        return value(b["x"] + jax.lax.stop_gradient(moved))

    return Case(trained(loss), (layers(),), one(pairs))


@style(single=True)
def negatives_that_are_drawn():
    """As many as the batch has examples, for each of which all of them count."""

    def loss(params, b, key):
        negatives = jax.random.normal(key, (N, WIDTH)) @ params[0]["w"]
        found = b["x"] @ params[1]["w"]
        of_negatives = jax.nn.logsumexp(found @ negatives.T, -1)
        return jnp.mean(of_negatives - (found[:, :CLASSES] * b["y"]).sum(-1))

    return keyed(loss, state=lambda: layers((WIDTH, WIDTH, WIDTH)))
