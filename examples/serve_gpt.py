"""Serve a character-level GPT, its weights spread over eight virtual devices.

The model is that of train_gpt.py. `predict` is an ordinary function without gradients; alpa_mlir
plans it as a pipeline of forward stages, keeps the weights where they are needed, and runs one
call after another. Its results are compared with those of plain `jax.jit`.

    python examples/serve_gpt.py
    python examples/serve_gpt.py --stages 4 --micro-batches 8 --save-plan served
"""

# pyright: basic
# flax leaves most of its types open.

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
from train_gpt import GPT, HERE, batches, read_text, relative_difference


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--calls", type=int, default=20, help="batches to serve (%(default)s)")
    add("--batch", type=int, default=32, help="rows of a batch (%(default)s)")
    add("--micro-batches", type=int, help="parts of a batch (searched)")
    add("--stages", type=int, help="pipeline stages of equal size (searched)")
    add("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    add("--hidden", type=int, default=128, help="width (%(default)s)")
    add("--length", type=int, default=64, help="characters of a row (%(default)s)")
    add("--cluster", default=str(HERE / "cluster_2x4.yaml"), help="YAML file or preset")
    add("--save-plan", help="write the plan to this folder")
    options = parser.parse_args()
    try:
        cluster = alpa_mlir.Cluster.load(options.cluster)
        alpa_mlir.use_virtual_devices(cluster.num_devices)
        run(options, cluster)
    except alpa_mlir.AlpaError as error:
        sys.exit(f"error: {error}")


def run(options: argparse.Namespace, cluster: alpa_mlir.Cluster) -> None:
    text, characters = read_text(HERE / "data" / "harbour.txt")
    net = GPT(characters, options.layers, options.hidden, heads=4)
    data = batches(text, options.batch, options.length, seed=0)
    first = next(data)
    params = jax.jit(net.init)(jax.random.key(0), first["tokens"])

    def predict(params: Any, batch: Any) -> dict[str, jax.Array]:
        logits: Any = net.apply(params, batch["tokens"])
        chances = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(chances, batch["targets"][..., None], -1)
        return {"next": logits[:, -1].argmax(-1), "perplexity": jnp.exp(losses.mean())}

    method: alpa_mlir.Method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    if options.stages:
        each = cluster.num_devices // options.stages
        method = alpa_mlir.PipeshardParallel(
            submeshes=[(1, each)] * options.stages, num_micro_batches=options.micro_batches or 4
        )
    planned = alpa_mlir.parallelize(predict, cluster=cluster, method=method).plan(params, first)
    print(planned.as_text())
    if options.save_plan:
        print(f"plan written to {planned.save(options.save_plan)}")
    step = planned.load(progress=sys.stderr.isatty())

    found = step(params, first)
    expected = jax.jit(predict)(params, first)
    jax.block_until_ready(found)
    begin = time.perf_counter()
    answers = [step(params, next(data)) for _ in range(options.calls)]
    jax.block_until_ready(answers)
    seconds = time.perf_counter() - begin
    print(f"{options.calls * options.batch / seconds:,.0f} rows/s")
    print(f"check: max relative difference {relative_difference(found, expected):.2e}")


if __name__ == "__main__":
    main()
