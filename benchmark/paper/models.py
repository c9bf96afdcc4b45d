"""The models of Alpa's evaluation (Zheng et al., OSDI 2022) and OPT-175B, as shapes.

GPT, GShard MoE and Wide-ResNet at the sizes of figures 7 and 9 (appendix B) and at those of
figure 8, which the paper does not name and which are those of its public benchmark scripts (as are
the numbers of micro-batches that are tried, optimizers and precisions;
github.com/alpa-projects/alpa). GPT and MoE compute in float16 with float32 master weights, GPT
with Adam and MoE with Adafactor; Wide-ResNet is float32 throughout, with Nesterov momentum. Every
layer is recomputed in the backward pass (Wide-ResNet not in figure 8), and FLOPs count that.
OPT-175B is Meta's (Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022, table
1): its batch of 2M tokens is 1024 sequences of 2048.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from paper.layers import F16, F32, Block, Decoder, WideResNet

_jax: Any = jax
_jnp: Any = jnp
_optax: Any = importlib.import_module("optax")  # Without types of its own.
SEQ = 1024


@dataclass(frozen=True)
class PaperModel:
    """A training step as shapes, and how FLOPs are counted for it.

    Attributes:
        name: such as `gpt-39b`.
        step: `(state, batch) -> (state, metrics)`.
        state, batch: shapes and dtypes; the batch at its full size.
        flops: of one step, by the artifact's formulas, recomputation included.
        parameters: number of trained numbers.
        batch_size: examples of a step.
        gpus: devices that the paper trained it on.
        cluster: preset with so many devices.
        micro_batches: counts that are tried.
        layers: number of layers that stages are made from: 16, the most that the paper tries for
            GPT; for Wide-ResNet its blocks, as in the paper; for OPT 24, of four blocks each.
    """

    name: str
    step: Callable[..., Any]
    state: Any
    batch: Any
    flops: float
    parameters: int
    batch_size: int
    gpus: int
    cluster: str
    micro_batches: tuple[int, ...]
    layers: int


# hidden, layers, heads, GPUs, counts of micro-batches
GPT_SIZES: dict[str, tuple[int, int, int, int, tuple[int, ...]]] = {
    "350m": (1024, 24, 16, 1, (256, 512)),
    "1.3b": (2048, 24, 32, 4, (64, 128)),
    "2.6b": (2560, 32, 32, 8, (64, 128)),
    "6.7b": (4096, 32, 32, 16, (64, 128)),
    "15b": (5120, 48, 32, 32, (128, 256)),
    "39b": (8192, 48, 64, 64, (128, 256)),
}
# hidden, layers, heads, experts, GPUs, counts of micro-batches
MOE_SIZES: dict[str, tuple[int, int, int, int, int, tuple[int, ...]]] = {
    "380m": (768, 8, 16, 8, 1, (256, 512)),
    "1.3b": (768, 16, 16, 16, 4, (32, 64)),
    "2.4b": (1024, 16, 16, 16, 8, (32, 64)),
    "10b": (1536, 16, 16, 32, 16, (32, 64)),
    "27b": (2048, 16, 32, 48, 32, (64, 128)),
    "70b": (2048, 32, 32, 64, 64, (64, 128)),
}
# blocks of each group, base channels, width factor, GPUs, counts of micro-batches
WRESNET_SIZES: dict[str, tuple[tuple[int, ...], int, int, int, tuple[int, ...]]] = {
    "250m": ((3, 4, 6, 3), 160, 2, 1, (24, 48)),
    "1b": ((3, 4, 6, 3), 320, 2, 4, (24, 48)),
    "2b": ((3, 4, 6, 3), 448, 2, 8, (24, 48)),
    "4b": ((3, 4, 6, 3), 640, 2, 16, (24, 48)),
    "6.8b": ((3, 4, 6, 3), 320, 16, 32, (32, 48)),
    "13b": ((3, 4, 23, 3), 320, 16, 64, (32, 48)),
}


def adam(grad: Any, slots: Any, step: Any) -> Any:
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


def adam_slots(master: Any) -> Any:
    return (_jnp.zeros_like(master), _jnp.zeros_like(master))


def _adafactor_slots(master: Any) -> Any:
    if master.ndim < 2:
        return (_jnp.zeros_like(master), _jnp.zeros(()))
    return (_jnp.zeros(master.shape[:-1]), _jnp.zeros(master.shape[:-2] + master.shape[-1:]))


def _stacked(path: Any) -> bool:
    return getattr(path[0], "key", None) == "stacked"


def mixed_state(weights: Any, make_slots: Callable[[Any], Any], dtype: Any = F16) -> Any:
    """Shapes of parameters in half precision, their float32 masters and the optimizer's slots."""

    def init(master: Any) -> Any:
        paths = _jax.tree_util.tree_leaves_with_path(master)
        slots = [(_jax.vmap(make_slots) if _stacked(p) else make_slots)(x) for p, x in paths]
        params = _jax.tree.map(partial(_jnp.asarray, dtype=dtype), master)
        return {"params": params, "master": master, "slots": slots, "step": _jnp.zeros(())}

    return _jax.eval_shape(init, weights)


def mixed_step(
    loss: Callable[..., Any], rule: Callable[..., Any], dtype: Any = F16
) -> Callable[..., Any]:
    """Gradients by parameters in half precision, the update on their float32 masters.

    Weight by weight: what belongs to one is gone before the next begins. Stacked weights are
    updated layer by layer.
    """
    # All weights of one shape share a trace; every layer has the same ones.
    update = _jax.jit(rule)
    update_stacked = _jax.jit(_jax.vmap(rule, in_axes=(0, 0, None)))

    def step(state: Any, data: Any) -> Any:
        value, grads = _jax.value_and_grad(loss)(state["params"], data)
        paths, tree = _jax.tree_util.tree_flatten_with_path(grads)
        masters: list[Any] = []
        slots: list[Any] = []
        params: list[Any] = []
        for (path, grad), master, old in zip(
            paths, _jax.tree.leaves(state["master"]), state["slots"], strict=True
        ):
            moved_by = update_stacked if _stacked(path) else update
            change, new = moved_by(grad.astype(F32), old, state["step"] + 1)
            masters.append(master - change)
            params.append(masters[-1].astype(dtype))
            slots.append(new)
        moved: dict[str, Any] = {
            "params": _jax.tree.unflatten(tree, params),
            "master": _jax.tree.unflatten(tree, masters),
            "slots": slots,
            "step": state["step"] + 1,
        }
        return moved, {"loss": value}

    return step


def _tokens(batch_size: int, seq: int) -> Any:
    ids = _jax.ShapeDtypeStruct((batch_size, seq), _jnp.int32)
    return {"tokens": ids, "targets": ids}


def _parameters(weights: Any) -> int:
    return sum(leaf.size for leaf in _jax.tree.leaves(weights))


def _p3(gpus: int) -> str:
    return f"p3.16xlarge:{-(-gpus // 8)}"


def decoder_model(
    name: str,
    net: Decoder,
    batch_size: int,
    *,
    gpus: int = 8,
    cluster: str = "",
    micro_batches: tuple[int, ...] = (1,),
    layers: int = 16,
) -> PaperModel:
    """A GPT (Adam), or one with experts (Adafactor).

    FLOPs are those of the paper's artifact: `96 B S L h^2 (1 + S/6h + V/16Lh)` for GPT, which is 4
    times the forward pass of the layers and 3 times that of the logits.
    """
    hidden, seq = net.blocks[0].hidden, net.seq
    tokens, attention = batch_size * seq, 4 * batch_size * seq**2 * hidden
    forward = 0.0
    for block in net.blocks:
        forward += 8 * tokens * hidden**2 + attention
        if not block.experts:
            forward += 4 * tokens * hidden * block.width
            continue
        # Both experts of a token; gating, dispatch and combine.
        forward += 8 * tokens * hidden * block.width
        forward += 2 * tokens * hidden * block.experts
        forward += 4 * tokens * block.group + 8 * tokens * hidden * block.group
    flops = 4 * forward * net.repeats + 6 * tokens * hidden * net.vocab
    sparse = any(block.experts for block in net.blocks)
    rule, slots = (_adafactor, _adafactor_slots) if sparse else (adam, adam_slots)
    weights = net.weights()
    return PaperModel(
        name=name,
        step=mixed_step(net.loss, rule),
        state=mixed_state(weights, slots),
        batch=_tokens(batch_size, seq),
        flops=flops,
        parameters=_parameters(weights),
        batch_size=batch_size,
        gpus=gpus,
        cluster=cluster or _p3(gpus),
        micro_batches=micro_batches,
        layers=layers,
    )


def gpt(size: str, *, scan: bool = False, layers: int = 0) -> PaperModel:
    """A GPT of appendix B, such as `39b`; `layers` makes it deeper or shallower.

    Example:
        >>> model = gpt("39b")
        >>> traced = trace(model.step, model.state, model.batch)
    """
    hidden, depth, heads, gpus, counts = GPT_SIZES[size]
    net = Decoder((Block(hidden, heads, 4 * hidden),), layers or depth, SEQ, 51200, scan=scan)
    return decoder_model(f"gpt-{size}", net, 1024, gpus=gpus, micro_batches=counts)


def moe(size: str, *, scan: bool = False, layers: int = 0) -> PaperModel:
    """A GShard MoE of appendix B, such as `70b`; every second layer has experts."""
    hidden, depth, heads, experts, gpus, counts = MOE_SIZES[size]
    blocks = (
        Block(hidden, heads, 8 * hidden),
        Block(hidden, heads, 8 * hidden, experts, group=2048),
    )
    net = Decoder(blocks, (layers or depth) // 2, SEQ, 32000, scan=scan)
    return decoder_model(f"moe-{size}", net, 1024, gpus=gpus, micro_batches=counts)


def opt_175b(*, scan: bool = False, layers: int = 0) -> PaperModel:
    """OPT-175B on 128 hosts of 8 A100."""
    net = Decoder((Block(12288, 96, 4 * 12288, relu=True),), layers or 96, 2048, 50272, scan=scan)
    return decoder_model(
        "opt-175b", net, 1024, gpus=1024, cluster="dgx-a100:128", micro_batches=(64, 128), layers=24
    )


def wide_resnet(size: str, *, batch_size: int = 1536) -> PaperModel:
    """A Wide-ResNet of appendix B, such as `13b`."""
    blocks, base, widen, gpus, counts = WRESNET_SIZES[size]
    net = WideResNet(blocks, base, widen)
    return _resnet_model(f"wresnet-{size}", net, batch_size, gpus, counts)


def _resnet_model(
    name: str, net: WideResNet, batch_size: int, gpus: int, micro_batches: tuple[int, ...]
) -> PaperModel:
    tx = _optax.sgd(0.1, momentum=0.9, nesterov=True)
    weights, stats = net.weights()
    image = _jax.ShapeDtypeStruct((batch_size, 224, 224, 3), F32)
    batch = {"image": image, "label": _jax.ShapeDtypeStruct((batch_size,), _jnp.int32)}
    state = {
        "params": weights,
        "batch_stats": stats,
        "opt_state": _jax.eval_shape(tx.init, weights),
    }

    def step(state: Any, data: Any) -> Any:
        def loss(params: Any) -> Any:
            return net.loss(params, state["batch_stats"], data)

        (value, stats), grads = _jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
        params = _optax.apply_updates(state["params"], updates)
        return {"params": params, "batch_stats": stats, "opt_state": opt_state}, {"loss": value}

    return PaperModel(
        name=name,
        step=step,
        state=state,
        batch=batch,
        flops=net.flops(batch_size),
        parameters=_parameters(weights),
        batch_size=batch_size,
        gpus=gpus,
        cluster=_p3(gpus),
        micro_batches=micro_batches,
        layers=sum(net.blocks),
    )


CASES = (
    *(f"gpt-{size}" for size in GPT_SIZES),
    *(f"moe-{size}" for size in MOE_SIZES),
    *(f"wresnet-{size}" for size in WRESNET_SIZES),
    "opt-175b",
)


def make_case(name: str, *, scan: bool = False, layers: int = 0) -> PaperModel:
    """A model by name, such as `moe-70b`; other than so many layers if there is a number.

    Raises:
        ValueError: an unknown name, or an option that the model has not.
    """
    family, _, size = name.partition("-")
    if name not in CASES:
        raise ValueError(f"unknown case {name!r}; use one of {', '.join(CASES)}")
    if family == "wresnet":
        if scan or layers:
            raise ValueError(f"{name} has neither scanned layers nor another depth")
        return wide_resnet(size)
    if family == "opt":
        return opt_175b(scan=scan, layers=layers)
    return (gpt if family == "gpt" else moe)(size, scan=scan, layers=layers)


def figure8_gpt(gpus: int) -> PaperModel:
    """8 layers, batch 8, vocabulary 25600; hidden 2048, 3072, 4096, 5760."""
    hidden, heads = {1: (2048, 16), 2: (3072, 24), 4: (4096, 32), 8: (5760, 40)}[gpus]
    net = Decoder((Block(hidden, heads, 4 * hidden),), 8, SEQ, 25600, tied=True)
    return decoder_model(f"gpt on {gpus}", net, 8, gpus=gpus)


def figure8_moe(gpus: int) -> PaperModel:
    """8 layers, batch 8, vocabulary 51200; experts and width grow."""
    sizes = {1: (1024, 32, 8), 2: (1280, 40, 16), 4: (1536, 24, 16), 8: (1536, 24, 32)}
    hidden, heads, experts = sizes[gpus]
    blocks = (
        Block(hidden, heads, 8 * hidden),
        Block(hidden, heads, 8 * hidden, experts, group=SEQ),
    )
    net = Decoder(blocks, 4, SEQ, 51200, tied=True)
    return decoder_model(f"moe on {gpus}", net, 8, gpus=gpus)


def figure8_wresnet(gpus: int) -> PaperModel:
    """50 layers, batch 32, width factor 2; base channels 160, 224, 320, 448."""
    base = {1: 160, 2: 224, 4: 320, 8: 448}[gpus]
    net = WideResNet((3, 4, 6, 3), base, 2, remat=False)
    return _resnet_model(f"wresnet on {gpus}", net, 32, gpus, (1,))


FIGURE8: dict[str, Callable[[int], PaperModel]] = {
    "gpt": figure8_gpt,
    "moe": figure8_moe,
    "wresnet": figure8_wresnet,
}
