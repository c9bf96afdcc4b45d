"""Image models in flax.linen: Wide-ResNet, ViT and U-Net."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from .base import Model, PyTree, cross_entropy, training_model

_CLASSES = 8


def _image_batch(key: jax.Array, batch_size: int, size: int = 8) -> PyTree:
    images, labels = jax.random.split(key)
    return {
        "image": jax.random.normal(images, (batch_size, size, size, 3)),
        "label": jax.random.randint(labels, (batch_size,), 0, _CLASSES),
    }


class WideBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a projected shortcut."""

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        y = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        shortcut = x
        if x.shape[-1] != self.channels or self.stride != 1:
            shortcut = nn.Conv(self.channels, (1, 1), self.stride, use_bias=False)(y)
        y = nn.Conv(self.channels, (3, 3), self.stride, use_bias=False)(y)
        y = nn.relu(nn.BatchNorm(use_running_average=not train)(y))
        return shortcut + nn.Conv(self.channels, (3, 3), use_bias=False)(y)


class WideResNet(nn.Module):
    """Images [batch, h, w, 3] -> logits [batch, classes]."""

    base: int = 8
    widen: int = 2
    groups: int = 2

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        x = nn.Conv(self.base, (3, 3), use_bias=False)(x)
        for group in range(self.groups):
            channels = self.base * self.widen * 2**group
            x = WideBlock(channels, 1 if group == 0 else 2)(x, train)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.max_pool(x, (2, 2), (2, 2)).mean((1, 2))
        return nn.Dense(_CLASSES)(x)


def make_wide_resnet(name: str = "wide_resnet") -> Model:
    """Wide-ResNet with running batch statistics in its state; SGD with momentum."""
    net = WideResNet()
    tx = optax.sgd(0.05, momentum=0.9, nesterov=True)

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        batch = _image_batch(jax.random.PRNGKey(1), batch_size)
        variables = jax.jit(net.init)(jax.random.PRNGKey(0), batch["image"])
        params = variables["params"]
        state = {
            "params": params,
            "batch_stats": variables["batch_stats"],
            "opt_state": tx.init(params),
        }
        return state, batch

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        variables = {"params": state["params"], "batch_stats": state["batch_stats"]}
        return net.apply(variables, batch["image"], train=False)

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            logits, updated = net.apply(variables, batch["image"], mutable=["batch_stats"])
            return cross_entropy(logits, batch["label"]), (updated["batch_stats"], logits)

        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, (batch_stats, logits)), grads = grad_fn(state["params"])
        updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
        new_state = {
            "params": optax.apply_updates(state["params"], updates),
            "batch_stats": batch_stats,
            "opt_state": opt_state,
        }
        accuracy = jnp.mean(jnp.argmax(logits, -1) == batch["label"])
        return new_state, {"loss": loss, "accuracy": accuracy}

    tags = frozenset({"convolution", "batch_norm", "has_aux", "train"})
    return Model(name, forward, step, init, tags)


class ViT(nn.Module):
    """Images [batch, h, w, 3] -> logits [batch, classes]; class token, learned positions."""

    layers: int = 2
    hidden: int = 16
    heads: int = 2
    patch: int = 4

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.hidden, (self.patch,) * 2, (self.patch,) * 2, name="patches")(images)
        x = x.reshape(x.shape[0], -1, self.hidden)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, self.hidden))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for _ in range(self.layers):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(self.heads)(h, h)
            h = nn.gelu(nn.Dense(4 * self.hidden)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.hidden)(h)
        return nn.Dense(_CLASSES)(nn.LayerNorm()(x)[:, 0])


def make_vit(name: str = "vit") -> Model:
    """Vision transformer with AdamW under a cosine learning-rate schedule."""
    net = ViT()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 2, 10)

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        return cross_entropy(net.apply(params, batch["image"]), batch["label"])

    def init_params(key: jax.Array) -> PyTree:
        return jax.jit(net.init)(key, jnp.zeros((1, 8, 8, 3)))

    tags = frozenset({"attention", "convolution", "train"})
    return training_model(name, init_params, _image_batch, loss, optax.adamw(schedule), tags)


class UNet(nn.Module):
    """Images [batch, h, w, 3] -> [batch, h, w, 3] by one level down and up per depth."""

    channels: int = 8
    depth: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        skips = []
        for level in range(self.depth):
            x = nn.swish(nn.GroupNorm(4)(nn.Conv(self.channels * 2**level, (3, 3))(x)))
            skips.append(x)
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.swish(nn.Conv(self.channels * 2**self.depth, (3, 3))(x))
        for level in reversed(range(self.depth)):
            x = nn.ConvTranspose(self.channels * 2**level, (2, 2), (2, 2))(x)
            x = jnp.concatenate([x, skips[level]], axis=-1)
            x = nn.swish(nn.GroupNorm(4)(nn.Conv(self.channels * 2**level, (3, 3))(x)))
        return nn.Conv(3, (1, 1))(x)


def make_unet(name: str = "unet") -> Model:
    """U-Net that learns to reproduce its images; Adam."""
    net = UNet()

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        return jnp.mean((net.apply(params, batch["image"]) - batch["image"]) ** 2)

    def init_params(key: jax.Array) -> PyTree:
        return jax.jit(net.init)(key, jnp.zeros((1, 8, 8, 3)))

    tags = frozenset({"convolution", "transposed_convolution", "train"})
    return training_model(name, init_params, _image_batch, loss, optax.adam(1e-3), tags)
