"""Train a language model with mixtures of experts, parallelized over eight virtual devices.

Every second block has experts instead of one MLP: each character goes to the two of them that its
gate likes best, as far as they have room (Lepikhin et al., "GShard", 2020). Dispatching and
combining are einsums, nothing says how experts are spread over devices: alpa_mlir finds that,
or takes it from `--shardings`. In the end three steps are compared with plain `jax.jit`.

    python examples/train_moe.py
    python examples/train_moe.py --experts 16 --shardings expert-parallel
    python examples/train_moe.py --layers 32 --hidden 2048 --experts 64 --length 1024 \\
        --rows 1024 --micro-batches 64 --cluster p3.16xlarge:8 --plan-only
"""

# pyright: basic
# flax and optax leave most of their types open.

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # before jax: XLA's remarks on resharding

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import HERE, add_plan_options, relative_difference, run_or_exit, show_plan
from tqdm import tqdm

CHARACTERS = 128  # ASCII
Batch = dict[str, np.ndarray]


def top_two(logits: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """Route each character to two experts.

    Args:
        logits: [rows, n, experts]; every row is a group of its own.
        room: characters of a group that an expert takes; those beyond it are left out.

    Returns:
        How much of which expert's place goes to each character [rows, n, experts, room], and how
        unevenly experts are used: 1 if all alike.
    """
    experts = logits.shape[-1]
    chances = jax.nn.softmax(logits)
    best = jax.nn.one_hot(chances.argmax(-1), experts)
    second = jax.nn.one_hot((chances * (1 - best)).argmax(-1), experts)
    uneven = (best.mean(1) * chances.mean(1)).sum(-1).mean() * experts

    # The places are given out in the order of characters, first to all best choices.
    place_best = (best.cumsum(1) - 1) * best
    place_second = (second.cumsum(1) - 1 + best.sum(1, keepdims=True)) * second

    def route(choice: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
        taken = choice * (place < room)
        slot = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), room)
        return (chances * taken).sum(-1), jnp.einsum("gse,gsc->gsec", taken, slot)

    weight_best, to_best = route(best, place_best)
    weight_second, to_second = route(second, place_second)
    total = (weight_best + weight_second + 1e-9)[..., None, None]
    weighted = weight_best[..., None, None] * to_best + weight_second[..., None, None] * to_second
    return weighted / total, uneven


class Experts(nn.Module):
    """MLPs of which each character sees two; [rows, n, hidden] in and out."""

    experts: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = x.shape[-1]
        room = max(2 * x.shape[1] // self.experts, 1)
        init = nn.initializers.normal(0.02)
        up = self.param("up", init, (self.experts, hidden, 4 * hidden))
        down = self.param("down", init, (self.experts, 4 * hidden, hidden))
        logits = nn.Dense(self.experts, use_bias=False, name="gate")(x)
        combine, uneven = top_two(logits, room)
        sent = jnp.einsum("gsec,gsm->egcm", (combine > 0).astype(x.dtype), x)
        inner = jax.nn.gelu(jnp.einsum("egcm,emf->egcf", sent, up))
        made = jnp.einsum("egcf,efm->egcm", inner, down)
        return jnp.einsum("gsec,egcm->gsm", combine, made), uneven


class Model(nn.Module):
    """Characters [rows, n] to logits [rows, n, CHARACTERS], and how unevenly experts are used."""

    layers: int
    hidden: int
    heads: int
    experts: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        dense = partial(nn.Dense, use_bias=False, kernel_init=nn.initializers.normal(0.02))
        x = nn.Embed(CHARACTERS, self.hidden, name="embed")(tokens)
        x = x + self.param("place", nn.initializers.normal(0.02), x.shape[1:])
        causal = nn.make_causal_mask(tokens)
        uneven = jnp.zeros(())
        for i in range(self.layers):
            h = nn.LayerNorm(name=f"norm_{i}_1")(x)
            attention = nn.MultiHeadDotProductAttention(
                self.heads, use_bias=False, name=f"attention_{i}"
            )
            x = x + attention(h, mask=causal)
            h = nn.LayerNorm(name=f"norm_{i}_2")(x)
            if i % 2:
                h, one = Experts(self.experts, name=f"experts_{i}")(h)
                uneven += one
            else:
                h = jax.nn.gelu(dense(4 * self.hidden, name=f"up_{i}")(h))
                h = dense(self.hidden, name=f"down_{i}")(h)
            x = x + h
        x = nn.LayerNorm(name="norm")(x)
        return dense(CHARACTERS, name="head")(x), uneven / max(self.layers // 2, 1)


def make_functions(
    layers: int, hidden: int, experts: int, length: int, learning_rate: float
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`create_state(key)` and `train_step(state, batch)`."""
    net = Model(layers, hidden, max(hidden // 64, 4), experts)
    tx = optax.adamw(learning_rate)

    def create_state(key: jax.Array) -> Any:
        params = net.init(key, jnp.zeros((1, length), jnp.int32))["params"]
        return {"params": params, "opt_state": tx.init(params)}

    def train_step(state: Any, batch: Batch) -> tuple[Any, Any]:
        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            found: Any = net.apply({"params": params}, batch["tokens"])
            logits, uneven = found
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
            return losses.mean() + 0.01 * uneven, {"loss": losses.mean(), "uneven": uneven}

        gradients, metrics = jax.grad(loss_fn, has_aux=True)(state["params"])
        updates, opt_state = tx.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state}, metrics

    return create_state, train_step


def batches(rows: int, length: int, seed: int) -> Iterator[Batch]:
    """Random pieces of a text and the characters that follow each; int32 [rows, length]."""
    text = np.frombuffer((HERE / "data" / "harbour.txt").read_bytes(), np.uint8).astype(np.int32)
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - length - 1, rows)
        pieces = np.stack([text[s : s + length + 1] for s in starts])
        yield {"tokens": pieces[:, :-1], "targets": pieces[:, 1:]}


def batch_shapes(rows: int, length: int) -> Any:
    """The form of a batch, without memory."""
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def entry(
    *,
    layers: int = 4,
    hidden: int = 64,
    experts: int = 8,
    length: int = 64,
    rows: int = 16,
    learning_rate: float = 3e-3,
    shapes_only: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, Any], Iterator[Batch]]:
    """The step, example arguments and batches, for `alpa-mlir plan` and `run`; with `shapes_only`
    the state holds no memory, so that a model of any size can be planned."""
    create_state, train_step = make_functions(layers, hidden, experts, length, learning_rate)
    make = partial(jax.eval_shape, create_state) if shapes_only else jax.jit(create_state)
    arguments = make(jax.random.key(0)), batch_shapes(rows, length)
    return train_step, arguments, batches(rows, length, seed=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--layers", type=int, default=4, help="blocks, every second with experts (%(default)s)")
    add("--hidden", type=int, default=64, help="width (%(default)s)")
    add("--experts", type=int, default=8, help="experts of a block (%(default)s)")
    add("--length", type=int, default=64, help="characters of a row (%(default)s)")
    add("--rows", type=int, default=16, help="rows of a batch (%(default)s)")
    add("--steps", type=int, default=60, help="training steps (%(default)s)")
    add("--learning-rate", type=float, default=3e-3, help="(%(default)s)")
    add("--micro-batches", type=int, default=2, help="parts of a batch (%(default)s)")
    add(
        "--shardings",
        default="auto",
        help="auto, or a method of docs/methods.md such as expert-parallel (%(default)s)",
    )
    add_plan_options(parser)
    options = parser.parse_args(arguments)
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    create_state, train_step = make_functions(
        options.layers, options.hidden, options.experts, options.length, options.learning_rate
    )
    key = jax.random.key(0)
    shapes = jax.eval_shape(create_state, key), batch_shapes(options.rows, options.length)
    count = sum(x.size for x in jax.tree.leaves(shapes[0]["params"]))
    print(f"{count:,} parameters with {options.experts} experts, on {cluster.name}")

    method = alpa_mlir.AutoParallel(
        num_micro_batches=options.micro_batches, method=options.shardings
    )
    planned = alpa_mlir.parallelize(train_step, cluster=cluster, method=method).plan(*shapes)
    show_plan(planned, options)
    if options.plan_only:
        return

    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    step = planned.load(workers=workers, progress=sys.stderr.isatty())
    data = batches(options.rows, options.length, seed=0)
    ours, theirs = step.init(create_state, key), jax.jit(create_state)(key)
    single = jax.jit(train_step)
    worst = 0.0
    for batch in islice(data, 3):
        ours, our_metrics = step(ours, batch)
        theirs, their_metrics = single(theirs, batch)
        worst = max(
            worst,
            relative_difference(our_metrics, their_metrics),
            relative_difference(jax.device_get(ours["params"]), theirs["params"]),
        )
    found = []
    with alpa_mlir.DataLoader(islice(data, options.steps), step) as loader:
        for batch in tqdm(loader, total=options.steps, desc="training", unit="step", disable=None):
            ours, metrics = step(ours, batch)
            found.append(metrics)
    print(f"check: max relative difference {worst:.2e}")
    print(f"loss: {float(found[0]['loss']):.3f} -> {float(found[-1]['loss']):.3f}")
    print(f"experts: {float(found[0]['uneven']):.2f} -> {float(found[-1]['uneven']):.2f} uneven")
    step.close()


if __name__ == "__main__":
    main()
