"""The models of Alpa's figure 8: intra-operator parallelism on 1, 2, 4 and 8 GPUs.

Sizes are those of the public benchmark scripts of the paper's artifact (intra-operator ablation;
github.com/alpa-projects/alpa), since the paper itself names none. GPT and MoE compute in float16
(softmax and loss too) with float32 master weights, GPT with Adam and MoE with Adafactor, and
recompute every layer in the backward pass; Wide-ResNet is float32 throughout, with Nesterov
momentum. Batches are not split into micro-batches.

Forward and backward are programs of their own here, in Alpa they were one, in which XLA's fusions
compute elementwise values again instead of keeping them. So that the same values are kept, the loss
is recomputed from the logits, and Wide-ResNet keeps what goes into and comes out of convolutions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from models import zoo

_jax: Any = jax
_jnp: Any = jnp
_nn: Any = nn
_optax: Any = importlib.import_module("optax")  # Without types of its own.
_checkpoint_name: Any = importlib.import_module("jax.ad_checkpoint").checkpoint_name
SEQ = 1024


@dataclass(frozen=True)
class Figure8Model:
    """A training step as shapes, and how FLOPs are counted for it.

    Attributes:
        step: `(state, batch) -> (state, metrics)`.
        state, batch: shapes and dtypes.
        flops: of one step, by the artifact's formulas (Wide-ResNet: as XLA counts them).
        parameters: number of trained numbers.
    """

    step: Callable[..., Any]
    state: Any
    batch: Any
    flops: float
    parameters: int


def _cast(tree: Any, dtype: Any) -> Any:
    def one(leaf: Any) -> Any:
        return leaf.astype(dtype)

    return _jax.tree.map(one, tree)


def _adam(grad: Any, slots: Any, step: Any) -> Any:
    """The change of one weight, and its moments."""
    mu = 0.9 * slots[0] + 0.1 * grad
    nu = 0.999 * slots[1] + 0.001 * grad * grad
    mean, variance = mu / (1 - 0.9**step), nu / (1 - 0.999**step)
    return 1e-4 * mean / (_jnp.sqrt(variance) + 1e-8), (mu, nu)


def _adafactor(grad: Any, slots: Any, step: Any) -> Any:
    """The change of one weight, and the factors of its second moment (Shazeer, Stern 2018)."""
    decay, square = 1 - step**-0.8, grad * grad + 1e-30
    if grad.ndim < 2:
        rows, columns = decay * slots[0] + (1 - decay) * square, slots[1]
        variance = rows
    else:
        rows = decay * slots[0] + (1 - decay) * square.mean(-1)
        columns = decay * slots[1] + (1 - decay) * square.mean(-2)
        scale = rows / rows.mean(-1, keepdims=True)
        variance = scale[..., :, None] * columns[..., None, :]
    change = grad * _jax.lax.rsqrt(variance)
    size = _jnp.sqrt((change * change).mean())
    return 1e-2 * change / _jnp.maximum(1.0, size), (rows, columns)


def _adam_slots(master: Any) -> Any:
    return (_jnp.zeros_like(master), _jnp.zeros_like(master))


def _adafactor_slots(master: Any) -> Any:
    if master.ndim < 2:
        return (_jnp.zeros_like(master), _jnp.zeros(()))
    return (_jnp.zeros(master.shape[:-1]), _jnp.zeros(master.shape[:-2] + master.shape[-1:]))


def _mixed_model(
    init_params: Callable[..., Any],
    loss: Callable[..., Any],
    batch: Any,
    flops: float,
    optimizer: tuple[Callable[..., Any], Callable[..., Any]],
) -> Figure8Model:
    """Gradients by float16 parameters, the update on their float32 masters.

    Weight by weight: what belongs to one is gone before the next begins.
    """
    rule, make_slots = optimizer

    def init() -> Any:
        master = init_params(_jax.random.PRNGKey(0))
        slots = [make_slots(leaf) for leaf in _jax.tree.leaves(master)]
        params = _cast(master, _jnp.float16)
        return {"params": params, "master": master, "slots": slots, "step": _jnp.zeros(())}

    def step(state: Any, data: Any) -> Any:
        value, grads = _jax.value_and_grad(loss)(state["params"], data)
        leaves, tree = _jax.tree.flatten(grads)
        masters: list[Any] = []
        slots: list[Any] = []
        params: list[Any] = []
        for grad, master, old in zip(
            leaves, _jax.tree.leaves(state["master"]), state["slots"], strict=True
        ):
            change, new = rule(grad.astype(_jnp.float32), old, state["step"] + 1)
            masters.append(master - change)
            params.append(masters[-1].astype(_jnp.float16))
            slots.append(new)
        moved: dict[str, Any] = {
            "params": _jax.tree.unflatten(tree, params),
            "master": _jax.tree.unflatten(tree, masters),
            "slots": slots,
            "step": state["step"] + 1,
        }
        return moved, {"loss": value}

    state = _jax.eval_shape(init)
    size = sum(leaf.size for leaf in _jax.tree.leaves(state["params"]))
    return Figure8Model(step, state, batch, flops, size)


def _tokens(batch_size: int) -> Any:
    ids = _jax.ShapeDtypeStruct((batch_size, SEQ), _jnp.int32)
    return {"tokens": ids, "targets": ids}


@_jax.checkpoint
def _mean_loss(logits: Any, targets: Any) -> Any:
    """Mean cross entropy, computed in the type of the logits as the artifact does."""
    chosen = _jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (_jax.nn.logsumexp(logits, axis=-1) - chosen).astype(_jnp.float32).mean()


class _Block(nn.Module):
    """Attention, then a dense or an expert MLP of `factor` times the width."""

    hidden: int
    heads: int
    experts: int  # 0 for a dense MLP.
    factor: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dtype, batch, width = _jnp.float16, x.shape[0], self.factor * self.hidden

        def dense(size: int, name: str) -> Any:
            return _nn.Dense(size, dtype=dtype, name=name)

        h = _nn.LayerNorm(dtype=dtype, name="ln_1")(x)
        size = self.hidden // self.heads
        qkv = dense(3 * self.hidden, "qkv")(h).reshape(batch, SEQ, 3, self.heads, size)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = _jnp.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5
        causal = _jnp.tril(_jnp.ones((SEQ, SEQ), bool))
        weights = _jax.nn.softmax(_jnp.where(causal, scores, _jnp.finfo(dtype).min))
        mixed = _jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        x = x + dense(self.hidden, "proj")(mixed.reshape(batch, SEQ, self.hidden))
        h = _nn.LayerNorm(dtype=dtype, name="ln_2")(x)
        if not self.experts:
            return x + dense(self.hidden, "down")(_jax.nn.gelu(dense(width, "up")(h)))
        gate = _nn.Dense(self.experts, dtype=_jnp.float32, use_bias=False, name="gate")(h)
        combine, dispatch, _ = zoo.moe.top2_gating(gate, 2 * SEQ // self.experts)
        normal = _nn.initializers.normal(0.02)
        module: Any = self
        up = module.param("up", normal, (self.experts, self.hidden, width)).astype(dtype)
        down = module.param("down", normal, (self.experts, width, self.hidden)).astype(dtype)
        inputs = _jnp.einsum("gsec,gsm->egcm", dispatch.astype(dtype), h)
        inner = _jax.nn.gelu(_jnp.einsum("egcm,emf->egcf", inputs, up))
        outputs = _jnp.einsum("egcf,efm->egcm", inner, down)
        return x + _jnp.einsum("gsec,egcm->gsm", combine.astype(dtype), outputs)


class _Decoder(nn.Module):
    """Token ids [batch, seq] -> logits [batch, seq, vocab]; every second layer has experts."""

    layers: int
    hidden: int
    heads: int
    experts: int
    factor: int
    vocab: int

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = _nn.Embed(self.vocab, self.hidden, dtype=_jnp.float16, name="wte")
        position = _nn.Embed(SEQ, self.hidden, dtype=_jnp.float16, name="wpe")
        x = embed(tokens) + position(_jnp.arange(SEQ))
        block = _nn.remat(_Block)
        for i in range(self.layers):
            experts = self.experts if i % 2 else 0
            x = block(self.hidden, self.heads, experts, self.factor, name=f"h{i}")(x)
        return embed.attend(_nn.LayerNorm(dtype=_jnp.float16, name="ln_f")(x))


def gpt(gpus: int) -> Figure8Model:
    """8 layers, batch 8, vocabulary 25600; hidden 2048, 3072, 4096, 5760."""
    hidden, heads = {1: (2048, 16), 2: (3072, 24), 4: (4096, 32), 8: (5760, 40)}[gpus]
    layers, batch, vocab = 8, 8, 25600
    net: Any = _Decoder(layers, hidden, heads, 0, 4, vocab)

    def init_params(key: Any) -> Any:
        return net.init(key, _jnp.zeros((1, SEQ), _jnp.int32))["params"]

    def loss(params: Any, data: Any) -> Any:
        return _mean_loss(net.apply({"params": params}, data["tokens"]), data["targets"])

    flops = 96 * batch * SEQ * layers * hidden**2 * (1 + SEQ / (6 * hidden))
    flops += 6 * batch * SEQ * hidden * vocab
    return _mixed_model(init_params, loss, _tokens(batch), flops, (_adam, _adam_slots))


def moe(gpus: int) -> Figure8Model:
    """8 layers, batch 8, vocabulary 51200; experts and width grow."""
    sizes = {1: (1024, 32, 8), 2: (1280, 40, 16), 4: (1536, 24, 16), 8: (1536, 24, 32)}
    hidden, heads, experts = sizes[gpus]
    layers, batch, vocab = 8, 8, 51200
    net: Any = _Decoder(layers, hidden, heads, experts, 8, vocab)

    def init_params(key: Any) -> Any:
        return net.init(key, _jnp.zeros((1, SEQ), _jnp.int32))["params"]

    def loss(params: Any, data: Any) -> Any:
        return _mean_loss(net.apply({"params": params}, data["tokens"]), data["targets"])

    tokens, attention = batch * SEQ, 4 * batch * SEQ**2 * hidden
    dense = tokens * hidden**2 * (8 + 4 * 8) + attention
    sparse = tokens * hidden**2 * (8 + 8 * 8) + attention + 2 * tokens * hidden * experts
    sparse += 4 * tokens * SEQ + 8 * tokens * hidden * SEQ  # Gating; dispatch and combine.
    flops = 4 * (dense + sparse) * layers / 2 + 6 * tokens * hidden * vocab
    return _mixed_model(init_params, loss, _tokens(batch), flops, (_adafactor, _adafactor_slots))


def _kept(value: Any) -> Any:
    """Keep the value for the backward pass."""
    return _checkpoint_name(value, "kept")


class _Stem(nn.Module):
    """A 7x7 convolution with batch norm, and max pooling."""

    filters: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = _kept(_nn.Conv(self.filters, (7, 7), 2, use_bias=False)(x))
        x = _nn.relu(_nn.BatchNorm(use_running_average=False)(x))
        return _nn.max_pool(x, (3, 3), (2, 2), "SAME")


class _Bottleneck(nn.Module):
    """1x1, wide 3x3 and 1x1 convolutions with batch norm, and a shortcut."""

    filters: int
    widen: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def norm(y: Any) -> Any:
            return _nn.BatchNorm(use_running_average=False)(y)

        def conv(y: Any, channels: int, size: int, stride: int = 1) -> Any:
            return _kept(_nn.Conv(channels, (size, size), stride, use_bias=False)(_kept(y)))

        y = _nn.relu(norm(conv(x, self.filters, 1)))
        y = _nn.relu(norm(conv(y, self.filters * self.widen, 3, self.stride)))
        y = norm(conv(y, 4 * self.filters, 1))
        if x.shape != y.shape:
            x = norm(conv(x, 4 * self.filters, 1, self.stride))
        return _nn.relu(x + y)


class _WideResNet(nn.Module):
    """Images [batch, 224, 224, 3] -> logits [batch, 1024]; 50 layers."""

    base: int
    widen: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        policy = _jax.checkpoint_policies.save_only_these_names("kept")
        x = _nn.remat(_Stem, policy=policy)(self.base)(x)
        bottleneck = _nn.remat(_Bottleneck, policy=policy)
        for group, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                stride = 2 if group and not block else 1
                x = bottleneck(self.base * 2**group, self.widen, stride)(x)
        return _nn.Dense(1024)(x.mean((1, 2)))


def wide_resnet(gpus: int) -> Figure8Model:
    """50 layers, batch 32, width factor 2; base channels 160, 224, 320, 448."""
    net: Any = _WideResNet({1: 160, 2: 224, 4: 320, 8: 448}[gpus], 2)
    tx = _optax.sgd(0.1, momentum=0.9, nesterov=True)
    image = _jax.ShapeDtypeStruct((32, 224, 224, 3), _jnp.float32)
    batch = {"image": image, "label": _jax.ShapeDtypeStruct((32,), _jnp.int32)}

    def init() -> Any:
        variables = net.init(_jax.random.PRNGKey(0), _jnp.zeros((1, 224, 224, 3)))
        return {**variables, "opt_state": tx.init(variables["params"])}

    def step(state: Any, data: Any) -> Any:
        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            logits, moved = net.apply(variables, data["image"], mutable=["batch_stats"])
            return _mean_loss(logits, data["label"]), moved["batch_stats"]

        (value, stats), grads = _jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
        params = _optax.apply_updates(state["params"], updates)
        state = {"params": params, "batch_stats": stats, "opt_state": opt_state}
        return state, {"loss": value}

    state = _jax.eval_shape(init)
    size = sum(leaf.size for leaf in _jax.tree.leaves(state["params"]))
    flops = _jax.jit(step).lower(state, batch).cost_analysis()["flops"]
    return Figure8Model(step, state, batch, float(flops), size)


MODELS: dict[str, Callable[[int], Figure8Model]] = {
    "gpt": gpt,
    "moe": moe,
    "wresnet": wide_resnet,
}
