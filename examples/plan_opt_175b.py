"""Plan OPT-175B for 1,024 A100s on this machine; nothing of the model is ever allocated.

The model is Meta's (Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022,
table 1): 96 decoder layers of width 12288, trained by AdamW in bfloat16 with float32 masters on
batches of 2M tokens. Weights, optimizer state and batch are shapes and dtypes. The plan is printed
and simulated, and on request saved and shown as an HTML report.

    python examples/plan_opt_175b.py
    python examples/plan_opt_175b.py --micro-batches 64 128 --output opt_175b --report opt_175b.html
    python examples/plan_opt_175b.py --layers 24 --hidden 4096 --heads 32 --cluster dgx-a100:8
"""

# pyright: basic
# optax leaves most of its types open.

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
import optax
from common import run_or_exit


@dataclass(frozen=True)
class Config:
    """The sizes of an OPT model."""

    layers: int = 96
    hidden: int = 12288
    heads: int = 96
    length: int = 2048
    vocab: int = 50272


def dense(weights: Any, x: jax.Array) -> jax.Array:
    return x @ weights["kernel"] + weights["bias"]


def norm(weights: Any, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = jax.nn.standardize(wide, epsilon=1e-5)
    return (wide * weights["scale"] + weights["bias"]).astype(x.dtype)


def create_params(config: Config, key: jax.Array) -> Any:
    """float32 weights; the layers' are stacked, [layers, ..]."""
    h, keys = config.hidden, iter(jax.random.split(key, 16))

    def kernel(*shape: int) -> jax.Array:
        return 0.006 * jax.random.normal(next(keys), shape)

    def layer(inner: int, outer: int) -> Any:
        return {
            "kernel": kernel(config.layers, inner, outer),
            "bias": jnp.zeros((config.layers, outer)),
        }

    def scale(*shape: int) -> Any:
        return {"scale": jnp.ones(shape), "bias": jnp.zeros(shape)}

    return {
        "tokens": kernel(config.vocab, h),
        "places": kernel(config.length, h),
        "layers": {
            "norm_1": scale(config.layers, h),
            "query": layer(h, h),
            "key": layer(h, h),
            "value": layer(h, h),
            "out": layer(h, h),
            "norm_2": scale(config.layers, h),
            "up": layer(h, 4 * h),
            "down": layer(4 * h, h),
        },
        "norm": scale(h),
    }


def block(config: Config, x: jax.Array, p: Any) -> jax.Array:
    """One decoder layer: causal attention and an MLP with ReLU; [rows, length, hidden]."""
    rows, length, hidden = x.shape
    h = norm(p["norm_1"], x)
    q, k, v = (
        dense(p[name], h).reshape(rows, length, config.heads, hidden // config.heads)
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (hidden // config.heads) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    chances = jax.nn.softmax(jnp.where(causal, scores, -3e4))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", chances, v).reshape(rows, length, hidden)
    x = x + dense(p["out"], mixed)
    return x + dense(p["down"], jax.nn.relu(dense(p["up"], norm(p["norm_2"], x))))


def make_step(config: Config, tx: optax.GradientTransformation) -> Callable[..., Any]:
    """`train_step(state, batch)` with float32 masters and bfloat16 arithmetic."""

    def logits(params: Any, tokens: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        x = params["tokens"][tokens] + params["places"]

        @jax.checkpoint
        def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            return block(config, x, layer), None

        x, _ = jax.lax.scan(body, x, params["layers"])
        return norm(params["norm"], x) @ params["tokens"].T

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        def loss_fn(params: Any) -> jax.Array:
            found = logits(params, batch["tokens"]).astype(jnp.float32)
            losses = optax.softmax_cross_entropy_with_integer_labels(found, batch["targets"])
            return losses.mean()

        loss, gradients = jax.value_and_grad(loss_fn)(state["params"])
        updates, opt_state = tx.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state}, loss

    return train_step


def entry(
    *,
    layers: int = 96,
    hidden: int = 12288,
    heads: int = 96,
    length: int = 2048,
    vocab: int = 50272,
    rows: int = 1024,
) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """The step and the shapes of its arguments, for `alpa-mlir plan`."""
    config = Config(layers, hidden, heads, length, vocab)
    tx = optax.adamw(1.2e-4, b2=0.95, weight_decay=0.1)

    def create(key: jax.Array) -> Any:
        params = create_params(config, key)
        return {"params": params, "opt_state": tx.init(params)}

    state = jax.eval_shape(create, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return make_step(config, tx), (state, {"tokens": tokens, "targets": tokens})


def step_flops(config: Config, rows: int) -> float:
    """FLOPs of a step without recomputation: three times the forward pass's."""
    tokens, h = rows * config.length, config.hidden
    layer = 24 * tokens * h**2 + 4 * tokens * config.length * h
    return 3.0 * (config.layers * layer + 2 * tokens * h * config.vocab)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--layers", type=int, default=96, help="decoder layers (%(default)s)")
    add("--hidden", type=int, default=12288, help="width (%(default)s)")
    add("--heads", type=int, default=96, help="attention heads (%(default)s)")
    add("--length", type=int, default=2048, help="tokens of a sequence (%(default)s)")
    add("--vocab", type=int, default=50272, help="different tokens (%(default)s)")
    add("--rows", type=int, default=1024, help="sequences of a batch (%(default)s)")
    add(
        "--micro-batches",
        type=int,
        nargs="+",
        default=[64],
        help="numbers of parts of a batch to try (64)",
    )
    add("--stage-layers", type=int, default=48, help="units that stages are made of (%(default)s)")
    add("--cluster", default="dgx-a100:128", help="YAML file or preset (%(default)s)")
    add("--output", type=Path, help="write the plan to this folder")
    add("--report", type=Path, help="write an HTML report to this file")
    options = parser.parse_args(arguments)
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    sizes = {name: getattr(options, name) for name in ("layers", "hidden", "heads", "length")}
    config = Config(**sizes, vocab=options.vocab)
    step, shapes = entry(**sizes, vocab=options.vocab, rows=options.rows)
    count = sum(x.size for x in jax.tree.leaves(shapes[0]["params"]))
    print(f"{count / 1e9:.1f} billion parameters on {cluster.num_devices} devices")

    begin = time.perf_counter()
    method = alpa_mlir.AutoParallel(
        num_micro_batches=options.micro_batches, layers=options.stage_layers
    )
    parallel = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
    planned = parallel.plan(*shapes, progress=sys.stderr.isatty())
    print(planned.as_text())
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"planned in {seconds:.0f} s with at most {peak:.1f} GiB of memory")

    rate = step_flops(config, options.rows) / planned.predicted_seconds / 1e12
    print(
        f"rate of the model: {rate:,.0f} TFLOP/s, {rate / cluster.num_devices:.0f} on each device"
    )
    timeline = alpa_mlir.simulate(planned.plan)
    print(timeline.as_text())
    if options.output:
        print(f"plan written to {planned.save(options.output)}")
    if options.report:
        from alpa_mlir.report import write_report

        print(f"report written to {write_report(planned.plan, options.report, timeline=timeline)}")


if __name__ == "__main__":
    main()
