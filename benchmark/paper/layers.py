"""Layers of the models of Alpa's evaluation, as plain functions of weights and values.

GPT and GShard MoE compute in float16, softmax and loss too; Wide-ResNet in float32. Blocks are
jitted, so that JAX traces and lowers each kind of block once, however many there are, and
recomputed in the backward pass.

Forward and backward are programs of their own here, in Alpa they were one, in which XLA's fusions
compute elementwise values again instead of keeping them. So that the same values are kept, the loss
is recomputed from the logits, and a Wide-ResNet whose blocks are not recomputed as a whole keeps
what goes into and comes out of convolutions.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from models import zoo

_jax: Any = jax
_jnp: Any = jnp
_checkpoint_name: Any = importlib.import_module("jax.ad_checkpoint").checkpoint_name
F16, F32 = _jnp.float16, _jnp.float32


def shape(*sizes: int) -> Any:
    """A float32 weight that holds no memory."""
    return _jax.ShapeDtypeStruct(sizes, F32)


@_jax.checkpoint
def mean_loss(logits: Any, targets: Any) -> Any:
    """Mean cross entropy, computed in the type of the logits as the paper's artifact does."""
    chosen = _jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (_jax.nn.logsumexp(logits, axis=-1) - chosen).astype(F32).mean()


@dataclass(frozen=True)
class Block:
    """One transformer layer.

    Attributes:
        hidden, heads: width, and attention heads.
        width: inner width of the MLP.
        experts: number of expert MLPs; 0 for a dense one.
        group: tokens that an expert layer routes together.
        relu: ReLU instead of GELU.
    """

    hidden: int
    heads: int
    width: int
    experts: int = 0
    group: int = 0
    relu: bool = False

    def weights(self) -> Any:
        """Shapes of the weights."""
        h, w, e = self.hidden, self.width, self.experts
        tree: dict[str, Any] = {
            "ln_1": _norm_weights(h),
            "qkv": _dense_weights(h, 3 * h),
            "proj": _dense_weights(h, h),
            "ln_2": _norm_weights(h),
        }
        if e:
            return {**tree, "gate": shape(h, e), "up": shape(e, h, w), "down": shape(e, w, h)}
        return {**tree, "up": _dense_weights(h, w), "down": _dense_weights(w, h)}

    def __call__(self, p: Any, x: Any) -> Any:
        """Values [batch, seq, hidden] to values of the same shape."""
        return _run_block(self, p, x)


# The inner jit makes one function of the forward and one of the backward computation of a layer,
# which all layers call; the outer one keeps JAX from tracing them for every layer.
@partial(_jax.jit, static_argnums=0)
def _run_block(block: Block, p: Any, x: Any) -> Any:
    return _jax.checkpoint(partial(_block, block))(p, x)


@partial(_jax.jit, static_argnums=0)
def _block(block: Block, p: Any, x: Any) -> Any:
    x = x + _attention(p, norm(p["ln_1"], x), block.heads)
    h = norm(p["ln_2"], x)
    activation = _jax.nn.relu if block.relu else _jax.nn.gelu
    if not block.experts:
        return x + _dense(p["down"], activation(_dense(p["up"], h)))
    groups = h.reshape(-1, min(block.group, h.shape[0] * h.shape[1]), block.hidden)
    gate = groups.astype(F32) @ p["gate"].astype(F32)
    combine, dispatch, _ = zoo.moe.top2_gating(gate, 2 * groups.shape[1] // block.experts)
    inputs = _jnp.einsum("gsec,gsm->egcm", dispatch.astype(F16), groups)
    inner = activation(_jnp.einsum("egcm,emf->egcf", inputs, p["up"]))
    outputs = _jnp.einsum("egcf,efm->egcm", inner, p["down"])
    return x + _jnp.einsum("gsec,egcm->gsm", combine.astype(F16), outputs).reshape(x.shape)


def _attention(p: Any, x: Any, heads: int) -> Any:
    batch, seq, hidden = x.shape
    size = hidden // heads
    qkv = _dense(p["qkv"], x).reshape(batch, seq, 3, heads, size)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = _jnp.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5
    causal = _jnp.tril(_jnp.ones((seq, seq), bool))
    weights = _jax.nn.softmax(_jnp.where(causal, scores, _jnp.finfo(F16).min))
    mixed = _jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return _dense(p["proj"], mixed.reshape(batch, seq, hidden))


def _dense_weights(inner: int, outer: int) -> Any:
    return {"kernel": shape(inner, outer), "bias": shape(outer)}


def _dense(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def _norm_weights(size: int) -> Any:
    return {"scale": shape(size), "bias": shape(size)}


def norm(p: Any, x: Any) -> Any:
    """Layer norm; its statistics in float32."""
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    variance = (wide * wide).mean(-1, keepdims=True) - mean * mean
    scaled = (wide - mean) * (_jax.lax.rsqrt(variance + 1e-6) * p["scale"])
    return (scaled + p["bias"]).astype(x.dtype)


@dataclass(frozen=True)
class Decoder:
    """Token ids to logits.

    Attributes:
        blocks: the layers of one period; the model has `repeats` such periods.
        tied: whether the logits use the embedding's weights.
        scan: a `lax.scan` over stacked weights instead of one call for each layer.
    """

    blocks: tuple[Block, ...]
    repeats: int
    seq: int
    vocab: int
    tied: bool = False
    scan: bool = False

    def weights(self) -> Any:
        """Shapes of the weights; with `scan`, those of the layers have one more dimension."""
        hidden = self.blocks[0].hidden
        tree: dict[str, Any] = {
            "wte": shape(self.vocab, hidden),
            "wpe": shape(self.seq, hidden),
            "ln_f": _norm_weights(hidden),
        }
        if not self.tied:
            tree["head"] = shape(hidden, self.vocab)
        period = [block.weights() for block in self.blocks]
        if not self.scan:
            return {**tree, "layers": [period for _ in range(self.repeats)]}

        def stack(leaf: Any) -> Any:
            return shape(self.repeats, *leaf.shape)

        return {**tree, "stacked": _jax.tree.map(stack, period)}

    def loss(self, p: Any, data: Any) -> Any:
        """Mean cross entropy of `tokens` [batch, seq] against `targets` [batch, seq]."""
        x = _jnp.take(p["wte"], data["tokens"], axis=0)
        x = x + _jnp.take(p["wpe"], _jnp.arange(self.seq), axis=0)
        if self.scan:

            def body(x: Any, period: Any) -> tuple[Any, None]:
                return self._period(period, x), None

            x, _ = _jax.lax.scan(body, x, p["stacked"])
        else:
            for period in p["layers"]:
                x = self._period(period, x)
        head = p["wte"].T if self.tied else p["head"]
        return mean_loss(norm(p["ln_f"], x) @ head, data["targets"])

    def _period(self, weights: Any, x: Any) -> Any:
        for block, p in zip(self.blocks, weights, strict=True):
            x = block(p, x)
        return x


@dataclass(frozen=True)
class WideResNet:
    """Images [batch, size, size, 3] to logits [batch, 1024]; bottleneck blocks in four groups.

    Attributes:
        blocks: number of blocks of each group; groups after the first begin with stride 2.
        base, widen: filters of the first group, and how much wider 3x3 convolutions are.
        remat: whether blocks are recomputed whole, or only what lies between convolutions.
    """

    blocks: tuple[int, ...]
    base: int
    widen: int
    remat: bool = True

    def _blocks(self) -> list[tuple[int, int, int]]:
        """Stride, channels in, and filters of each block."""
        found: list[tuple[int, int, int]] = []
        channels = self.base
        for group, count in enumerate(self.blocks):
            for index in range(count):
                filters = self.base * 2**group
                found.append((2 if group and not index else 1, channels, filters))
                channels = 4 * filters
        return found

    def weights(self) -> tuple[Any, Any]:
        """Shapes of the weights, and of the batch-norm statistics."""
        weights: dict[str, Any] = {"stem": _conv_weights(7, 3, self.base)}
        stats: dict[str, Any] = {"stem": _conv_stats(self.base)}
        for number, (stride, channels, filters) in enumerate(self._blocks()):
            sizes = {
                "in": (1, channels, filters),
                "wide": (3, filters, filters * self.widen),
                "out": (1, filters * self.widen, 4 * filters),
            }
            if stride > 1 or channels != 4 * filters:
                sizes["short"] = (1, channels, 4 * filters)
            name = f"block_{number}"
            weights[name] = {key: _conv_weights(*size) for key, size in sizes.items()}
            stats[name] = {key: _conv_stats(size[-1]) for key, size in sizes.items()}
        weights["head"] = _dense_weights(self.base * 2**5, 1024)
        return weights, stats

    def loss(self, p: Any, stats: Any, data: Any) -> tuple[Any, Any]:
        """Mean cross entropy, and the moved statistics."""
        x, stem = _stem(self.remat, p["stem"], stats["stem"], data["image"])
        moved = {"stem": stem}
        for number, (stride, _, _) in enumerate(self._blocks()):
            name = f"block_{number}"
            x, moved[name] = _bottleneck(self.remat, stride, p[name], stats[name], x)
        return mean_loss(_dense(p["head"], x.mean((1, 2))), data["label"]), moved

    def flops(self, batch: int, size: int = 224) -> float:
        """FLOPs of a step: convolutions and the last layer, as often as they are computed."""
        passes = 4 if self.remat else 3  # Forward, again, and for two gradients.
        images = _conv_flops(7, 3, self.base, size, 2) * (passes - 1)  # They need no gradient.
        total, size = 0.0, size // 4
        for stride, channels, filters in self._blocks():
            inner = filters * self.widen
            total += _conv_flops(1, channels, filters, size)
            total += _conv_flops(3, filters, inner, size, stride)
            if stride > 1 or channels != 4 * filters:
                total += _conv_flops(1, channels, 4 * filters, size, stride)
            size //= stride
            total += _conv_flops(1, inner, 4 * filters, size)
        return batch * (images + passes * total + 6 * self.base * 2**5 * 1024)


def _conv_flops(kernel: int, inner: int, outer: int, size: int, stride: int = 1) -> float:
    """FLOPs of a convolution on one image; like XLA's, without what falls on the padding."""
    padding = max((-(-size // stride) - 1) * stride + kernel - size, 0) // 2
    taps = sum(
        0 <= start + tap < size
        for start in range(-padding, size - padding, stride)
        for tap in range(kernel)
    )
    return 2.0 * inner * outer * taps**2


def _conv_weights(size: int, inner: int, outer: int) -> Any:
    return {"kernel": shape(size, size, inner, outer), "bn": _norm_weights(outer)}


def _conv_stats(channels: int) -> Any:
    return {"mean": shape(channels), "var": shape(channels)}


def _kept(value: Any) -> Any:
    """Keep the value for the backward pass."""
    return _checkpoint_name(value, "kept")


_keep: Any = _jax.checkpoint_policies.save_only_these_names("kept")


def _conv_norm(p: Any, stats: Any, x: Any, stride: int = 1) -> tuple[Any, Any]:
    """A convolution, then batch norm with the batch's statistics; the statistics move."""
    numbers = ("NHWC", "HWIO", "NHWC")
    y = _kept(
        _jax.lax.conv_general_dilated(
            x, p["kernel"], (stride, stride), "SAME", dimension_numbers=numbers
        )
    )
    mean = y.mean((0, 1, 2))
    variance = (y * y).mean((0, 1, 2)) - mean * mean
    moved = {
        "mean": 0.99 * stats["mean"] + 0.01 * mean,
        "var": 0.99 * stats["var"] + 0.01 * variance,
    }
    scale = _jax.lax.rsqrt(variance + 1e-5) * p["bn"]["scale"]
    return (y - mean) * scale + p["bn"]["bias"], moved


@partial(_jax.jit, static_argnums=0)
def _stem(remat: bool, p: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    return _jax.checkpoint(_pooled, policy=None if remat else _keep)(p, stats, x)


def _pooled(p: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    x, moved = _conv_norm(p, stats, x, 2)
    window = {"window_dimensions": (1, 3, 3, 1), "window_strides": (1, 2, 2, 1)}
    x = _jax.nn.relu(x)
    return _jax.lax.reduce_window(x, -_jnp.inf, _jax.lax.max, padding="SAME", **window), moved


@partial(_jax.jit, static_argnums=(0, 1))
def _bottleneck(remat: bool, stride: int, p: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    block = _jax.checkpoint(partial(_residual, stride), policy=None if remat else _keep)
    return block(p, stats, x)


def _residual(stride: int, p: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    moved: dict[str, Any] = {}

    def conv(name: str, value: Any, steps: int = 1) -> Any:
        value, moved[name] = _conv_norm(p[name], stats[name], _kept(value), steps)
        return value

    y = _jax.nn.relu(conv("in", x))
    y = _jax.nn.relu(conv("wide", y, stride))
    y = conv("out", y)
    if "short" in p:
        x = conv("short", x, stride)
    return _jax.nn.relu(x + y), moved
