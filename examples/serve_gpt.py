"""Generate text with a GPT whose weights and caches of keys and values lie in pipeline stages.

The model is trained for a moment in plain JAX, then served: `prefill` reads the prompts, `decode`
makes one more character for each row. Both are ordinary functions without gradients; `prefill`
follows the plan of `decode`, so that they share the weights, and the keys and values stay on the
devices that made them: a call of `decode` takes them over and writes into them. While one group of
rows is in a later stage, the next group is in an earlier one. Every character is compared with
greedy decoding in plain JAX without a cache.

    python examples/serve_gpt.py
    python examples/serve_gpt.py --stages 2 --groups 3 --new 64
    python examples/serve_gpt.py --layers 48 --hidden 7168 --heads 56 --length 2048 \\
        --stages 8 --rows 64 --cluster dgx-a100:2 --plan-only
"""

# pyright: basic
# flax and optax leave most of their types open.

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # before jax: XLA's remarks on resharding

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import HERE, add_plan_options, run_or_exit, show_plan


def write_rows(cache: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
    """Write `new` [rows, n, ..] into `cache` [rows, length, ..], from the row's `start` on."""
    return jax.vmap(lambda c, x, i: jax.lax.dynamic_update_slice_in_dim(c, x, i, 0))(
        cache, new, start
    )


class Block(nn.Module):
    """Causal self-attention over a cache, and an MLP; [rows, n, hidden] in and out.

    The cache holds keys and values [rows, length, heads, features]; row r of the input stands at
    the positions `at[r]` of it.
    """

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, cache: Any, at: jax.Array) -> tuple[jax.Array, Any]:
        rows, count, hidden = x.shape
        dense = partial(nn.Dense, use_bias=False, kernel_init=nn.initializers.normal(0.02))
        h = nn.LayerNorm(name="norm_1")(x)
        q, k, v = (
            dense(hidden, name=name)(h).reshape(rows, count, self.heads, hidden // self.heads)
            for name in ("query", "key", "value")
        )
        cache = {
            "key": write_rows(cache["key"], k, at[:, 0]),
            "value": write_rows(cache["value"], v, at[:, 0]),
        }
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, cache["key"]) / (hidden // self.heads) ** 0.5
        seen = jnp.arange(cache["key"].shape[1]) <= at[:, None, :, None]
        chances = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", chances, cache["value"])
        x = x + dense(hidden, name="out")(mixed.reshape(rows, count, hidden))
        h = nn.LayerNorm(name="norm_2")(x)
        h = dense(hidden, name="down")(jax.nn.gelu(dense(4 * hidden, name="up")(h)))
        return x + h, cache


class GPT(nn.Module):
    """Characters [rows, n] that follow those of the cache, to logits [rows, n, characters]."""

    characters: int
    layers: int
    hidden: int
    heads: int
    length: int

    @nn.compact
    def __call__(self, tokens: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        at = cache["length"][:, None] + jnp.arange(tokens.shape[1])
        place = self.param("place", nn.initializers.normal(0.02), (self.length, self.hidden))
        x = nn.Embed(self.characters, self.hidden, name="embed")(tokens) + place[at]
        layers = []
        for i, own in enumerate(cache["layers"]):
            x, own = Block(self.heads, name=f"block_{i}")(x, own, at)
            layers.append(own)
        x = nn.LayerNorm(name="norm")(x)
        logits = nn.Dense(self.characters, use_bias=False, name="head")(x)
        return logits, {"length": cache["length"] + tokens.shape[1], "layers": layers}

    def empty_cache(self, rows: int) -> Any:
        form = (rows, self.length, self.heads, self.hidden // self.heads)
        layer = {"key": jnp.zeros(form), "value": jnp.zeros(form)}
        return {"length": jnp.zeros(rows, jnp.int32), "layers": [layer] * self.layers}


def make_functions(net: GPT) -> tuple[Any, Any, Any]:
    """`create(key)`, `prefill(params, cache, prompts)` and `decode(params, cache, tokens)`."""

    def create(key: jax.Array) -> Any:
        return net.init(key, jnp.zeros((1, 1), jnp.int32), net.empty_cache(1))["params"]

    def prefill(params: Any, cache: Any, prompts: Any) -> tuple[Any, jax.Array]:
        """Prompts, filled up to one length on the right, to the cache and each row's next token."""
        logits, cache = net.apply({"params": params}, prompts["tokens"], cache)
        best = logits.argmax(-1).astype(jnp.int32)
        last = jnp.take_along_axis(best, prompts["length"][:, None] - 1, axis=1)[:, 0]
        return {**cache, "length": prompts["length"]}, last

    def decode(params: Any, cache: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        """The cache with one more token in each row, and the tokens after those."""
        logits, cache = net.apply({"params": params}, tokens[:, None], cache)
        return cache, logits[:, 0].argmax(-1).astype(jnp.int32)

    return create, prefill, decode


def train(net: GPT, params: Any, text: np.ndarray, steps: int, length: int) -> tuple[Any, float]:
    """Some steps of AdamW in plain JAX, so that there is something to say."""
    tx = optax.adamw(3e-3)

    @jax.jit
    def step(params: Any, opt_state: Any, pieces: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            cache = net.empty_cache(pieces.shape[0])
            logits, _ = net.apply({"params": params}, pieces[:, :-1], cache)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, pieces[:, 1:])
            return losses.mean()

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    rng, opt_state, loss = np.random.default_rng(0), tx.init(params), jnp.float32(0)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - length - 1, 16)
        pieces = np.stack([text[s : s + length + 1] for s in starts])
        params, opt_state, loss = step(params, opt_state, pieces)
    return params, float(loss)


def greedy(net: GPT, params: Any, prompts: Any, count: int) -> np.ndarray:
    """Greedy decoding in plain JAX: the whole text again for each token, without a cache."""

    @jax.jit
    def next_tokens(params: Any, tokens: jax.Array, length: jax.Array) -> jax.Array:
        logits, _ = net.apply({"params": params}, tokens, net.empty_cache(tokens.shape[0]))
        return jnp.take_along_axis(logits.argmax(-1), length[:, None] - 1, axis=1)[:, 0]

    rows = np.arange(len(prompts["length"]))
    tokens = np.zeros((len(rows), net.length), np.int32)
    tokens[:, : prompts["tokens"].shape[1]] = prompts["tokens"]
    found = []
    for i in range(count):
        found.append(np.asarray(next_tokens(params, tokens, prompts["length"] + i)))
        tokens[rows, prompts["length"] + i] = found[-1]
    return np.stack(found, axis=1)


def read_text() -> tuple[np.ndarray, list[str]]:
    """The text as numbers of its characters, and the characters."""
    text = (HERE / "data" / "harbour.txt").read_text()
    characters = sorted(set(text))
    return np.array([characters.index(c) for c in text], np.int32), characters


def some_prompts(text: np.ndarray, rows: int, longest: int, seed: int) -> Any:
    """Pieces of the text, of different lengths; what is behind their ends does not count."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(text) - longest, rows)
    tokens = np.stack([text[s : s + longest] for s in starts])
    return {"tokens": tokens, "length": rng.integers(longest // 2, longest + 1, rows, np.int32)}


def entry(
    *,
    layers: int = 4,
    hidden: int = 64,
    heads: int = 4,
    length: int = 96,
    rows: int = 8,
    shapes_only: bool = False,
) -> tuple[Any, tuple[Any, ...]]:
    """`decode` and its example arguments, for `alpa-mlir plan` and `run`; with `shapes_only` the
    weights and the cache hold no memory, so that a model of any size can be planned."""
    _, characters = read_text()
    net = GPT(len(characters), layers, hidden, heads, length)
    create, _, decode = make_functions(net)

    def make(key: jax.Array) -> Any:
        return create(key), net.empty_cache(rows)

    made = jax.eval_shape(make, jax.random.key(0)) if shapes_only else make(jax.random.key(0))
    return decode, (*made, jax.ShapeDtypeStruct((rows,), jnp.int32))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    add("--hidden", type=int, default=64, help="width (%(default)s)")
    add("--heads", type=int, default=4, help="attention heads (%(default)s)")
    add("--length", type=int, default=96, help="places of a cache (%(default)s)")
    add("--prompt", type=int, default=32, help="characters of the longest prompt (%(default)s)")
    add("--new", type=int, default=48, help="characters to generate (%(default)s)")
    add("--rows", type=int, default=8, help="rows of a group (%(default)s)")
    add("--groups", type=int, default=4, help="groups that go through together (%(default)s)")
    add("--train-steps", type=int, default=150, help="steps before serving (%(default)s)")
    add("--stages", type=int, default=4, help="pipeline stages of equal size (%(default)s)")
    add_plan_options(parser, devices=("virtual", "own"))
    options = parser.parse_args(arguments)
    if options.prompt + options.new > options.length:
        parser.error(f"--prompt and --new are more than --length, {options.length}")
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    text, characters = read_text()
    net = GPT(len(characters), options.layers, options.hidden, options.heads, options.length)
    create, prefill, decode = make_functions(net)
    shapes = jax.eval_shape(create, jax.random.key(0))
    empty = jax.eval_shape(partial(net.empty_cache, options.rows))
    tokens = jax.ShapeDtypeStruct((options.rows,), jnp.int32)

    each = cluster.num_devices // options.stages
    hosts = -(-each // min(cluster.devices_per_host))
    method = alpa_mlir.PipeshardParallel(
        submeshes=[(hosts, each // hosts)] * options.stages, layers=options.stages
    )
    parallel_decode = alpa_mlir.parallelize(decode, cluster=cluster, method=method)
    planned = parallel_decode.plan(shapes, empty, tokens)
    show_plan(planned, options)
    if options.plan_only:
        return

    params = jax.jit(create)(jax.random.key(0))
    params, loss = train(net, params, text, options.train_steps, options.length - 1)
    print(f"loss after {options.train_steps} steps: {loss:.3f}")
    bar = sys.stderr.isatty()
    groups = [
        some_prompts(text, options.rows, options.prompt, seed) for seed in range(options.groups)
    ]
    cache = jax.jit(partial(net.empty_cache, options.rows))()
    step = parallel_decode.compile(shapes, empty, tokens, progress=bar)
    follow = alpa_mlir.FollowParallel(parallel_decode)
    start = alpa_mlir.parallelize(prefill, method=follow).compile(
        shapes, empty, groups[0], progress=bar
    )
    weights, *_ = step.place(params, cache, np.zeros(options.rows, np.int32))

    def generate(count: int) -> np.ndarray:
        served = [start(weights, cache, prompts) for prompts in groups]
        found = [[tokens] for _, tokens in served]
        for _ in range(count - 1):  # Calls return at once: groups follow each other.
            served = [step(weights, cache, tokens) for cache, tokens in served]
            for own, (_, tokens) in zip(found, served, strict=True):
                own.append(tokens)
        return np.concatenate([np.stack(jax.device_get(own), axis=1) for own in found])

    generate(2)  # Compiles what is compiled at the first call.
    begin = time.perf_counter()
    new = generate(options.new)
    seconds = time.perf_counter() - begin
    expected = np.concatenate([greedy(net, params, p, options.new) for p in groups])

    first = groups[0]
    said = "".join(characters[i] for i in first["tokens"][0][: first["length"][0]])
    print(f"{said!r} -> {''.join(characters[i] for i in new[0])!r}")
    print(f"{new.size / seconds:,.0f} characters/s")
    print(f"check: {(new == expected).sum()} of {new.size} characters as in plain JAX")


if __name__ == "__main__":
    main()
