"""Train a small character-level GPT, parallelized over eight virtual devices.

The model and the step are ordinary flax and optax code for one device. alpa_mlir plans the
step for the cluster that `--cluster` describes and runs it in this process. In the end three
steps are compared with plain `jax.jit`.

    python examples/train_gpt.py
    python examples/train_gpt.py --steps 200 --micro-batches 4 --cluster p3.16xlarge --plan-only
"""

# pyright: basic
# flax and optax leave most of their types open.

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # before jax: XLA's remarks on resharding

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import HERE, add_plan_options, relative_difference, run_or_exit, show_plan
from flax.training.train_state import TrainState
from tqdm import tqdm

Batch = dict[str, np.ndarray]
Step = Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]


class Block(nn.Module):
    """Causal self-attention and an MLP, each with a residual; [rows, sequence, hidden]."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        rows, length, hidden = x.shape
        dense = partial(nn.Dense, use_bias=False, kernel_init=nn.initializers.normal(0.02))
        h = nn.LayerNorm(name="norm_1")(x)
        q, k, v = (
            dense(hidden, name=name)(h).reshape(rows, length, self.heads, hidden // self.heads)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (hidden // self.heads) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + dense(hidden, name="out")(mixed.reshape(rows, length, hidden))
        h = nn.LayerNorm(name="norm_2")(x)
        return x + dense(hidden, name="down")(jax.nn.gelu(dense(4 * hidden, name="up")(h)))


class GPT(nn.Module):
    """Character numbers [rows, sequence] to logits [rows, sequence, characters]."""

    characters: int
    layers: int
    hidden: int
    heads: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.characters, self.hidden, name="embed")(tokens)
        place = nn.initializers.normal(0.02)
        x = x + self.param("place", place, (tokens.shape[1], self.hidden))
        for i in range(self.layers):
            x = Block(self.heads, name=f"block_{i}")(x)
        x = nn.LayerNorm(name="norm")(x)
        return nn.Dense(self.characters, use_bias=False, name="head")(x)


def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    """One step of AdamW on one batch, written for a single device."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["tokens"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return losses.mean()

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=gradients), loss


def read_text(path: Path) -> tuple[np.ndarray, int]:
    """The text as numbers of its characters, and how many different ones there are."""
    text = path.read_text()
    characters = {c: i for i, c in enumerate(sorted(set(text)))}
    return np.array([characters[c] for c in text], np.int32), len(characters)


def batches(text: np.ndarray, rows: int, length: int, seed: int) -> Iterator[Batch]:
    """Random pieces of the text and the characters that follow each; int32 [rows, length]."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - length - 1, rows)
        pieces = np.stack([text[s : s + length + 1] for s in starts])
        yield {"tokens": pieces[:, :-1], "targets": pieces[:, 1:]}


def make_state(
    characters: int, layers: int, hidden: int, length: int, learning_rate: float, key: jax.Array
) -> TrainState:
    """The first state of a GPT, with AdamW."""
    net = GPT(characters, layers, hidden, heads=4)
    params = net.init(key, jnp.zeros((1, length), jnp.int32))["params"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(learning_rate))


def entry(
    *,
    layers: int = 4,
    hidden: int = 128,
    length: int = 64,
    rows: int = 32,
    learning_rate: float = 3e-3,
    shapes_only: bool = False,
) -> tuple[Step, tuple[Any, Batch], Iterator[Batch]]:
    """The step, example arguments and batches, for `alpa-mlir plan` and `run`; with `shapes_only`
    the state holds no memory, so that a model of any size can be planned."""
    text, characters = read_text(HERE / "data" / "harbour.txt")
    create = partial(make_state, characters, layers, hidden, length, learning_rate)
    make = partial(jax.eval_shape, create) if shapes_only else jax.jit(create)
    data = batches(text, rows, length, seed=0)
    return train_step, (make(jax.random.key(0)), next(data)), data


def train(
    step: Step, state: TrainState, data: Iterator[Batch], steps: int, bar: bool
) -> tuple[TrainState, list[float]]:
    """Run `steps` steps with a progress bar; the last state and the losses."""
    losses: list[float] = []
    pending: jax.Array | None = None
    progress = tqdm(range(steps), desc="training", unit="step", disable=not bar)
    begin = time.perf_counter()
    tokens = 0
    for _ in progress:
        batch = next(data)
        state, loss = step(state, batch)
        tokens += batch["tokens"].size
        if pending is not None:  # one step late, so that devices never wait for the driver
            losses.append(float(pending))
            rate = tokens / (time.perf_counter() - begin)
            progress.set_postfix_str(f"loss {losses[-1]:.3f}, {rate:,.0f} tokens/s")
        pending = loss
    if pending is not None:
        losses.append(float(pending))
    return state, losses


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--steps", type=int, default=60, help="training steps (%(default)s)")
    add("--batch", type=int, default=32, help="rows of a batch (%(default)s)")
    add("--micro-batches", type=int, default=4, help="parts of a batch (%(default)s)")
    add("--schedule", choices=("1f1b", "1f1b-overlap", "gpipe"), default="1f1b")
    add("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    add("--hidden", type=int, default=128, help="width (%(default)s)")
    add("--length", type=int, default=64, help="characters of a row (%(default)s)")
    add("--learning-rate", type=float, default=3e-3)
    add("--text", type=Path, default=HERE / "data" / "harbour.txt", help="what to learn")
    add_plan_options(parser)
    run_or_exit(run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    text, characters = read_text(options.text)
    data = batches(text, options.batch, options.length, seed=0)
    first = next(data)
    create = partial(
        make_state,
        characters,
        options.layers,
        options.hidden,
        options.length,
        options.learning_rate,
    )
    state = jax.jit(create)(jax.random.key(0))
    count = sum(x.size for x in jax.tree.leaves(state.params))
    print(f"GPT of {options.layers} blocks, {count:,} parameters, on cluster {cluster.name}")

    begin = time.perf_counter()
    method = alpa_mlir.AutoParallel(
        num_micro_batches=options.micro_batches, schedule=options.schedule
    )
    step = alpa_mlir.parallelize(train_step, cluster=cluster, method=method)
    planned = step.plan(state, first)
    print(f"planned in {time.perf_counter() - begin:.1f} s")
    show_plan(planned, options)
    if options.plan_only:
        return

    begin = time.perf_counter()
    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    parallel = planned.load(workers=workers, progress=sys.stderr.isatty())
    print(f"compiled in {time.perf_counter() - begin:.1f} s")
    state, losses = train(parallel, state, data, options.steps, bar=True)

    single = jax.jit(train_step)
    ours = theirs = jax.device_get(state)
    worst = 0.0
    for _ in range(3):
        batch = next(data)
        ours, our_loss = parallel(ours, batch)
        theirs, their_loss = single(theirs, batch)
        worst = max(
            worst,
            relative_difference(our_loss, their_loss),
            relative_difference(jax.device_get(ours.params), theirs.params),
        )
    print(f"check: max relative difference {worst:.2e}")
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
    parallel.close()


if __name__ == "__main__":
    main()
