"""Training steps that do more than one loss at the end: what real training loops add."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from .base import Model, PyTree, cross_entropy

_VOCAB, _HIDDEN, _LAYERS, _SEQ = 24, 16, 4, 6


def _weights(key: jax.Array, *shapes: tuple[int, ...]) -> list[jax.Array]:
    keys = jax.random.split(key, len(shapes))
    return [0.2 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]


def _tokens(batch_size: int) -> PyTree:
    ids = jax.random.randint(jax.random.PRNGKey(1), (batch_size, _SEQ + 1), 0, _VOCAB)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def make_deep_supervision(name: str = "deep_supervision") -> Model:
    """A loss after every block through one tied embedding, an activation penalty, and metrics.

    Metrics of all kinds: means, a count of integers, and a value for each example. Weights are
    normalized before anything else is computed.
    """
    tx = optax.sgd(0.1, momentum=0.9)

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        embed, *blocks = _weights(
            jax.random.PRNGKey(0), (_VOCAB, _HIDDEN), *[(_HIDDEN, _HIDDEN)] * _LAYERS
        )
        params = {"embed": embed, "blocks": blocks}
        return {"params": params, "opt": tx.init(params)}, _tokens(batch_size)

    def loss_fn(params: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        params = jax.tree.map(lambda w: w / jnp.sqrt(0.1 + jnp.mean(w**2)), params)
        x = params["embed"][batch["tokens"]]
        losses, penalty = [], jnp.float32(0)
        logits = x @ params["embed"].T
        for weight in params["blocks"]:
            x = x + jnp.tanh(x @ weight)
            penalty += jnp.mean(x**2)
            logits = x @ params["embed"].T
            losses.append(cross_entropy(logits, batch["targets"]))
        right = jnp.argmax(logits, -1) == batch["targets"]
        metrics = {
            "losses": jnp.stack(losses),
            "accuracy": right.mean(),
            "correct": right.sum(),
            "per_example": right.mean(-1),
            "perplexity": jnp.exp(losses[-1]),
        }
        return losses[-1] + 0.3 * sum(losses[:-1]) + 0.01 * penalty, metrics

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return loss_fn(state["params"], batch)[0]

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"], batch)
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt}, {"loss": loss, **metrics}

    return Model(name, forward, step, init, frozenset({"has_aux", "tied", "train"}))


def make_two_losses(name: str = "two_losses") -> Model:
    """Two gradient calls in one step, as adversarial training has them: each net has its own
    loss and optimizer, and each loss runs through both nets."""
    makers, critics = optax.adam(1e-3, eps=1e-3), optax.sgd(0.05)

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        shapes = ((_HIDDEN, _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, 1))
        m1, m2, c1, c2 = _weights(jax.random.PRNGKey(0), *shapes)
        state = {"maker": [m1, m2], "critic": [c1, c2]}
        state |= {"maker_opt": makers.init([m1, m2]), "critic_opt": critics.init([c1, c2])}
        noise, real = jax.random.normal(jax.random.PRNGKey(1), (2, batch_size, _HIDDEN))
        return state, {"noise": noise, "real": real}

    def make(weights: PyTree, noise: jax.Array) -> jax.Array:
        return jnp.tanh(noise @ weights[0]) @ weights[1]

    def judge(weights: PyTree, x: jax.Array) -> jax.Array:
        return (jnp.tanh(x @ weights[0]) @ weights[1])[:, 0]

    def maker_loss(maker: PyTree, critic: PyTree, batch: PyTree) -> jax.Array:
        return jnp.mean(jax.nn.softplus(-judge(critic, make(maker, batch["noise"]))))

    def critic_loss(critic: PyTree, maker: PyTree, batch: PyTree) -> jax.Array:
        fake = jax.lax.stop_gradient(make(maker, batch["noise"]))
        return jnp.mean(
            jax.nn.softplus(-judge(critic, batch["real"])) + jax.nn.softplus(judge(critic, fake))
        )

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return judge(state["critic"], make(state["maker"], batch["noise"]))

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        first, maker_grads = jax.value_and_grad(maker_loss)(state["maker"], state["critic"], batch)
        second, critic_grads = jax.value_and_grad(critic_loss)(
            state["critic"], state["maker"], batch
        )
        new = {}
        for part, tx, grads in (("maker", makers, maker_grads), ("critic", critics, critic_grads)):
            updates, new[f"{part}_opt"] = tx.update(grads, state[f"{part}_opt"], state[part])
            new[part] = optax.apply_updates(state[part], updates)
        return new, {"loss": first, "critic_loss": second}

    return Model(name, forward, step, init, frozenset({"two_losses", "train"}))


def make_optimizer_chain(name: str = "optimizer_chain") -> Model:
    """What surrounds an optimizer: clipping by global norm, a schedule, decay of some weights, a
    skipped update when a gradient is not finite, a running average of the weights."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)

    def tx(params: PyTree) -> optax.GradientTransformation:
        decayed = jax.tree.map(lambda w: w.ndim > 1, params)
        return optax.chain(
            optax.clip_by_global_norm(0.5),
            optax.scale_by_rss(initial_accumulator_value=0.1, eps=1e-3),
            optax.add_decayed_weights(0.01, decayed),
            optax.scale_by_schedule(schedule),
            optax.scale(-1.0),
        )

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        embed, *blocks = _weights(
            jax.random.PRNGKey(0), (_VOCAB, _HIDDEN), *[(_HIDDEN, _HIDDEN)] * _LAYERS
        )
        params = {"embed": embed, "blocks": blocks, "bias": jnp.zeros(_HIDDEN)}
        state = {"params": params, "opt": tx(params).init(params), "average": params}
        return {**state, "step": jnp.int32(0)}, _tokens(batch_size)

    def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
        x = params["embed"][batch["tokens"]] + params["bias"]
        for weight in params["blocks"]:
            x = x + jnp.tanh(x @ weight)
        return cross_entropy(x @ params["embed"].T, batch["targets"])

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return loss_fn(state["average"], batch)

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
        norm = optax.tree.norm(grads)
        updates, opt = tx(grads).update(grads, state["opt"], state["params"])
        good = jnp.isfinite(norm)
        params = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            optax.apply_updates(state["params"], updates),
            state["params"],
        )
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state["average"], params)
        new = {"params": params, "opt": opt, "average": average, "step": state["step"] + 1}
        return new, {"loss": loss, "norm": norm, "rate": schedule(state["step"])}

    return Model(name, forward, step, init, frozenset({"optimizer", "tied", "train"}))
