"""Mixtures of experts: how tokens find their expert, and losses that balance experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from exactness.harness import Case, style
from exactness.models import N, normal, one, pairs, trained

EXPERTS, WIDTH = 4, 8
BALANCE = "how many examples an expert has is a factor of the gradient of each"


def experts():
    return {
        "router": normal(0, WIDTH, EXPERTS),
        "up": normal(1, EXPERTS, WIDTH, 8, scale=0.35),
        "down": normal(2, EXPERTS, 8, 4, scale=0.35),
    }


def gates(params, x):
    """Probabilities, the best expert of each example, and its probability."""
    probs = jax.nn.softmax(x @ params["router"])
    best = probs.argmax(-1)
    return probs, best, jnp.take_along_axis(probs, best[:, None], 1)


def routed(apply, balance=None):
    """A case with a network of experts, and optionally a loss of probabilities and choices."""

    def loss(params, b):
        probs, best, gate = gates(params, b["x"])
        y = apply(params, b["x"], best) * gate
        value = jnp.mean((y - b["y"]) ** 2)
        if balance is not None:
            value += 0.3 * balance(probs, jax.nn.one_hot(best, EXPERTS))
        return value, jnp.bincount(best, length=EXPERTS)

    return Case(trained(loss, has_aux=True), (experts(),), one(pairs))


def dense_dispatch(params, x, best):
    h = jnp.tanh(jnp.einsum("bd,edh->beh", x, params["up"]))
    y = jnp.einsum("beh,eho->beo", h, params["down"])
    return jnp.einsum("beo,be->bo", y, jax.nn.one_hot(best, EXPERTS))


def capacity_dispatch(params, x, best, capacity):
    """Each expert takes the first examples that want it, in the order of the batch."""
    wanted = jax.nn.one_hot(best, EXPERTS, dtype=jnp.int32)
    place = jnp.cumsum(wanted, 0) * wanted - 1
    slot = jax.nn.one_hot(place, capacity)
    taken = jnp.einsum("bec,bd->ecd", slot, x)
    h = jnp.tanh(jnp.einsum("ecd,edh->ech", taken, params["up"]))
    y = jnp.einsum("ech,eho->eco", h, params["down"])
    return jnp.einsum("bec,eco->bo", slot, y)


def sorted_dispatch(params, x, best):
    order = jnp.argsort(best, stable=True)
    sizes = jnp.bincount(best, length=EXPERTS)
    h = jnp.tanh(jax.lax.ragged_dot(x[order], params["up"], sizes))
    y = jax.lax.ragged_dot(h, params["down"], sizes)
    return y[jnp.argsort(order)]


def gathered_weights(params, x, best):
    h = jnp.tanh(jnp.einsum("bd,bdh->bh", x, params["up"][best]))
    return jnp.einsum("bh,bho->bo", h, params["down"][best])


@style
def experts_by_dense_dispatch():
    return routed(dense_dispatch)


@style
def experts_by_gathered_weights():
    return routed(gathered_weights)


@style(couples="whether an example finds room depends on those before it")
def experts_with_capacity():
    return routed(lambda params, x, best: capacity_dispatch(params, x, best, 3))


@style(couples="the place of an example in its expert's buffer is one of the whole batch")
def experts_with_room_for_all():
    return routed(lambda params, x, best: capacity_dispatch(params, x, best, 16))


@style
def experts_by_sorting():
    return routed(sorted_dispatch)


@style(couples="expert 0 multiplies the first six sorted examples, whichever they are")
def experts_of_sorted_runs():
    """Sizes that count no keys: what an example gets depends on those sorted before it."""

    def dispatch(params, x, best):
        order = jnp.argsort(best, stable=True)
        sizes = jnp.array([6, 4, 2, 4], jnp.int32)
        y = jax.lax.ragged_dot(x[order], params["up"], sizes)
        return jax.lax.ragged_dot(jnp.tanh(y), params["down"], sizes)[jnp.argsort(order)]

    return routed(dispatch)


@style
def two_experts_of_each_token():
    """Tokens of sentences; routing is within a sentence, as are capacities."""

    def loss(params, b):
        x = b["x"].reshape(-1, 2, WIDTH // 2)
        x = jnp.concatenate([x, jnp.sin(3 * x)], -1)
        probs = jax.nn.softmax(x @ params["router"])
        top, chosen = jax.lax.top_k(probs, 2)
        share = jnp.einsum("btk,btke->bte", top, jax.nn.one_hot(chosen, EXPERTS))
        h = jnp.tanh(jnp.einsum("btd,edh->bteh", x, params["up"]))
        y = jnp.einsum("bteh,eho,bte->bo", h, params["down"], share)
        return jnp.mean((y - b["y"]) ** 2)

    return Case(trained(loss), (experts(),), one(pairs))


@style(meets=BALANCE)
def balanced_experts():
    """Switch: shares of choices times means of probabilities."""

    def balance(probs, chosen):
        return EXPERTS * jnp.sum(probs.mean(0) * chosen.mean(0))

    return routed(dense_dispatch, balance)


@style(meets=BALANCE)
def experts_of_equal_importance():
    """The squared coefficient of variation of the probabilities' sums (Shazeer et al., 2017)."""

    def balance(probs, chosen):
        total = probs.sum(0)
        return total.var() / total.mean() ** 2

    return routed(dense_dispatch, balance)


def balanced_layers(balance_in_layers):
    """Layers of experts that are scanned and computed again for their gradients."""
    layers = 4

    def balanced(probs, chosen):
        return EXPERTS * jnp.sum(probs * chosen, -1)

    def loss(params, b):
        size = len(b["x"])

        def layer(x, own):
            probs = jax.nn.softmax(x @ own["router"])
            chosen = jax.nn.one_hot(probs.argmax(-1), EXPERTS)
            h = jnp.einsum("be,bd,edh->bh", chosen * probs, x, own["up"])
            sums = probs.sum(0), chosen.sum(0)
            return x + jnp.tanh(h), balanced(*sums) if balance_in_layers else sums

        y, found = jax.lax.scan(jax.checkpoint(layer), b["x"], params)
        balance = jnp.mean(found if balance_in_layers else balanced(*found)) / size**2
        return jnp.mean((y[:, :4] - b["y"]) ** 2) + 0.1 * balance

    params = {
        "router": normal(3, layers, WIDTH, EXPERTS),
        "up": normal(4, layers, EXPERTS, WIDTH, WIDTH, scale=0.35),
    }
    return Case(trained(loss), (params,), one(pairs))


@style(meets=BALANCE)
def balanced_experts_of_scanned_layers():
    """The layers' statistics leave the scan; the loss of all of them stands behind it."""
    return balanced_layers(balance_in_layers=False)


@style(meets=BALANCE)
def experts_balanced_in_scanned_layers():
    """Each layer has its loss, and its statistics are made again with it."""
    return balanced_layers(balance_in_layers=True)


@style(meets=BALANCE)
def experts_balanced_over_counted_tokens():
    """Layers that are computed again divide by how many tokens are no padding."""
    layers = 3

    def batch(rng):
        return {**pairs(rng), "mask": (rng.uniform(size=N) < 0.7).astype("float32")}

    def loss(params, b):
        def layer(x, own):
            probs = jax.nn.softmax(x @ own["router"])
            chosen = jax.nn.one_hot(probs.argmax(-1), EXPERTS) * b["mask"][:, None]
            count = jnp.maximum(b["mask"].sum(), 1)
            h = jnp.einsum("be,bd,edh->bh", chosen * probs, x, own["up"])
            shares = chosen.sum(0) / count, (probs * b["mask"][:, None]).sum(0) / count
            return x + jnp.tanh(h), shares

        x, found = b["x"], []
        for i in range(layers):
            own = jax.tree.map(lambda stack: stack[i], params)  # noqa: B023
            x, shares = jax.checkpoint(layer)(x, own)
            found.append(EXPERTS * jnp.sum(shares[0] * shares[1] + shares[1] ** 2))
        return jnp.mean((x[:, :4] - b["y"]) ** 2) + 0.1 * sum(found)

    params = {
        "router": normal(3, layers, WIDTH, EXPERTS),
        "up": normal(4, layers, EXPERTS, WIDTH, WIDTH, scale=0.35),
    }
    return Case(trained(loss), (params,), one(batch))


@style
def experts_balanced_for_each_example():
    def balance(probs, chosen):
        return jnp.mean(jnp.sum(probs * jnp.log(probs + 1e-3), -1))

    return routed(dense_dispatch, balance)


@style
def experts_balanced_by_a_bias():
    """No loss: counts of the batch move a bias of the router in the state."""

    def step(params, bias, b):
        def loss(params):
            probs = jax.nn.softmax(b["x"] @ params["router"])
            best = (probs + bias).argmax(-1)
            gate = jnp.take_along_axis(probs, best[:, None], 1)
            y = dense_dispatch(params, b["x"], best) * gate
            return jnp.mean((y - b["y"]) ** 2), jnp.bincount(best, length=EXPERTS)

        (value, counts), grads = jax.value_and_grad(loss, has_aux=True)(params)
        new = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        return new, bias + 0.05 * jnp.sign(counts.mean() - counts), value

    return Case(step, (experts(), jnp.zeros(EXPERTS)), one(pairs), carried=2)
