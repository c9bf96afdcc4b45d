"""Optimizers, and steps that take gradients more than once or in other ways than once a batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    N,
    cross_entropies,
    dense,
    labelled,
    layers,
    normal,
    one,
    padded,
    pairs,
    rows,
    sgd,
)


def mean_loss(params, b):
    return jnp.mean((dense(params, b["x"]) - b["y"]) ** 2)


def masked_loss(params, b):
    losses = cross_entropies(dense(params, b["x"]), b["label"])
    return jnp.sum(losses * b["mask"]) / jnp.sum(b["mask"])


def optimized(optimizer, loss=masked_loss, batch=padded):
    def step(params, opt, b):
        value, grads = jax.value_and_grad(loss)(params, b)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, value

    params = layers()
    return Case(step, (params, optimizer.init(params)), one(batch), carried=2)


@style
def heavy_ball():
    """The weights of the last step are kept, and pull."""

    def step(state, b):
        value, grads = jax.value_and_grad(mean_loss)(state["weights"], b)
        weights = sgd(state["weights"], grads, 0.1)
        weights = jax.tree.map(
            lambda new, now, old: new + 0.9 * (now - old), weights, state["weights"], state["old"]
        )
        return {"weights": weights, "old": state["weights"]}, value

    return Case(step, ({"weights": layers(), "old": layers()},), one(pairs))


@style
def momentum():
    return optimized(optax.sgd(0.3, momentum=0.9, nesterov=True))


@style
def adam():
    """With an epsilon that keeps tiny gradients from becoming full steps of noise."""
    return optimized(optax.adamw(1e-1, eps=1e-2, weight_decay=0.1))


@style
def clipping_by_global_norm():
    return optimized(optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(1.0)))


@style
def clipping_by_block():
    return optimized(optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(1.0)))


@style
def adafactor():
    rule = optax.adafactor(0.1, min_dim_size_to_factor=4, momentum=0.5, eps=1e-4)
    return optimized(rule)


@style
def lion():
    """Signs of momentum: equal unless a momentum is zero but for rounding."""
    return optimized(optax.lion(1e-2))


@style
def muon():
    return optimized(optax.contrib.muon(0.1, eps=1e-3, adam_eps_root=1e-4))


@style
def lamb_with_schedule():
    schedule = optax.warmup_cosine_decay_schedule(0.05, 0.1, 2, 10)
    return optimized(optax.lamb(schedule, eps=1e-2))


@style(single=True)
def multi_steps():
    """An update every second step: sums of gradients carried between the steps."""
    return optimized(optax.MultiSteps(optax.sgd(0.5), 2))


@style
def skipping_updates_that_are_not_finite():
    return optimized(optax.apply_if_finite(optax.sgd(0.5), 3))


@style
def schedule_free():
    return optimized(optax.contrib.schedule_free_sgd(0.3, warmup_steps=2))


@style
def reduce_on_plateau():
    """The learning rate depends on the loss."""
    rule = optax.chain(optax.sgd(0.5), optax.contrib.reduce_on_plateau(patience=1, cooldown=1))

    def step(params, opt, b):
        value, grads = jax.value_and_grad(masked_loss)(params, b)
        updates, opt = rule.update(grads, opt, params, value=value)
        return optax.apply_updates(params, updates), opt, value

    params = layers()
    return Case(step, (params, rule.init(params)), one(padded), carried=2)


@style
def frozen_layers():
    labels = ["frozen", "trained", "trained"]
    rule = optax.multi_transform({"trained": optax.sgd(0.5), "frozen": optax.set_to_zero()}, labels)
    return optimized(rule, mean_loss, pairs)


@style
def moving_average_of_weights():
    def step(params, average, b):
        value, grads = jax.value_and_grad(mean_loss)(params, b)
        params = sgd(params, grads)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params)
        return params, average, value

    return Case(step, (layers(), layers(seed=9)), one(pairs), carried=2)


@style
def half_precision_with_master_weights():
    def step(params, b):
        def loss(params):
            half = jax.tree.map(lambda p: p.astype(jnp.float32), params)
            return mean_loss(jax.tree.map(lambda p: p * 1.0, half), b)

        value, grads = jax.value_and_grad(loss)(params["half"])
        master = sgd(params["master"], grads)
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), master)
        return {"half": half, "master": master}, value

    params = {"master": layers(), "half": jax.tree.map(lambda p: p.astype("bfloat16"), layers())}
    return Case(step, (params,), one(pairs))


@style
def low_rank_adapters():
    """Only the adapters have gradients; the base is an argument that is not returned."""

    def adapted(base, adapters, x):
        for w, (a, b) in zip(base, adapters, strict=True):
            x = jnp.tanh(x @ w + (x @ a) @ b)
        return x

    def step(adapters, base, b):
        def loss(adapters):
            return jnp.mean((adapted(base, adapters, b["x"]) - b["x"]) ** 2)

        value, grads = jax.value_and_grad(loss)(adapters)
        return sgd(adapters, grads), value

    base = [normal(i, 8, 8, scale=0.35) for i in range(3)]
    adapters = [(normal(i, 8, 2, scale=0.3), normal(i + 9, 2, 8, scale=0.3)) for i in range(3)]
    return Case(step, (adapters, base), one(pairs))


@style
def clipped_gradients_of_examples():
    """DP-SGD: the gradient of each example is clipped, then they are averaged."""

    def step(params, b):
        def of_one(x, y):
            grads = jax.grad(lambda p: jnp.sum((dense(p, x) - y) ** 2))(params)
            norm = optax.tree.norm(grads)
            return jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads), norm

        grads, norms = jax.vmap(of_one)(b["x"], b["y"])
        mean = jax.tree.map(lambda g: g.mean(0), grads)
        return sgd(params, mean), {"norms": norms, "clipped": (norms > 1).mean()}

    return Case(step, (layers(),), one(pairs))


@style
def ensemble():
    """Several models of their own, under vmap."""

    def step(params, b):
        values, grads = jax.vmap(jax.value_and_grad(mean_loss), (0, None))(params, b)
        return sgd(params, grads), values

    members = [layers(seed=10 * i) for i in range(3)]
    return Case(step, (jax.tree.map(lambda *x: jnp.stack(x), *members),), one(pairs))


@style(counts=(1, 2), rounds=2)
def accumulation_by_hand():
    """The step splits the batch itself, and scans over the parts, which are micro-batches."""

    def step(params, b):
        parts = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), b)

        def add(total, part):
            value, grads = jax.value_and_grad(mean_loss)(params, part)
            return jax.tree.map(jnp.add, total, (value, grads)), None

        zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        (value, grads), _ = jax.lax.scan(add, zero, parts)
        return sgd(params, jax.tree.map(lambda g: g / 2, grads)), value / 2

    return Case(step, (layers(),), one(pairs))


@style
def two_losses_with_two_gradients():
    """A model and a probe on top of it, each with its own loss, optimizer and batch's part."""

    def step(state, b):
        def probed(probe, hidden):
            logits = jax.lax.stop_gradient(hidden) @ probe
            return cross_entropies(logits, b["label"]).mean()

        value, grads = jax.value_and_grad(mean_loss)(state["model"], b)
        hidden = dense(state["model"], b["x"])
        other, of_probe = jax.value_and_grad(probed)(state["probe"], hidden)
        new = {"model": sgd(state["model"], grads), "probe": sgd(state["probe"], of_probe)}
        return new, (value, other)

    def batch(rng):
        return {**labelled(rng), **pairs(rng)}

    state = {"model": layers(), "probe": normal(5, CLASSES, CLASSES)}
    return Case(step, (state,), one(batch))


@style(
    one_stage="the second gradient is taken at weights of the first",
)
def sharpness_aware():
    """SAM: the gradient at weights that the first gradient has moved."""

    def step(params, b):
        grads = jax.grad(masked_loss)(params, b)
        norm = optax.tree.norm(grads)
        near = jax.tree.map(lambda p, g: p + 0.1 * g / norm, params, grads)
        value, grads = jax.value_and_grad(masked_loss)(near, b)
        return sgd(params, grads), value

    return Case(step, (layers(),), one(padded))


@style(one_stage="a gradient through gradients")
def meta_learning():
    """MAML: each example is a task with a support set and a query set."""

    def batch(rng):
        x = rows(rng, N, 6, 8)
        return {"x": x, "y": np.sin(2 * x[..., :4] * rows(rng, N, 1, 1))}

    def step(params, b):
        def of_task(params, task):
            support = jax.tree.map(lambda x: x[:3], task)
            query = jax.tree.map(lambda x: x[3:], task)
            inner = sgd(params, jax.grad(mean_loss)(params, support), 0.1)
            return mean_loss(inner, query)

        def loss(params):
            return jax.vmap(of_task, (None, 0))(params, b).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return Case(step, (layers(),), one(batch))


@style(
    meets="the inner gradient is a sum over the batch, and the outer goes through it",
    one_stage="a gradient through gradients",
)
def meta_learning_of_one_task():
    def step(params, b):
        def outer(params):
            inner = sgd(params, jax.grad(mean_loss)(params, {"x": b["x"], "y": b["y"]}), 0.1)
            return mean_loss(inner, {"x": b["x2"], "y": b["y"]})

        value, grads = jax.value_and_grad(outer)(params)
        return sgd(params, grads), value

    def batch(rng):
        return {**pairs(rng), "x2": rows(rng, N, 8)}

    return Case(step, (layers(),), one(batch))


@style(one_stage="a gradient through gradients")
def gradient_penalty():
    """The gradient with respect to each example has a length of one, as in WGAN-GP."""

    def step(params, b):
        def penalty(params, x):
            slope = jax.grad(lambda x: dense(params, x).sum())(x)
            return (jnp.sqrt(jnp.sum(slope**2) + 1e-3) - 1) ** 2

        def loss(params):
            return mean_loss(params, b) + jax.vmap(penalty, (None, 0))(params, b["x"]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.2), value

    # The last bias moves no slope, but has the gradient of the first term.
    return Case(step, (layers(),), one(pairs))


@style(
    meets="weights that all examples have moved are applied to each again",
    one_stage="two networks that take turns",
)
def adversarial():
    """A GAN: the generator is trained against the discriminator's new weights."""

    def batch(rng):
        return {"x": rows(rng, N, 8), "z": rows(rng, N, 4)}

    tx = optax.sgd(0.3, momentum=0.5)

    def step(state, b):
        def of_discriminator(d):
            fake = dense(state["g"], b["z"])
            real = jax.nn.softplus(-dense(d, b["x"])).mean()
            return real + jax.nn.softplus(dense(d, fake)).mean()

        loss_d, grads = jax.value_and_grad(of_discriminator)(state["d"])
        updates, opt_d = tx.update(grads, state["opt_d"])
        d = optax.apply_updates(state["d"], updates)

        def of_generator(g):
            return jax.nn.softplus(-dense(d, dense(g, b["z"]))).mean()

        loss_g, grads = jax.value_and_grad(of_generator)(state["g"])
        updates, opt_g = tx.update(grads, state["opt_g"])
        g = optax.apply_updates(state["g"], updates)
        return {"d": d, "g": g, "opt_d": opt_d, "opt_g": opt_g}, (loss_d, loss_g)

    d, g = layers((8, 8, 1)), layers((4, 8, 8), seed=4)
    state = {"d": d, "g": g, "opt_d": tx.init(d), "opt_g": tx.init(g)}
    return Case(step, (state,), one(batch))


def rollouts(rng):
    return {
        "x": rows(rng, N, 8),
        "action": rng.integers(0, CLASSES, N, dtype=np.int32),
        "advantage": rows(rng, N),
        "old": rng.uniform(-1.6, -1.2, N).astype(np.float32),
    }


def clipped_objective(params, b, advantage):
    log_prob = -cross_entropies(dense(params, b["x"]), b["action"])
    ratio = jnp.exp(log_prob - b["old"])
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()


@style(
    couples="weights that all examples have moved are applied to each again",
    one_stage="several updates in one step",
)
def epochs_in_a_loop():
    """PPO: several updates with the same batch."""

    def step(params, b):
        def epoch(params, _):
            value, grads = jax.value_and_grad(clipped_objective)(params, b, b["advantage"])
            return sgd(params, grads, 0.1), value

        return jax.lax.scan(epoch, params, length=3)

    return Case(step, (layers(),), one(rollouts))


@style
def normalized_advantages():
    def step(params, b):
        a = b["advantage"]
        a = (a - a.mean()) / (a.std() + 1e-5)
        value, grads = jax.value_and_grad(clipped_objective)(params, b, a)
        return sgd(params, grads), value

    return Case(step, (layers(),), one(rollouts))


@style
def hessian_vector_products():
    """The curvature along the gradient sets the step's length."""

    def step(params, b):
        value, grads = jax.value_and_grad(mean_loss)(params, b)
        direction = jax.tree.map(jnp.sign, params)
        _, curved = jax.jvp(lambda p: jax.grad(mean_loss)(p, b), (params,), (direction,))
        return sgd(params, jax.tree.map(lambda g, c: g + 0.1 * c, grads, curved)), value

    return Case(step, (layers(),), one(pairs))


@style
def forward_gradients():
    """A directional derivative by jvp, with no gradient anywhere."""

    def step(params, direction, b):
        value, slope = jax.jvp(lambda p: mean_loss(p, b), (params,), (direction,))
        new = jax.tree.map(lambda p, d: p - 0.1 * slope * d, params, direction)
        return new, (value, slope)

    return Case(step, (layers(), layers(seed=50)), one(pairs))


@style(one_stage="weights at two points")
def evolution_strategies():
    """Losses at weights moved both ways; their difference is the step."""

    def step(params, direction, b):
        up, down = (
            mean_loss(jax.tree.map(lambda p, d, s=s: p + s * d, params, direction), b)
            for s in (0.5, -0.5)
        )
        return jax.tree.map(lambda p, d: p - 0.3 * (up - down) * d, params, direction), up

    return Case(step, (layers(), layers(seed=50)), one(pairs))
