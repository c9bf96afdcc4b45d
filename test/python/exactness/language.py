"""Language models: masks, packed sequences, scans over layers, tied embeddings, attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from exactness.harness import Case, style
from exactness.models import cross_entropies, normal, one, sgd, trained

VOCABULARY, LENGTH, WIDTH, SENTENCES = 16, 6, 8, 8


def tokens(rng, n=SENTENCES):
    """Tokens with a mask of the right end; one micro-batch of four is padding only."""
    found = rng.integers(1, VOCABULARY, (n, LENGTH + 1), dtype=np.int32)
    ends = rng.integers(2, LENGTH + 1, n)
    ends[: n // 4] = 0
    mask = (np.arange(LENGTH) < ends[:, None]).astype(np.float32)
    return {"tokens": found, "mask": mask}


def packed(rng):
    """Several documents in one row."""
    starts = rng.uniform(size=(SENTENCES, LENGTH)) < 0.3
    return {**tokens(rng), "segment": np.cumsum(starts, 1).astype(np.int32)}


def transformer(depth=2, seed=0):
    """Stacked weights of layers, and a tied embedding."""
    names = {"q": (8, 8), "k": (8, 8), "v": (8, 8), "o": (8, 8), "up": (8, 16), "down": (16, 8)}
    blocks = {
        name: normal(seed + i, depth, *shape, scale=shape[0] ** -0.5)
        for i, (name, shape) in enumerate(names.items())
    }
    return {"embed": normal(seed + 20, VOCABULARY, WIDTH, scale=0.5), "blocks": blocks}


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-3)


def attention(q, k, v, allowed):
    """Softmax attention of two heads; `allowed` is of batch, queries and keys."""
    q, k, v = (x.reshape(*x.shape[:2], 2, -1) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(allowed[:, None], scores, -1e9)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return y.reshape(*y.shape[:2], -1)


def block(p, x, allowed):
    h = norm(x)
    x = x + attention(h @ p["q"], h @ p["k"], h @ p["v"], allowed) @ p["o"]
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def causal(n):
    return jnp.tril(jnp.ones((n, LENGTH, LENGTH), bool))


def looped(params, x, allowed):
    for i in range(len(params["blocks"]["q"])):
        x = block(jax.tree.map(lambda w, i=i: w[i], params["blocks"]), x, allowed)
    return x


def scanned(params, x, allowed):
    def layer(x, p):
        return jax.checkpoint(block)(p, x, allowed), None

    return jax.lax.scan(layer, x, params["blocks"])[0]


def logits(params, ids, apply=looped, allowed=None):
    allowed = causal(len(ids)) if allowed is None else allowed
    return norm(apply(params, params["embed"][ids], allowed)) @ params["embed"].T


def token_mean(losses, mask):
    return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)


def language_model(apply=looped, depth=2, rate=0.3):
    def loss(params, b):
        found = logits(params, b["tokens"][:, :-1], apply)
        return token_mean(cross_entropies(found, b["tokens"][:, 1:]), b["mask"])

    return Case(trained(loss, rate=rate), (transformer(depth),), one(tokens))


@style
def gpt():
    return language_model()


@style
def gpt_with_scanned_layers():
    return language_model(scanned, depth=4)


@style
def gpt_with_unweighted_tokens():
    """Shifted by slices, and a mean over all tokens."""

    def loss(params, b):
        found = logits(params, b["tokens"][:, :LENGTH])
        return cross_entropies(found[:, :-1], b["tokens"][:, 1:LENGTH]).mean()

    return Case(trained(loss, rate=0.3), (transformer(),), one(tokens))


@style
def gpt_with_means_of_sentences():
    """The mean over tokens first, then that over sentences that have any."""

    def loss(params, b):
        found = logits(params, b["tokens"][:, :-1])
        losses = jnp.sum(cross_entropies(found, b["tokens"][:, 1:]) * b["mask"], -1)
        lengths = b["mask"].sum(-1)
        means = losses / jnp.maximum(lengths, 1)
        return means.sum() / (lengths > 0).sum()

    return Case(trained(loss, rate=0.3), (transformer(),), one(tokens))


@style
def gpt_with_packed_sequences():
    """Attention within segments, positions that start anew, no loss at the ends."""

    def loss(params, b):
        segment = b["segment"]
        same = segment[:, :, None] == segment[:, None, :]
        starts = jnp.concatenate([jnp.ones_like(segment[:, :1]), jnp.diff(segment)], 1) > 0
        place = jnp.where(starts, jnp.arange(LENGTH), 0)
        place = jnp.arange(LENGTH) - jax.lax.cummax(place, axis=1)
        x = params["embed"][b["tokens"][:, :-1]] + params["places"][place]
        x = looped(params, x, causal(len(segment)) & same)
        losses = cross_entropies(norm(x) @ params["embed"].T, b["tokens"][:, 1:])
        inside = jnp.concatenate([same.diagonal(1, 1, 2), jnp.zeros_like(same[:, 0, :1])], 1)
        return token_mean(losses, inside * b["mask"]), inside.sum()

    params = {**transformer(), "places": normal(31, LENGTH, WIDTH, scale=0.5)}
    return Case(trained(loss, has_aux=True, rate=0.3), (params,), one(packed))


@style
def gpt_with_z_loss_and_metrics():
    def loss(params, b):
        found = logits(params, b["tokens"][:, :-1], scanned)
        losses = cross_entropies(found, b["tokens"][:, 1:])
        log_z = jax.nn.logsumexp(found, -1)
        right = (found.argmax(-1) == b["tokens"][:, 1:]) * b["mask"]
        main = token_mean(losses, b["mask"])
        aux = {"accuracy": token_mean(right, b["mask"]), "tokens": b["mask"].sum(), "main": main}
        return main + 0.1 * token_mean(log_z**2, b["mask"]), aux

    return Case(trained(loss, has_aux=True, rate=0.2), (transformer(),), one(tokens))


@style
def grouped_query_attention():
    """Fewer heads of keys than of queries, rotary positions."""

    def rotate(x):
        angle = jnp.arange(LENGTH)[:, None, None] / 10.0 ** jnp.arange(x.shape[-1] // 2)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate(
            [a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1
        )

    def loss(params, b):
        ids = b["tokens"][:, :-1]
        x = params["embed"][ids]
        q = rotate(jnp.einsum("btc,cgrd->btgrd", x, params["q"]).reshape(*ids.shape, 4, 4))
        q = q.reshape(*ids.shape, 2, 2, 4)
        k = rotate(jnp.einsum("btc,cgd->btgd", x, params["k"]))
        v = jnp.einsum("btc,cgd->btgd", x, params["v"])
        scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k) / 2
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        y = jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax(scores), v)
        x = x + jnp.einsum("btgrd,grdc->btc", y, params["o"])
        losses = cross_entropies(x @ params["embed"].T, b["tokens"][:, 1:])
        return token_mean(losses, b["mask"])

    params = {
        "embed": normal(0, VOCABULARY, WIDTH, scale=0.5),
        "q": normal(1, WIDTH, 2, 2, 4, scale=0.5),
        "k": normal(2, WIDTH, 2, 4, scale=0.5),
        "v": normal(3, WIDTH, 2, 4, scale=0.3),
        "o": normal(4, 2, 2, 4, WIDTH, scale=0.3),
    }
    return Case(trained(loss, rate=0.3), (params,), one(tokens))


@style
def attention_by_a_scan():
    """Blocks of keys one after another, with a running maximum and sum."""

    def flash(q, k, v):
        parts = [x.reshape(len(x), 3, -1, WIDTH).swapaxes(0, 1) for x in (k, v)]

        def add(carry, part):
            y, top, total = carry
            k, v = part
            scores = q @ k.swapaxes(1, 2) / WIDTH**0.5
            new = jnp.maximum(top, scores.max(-1, keepdims=True))
            share, old = jnp.exp(scores - new), jnp.exp(top - new)
            return (y * old + share @ v, new, total * old + share.sum(-1, keepdims=True)), None

        top = jnp.full_like(q[..., :1], -1e9)
        (y, _, total), _ = jax.lax.scan(add, (jnp.zeros_like(q), top, top * 0), tuple(parts))
        return y / total

    def loss(params, b):
        x = params["embed"][b["tokens"][:, :-1]]
        x = x + flash(*(x @ params[name] for name in "qkv"))
        losses = cross_entropies(x @ params["head"], b["tokens"][:, 1:])
        return token_mean(losses, b["mask"])

    params = {name: normal(i, WIDTH, WIDTH, scale=0.35) for i, name in enumerate("qkv")}
    params["embed"] = normal(5, VOCABULARY, WIDTH)
    params["head"] = normal(6, WIDTH, VOCABULARY, scale=0.35)
    return Case(trained(loss, rate=0.3), (params,), one(tokens))


@style(single=True)
def bert_with_dropout():
    """Masks are drawn in the step: those of dropout, and those of the words to find."""

    def step(params, key, b):
        key, of_words, of_dropout = jax.random.split(key, 3)
        ids = b["tokens"][:, 1:]
        hidden = jax.random.bernoulli(of_words, 0.4, ids.shape)

        def loss(params):
            x = params["embed"][jnp.where(hidden, 0, ids)]
            kept = jax.random.bernoulli(of_dropout, 0.8, x.shape)
            everything = jnp.ones((len(ids), LENGTH, LENGTH), bool)
            x = looped(params, jnp.where(kept, x / 0.8, 0), everything)
            return token_mean(cross_entropies(x @ params["embed"].T, ids), hidden)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.3), key, value

    return Case(step, (transformer(), jax.random.key(2)), one(tokens), carried=2)


@style
def encoder_and_decoder():
    def loss(params, b):
        ids = b["tokens"][:, 1:]
        seen = jnp.broadcast_to(b["mask"][:, None, :] > 0, (len(ids), LENGTH, LENGTH))
        x = looped(params["encoder"], params["encoder"]["embed"][ids], seen)
        y = params["encoder"]["embed"][ids[:, ::-1]]
        y = y + attention(y, x @ params["k"], x @ params["v"], seen)
        y = looped(params["decoder"], y, causal(len(ids)))
        losses = cross_entropies(y @ params["encoder"]["embed"].T, ids)
        return token_mean(losses, b["mask"])

    params = {
        "encoder": transformer(),
        "decoder": {"blocks": transformer(seed=40)["blocks"]},
        "k": normal(60, WIDTH, WIDTH, scale=0.35),
        "v": normal(61, WIDTH, WIDTH, scale=0.35),
    }
    return Case(trained(loss, rate=0.1), (params,), one(tokens))


@style
def distillation():
    """The teacher's weights are an argument that has no gradient."""

    def step(params, teacher, b):
        ids = b["tokens"][:, :-1]
        wanted = jax.nn.softmax(logits(teacher, ids))

        def loss(params):
            found = jax.nn.log_softmax(logits(params, ids))
            return -token_mean(jnp.sum(wanted * found, -1), b["mask"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.3), value

    return Case(step, (transformer(), transformer(1, seed=70)), one(tokens))


@style
def preferences():
    """DPO: pairs of sentences in rows that follow each other, and a frozen reference."""

    def step(params, reference, b):
        def log_probs(params, ids):
            losses = cross_entropies(logits(params, ids[:, :-1]), ids[:, 1:])
            return -losses.sum(-1)

        def loss(params):
            good, bad = (log_probs(params, b[name]) - log_probs(reference, b[name]) for name in b)
            margin = 0.1 * (good - bad)
            return -jax.nn.log_sigmoid(margin).mean(), (margin > 0).mean()

        value, grads = jax.value_and_grad(loss, has_aux=True)(params)
        return sgd(params, grads, 0.3), value

    def batch(rng):
        return {name: tokens(rng)["tokens"] for name in ("good", "bad")}

    return Case(step, (transformer(1), transformer(1, seed=3)), one(batch))


@style
def chunked_loss():
    """Logits are made for parts of the sequence, in a loop, so that few are held."""

    def loss(params, b):
        x = looped(params, params["embed"][b["tokens"][:, :-1]], causal(len(b["mask"])))

        @jax.checkpoint
        def part(total, i):
            rows = jax.lax.dynamic_slice_in_dim(x, 2 * i, 2, 1)
            ids = jax.lax.dynamic_slice_in_dim(b["tokens"], 2 * i + 1, 2, 1)
            mask = jax.lax.dynamic_slice_in_dim(b["mask"], 2 * i, 2, 1)
            return total + jnp.sum(cross_entropies(rows @ params["embed"].T, ids) * mask), None

        total, _ = jax.lax.scan(part, 0.0, jnp.arange(3))
        return total / b["mask"].sum()

    return Case(trained(loss, rate=0.3), (transformer(1),), one(tokens))
