"""Figure 8 of Alpa: intra-operator parallelism on 1, 2, 4 and 8 GPUs of one host.

A part of paper_figures.py. Methods with one mesh axis use all GPUs on it; for ours, `ilp` in the
paper, the best view counts.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from alpa_mlir.compiler import Module
from alpa_mlir.errors import AlpaError
from alpa_mlir.trace.tracing import trace

from paper.models import FIGURE8
from paper.results import Published, cell_text

GPUS = (1, 2, 4, 8)
MEMORY_BYTES = int(0.9 * 16 * 2**30)
OURS = ("ilp",)
# The paper's names and ours; `megatron` is not in the paper.
METHODS = {
    "ilp": "auto",
    "data": "data-parallel",
    "zero-2": "zero-2",
    "zero-3": "zero-3",
    "heuristic": "heuristic",
    "megatron": "megatron",
}


def views(method: str, gpus: int) -> list[tuple[int, int]]:
    """Mesh shapes to try for a method."""
    if method != "auto":
        return [(1, gpus)]
    return [(n, gpus // n) for n in GPUS if gpus % n == 0 and n * n <= gpus]


def step_seconds(text: str, method: str, shape: tuple[int, int], seconds: float) -> float | None:
    """Predicted seconds of a step, or None if it does not fit."""
    options = {
        "cluster": "p3.16xlarge",
        "mesh-shape": ",".join(map(str, shape)),
        "method": method,
        "memory-limit": str(MEMORY_BYTES),
        "time-limit": str(seconds),
    }
    module = Module(text)
    given = " ".join(f"{key}={value}" for key, value in options.items())
    try:
        module.run(f"alpa-solve-sharding{{{given}}}")
    except AlpaError as error:
        if "no sharding of @main fits" in str(error):
            return None
        raise
    found = re.search(r"alpa\.predicted = \{(.*?)\}", module.as_text())
    assert found is not None
    fields = dict(re.findall(r"(\w+) = ([-+.\deE]+) :", found[1]))
    return sum(float(fields[f"{phase}_seconds"]) for phase in ("forward", "backward", "update"))


def column(
    name: str, gpus: int, systems: Sequence[str], paper: Published, seconds: float = 20
) -> list[dict[str, Any]]:
    """One model on so many GPUs: a cell for each system; `seconds` for each solution."""
    model = FIGURE8[name](gpus)
    traced = trace(model.step, model.state, model.batch)
    module = Module(traced.text, name).annotate(traced.signature.to_json()).run("alpa-import")
    text = module.as_text()
    cells: list[dict[str, Any]] = []
    for system in systems:
        method, start = METHODS[system], time.perf_counter()
        tried = {v: step_seconds(text, method, v, seconds) for v in views(method, gpus)}
        fitting = {view: found for view, found in tried.items() if found is not None}
        best = min(fitting, key=lambda view: fitting[view]) if fitting else None
        cells.append(
            {
                "model": name,
                "parameters": model.parameters,
                "gpus": gpus,
                "system": system,
                "method": method,
                "mesh": best,
                "step_seconds": fitting[best] if best else None,
                "value": model.flops / fitting[best] / gpus / 1e12 if best else "OOM",
                "published": paper.values[name, gpus].get(system),
                "extrapolated": False,
                "seconds": time.perf_counter() - start,
            }
        )
    return cells


def run(
    paper: Published, models: Sequence[str], gpus: Sequence[int], systems: Sequence[str]
) -> list[dict[str, Any]]:
    """All wanted cells; progress on standard error."""
    unknown = [name for name in systems if name not in METHODS]
    if unknown:
        raise SystemExit(f"unknown system {unknown[0]!r}; use {', '.join(METHODS)}")
    cells: list[dict[str, Any]] = []
    for name in models or FIGURE8:
        for count in gpus or GPUS:
            for cell in column(name, count, systems or list(METHODS), paper):
                cells.append(cell)
                print(
                    f"{name} {count} {cell['system']}: {cell_text(cell['value'])} / "
                    f"{cell_text(cell['published'])}",
                    file=sys.stderr,
                    flush=True,
                )
    return cells
