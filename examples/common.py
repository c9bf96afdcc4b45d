"""What examples have in common: options, the end of a run that fails, the comparison with JAX."""

# pyright: basic

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
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


def relative_difference(found: Any, expected: Any) -> float:
    """The largest difference of any leaf, relative to the leaf's largest magnitude."""

    def of_leaf(a: Any, b: Any) -> float:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))

    return max(jax.tree.leaves(jax.tree.map(of_leaf, found, expected)))
