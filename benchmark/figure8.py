"""Alpa's figure 8: TFLOPS per GPU and out-of-memory cells of every method, beside the paper's.

GPT, MoE and Wide-ResNet on 1, 2, 4 and 8 V100 of one p3.16xlarge host, weak scaling. Nothing is
run: each cell is the predicted step of the plan that a method finds, or OOM where none fits in 90%
of 16 GiB. Methods with one mesh axis use all GPUs on it; for `auto` the best view counts.

Run: python benchmark/figure8.py [--models gpt moe wresnet] [--gpus 1 2 4 8] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from alpa_mlir.compiler import Module
from alpa_mlir.errors import AlpaError
from alpa_mlir.trace import trace
from figure8_models import MODELS

GPUS = (1, 2, 4, 8)
MEMORY_BYTES = int(0.9 * 16 * 2**30)
OOM = None

# TFLOPS per GPU, Zheng et al., "Alpa", OSDI 2022, figure 8; None is out of memory.
PUBLISHED: dict[str, dict[str, tuple[float | None, ...]]] = {
    "gpt": {
        "auto": (68.7, 62.0, 66.4, 61.2),
        "data-parallel": (68.4, OOM, OOM, OOM),
        "zero-2": (68.6, 62.0, 66.4, OOM),
        "zero-3": (68.6, 52.3, 57.8, 53.2),
        "heuristic": (68.4, 51.9, 62.3, 61.6),
    },
    "moe": {
        "auto": (45.5, 38.9, 42.6, 35.1),
        "data-parallel": (45.5, OOM, OOM, OOM),
        "zero-2": (45.4, 24.9, 26.5, OOM),
        "zero-3": (45.4, 20.8, 22.2, 10.4),
        "heuristic": (44.3, 32.1, 35.1, 15.7),
    },
    "wresnet": {
        "auto": (8.27, 7.90, 7.87, 8.00),
        "data-parallel": (8.28, 6.50, OOM, OOM),
        "zero-2": (8.26, 7.58, 6.95, OOM),
        "zero-3": (8.26, 7.36, 7.06, 5.97),
        "heuristic": (8.27, 4.91, 5.03, 3.35),
    },
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


def column(name: str, gpus: int, methods: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """One model on so many GPUs: a row for each method."""
    model = MODELS[name](gpus)
    traced = trace(model.step, model.state, model.batch)
    module = Module(traced.text, name).annotate(traced.signature.to_json()).run("alpa-import")
    text = module.as_text()
    rows: list[dict[str, Any]] = []
    for method in methods:
        start = time.perf_counter()
        tried = {v: step_seconds(text, method, v, seconds) for v in views(method, gpus)}
        fitting = {view: found for view, found in tried.items() if found is not None}
        best = min(fitting, key=lambda view: fitting[view]) if fitting else None
        rows.append(
            {
                "model": name,
                "parameters": model.parameters,
                "gpus": gpus,
                "method": method,
                "mesh": best,
                "step_seconds": fitting[best] if best else None,
                "tflops": model.flops / fitting[best] / gpus / 1e12 if best else None,
                "published_tflops": PUBLISHED[name].get(method, (None,) * 4)[GPUS.index(gpus)],
                "published": method in PUBLISHED[name],
                "search_seconds": time.perf_counter() - start,
            }
        )
    return rows


def _cell(value: float | None) -> str:
    return "OOM" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A table in Markdown: predicted / published."""
    for model in dict.fromkeys(row["model"] for row in rows):
        gpus = [g for g in GPUS if any(r["gpus"] == g and r["model"] == model for r in rows)]
        print(f"\n| {model} | " + " | ".join(f"{g} GPU" for g in gpus) + " |")
        print("|---" * (len(gpus) + 1) + "|")
        for method in dict.fromkeys(row["method"] for row in rows):
            cells: list[str] = []
            for g in gpus:
                row = next(
                    r for r in rows if (r["model"], r["method"], r["gpus"]) == (model, method, g)
                )
                published = _cell(row["published_tflops"]) if row["published"] else "-"
                cells.append(f"{_cell(row['tflops'])} / {published}")
            print(f"| {method} | " + " | ".join(cells) + " |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict the wanted cells and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, default=list(GPUS), choices=GPUS)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["auto", "data-parallel", "zero-2", "zero-3", "heuristic", "megatron"],
    )
    parser.add_argument("--time-limit", type=float, default=20, help="seconds a solve; default: 20")
    parser.add_argument("--json", action="store_true", help="one object a cell, for machines")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        for gpus in options.gpus:
            added = column(name, gpus, options.methods, options.time_limit)
            rows += added
            if options.json:
                for row in added:
                    print(json.dumps(row), flush=True)
    if not options.json:
        print_table(rows)


if __name__ == "__main__":
    main()
