"""What examples have in common: options, the end of a run that fails, the comparison with JAX."""

# pyright: basic

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import numpy as np

HERE = Path(__file__).resolve().parent
DEVICES = {
    "virtual": "CPU devices made up",
    "own": "those of this machine",
    "ray": "the hosts of a Ray cluster",
}


def add_plan_options(
    parser: argparse.ArgumentParser, devices: Sequence[str] = tuple(DEVICES)
) -> None:
    """Where to run, and what to do with the plan."""
    add = parser.add_argument
    add("--cluster", default=str(HERE / "cluster_2x4.yaml"), help="YAML file or preset")
    meanings = ", ".join(f"{name}: {DEVICES[name]}" for name in devices)
    add("--devices", choices=devices, default="virtual", help=meanings)
    add("--save-plan", type=Path, help="write the plan to this folder")
    add("--plan-only", action="store_true", help="print the plan and stop")


def run_or_exit(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Run an example; what cannot be planned or run ends it with one line."""
    try:
        run(options)
    except alpa_mlir.AlpaError as error:
        sys.exit(f"error: {error}")
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_plan(planned: alpa_mlir.PlannedStep, options: argparse.Namespace) -> None:
    """Print a plan, and write it where the options say."""
    print(planned.as_text())
    if options.save_plan:
        print(f"plan written to {planned.save(options.save_plan)}")


def train(
    parallel: Callable[..., Any], step: Callable[..., Any], state: Any, batches: Iterable[Any]
) -> Any:
    """The state behind all batches. The losses of the first three are compared with those of plain
    JAX, which is said in the end, with the first and the last loss."""
    first, single, worst, losses = state, jax.jit(step), 0.0, []
    for number, batch in enumerate(batches):
        state, loss = parallel(state, batch)
        losses.append(float(loss))
        if number < 3:
            first, expected = single(first, batch)
            worst = max(worst, relative_difference(loss, expected))
    print(f"check: max relative difference {worst:.2e}")
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
    return state


def relative_difference(found: Any, expected: Any) -> float:
    """The largest difference of any leaf, relative to the leaf's largest magnitude."""

    def of_leaf(a: Any, b: Any) -> float:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))

    return max(jax.tree.leaves(jax.tree.map(of_leaf, found, expected)))
