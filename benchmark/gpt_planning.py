"""Seconds of every step from a GPT to a parallel training step, one row per model.

Columns: trace (JAX to StableHLO), import (parse, phases, layers), search (its parts: the
intra-operator solves, and the stage DP), export (slices, programs, annotations, plan), compile
(XLA) and one step on virtual devices. Absolute times drift between machines; compare rows of one
run, or two checkouts side by side.

Run: python benchmark/gpt_planning.py [layers ...] [--no-run] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace
from alpa_runtime.execution.loaded_plan import load
from models import gpt

_jax: Any = jax
CLUSTER = Path(__file__).resolve().parents[1] / "examples" / "cluster_2x4.yaml"
COLUMNS = ("trace", "import", "search", "solve", "dp", "export", "compile", "step")


class Stopwatch:
    """Seconds between marks, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        """Everything since the last mark is `name`."""
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def measure(layers: int, micro_batches: int, run: bool) -> dict[str, Any]:
    """One row: name, sizes, what was found, and seconds by column."""
    model = gpt(layers)
    watch = Stopwatch()
    traced = trace(model.step, model.state, model.batch)
    watch.mark("trace")
    module = Module(traced.text, model.name).annotate(traced.signature.to_json())
    module.run(f"alpa-import,alpa-split-batch{{micro-batches={micro_batches}}},alpa-cluster-layers")
    watch.mark("import")
    module.run(f"alpa-search-stages{{cluster={CLUSTER} num-micro-batches={micro_batches}}}")
    watch.mark("search")
    module.run(
        "alpa-defer-sums,alpa-gather-sums,alpa-slice-stages,alpa-insert-reshards,"
        "alpa-optimize-collectives,alpa-verify-sharding"
    )
    module.run("alpa-build-schedule,alpa-plan-transfers,alpa-verify-program,alpa-export-shardy")
    plan = module.export_plan()
    watch.mark("export")
    watch.seconds["dp"] = plan.planning["dp_seconds"]
    watch.seconds["solve"] = plan.planning["search_seconds"] - plan.planning["dp_seconds"]
    if run:
        loaded = load(plan)
        watch.mark("compile")
        watch.seconds["step"] = _step_seconds(loaded, traced, *model.init())
    return {
        "model": model.name,
        "parameters": model.parameters,
        "stages": len(plan.stages),
        "solved_stages": int(plan.planning["solved_stages"]),
        "seconds": watch.seconds,
    }


def _step_seconds(loaded: Any, traced: Any, state: Any, batch: Any, steps: int = 4) -> float:
    """Median of some steps after the first, which places the state."""
    seconds: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        results = loaded(traced.flatten_args(state, batch))
        _jax.block_until_ready(results)
        seconds.append(time.perf_counter() - start)
        state, _ = traced.unflatten_results(results)
    return statistics.median(seconds[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the wanted models and print the table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", type=int, default=[4, 12, 24], help="default: 4 12 24")
    parser.add_argument("--micro-batches", type=int, default=4, help="default: 4")
    parser.add_argument("--no-run", action="store_true", help="plan only: no compilation, no step")
    parser.add_argument("--json", action="store_true", help="one object a row, for machines")
    options = parser.parse_args(arguments)
    alpa_mlir.use_virtual_devices(8)
    columns = COLUMNS[:-2] if options.no_run else COLUMNS
    if not options.json:
        print(
            f"{'model':<15}{'parameters':>12}{'stages':>8}{'solved':>8}"
            + "".join(f"{name + ' s':>11}" for name in columns)
        )
    for layers in options.layers:
        row = measure(layers, options.micro_batches, not options.no_run)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        print(
            f"{row['model']:<15}{row['parameters']:>12,}{row['stages']:>8}{row['solved_stages']:>8}"
            + "".join(f"{row['seconds'][name]:>11.3f}" for name in columns),
            flush=True,
        )


if __name__ == "__main__":
    main()
