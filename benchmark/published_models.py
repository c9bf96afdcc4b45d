"""Transformers whose training runs have been published, as shapes: GPT, MPT and Llama.

They compute in half precision with float32 master weights and Adam, as those runs did. Dropout and
the rotation of positions' few sines are left out.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from alpa_mlir import layer_boundary
from paper.layers import F32, shape
from paper.models import adam, adam_slots, mixed_state, mixed_step

_jax: Any = jax
_jnp: Any = jnp
_policies: Any = importlib.import_module("jax").checkpoint_policies
_named: Any = importlib.import_module("jax.ad_checkpoint").checkpoint_name

Remat = Literal["none", "full", "attention", "alternate", "dots", "mlp"]


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder; a training step of it is `step`.

    Attributes:
        family: `gpt` (biases, learned positions), `mpt` (no biases, ALiBi), or `llama` (RMS norm,
            rotary positions, SwiGLU, logits with weights of their own).
        hidden, layers, heads, kv_heads, ffn, vocab, seq: sizes.
        dtype: what it computes in, `float16` or `bfloat16`.
        remat: what is computed again for gradients: nothing, each layer (`full`), what lies
            between queries and the attention's result (`attention`), every second layer, all but
            products of matrices (`dots`), or all but the products beside attention and its
            result (`mlp`).
        fused_attention: one kernel computes attention; ALiBi's few slopes are left out.
        window: tokens that a query sees of fused attention, itself the last; 0 for all.
        packed: most sequences that are packed in one example of fused attention.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    dtype: str
    remat: Remat
    fused_attention: bool = False
    window: int = 0
    packed: int = 1

    def _norm(self) -> Any:
        names = ("scale", "bias") if self.family == "gpt" else ("scale",)
        return {name: shape(self.hidden) for name in names}

    def _dense(self, inner: int, outer: int) -> Any:
        bias = {"bias": shape(outer)} if self.family == "gpt" else {}
        return {"kernel": shape(inner, outer), **bias}

    def weights(self) -> Any:
        """Shapes of the weights."""
        h, size = self.hidden, self.hidden // self.heads
        layer = {
            "ln_1": self._norm(),
            "qkv": self._dense(h, (self.heads + 2 * self.kv_heads) * size),
            "out": self._dense(h, h),
            "ln_2": self._norm(),
            "up": self._dense(h, 2 * self.ffn if self.family == "llama" else self.ffn),
            "down": self._dense(self.ffn, h),
        }
        tree = {"wte": shape(self.vocab, h), "ln_f": self._norm()}
        if self.family == "gpt":
            tree["wpe"] = shape(self.seq, h)
        if self.family == "llama":
            tree["head"] = shape(h, self.vocab)
        return {**tree, "layers": [layer for _ in range(self.layers)]}

    def loss(self, p: Any, data: Any) -> Any:
        """Mean cross entropy of `tokens` [batch, seq] against `targets` [batch, seq], with the
        `lengths` [batch, packed] of packed sequences."""
        x = _jnp.take(p["wte"], data["tokens"], axis=0)
        if self.family == "gpt":
            x = x + p["wpe"]
        for index, layer in enumerate(p["layers"]):
            x = layer_boundary(x) if index else x
            x = _run_layer(
                self, self.remat == "alternate" and index % 2 == 0, layer, x, data.get("lengths")
            )
        head = p["head"] if self.family == "llama" else p["wte"].T
        return _mean_loss(_norm(p["ln_f"], x) @ head, data["targets"])

    def training_step(self, batch_size: int) -> tuple[Any, Any, Any]:
        """The step, and the shapes of its state and of a batch."""
        ids = _jax.ShapeDtypeStruct((batch_size, self.seq), _jnp.int32)
        dtype = _jnp.dtype(self.dtype)
        state = mixed_state(self.weights(), adam_slots, dtype)
        batch = {"tokens": ids, "targets": ids}
        if self.packed > 1:
            batch["lengths"] = _jax.ShapeDtypeStruct((batch_size, self.packed), _jnp.int32)
        return mixed_step(self.loss, adam, dtype), state, batch

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return sum(leaf.size for leaf in _jax.tree.leaves(self.weights()))


# The inner jit makes one function of the forward and one of the backward computation of a layer,
# which all layers call; the outer one keeps JAX from tracing them for every layer.
@partial(_jax.jit, static_argnums=(0, 1))
def _run_layer(model: Transformer, again: bool, p: Any, x: Any, lengths: Any = None) -> Any:
    layer = partial(_layer, model)
    if model.remat == "full" or again:
        layer = _jax.checkpoint(layer)
    elif model.remat == "dots":
        layer = _jax.checkpoint(layer, policy=_policies.dots_with_no_batch_dims_saveable)
    elif model.remat == "mlp":
        layer = _jax.checkpoint(layer, policy=_policies.save_only_these_names(*_KEPT))
    return layer(p, x, lengths)


_KEPT = ("qkv", "context", "out")


@partial(_jax.jit, static_argnums=0)
def _layer(model: Transformer, p: Any, x: Any, lengths: Any = None) -> Any:
    batch, seq, hidden = x.shape
    size, queries = hidden // model.heads, model.heads // model.kv_heads
    # One product for queries, keys and values, whose heads lie beside each other.
    qkv = _named(_dense(p["qkv"], _norm(p["ln_1"], x)), "qkv")
    qkv = qkv.reshape(batch, seq, model.kv_heads, queries + 2, size)
    q, k, v = qkv[:, :, :, :queries], qkv[:, :, :, queries], qkv[:, :, :, queries + 1]
    if model.family == "llama":
        q, k = _rotate(q), _rotate(k)
    core = partial(_attention, model)
    if model.remat == "attention":
        core = _jax.checkpoint(core)
    context = _named(core(q, k, v, lengths).reshape(batch, seq, hidden), "context")
    x = x + _named(_dense(p["out"], context), "out")
    return x + _feed_forward(model, p, _norm(p["ln_2"], x))


def _feed_forward(model: Transformer, p: Any, x: Any) -> Any:
    inner = _dense(p["up"], x)
    if model.family == "llama":
        inner = _swiglu(inner.reshape(*x.shape[:2], model.ffn, 2))
    else:
        inner = _gelu(inner)
    return _dense(p["down"], inner)


# Norms and activations keep what they take alone, as hand-written kernels do.
_gelu = _jax.checkpoint(_jax.nn.gelu)


@_jax.checkpoint
def _swiglu(both: Any) -> Any:
    return _jax.nn.silu(both[..., 0]) * both[..., 1]


def _attention(model: Transformer, q: Any, k: Any, v: Any, lengths: Any = None) -> Any:
    """Causal attention of queries [batch, seq, key heads, of each, size]."""
    seq, size = q.shape[1], q.shape[-1]
    if model.fused_attention:
        queries = q.reshape(*q.shape[:2], model.heads, size)
        if lengths is not None:
            return _packed_attention(queries, k, v, lengths)
        window = (model.window - 1, 0) if model.window else None
        return _jax.nn.dot_product_attention(
            queries, k, v, is_causal=True, local_window_size=window, implementation="cudnn"
        )
    scores = _jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(F32) / size**0.5
    if model.family == "mpt":
        scores = scores + _jnp.arange(seq, dtype=F32)
    causal = _jnp.tril(_jnp.ones((seq, seq), bool))
    weights = _jax.nn.softmax(_jnp.where(causal, scores, -1e30)).astype(q.dtype)
    return _jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)


def _packed_attention(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Causal attention within sequences that lie one behind another."""
    cudnn: Any = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    ends = _jnp.cumsum(_jnp.maximum(lengths, 0), 1)
    begins = _jnp.where(lengths > 0, ends - lengths, -1)
    offsets = _jnp.pad(begins, ((0, 0), (0, 1)), constant_values=-1)
    return cudnn.dot_product_attention(
        *(q, k, v, None, None, lengths, lengths, offsets, offsets),
        scale=q.shape[-1] ** -0.5,
        mask_type=cudnn.MaskType.PADDING_CAUSAL,
    )


def _rotate(x: Any) -> Any:
    """Rotary positions of [batch, seq, .., size]."""
    angle = _jnp.arange(x.shape[1], dtype=F32).reshape(-1, *(1,) * (x.ndim - 2))
    left, right = _jnp.split(x.astype(F32), 2, axis=-1)
    sin, cos = _jnp.sin(angle), _jnp.cos(angle)
    both = (left * cos - right * sin, right * cos + left * sin)
    return _jnp.concatenate(both, axis=-1).astype(x.dtype)


def _dense(p: Any, x: Any) -> Any:
    y = x @ p["kernel"]
    return y + p["bias"] if "bias" in p else y


@_jax.checkpoint
def _norm(p: Any, x: Any) -> Any:
    """Layer norm with its statistics in float32; RMS norm without a bias."""
    wide = x.astype(F32)
    if "bias" in p:
        wide = wide - wide.mean(-1, keepdims=True)
    variance = (wide * wide).mean(-1, keepdims=True)
    scaled = wide * (_jax.lax.rsqrt(variance + 1e-6) * p["scale"])
    return (scaled + p["bias"] if "bias" in p else scaled).astype(x.dtype)


# Recomputed from the logits, so that these alone are kept.
@_jax.checkpoint
def _mean_loss(logits: Any, targets: Any) -> Any:
    wide = logits.astype(F32)
    chosen = _jnp.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    return (_jax.nn.logsumexp(wide, axis=-1) - chosen).mean()
