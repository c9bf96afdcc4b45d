"""Plan and run a StableHLO file that did not come from JAX, and compare it with NumPy.

`examples/data/encoder.mlir` is a text encoder written by hand, in the form in which other
frameworks export models: no names, weights as `[out, in]`, one function for all blocks. It is cut
into pipeline stages like any other step without gradients. What it computes is computed again by
the few lines of NumPy below.

    python examples/run_stablehlo.py
    alpa-mlir plan examples/data/encoder.mlir --cluster examples/cluster_2x4.yaml --micro-batches 4
"""

# pyright: basic

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # before jax: XLA's remarks on resharding

import alpa_mlir
import numpy as np
from alpa_mlir.stablehlo_file import read_stablehlo
from common import HERE, run_or_exit, show_plan

ROWS, LENGTH, HIDDEN, HEADS, BLOCKS = 8, 32, 64, 4, 4  # as in the file


def some_weights(seed: int) -> list[np.ndarray]:
    """Weights in the order of the file's arguments, as a framework would have stored them."""
    rng = np.random.default_rng(seed)

    def kernel(outer: int, inner: int) -> np.ndarray:
        return (rng.standard_normal((outer, inner)) / inner**0.5).astype(np.float32)

    def scale(size: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    def block() -> list[np.ndarray]:
        attention = [scale(HIDDEN), kernel(3 * HIDDEN, HIDDEN), kernel(HIDDEN, HIDDEN)]
        return [*attention, scale(HIDDEN), kernel(4 * HIDDEN, HIDDEN), kernel(HIDDEN, 4 * HIDDEN)]

    blocks = [weight for _ in range(BLOCKS) for weight in block()]
    head = [scale(HIDDEN), kernel(10, HIDDEN), 0.1 * scale(10)]
    return [kernel(128, HIDDEN), kernel(LENGTH, HIDDEN), *blocks, *head]


def some_texts(rows: int, seed: int) -> np.ndarray:
    """Pieces of a text as ASCII numbers, int32 [rows, LENGTH]."""
    text = np.frombuffer((HERE / "data" / "harbour.txt").read_bytes(), np.uint8)
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, rows)
    return np.stack([text[s : s + LENGTH] for s in starts]).astype(np.int32)


def encoder(weights: list[np.ndarray], ids: np.ndarray) -> np.ndarray:
    """What the file says, in NumPy."""

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def softmax(x: np.ndarray) -> np.ndarray:
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    table, place, *blocks, last, head, bias = weights
    x = table[ids] + place
    for i in range(BLOCKS):
        norm_1, qkv, out, norm_2, up, down = blocks[6 * i : 6 * i + 6]
        parts = (norm(x, norm_1) @ qkv.T).reshape(len(ids), LENGTH, 3, HEADS, HIDDEN // HEADS)
        q, k, v = parts.transpose(2, 0, 3, 1, 4)
        mixed = softmax(q @ k.swapaxes(-1, -2) / (HIDDEN // HEADS) ** 0.5) @ v
        x = x + mixed.swapaxes(1, 2).reshape(x.shape) @ out.T
        inner = norm(x, norm_2) @ up.T
        x = x + (inner / (1 + np.exp(-inner))) @ down.T
    return softmax(norm(x, last).mean(1) @ head.T + bias)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--micro-batches", type=int, default=4, help="parts of the file's 8 rows (%(default)s)")
    add("--stages", type=int, default=4, help="pipeline stages of equal size (%(default)s)")
    add("--cluster", default=str(HERE / "cluster_2x4.yaml"), help="YAML file or preset")
    add("--save-plan", type=Path, help="write the plan to this folder")
    options = parser.parse_args(arguments)
    run_or_exit(run, options)


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    alpa_mlir.use_virtual_devices(cluster.num_devices)
    method = alpa_mlir.PipeshardParallel(
        submeshes=[(1, cluster.num_devices // options.stages)] * options.stages,
        num_micro_batches=options.micro_batches,
    )
    step = read_stablehlo(HERE / "data" / "encoder.mlir", method=method)
    planned = step.plan(cluster)
    show_plan(planned, options)
    classify = planned.load(progress=sys.stderr.isatty())

    weights = some_weights(seed=0)
    worst = 0.0
    for seed in range(3):
        ids = some_texts(ROWS, seed)
        (found,) = classify(*weights, ids)
        expected = encoder(weights, ids)
        worst = max(worst, float(np.max(np.abs(np.asarray(found) - expected) / expected.max())))
    print(f"check: max relative difference {worst:.2e}")


if __name__ == "__main__":
    main()
