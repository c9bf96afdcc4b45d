"""Classify drawings with a Wide-ResNet or a vision transformer, parallelized over eight devices.

Both models are ordinary flax, the step is ordinary optax; the drawings are made on the fly.
alpa_mlir plans the step for the cluster that `--cluster` describes and makes the first state
where the plan wants it. In the end three steps are compared with plain `jax.jit`: those of the
vision transformer on the whole batch, those of the Wide-ResNet on its micro-batches, of which
batch norm takes the statistics.

    python examples/train_images.py
    python examples/train_images.py --model vit --micro-batches 4
    python examples/train_images.py --depth 28 --width 10 --image 32 --rows 1024 \\
        --micro-batches 8 --cluster p3.16xlarge:4 --plan-only
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
from common import add_plan_options, relative_difference, run_or_exit, show_plan
from tqdm import tqdm

CLASSES = ("disc", "ring", "square", "frame", "cross", "stripes", "triangle", "checks")
Batch = dict[str, np.ndarray]


class WideBlock(nn.Module):
    """Two 3x3 convolutions after batch norm, beside a shortcut; [rows, h, w, channels].

    Swish in place of ReLU: no gradient jumps, so that steps can be compared to many digits.
    """

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        conv = partial(nn.Conv, use_bias=False, kernel_init=nn.initializers.he_normal())
        h = nn.swish(norm(name="norm_1")(x))
        if x.shape[-1] != self.channels or self.stride != 1:
            x = conv(self.channels, (1, 1), self.stride, name="short")(h)
        h = conv(self.channels, (3, 3), self.stride, name="conv_1")(h)
        h = nn.swish(norm(name="norm_2")(h))
        return x + conv(self.channels, (3, 3), name="conv_2")(h)


class WideResNet(nn.Module):
    """Images [rows, h, w, 3] to logits [rows, classes]: WRN-depth-width for small images
    (Zagoruyko, Komodakis: "Wide Residual Networks", 2016)."""

    depth: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(16, (3, 3), use_bias=False, name="stem")(x)
        for group in range(3):
            for i in range((self.depth - 4) // 6):
                stride = 2 if group > 0 and i == 0 else 1
                block = WideBlock(16 * self.width * 2**group, stride, name=f"block_{group}_{i}")
                x = block(x, train)
        x = nn.swish(nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x))
        return nn.Dense(len(CLASSES), name="head")(x.mean((1, 2)))


class ViT(nn.Module):
    """Images [rows, h, w, 3] to logits [rows, classes] (Dosovitskiy et al.: "An Image is Worth
    16x16 Words", 2021); a head has 16 features for each step of the width."""

    depth: int
    width: int
    patch: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        hidden = 64 * self.width
        x = nn.Conv(hidden, (self.patch,) * 2, (self.patch,) * 2, name="patches")(x)
        x = x.reshape(x.shape[0], -1, hidden)
        first = self.param("class_token", nn.initializers.zeros, (1, 1, hidden))
        x = jnp.concatenate([jnp.tile(first, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("place", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for i in range(self.depth):
            h = nn.LayerNorm(name=f"norm_{i}_1")(x)
            x = x + nn.MultiHeadDotProductAttention(4, use_bias=False, name=f"attention_{i}")(h)
            h = nn.gelu(nn.Dense(4 * hidden, name=f"up_{i}")(nn.LayerNorm(name=f"norm_{i}_2")(x)))
            x = x + nn.Dense(hidden, name=f"down_{i}")(h)
        return nn.Dense(len(CLASSES), name="head")(nn.LayerNorm(name="norm")(x)[:, 0])


def drawings(rows: int, size: int, seed: int) -> Iterator[Batch]:
    """Batches of noisy figures of any colour, size and place, and the numbers of their classes."""
    rng = np.random.default_rng(seed)
    across = np.linspace(-1, 1, size, dtype=np.float32)
    while True:
        label = rng.integers(0, len(CLASSES), rows, dtype=np.int32)
        centre = rng.uniform(-0.3, 0.3, (2, rows, 1, 1)).astype(np.float32)
        radius = rng.uniform(0.4, 0.7, (rows, 1, 1)).astype(np.float32)
        x = (across[None, None, :] - centre[0]) / radius
        y = (across[None, :, None] - centre[1]) / radius
        far, box = np.hypot(x, y), np.maximum(abs(x), abs(y))
        inside = [
            far < 1,
            (far > 0.6) & (far < 1),
            box < 0.9,
            (box > 0.6) & (box < 1),
            (np.minimum(abs(x), abs(y)) < 0.25) & (box < 1),
            (np.sin(8 * x) > 0) & (box < 1),
            (y < 0.8) & (y > 2 * abs(x) - 1),
            (np.sin(6 * x) * np.sin(6 * y) > 0) & (box < 1),
        ]
        figure = np.choose(label[:, None, None], inside)[..., None]
        paper, ink = rng.uniform(0, 0.4, (rows, 1, 1, 3)), rng.uniform(0.6, 1, (rows, 1, 1, 3))
        noise = rng.normal(0, 0.1, (rows, size, size, 3))
        yield {"image": (np.where(figure, ink, paper) + noise).astype(np.float32), "label": label}


def batch_shapes(rows: int, size: int) -> Any:
    """The form of a batch of drawings, without memory."""
    image = jax.ShapeDtypeStruct((rows, size, size, 3), jnp.float32)
    return {"image": image, "label": jax.ShapeDtypeStruct((rows,), jnp.int32)}


def make_model(
    model: str, depth: int, width: int, image: int, learning_rate: float
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """`create_state(key)`, `train_step(state, batch)`, and `plain_step(state, parts)`, which is
    the step with the statistics of batch norm taken of each part."""
    if model == "vit":
        net, tx = ViT(depth, width, max(image // 4, 1)), optax.adamw(learning_rate)
    else:
        net, tx = WideResNet(depth, width), optax.sgd(learning_rate, momentum=0.9, nesterov=True)

    def create_state(key: jax.Array) -> Any:
        variables = net.init(key, jnp.zeros((1, image, image, 3)), train=True)
        params, stats = variables["params"], variables.get("batch_stats", {})
        return {"params": params, "batch_stats": stats, "opt_state": tx.init(params)}

    def loss_fn(params: Any, stats: Any, batch: Batch) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": stats}
        logits, moved = net.apply(variables, batch["image"], train=True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        correct = (logits.argmax(-1) == batch["label"]).sum()
        return losses.mean(), (moved.get("batch_stats", {}), correct)

    def update(state: Any, gradients: Any, stats: Any) -> Any:
        updates, opt_state = tx.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "batch_stats": stats, "opt_state": opt_state}

    def train_step(state: Any, batch: Batch) -> tuple[Any, Any]:
        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, (stats, correct)), gradients = gradient_fn(
            state["params"], state["batch_stats"], batch
        )
        return update(state, gradients, stats), {"loss": loss, "correct": correct}

    def plain_step(state: Any, parts: list[Batch]) -> tuple[Any, Any]:
        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        found, correct = [], 0
        for part in parts:
            (loss, (stats, right)), gradients = gradient_fn(
                state["params"], state["batch_stats"], part
            )
            found.append((loss, stats, gradients))
            correct += right
        loss, stats, gradients = jax.tree.map(lambda *each: sum(each) / len(each), *found)
        return update(state, gradients, stats), {"loss": loss, "correct": correct}

    return create_state, train_step, plain_step


def entry(
    *,
    model: str = "wide-resnet",
    depth: int = 10,
    width: int = 1,
    image: int = 16,
    rows: int = 64,
    learning_rate: float = 0.1,
    shapes_only: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, Any], Iterator[Batch]]:
    """The step, example arguments and batches, for `alpa-mlir plan` and `run`; with `shapes_only`
    the state holds no memory, so that a model of any size can be planned."""
    create_state, train_step, _ = make_model(model, depth, width, image, learning_rate)
    make = partial(jax.eval_shape, create_state) if shapes_only else jax.jit(create_state)
    arguments = make(jax.random.key(0)), batch_shapes(rows, image)
    return train_step, arguments, drawings(rows, image, seed=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", choices=("wide-resnet", "vit"), default="wide-resnet")
    add("--depth", type=int, help="convolutions, 6 n + 4 (10), or blocks of the ViT (4)")
    add("--width", type=int, default=1, help="times the usual channels (%(default)s)")
    add("--image", type=int, default=16, help="pixels of a side (%(default)s)")
    add("--rows", type=int, default=64, help="images of a batch (%(default)s)")
    add("--steps", type=int, default=60, help="training steps (%(default)s)")
    add("--learning-rate", type=float, help="0.1 for Wide-ResNet, 0.001 for the ViT")
    add("--micro-batches", type=int, default=2, help="parts of a batch (%(default)s)")
    add_plan_options(parser)
    options = parser.parse_args(arguments)
    is_vit = options.model == "vit"
    options.depth = options.depth or (4 if is_vit else 10)
    options.learning_rate = options.learning_rate or (1e-3 if is_vit else 0.1)
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    create_state, train_step, plain_step = make_model(
        options.model, options.depth, options.width, options.image, options.learning_rate
    )
    key = jax.random.key(0)
    shapes = jax.eval_shape(create_state, key), batch_shapes(options.rows, options.image)
    count = sum(x.size for x in jax.tree.leaves(shapes[0]["params"]))
    print(f"{options.model} of depth {options.depth}, {count:,} parameters, on {cluster.name}")

    couples = options.model == "wide-resnet"  # The examples of a batch, by batch norm.
    method = alpa_mlir.AutoParallel(
        num_micro_batches=options.micro_batches,
        micro_batch_semantics="relaxed" if couples else "exact",
    )
    planned = alpa_mlir.parallelize(train_step, cluster=cluster, method=method).plan(*shapes)
    show_plan(planned, options)
    if options.plan_only:
        return

    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    step = planned.load(workers=workers, progress=sys.stderr.isatty())
    data = drawings(options.rows, options.image, seed=0)
    ours, theirs = step.init(create_state, key), jax.jit(create_state)(key)
    plain = jax.jit(plain_step)
    worst = 0.0
    for _ in range(3):
        batch = next(data)
        each = options.rows // options.micro_batches if couples else options.rows
        parts = [
            {k: v[i : i + each] for k, v in batch.items()} for i in range(0, options.rows, each)
        ]
        ours, our_metrics = step(ours, batch)
        theirs, their_metrics = plain(theirs, parts)
        worst = max(
            worst,
            relative_difference(our_metrics, their_metrics),
            relative_difference(jax.device_get(ours["params"]), theirs["params"]),
        )
    losses, correct = [], []
    with alpa_mlir.DataLoader(islice(data, options.steps), step) as loader:
        for batch in tqdm(loader, total=options.steps, desc="training", unit="step", disable=None):
            ours, metrics = step(ours, batch)
            losses.append(metrics["loss"])
            correct.append(metrics["correct"])
    print(f"check: max relative difference {worst:.2e}")
    print(f"loss: {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")
    print(f"right of the last batch: {int(correct[-1])} of {options.rows}")
    step.close()


if __name__ == "__main__":
    main()
