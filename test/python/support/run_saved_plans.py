"""Runs plans that another version of Python and JAX has saved: `run_saved_plans.py FOLDER`.

Each folder in FOLDER is a case: `plan`, and `case.pickle` with the state, the batch, how to run
it, and the state and the metrics that `jax.jit` gave there after each step. Prints a line for
each. Needs what a worker needs; test_newer_jax.py calls it.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path

import alpa_mlir
import numpy as np


def hosts(case, how):
    from alpa_runtime.worker_group import Placement

    placement = Placement(case["placement"])
    if how == "threads":
        return alpa_mlir.ThreadWorkers(placement)
    return alpa_mlir.ProcessWorkers(placement, platform="cpu")


def compare(name, found, expected, floor=1e-3):
    """The largest difference of a leaf, relative to the leaf's largest magnitude."""
    assert len(found) == len(expected), name
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        a, b = a.astype(np.float64), b.astype(np.float64)
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), floor)))
    assert worst < 1e-4, f"{name}: {worst:g}"
    return worst


def run(folder, how):
    case = pickle.loads((folder / "case.pickle").read_bytes())
    workers = None if how == "here" else hosts(case, how)
    worst = 0.0
    with contextlib.closing(alpa_mlir.load(folder / "plan", workers=workers)) as step:
        state = case["state"]
        for expected, metrics in case["steps"]:
            state, found = step(state, case["batch"])
            worst = max(worst, compare(how, state, expected), compare(how, found, metrics))
        if (folder / "checkpoints").is_dir():
            restore(folder, how, step, case)
    return worst


def restore(folder, how, step, case):
    """From the other's checkpoint after the first step, and from one made here."""
    state, metrics = step(
        alpa_mlir.restore_checkpoint(folder / "checkpoints", step, step=1), case["batch"]
    )
    wanted, wanted_metrics = case["steps"][1]
    compare(f"{how}, restored", [*state, *metrics], [*wanted, *wanted_metrics])
    own = folder / f"checkpoints-{how}"
    alpa_mlir.save_checkpoint(own, state, step=2).wait()
    compare(f"{how}, saved", alpa_mlir.restore_checkpoint(own), wanted)


def main():
    import jax

    alpa_mlir.use_virtual_devices(8)
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        for how in pickle.loads((folder / "case.pickle").read_bytes())["how"]:
            print(f"jax {jax.__version__}: {folder.name} {how} {run(folder, how):.2g}", flush=True)
    wrong = {
        "alpa_mlir._native",
        "alpa_mlir.compiler",
        "alpa_mlir.methods.automatic",
        "highspy",
        "gurobipy",
    }
    assert not wrong & set(sys.modules), wrong & set(sys.modules)


if __name__ == "__main__":
    main()
