"""The models that benchmarks run, made from the test zoo at larger sizes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

import flax.linen as nn
import jax
import jax.numpy as jnp
import zoo
from zoo.base import cross_entropy, training_model

_jax: Any = jax
_jnp: Any = jnp
_nn: Any = nn
_optax: Any = importlib.import_module("optax")


@dataclass(frozen=True)
class BenchmarkModel:
    """A training step with example arguments that hold no memory.

    Attributes:
        name: for tables.
        step: `(state, batch) -> (state, metrics)`.
        state: shapes and dtypes of the state.
        batch: shapes and dtypes of the batch at full size.
        parameters: number of trained numbers.
        init: makes the arrays of state and batch when a benchmark runs the step.
    """

    name: str
    step: Callable[..., Any]
    state: Any
    batch: Any
    parameters: int
    init: Callable[[], tuple[Any, Any]]


def gpt(
    layers: int,
    hidden: int = 256,
    heads: int = 8,
    vocab: int = 1024,
    seq: int = 128,
    batch_size: int = 16,
    remat: bool = False,
    dtype: str = "float32",
    scan: bool = False,
    optimizer: str = "adamw",
) -> BenchmarkModel:
    """A GPT with AdamW or SGD; with `scan`, its layers are one loop over stacked weights.

    Example:
        >>> model = gpt(4)
        >>> traced = trace(model.step, model.state, model.batch)
    """
    config = zoo.GPTConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        seq=seq,
        remat=remat,
        dtype=dtype,
        scan=scan,
        optimizer=optimizer,
    )
    model = zoo.make_gpt(config, f"gpt {layers} layers")

    def init() -> tuple[Any, Any]:
        return model.init(batch_size)

    state, batch = _jax.eval_shape(init)
    parameters = sum(leaf.size for leaf in _jax.tree.leaves(state.params))
    return BenchmarkModel(model.name, model.step, state, batch, parameters, init)


def _param(module: Any) -> Any:
    """Flax types `param` only in part."""
    return module.param


class _LlamaNorm(nn.Module):
    """Root-mean-square norm in f32; [.., features] in and out."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale: Any = _param(self)("scale", _nn.initializers.ones, (x.shape[-1],))
        wide = x.astype(_jnp.float32)
        mean = _jnp.mean(wide * wide, axis=-1, keepdims=True)
        return (wide * _jax.lax.rsqrt(mean + 1e-5) * scale).astype(self.dtype)


def _rotate(x: jax.Array, base: float = 500_000.0) -> jax.Array:
    """Rotary position embedding (Su et al. 2021) of [batch, seq, heads, features]."""
    half = x.shape[-1] // 2
    rates = base ** (-_jnp.arange(half, dtype=_jnp.float32) / half)
    angles = _jnp.arange(x.shape[1], dtype=_jnp.float32)[:, None] * rates[None, :]
    cos, sin = _jnp.cos(angles)[None, :, None, :], _jnp.sin(angles)[None, :, None, :]
    left, right = _jnp.split(x.astype(_jnp.float32), 2, axis=-1)
    turned = [left * cos - right * sin, right * cos + left * sin]
    return _jnp.concatenate(turned, axis=-1).astype(x.dtype)


class _LlamaBlock(nn.Module):
    """Attention with grouped keys and values, gated MLP; [batch, seq, hidden] in and out."""

    heads: int
    kv_heads: int
    ffn: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, seq, hidden = x.shape
        size, group = hidden // self.heads, self.heads // self.kv_heads
        dense = partial(_nn.Dense, use_bias=False, dtype=self.dtype)
        h = _LlamaNorm(self.dtype, name="attention_norm")(x)
        q = dense(self.heads * size, name="q")(h).reshape(batch, seq, self.heads, size)
        k = dense(self.kv_heads * size, name="k")(h).reshape(batch, seq, self.kv_heads, size)
        v = dense(self.kv_heads * size, name="v")(h).reshape(batch, seq, self.kv_heads, size)
        q = _rotate(q).reshape(batch, seq, self.kv_heads, group, size)
        scores = _jnp.einsum("bqkgd,bskd->bkgqs", q, _rotate(k)).astype(_jnp.float32) / size**0.5
        causal = _jnp.tril(_jnp.ones((seq, seq), bool))
        weights = _jax.nn.softmax(_jnp.where(causal, scores, -1e9)).astype(self.dtype)
        mixed = _jnp.einsum("bkgqs,bskd->bqkgd", weights, v).reshape(batch, seq, hidden)
        x = x + dense(hidden, name="o")(mixed)
        h = _LlamaNorm(self.dtype, name="ffn_norm")(x)
        gate = _jax.nn.silu(dense(self.ffn, name="gate")(h))
        return x + dense(hidden, name="down")(gate * dense(self.ffn, name="up")(h))


class _Llama(nn.Module):
    """Token ids [batch, seq] -> logits [batch, seq, vocab]."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    remat: bool
    dtype: Any

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = _nn.Embed(self.vocab, self.hidden, dtype=self.dtype, name="embed")(tokens)
        block: Any = _nn.remat(_LlamaBlock) if self.remat else _LlamaBlock
        for i in range(self.layers):
            x = block(self.heads, self.kv_heads, self.ffn, self.dtype, name=f"h{i}")(x)
        x = _LlamaNorm(self.dtype, name="norm")(x)
        return _nn.Dense(self.vocab, use_bias=False, dtype=self.dtype, name="head")(x)


def llama(
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    ffn: int = 14336,
    vocab: int = 128256,
    seq: int = 2048,
    batch_size: int = 64,
    remat: bool = False,
    dtype: str = "bfloat16",
    optimizer: str = "adamw",
) -> BenchmarkModel:
    """A Llama-like model, by default of 8 billion parameters; layers are unrolled.

    Example:
        >>> model = llama(2)
        >>> traced = trace(model.step, model.state, model.batch)
    """
    net: Any = _Llama(layers, hidden, heads, kv_heads, ffn, vocab, remat, _jnp.dtype(dtype))

    def logits_loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(net.apply({"params": params}, batch["tokens"]), batch["targets"])

    def make_batch(key: jax.Array, size: int) -> Any:
        ids = _jax.random.randint(key, (size, seq + 1), 0, vocab)
        return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}

    def init_params(key: jax.Array) -> Any:
        return net.init(key, _jnp.zeros((1, seq), _jnp.int32))["params"]

    tx = {"adamw": _optax.adamw(1e-4), "sgd": _optax.sgd(0.1, momentum=0.9)}[optimizer]
    model = training_model(f"llama {layers} layers", init_params, make_batch, logits_loss, tx)

    def init() -> tuple[Any, Any]:
        return model.init(batch_size)

    state, batch = _jax.eval_shape(init)
    parameters = sum(leaf.size for leaf in _jax.tree.leaves(state["params"]))
    return BenchmarkModel(model.name, model.step, state, batch, parameters, init)
