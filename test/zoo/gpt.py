"""Decoder-only transformer in flax.linen, configurable from tiny to benchmark size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from .base import Model, PyTree, cross_entropy


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and variants of a GPT; `hidden` must be a multiple of `heads`.

    Attributes:
      scan: stack the layers' weights and run them by one `scan`.
      remat: recompute each block's activations in the backward pass.
      dtype: computation type; parameters are kept in f32.
      optimizer: `"adamw"` (with global-norm clipping) or `"sgd"`.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 2
    vocab: int = 64
    seq: int = 16
    dtype: str = "float32"
    scan: bool = False
    remat: bool = False
    optimizer: str = "adamw"
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")


class Block(nn.Module):
    """Pre-norm attention and MLP; [batch, seq, hidden] in and out."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        dtype = jnp.dtype(c.dtype)
        dense = partial(nn.Dense, dtype=dtype, kernel_init=nn.initializers.normal(0.02))
        batch, seq, _ = x.shape

        h = nn.LayerNorm(dtype=dtype, name="ln_1")(x)
        qkv = dense(3 * c.hidden, name="qkv")(h)
        qkv = qkv.reshape(batch, seq, 3, c.heads, c.hidden // c.heads)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (c.hidden // c.heads) ** 0.5
        causal = jnp.tril(jnp.ones((seq, seq), bool))
        scores = jnp.where(causal, scores.astype(jnp.float32), -1e9)
        weights = jax.nn.softmax(scores).astype(dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, seq, c.hidden)
        x = x + dense(c.hidden, name="proj")(mixed)

        h = nn.LayerNorm(dtype=dtype, name="ln_2")(x)
        h = jax.nn.gelu(dense(4 * c.hidden, name="up")(h))
        return x + dense(c.hidden, name="down")(h)


class GPT(nn.Module):
    """Token ids [batch, seq] -> logits [batch, seq, vocab]; tied embedding."""

    config: GPTConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        dtype = jnp.dtype(c.dtype)
        embed = nn.Embed(
            c.vocab, c.hidden, dtype=dtype, embedding_init=nn.initializers.normal(0.02), name="wte"
        )
        positions = self.param("wpe", nn.initializers.normal(0.02), (c.seq, c.hidden))
        x = embed(tokens) + positions[: tokens.shape[1]].astype(dtype)
        block = nn.remat(Block) if c.remat else Block
        if c.scan:

            def body(layer: Any, carry: jax.Array, _: None) -> tuple[jax.Array, None]:
                return layer(carry), None

            scanned = nn.scan(
                body,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=c.layers,
            )
            x, _ = scanned(block(c, name="h"), x, None)
        else:
            for i in range(c.layers):
                x = block(c, name=f"h{i}")(x)
        x = nn.LayerNorm(dtype=dtype, name="ln_f")(x)
        return embed.attend(x)


def make_optimizer(config: GPTConfig) -> optax.GradientTransformation:
    """The optimizer that `config.optimizer` names."""
    if config.optimizer == "sgd":
        return optax.sgd(config.learning_rate, momentum=0.9)
    if config.optimizer == "adamw":
        clip = optax.clip_by_global_norm(1.0)
        return optax.chain(clip, optax.adamw(config.learning_rate, weight_decay=0.01))
    raise ValueError(f"unknown optimizer {config.optimizer!r}; use 'adamw' or 'sgd'")


def token_batch(key: jax.Array, batch_size: int, config: GPTConfig) -> PyTree:
    """Random token ids and their next-token targets, int32 [batch_size, seq]."""
    ids = jax.random.randint(key, (batch_size, config.seq + 1), 0, config.vocab)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def make_gpt(config: GPTConfig, name: str = "gpt") -> Model:
    """A linen GPT with a `flax.training.TrainState`, written as users write it."""
    net = GPT(config)
    tx = make_optimizer(config)

    def init(batch_size: int = 8) -> tuple[TrainState, PyTree]:
        batch = token_batch(jax.random.PRNGKey(1), batch_size, config)
        params = jax.jit(net.init)(jax.random.PRNGKey(0), batch["tokens"])["params"]
        return TrainState.create(apply_fn=net.apply, params=params, tx=tx), batch

    def forward(state: TrainState, batch: PyTree) -> jax.Array:
        return net.apply({"params": state.params}, batch["tokens"])

    def step(state: TrainState, batch: PyTree) -> tuple[TrainState, PyTree]:
        def loss_fn(params: PyTree) -> jax.Array:
            logits = state.apply_fn({"params": params}, batch["tokens"])
            return cross_entropy(logits, batch["targets"])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss}

    tags = {"gpt", "linen", "train", config.dtype}
    tags |= {"scan"} if config.scan else set()
    tags |= {"remat"} if config.remat else set()
    return Model(name, forward, step, init, frozenset(tags))
