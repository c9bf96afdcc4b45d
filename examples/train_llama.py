"""Train a Llama in flax.nnx, parallelized, or plan one of 7B to 70B for a cluster by its shapes.

The model is what one writes for a single device: RMS norms, rotary embeddings, grouped queries, a
gated MLP, weights in float32 and products in bfloat16. The small size trains on eight virtual
devices and is compared with plain `jax.jit`; the large ones are planned, and nothing is allocated.

    python examples/train_llama.py
    alpa-mlir report examples/train_llama.py:entry --set size=7b --cluster dgx-h100:8
    alpa-mlir plan examples/train_llama.py:entry --set size=70b --set rows=512 --cluster dgx-h100:32
"""

# pyright: basic
# flax and optax leave most of their types open.

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import add_plan_options, run_or_exit, show_plan, train
from flax import nnx


@dataclass(frozen=True)
class Config:
    """The sizes of a model; `attention` is an implementation of `jax.nn.dot_product_attention`."""

    layers: int
    hidden: int
    heads: int
    groups: int
    inner: int
    vocab: int
    length: int
    dtype: str = "bfloat16"
    attention: str = "cudnn"
    theta: float = 1e4
    epsilon: float = 1e-5


SIZES = {
    "tiny": Config(4, 128, 4, 2, 256, 256, 64, "float32", "xla"),
    "7b": Config(32, 4096, 32, 32, 11008, 32000, 4096),  # Llama 2
    "8b": Config(32, 4096, 32, 8, 14336, 128256, 8192, theta=5e5),  # Llama 3
    "70b": Config(80, 8192, 64, 8, 28672, 128256, 8192, theta=5e5),
}


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Rotary embeddings; [rows, length, heads, size]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None, None] * frequencies
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Block(nnx.Module):
    """Attention and a gated MLP, each behind a norm and with a residual."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        c, size = config, config.hidden // config.heads

        def linear(inner: int, outer: int) -> nnx.Linear:
            return nnx.Linear(inner, outer, use_bias=False, dtype=c.dtype, rngs=rngs)

        def norm() -> nnx.RMSNorm:
            return nnx.RMSNorm(c.hidden, epsilon=c.epsilon, dtype=c.dtype, rngs=rngs)

        self.config = config
        self.attention_norm = norm()
        self.query = linear(c.hidden, c.heads * size)
        self.key = linear(c.hidden, c.groups * size)
        self.value = linear(c.hidden, c.groups * size)
        self.out = linear(c.hidden, c.hidden)
        self.mlp_norm = norm()
        self.gate = linear(c.hidden, c.inner)
        self.up = linear(c.hidden, c.inner)
        self.down = linear(c.inner, c.hidden)

    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        h = self.attention_norm(x)
        heads = (*x.shape[:2], -1, c.hidden // c.heads)
        mixed = jax.nn.dot_product_attention(
            rotate(self.query(h).reshape(heads), c.theta),
            rotate(self.key(h).reshape(heads), c.theta),
            self.value(h).reshape(heads),
            is_causal=True,
            implementation=c.attention,  # type: ignore
        )
        x = x + self.out(mixed.reshape(x.shape))
        h = self.mlp_norm(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


class Llama(nnx.Module):
    """Tokens [rows, length] to logits [rows, length, vocab]; the layers are one scan."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        c = config

        @nnx.split_rngs(splits=c.layers)
        @nnx.vmap
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(c, rngs)

        self.embed = nnx.Embed(c.vocab, c.hidden, dtype=c.dtype, rngs=rngs)
        self.blocks = stack(rngs)
        self.norm = nnx.RMSNorm(c.hidden, epsilon=c.epsilon, dtype=c.dtype, rngs=rngs)
        self.head = nnx.Linear(c.hidden, c.vocab, use_bias=False, dtype=c.dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: jax.Array, block: Block) -> jax.Array:
            return block(x)

        return self.head(self.norm(run(self.embed(tokens), self.blocks)))


Batch = dict[str, Any]


def make_functions(config: Config) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`create_state(weights)` and `train_step(state, batch)`, with the state as nnx splits it.

    `weights` are those of a `Llama` as `nnx.to_pure_dict` has them, in place of drawn ones.
    """
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))

    def create(weights: Any = None) -> tuple[Llama, nnx.Optimizer]:
        model = Llama(config, nnx.Rngs(0))
        if weights is not None:
            nnx.update(model, weights)
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    graph = nnx.graphdef(nnx.eval_shape(create))

    def train_step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graph, state)

        def loss_fn(model: Llama) -> jax.Array:
            logits = model(batch["tokens"]).astype(jnp.float32)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
            return losses.mean()

        loss, gradients = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    return lambda weights=None: nnx.state(create(weights)), train_step


def batches(config: Config, rows: int) -> Iterator[Batch]:
    """Sequences that count up from a random token; int32 [rows, length]."""
    random = np.random.default_rng(0)
    while True:
        starts = random.integers(0, config.vocab, (rows, 1))
        tokens = ((starts + np.arange(config.length + 1)) % config.vocab).astype(np.int32)
        yield {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def entry(*, size: str = "tiny", rows: int | None = None) -> tuple[Callable[..., Any], Any, Any]:
    """The step, the shapes of its state and a batch, and batches, for the command line.

    Args:
        size: a name of `SIZES`.
        rows: sequences of a batch; 16 of the small model, else as many as have 4 million tokens.
    """
    config = SIZES[size]
    rows = rows or (16 if size == "tiny" else 2**22 // config.length)
    create_state, train_step = make_functions(config)
    tokens = jax.ShapeDtypeStruct((rows, config.length), jnp.int32)
    shapes = jax.eval_shape(create_state), {"tokens": tokens, "targets": tokens}
    return train_step, shapes, batches(config, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--size", choices=list(SIZES), default="tiny", help="of the model (%(default)s)")
    add("--rows", type=int, help="sequences of a batch (16; of large models 4 million tokens)")
    add("--steps", type=int, default=40, help="training steps (%(default)s)")
    add("--micro-batches", type=int, nargs="+", help="numbers to try (all that divide the batch)")
    add_plan_options(parser)
    run_or_exit(run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    step, shapes, data = entry(size=options.size, rows=options.rows)
    method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    planned = alpa_mlir.parallelize(step, cluster=cluster, method=method).plan(*shapes)
    show_plan(planned, options)
    if options.plan_only:
        return

    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    parallel = planned.load(workers=workers, progress=sys.stderr.isatty())
    create_state, _ = make_functions(SIZES[options.size])
    train(parallel, step, jax.jit(create_state)(), islice(data, options.steps))
    parallel.close()


if __name__ == "__main__":
    main()
