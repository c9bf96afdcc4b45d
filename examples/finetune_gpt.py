"""Fine-tune the upper layers of a GPT on other text; the layers below are frozen.

The GPT of train_gpt.py is trained on one text in plain JAX, then its last blocks learn another
one. Freezing is `optax.multi_transform`, as one would write it for a single device: alpa_mlir sees
that nobody wants the frozen layers' gradients, and plans stages without a backward pass for them.
Three steps are compared with plain `jax.jit`, and frozen weights must not have moved.

    python examples/finetune_gpt.py
    python examples/finetune_gpt.py --layers 8 --train-last 2 --devices ray
    python examples/finetune_gpt.py --layers 48 --hidden 8192 --length 1024 --train-last 8 \\
        --rows 64 --micro-batches 16 --cluster dgx-a100:2 --plan-only
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
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import HERE, add_plan_options, relative_difference, run_or_exit
from tqdm import tqdm
from train_gpt import GPT, Batch, batches

CHARACTERS = 128  # ASCII


def read(name: str) -> np.ndarray:
    """A text of examples/data as numbers."""
    return np.frombuffer((HERE / "data" / name).read_bytes(), np.uint8).astype(np.int32)


def freeze(
    tx: optax.GradientTransformation, layers: int, train_last: int
) -> optax.GradientTransformation:
    """`tx` for the last blocks and what follows them; everything below keeps its values."""
    lower = {"embed", "place"} | {f"block_{i}" for i in range(layers - train_last)}

    def labels(params: Any) -> Any:
        return {name: "frozen" if name in lower else "trained" for name in params}

    return optax.multi_transform({"trained": tx, "frozen": optax.set_to_zero()}, labels)


def make_functions(
    net: GPT, tx: optax.GradientTransformation, length: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`create_state(key)` and `train_step(state, batch)`."""

    def create_state(key: jax.Array) -> Any:
        params = net.init(key, jnp.zeros((1, length), jnp.int32))["params"]
        return {"params": params, "opt_state": tx.init(params)}

    def train_step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        def loss_fn(params: Any) -> jax.Array:
            logits: Any = net.apply({"params": params}, batch["tokens"])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
            return losses.mean()

        loss, gradients = jax.value_and_grad(loss_fn)(state["params"])
        updates, opt_state = tx.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state}, loss

    return create_state, train_step


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
    train_last: int = 1,
    learning_rate: float = 3e-3,
    shapes_only: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, Any], Iterator[Batch]]:
    """The step, example arguments and batches, for `alpa-mlir plan` and `run`; with `shapes_only`
    the state holds no memory, so that a model of any size can be planned."""
    tx = freeze(optax.adamw(learning_rate), layers, train_last)
    create_state, train_step = make_functions(GPT(CHARACTERS, layers, hidden, 4), tx, length)
    make = partial(jax.eval_shape, create_state) if shapes_only else jax.jit(create_state)
    arguments = make(jax.random.key(0)), batch_shapes(rows, length)
    return train_step, arguments, batches(read("ferry_log.txt"), rows, length, seed=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    add("--train-last", type=int, default=1, help="blocks that are trained (%(default)s)")
    add("--hidden", type=int, default=64, help="width (%(default)s)")
    add("--length", type=int, default=64, help="characters of a row (%(default)s)")
    add("--rows", type=int, default=16, help="rows of a batch (%(default)s)")
    add("--first-steps", type=int, default=100, help="steps on the first text (%(default)s)")
    add("--steps", type=int, default=60, help="steps on the other text (%(default)s)")
    add("--learning-rate", type=float, default=3e-3, help="(%(default)s)")
    add("--micro-batches", type=int, default=4, help="parts of a batch (%(default)s)")
    add_plan_options(parser)
    options = parser.parse_args(arguments)
    if not 1 <= options.train_last <= options.layers:
        parser.error(f"--train-last {options.train_last} of {options.layers} layers")
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    net = GPT(CHARACTERS, options.layers, options.hidden, heads=4)
    adamw = optax.adamw(options.learning_rate)
    upper = freeze(adamw, options.layers, options.train_last)
    _, train_step = make_functions(net, upper, options.length)
    create_first, first_step = make_functions(net, adamw, options.length)

    params = jax.eval_shape(create_first, jax.random.key(0))["params"]
    shapes = {"params": params, "opt_state": jax.eval_shape(upper.init, params)}
    method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    planned = alpa_mlir.parallelize(train_step, cluster=cluster, method=method).plan(
        shapes, batch_shapes(options.rows, options.length)
    )
    print(planned.as_text())
    for number, stage in enumerate(planned.plan.stages):
        backward = "trained" if "backward" in stage.functions else "no backward pass"
        print(f"stage {number}: {backward}")
    if options.save_plan:
        print(f"plan written to {planned.save(options.save_plan)}")
    if options.plan_only:
        return

    first = jax.jit(create_first)(jax.random.key(0))
    single = jax.jit(first_step)
    for batch in islice(
        batches(read("harbour.txt"), options.rows, options.length, 0), options.first_steps
    ):
        first, loss = single(first, batch)
    print(f"loss of the first text: {float(loss):.3f}")

    params = first["params"]
    state = {"params": params, "opt_state": upper.init(params)}
    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    step = planned.load(workers=workers, progress=sys.stderr.isatty())
    data = batches(read("ferry_log.txt"), options.rows, options.length, seed=1)
    single = jax.jit(train_step)
    ours = theirs = state
    worst = 0.0
    for batch in islice(data, 3):
        ours, our_loss = step(ours, batch)
        theirs, their_loss = single(theirs, batch)
        worst = max(
            worst,
            relative_difference(our_loss, their_loss),
            relative_difference(jax.device_get(ours["params"]), theirs["params"]),
        )
    losses = []
    with alpa_mlir.DataLoader(islice(data, options.steps), step) as loader:
        for batch in tqdm(loader, total=options.steps, desc="training", unit="step", disable=None):
            ours, loss = step(ours, batch)
            losses.append(loss)
    kept = [
        name
        for name, tree in jax.device_get(ours["params"]).items()
        if jax.tree.all(jax.tree.map(np.array_equal, tree, params[name]))
    ]
    print(f"as before: {', '.join(kept) or 'nothing'}")
    print(f"check: max relative difference {worst:.2e}")
    print(f"loss: {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")
    step.close()


if __name__ == "__main__":
    main()
