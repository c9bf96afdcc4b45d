"""Adapt a trained GPT to other text by low-rank adapters (LoRA), without a change to its code.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021: every dense layer that is
adapted gets two thin matrices beside its kernel, and only these are trained. The base weights are
an argument of the step that it never returns: alpa_mlir copies them to their devices once and
keeps neither gradients nor optimizer state for them. Three steps are compared with plain
`jax.jit`; in the end the adapters are merged into the weights, which must say the same.

    python examples/lora_gpt.py
    python examples/lora_gpt.py --rank 8 --adapt query key value out up down
    python examples/lora_gpt.py --layers 48 --hidden 8192 --length 1024 --rows 64 \\
        --micro-batches 16 --cluster dgx-a100:2 --plan-only
"""

# pyright: basic
# flax and optax leave most of their types open.

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import alpa_mlir
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import HERE, add_plan_options, relative_difference, run_or_exit, show_plan
from tqdm import tqdm
from train_gpt import GPT, Batch, batches

CHARACTERS = 128  # ASCII
KERNELS = ("query", "key", "value", "out", "up", "down")


def read(name: str) -> np.ndarray:
    """A text of examples/data as numbers."""
    return np.frombuffer((HERE / "data" / name).read_bytes(), np.uint8).astype(np.int32)


def create_adapters(base: Any, names: Sequence[str], rank: int, key: jax.Array) -> Any:
    """For each dense layer of these names `down` [inner, rank] and `up` [rank, outer], zeros."""
    adapters: dict[str, Any] = {}
    for block, layers in base.items():
        for name in names if block.startswith("block_") else ():
            inner, outer = layers[name]["kernel"].shape
            key, own = jax.random.split(key)
            down = jax.random.normal(own, (inner, rank)) / inner**0.5
            adapters.setdefault(block, {})[name] = {"down": down, "up": jnp.zeros((rank, outer))}
    return adapters


def apply_adapted(net: nn.Module, base: Any, adapters: Any, tokens: Any) -> Any:
    """The model on tokens, where each adapted layer also adds what its adapter makes."""

    def adapt(layer: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        y = layer(*args, **kwargs)
        found = adapters
        for name in context.module.path:
            found = found.get(name, {})
        if context.method_name == "__call__" and "down" in found and "up" in found:
            y = y + (args[0] @ found["down"]) @ found["up"]
        return y

    with nn.intercept_methods(adapt):
        return net.apply({"params": base}, tokens)


def merged(base: Any, adapters: Any) -> Any:
    """Base weights with the adapters in them, for a model that knows nothing of adapters."""
    result = {name: dict(tree) for name, tree in base.items() if isinstance(tree, dict)}
    for block, layers in adapters.items():
        for name, pair in layers.items():
            kernel = base[block][name]["kernel"] + pair["down"] @ pair["up"]
            result[block][name] = {"kernel": kernel}
    return {**base, **result}


def cross_entropy(logits: jax.Array, targets: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def make_step(net: nn.Module, tx: optax.GradientTransformation) -> Callable[..., Any]:
    """`train_step(base, state, batch)`, which trains the adapters of the state."""

    def train_step(base: Any, state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        def loss_fn(adapters: Any) -> jax.Array:
            logits = apply_adapted(net, base, adapters, batch["tokens"])
            return cross_entropy(logits, batch["targets"])

        loss, gradients = jax.value_and_grad(loss_fn)(state["adapters"])
        updates, opt_state = tx.update(gradients, state["opt_state"], state["adapters"])
        adapters = optax.apply_updates(state["adapters"], updates)
        return {"adapters": adapters, "opt_state": opt_state}, loss

    return train_step


def train_base(net: GPT, base: Any, data: Iterator[Batch], steps: int) -> tuple[Any, float]:
    """Train all weights in plain JAX, so that there is something to adapt."""
    tx = optax.adamw(3e-3)

    @jax.jit
    def step(params: Any, opt_state: Any, batch: Batch) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits: Any = net.apply({"params": params}, batch["tokens"])
            return cross_entropy(logits, batch["targets"])

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, loss = tx.init(base), jnp.float32(0)
    for batch in islice(data, steps):
        base, opt_state, loss = step(base, opt_state, batch)
    return base, float(loss)


def make_arguments(
    net: GPT, tx: optax.GradientTransformation, names: Sequence[str], rank: int, length: int
) -> Callable[[jax.Array], Any]:
    """A function of a key that makes the base weights and the state of the adapters."""

    def create(key: jax.Array) -> Any:
        base = net.init(key, jnp.zeros((1, length), jnp.int32))["params"]
        adapters = create_adapters(base, names, rank, key)
        return base, {"adapters": adapters, "opt_state": tx.init(adapters)}

    return create


def batch_shapes(rows: int, length: int) -> Any:
    """The form of a batch, without memory."""
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return {"tokens": tokens, "targets": tokens}


def entry(
    *,
    layers: int = 4,
    hidden: int = 64,
    length: int = 64,
    rows: int = 16,
    rank: int = 4,
    adapt: tuple[str, ...] = ("query", "value"),
    learning_rate: float = 1e-2,
    shapes_only: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...], Iterator[Batch]]:
    """The step, example arguments and batches, for `alpa-mlir plan` and `run`; with `shapes_only`
    the weights hold no memory, so that a model of any size can be planned."""
    net, tx = GPT(CHARACTERS, layers, hidden, 4), optax.adamw(learning_rate)
    create = make_arguments(net, tx, adapt, rank, length)
    make = partial(jax.eval_shape, create) if shapes_only else jax.jit(create)
    arguments = *make(jax.random.key(0)), batch_shapes(rows, length)
    return make_step(net, tx), arguments, batches(read("ferry_log.txt"), rows, length, seed=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--rank", type=int, default=4, help="of the adapters (%(default)s)")
    add("--adapt", nargs="+", choices=KERNELS, default=["query", "value"], help="which layers")
    add("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    add("--hidden", type=int, default=64, help="width (%(default)s)")
    add("--length", type=int, default=64, help="characters of a row (%(default)s)")
    add("--rows", type=int, default=16, help="rows of a batch (%(default)s)")
    add("--first-steps", type=int, default=100, help="steps of the base weights (%(default)s)")
    add("--steps", type=int, default=60, help="steps of the adapters (%(default)s)")
    add("--learning-rate", type=float, default=1e-2, help="of the adapters (%(default)s)")
    add("--micro-batches", type=int, default=4, help="parts of a batch (%(default)s)")
    add_plan_options(parser)
    options = parser.parse_args(arguments)
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    net = GPT(CHARACTERS, options.layers, options.hidden, heads=4)
    tx = optax.adamw(options.learning_rate)
    create = make_arguments(net, tx, options.adapt, options.rank, options.length)
    train_step = make_step(net, tx)
    shapes = jax.eval_shape(create, jax.random.key(0))
    sizes = [
        sum(x.size for x in jax.tree.leaves(tree)) for tree in (shapes[0], shapes[1]["adapters"])
    ]
    print(f"{sizes[0]:,} base weights, {sizes[1]:,} in adapters")

    method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    planned = alpa_mlir.parallelize(train_step, cluster=cluster, method=method).plan(
        *shapes, batch_shapes(options.rows, options.length)
    )
    show_plan(planned, options)
    if options.plan_only:
        return

    base, state = jax.jit(create)(jax.random.key(0))
    data = batches(read("harbour.txt"), options.rows, options.length, seed=0)
    base, loss = train_base(net, base, data, options.first_steps)
    print(f"loss of the first text: {loss:.3f}")

    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    step = planned.load(workers=workers, progress=sys.stderr.isatty())
    data = batches(read("ferry_log.txt"), options.rows, options.length, seed=1)
    single = jax.jit(train_step)
    ours = theirs = state
    worst = 0.0
    for batch in islice(data, 3):
        ours, our_loss = step(base, ours, batch)
        theirs, their_loss = single(base, theirs, batch)
        worst = max(
            worst,
            relative_difference(our_loss, their_loss),
            relative_difference(jax.device_get(ours["adapters"]), theirs["adapters"]),
        )
    losses = []
    with alpa_mlir.DataLoader(islice(data, options.steps), step) as loader:
        for batch in tqdm(loader, total=options.steps, desc="training", unit="step", disable=None):
            ours, loss = step(base, ours, batch)
            losses.append(loss)
    adapters, tokens = jax.device_get(ours["adapters"]), next(data)["tokens"]
    same = relative_difference(
        net.apply({"params": merged(base, adapters)}, tokens),
        apply_adapted(net, base, adapters, tokens),
    )
    print(f"merged: max relative difference {same:.2e}")
    print(f"check: max relative difference {worst:.2e}")
    print(f"loss: {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")
    step.close()


if __name__ == "__main__":
    main()
