"""Alpa's figures 7, 8 and 9: predicted TFLOPS per GPU of our plan and every baseline, beside the
paper's.

Nothing is run: each cell is the predicted step of the best plan that a system may choose (all of
its numbers of micro-batches tried), or OOM where none fits in 90% of 16 GiB. Figures 7 and 9 keep
their cells in a folder and go on where they were; a rebuilt compiler or other models start anew.

`mixed` is a cluster of unequal hosts (paper/mixed.py).

Run: python benchmark/paper_figures.py fig7|fig8|fig9|mixed [--models ..] [--gpus ..] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paper import figure8, layers, mixed, models
from paper.results import Published, Value, cell_text, compare, published, table
from planning_job import Job, run_fresh

GPT = {1: "350m", 4: "1.3b", 8: "2.6b", 16: "6.7b", 32: "15b", 64: "39b"}
MOE = {1: "380m", 4: "1.3b", 8: "2.4b", 16: "10b", 32: "27b", 64: "70b"}
WRESNET = {1: "250m", 4: "1b", 8: "2b", 16: "4b", 32: "6.8b", 64: "13b"}
SIZES = {"gpt": GPT, "moe": MOE, "wresnet": WRESNET}

# What each system may choose (docs/methods.md).
SYSTEMS: dict[str, dict[str, Any]] = {
    "alpa": {},
    "dp": {},
    "megatron-lm": {"pipeline": "uniform", "method": "megatron"},
    "deepspeed": {"pipeline": "intra-only", "method": "expert-zero-2"},
    "pp-dp": {"method": "data-parallel"},
    "intra-op only": {"pipeline": "intra-only"},
    "inter-op only": {"pipeline": "inter-only"},
    "equal layer": {"pipeline": "equal-layer"},
    "equal operator": {"options": {"layer_balance": "operators"}},
    "equal mesh": {"pipeline": "equal-mesh"},
}
OURS = ("alpa", "dp")


def job_of(model: str, gpus: int, system: str) -> Job:
    """The cell's job. With a stage on every device there are two layers for each."""
    layers = 2 * gpus if system == "inter-op only" and gpus >= 8 else 0
    case = f"{model}-{SIZES[model][gpus]}"
    return Job(case=case, gpus=gpus, layers=layers, predict=True, **SYSTEMS[system])


def _fingerprint() -> str:
    """Changes with whatever a cell depends on: the compiler and the models."""
    native = sorted(Path(_package()).glob("_native*.so"))
    files = [*native, Path(models.__file__), Path(layers.__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _package() -> str:
    import alpa_mlir

    return str(Path(alpa_mlir.__file__).parent)


def measure_cell(
    job: Job, folder: Path, fingerprint: str, timeout_seconds: float
) -> dict[str, Any]:
    """The cell's row, from the folder if it is there; failures are tried again."""
    key = hashlib.sha256(f"{fingerprint} {job}".encode()).hexdigest()[:24]
    path = folder / f"{key}.json"
    if path.exists():
        return json.loads(path.read_text())
    row = run_fresh(job, folder / "solved", timeout_seconds)
    if "failed" not in row:
        path.write_text(json.dumps(row))
    return row


def value_of(row: Mapping[str, Any]) -> Value | None:
    """TFLOPS, or OOM; None where planning failed."""
    return "OOM" if "oom" in row else row.get("tflops_per_device")


def run_figure(paper: Published, wanted: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All wanted cells, two at a time; progress on standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [
        (model, gpus, system)
        for model in paper.models()
        for gpus in paper.gpus(model)
        for system in paper.values[model, gpus]
        if (not wanted.models or model in wanted.models)
        and (not wanted.gpus or gpus in wanted.gpus)
        and (not wanted.systems or system in wanted.systems)
    ]
    fingerprint = _fingerprint()

    def one(cell: tuple[str, int, str]) -> dict[str, Any]:
        row = measure_cell(job_of(*cell), folder, fingerprint, wanted.timeout)
        value = value_of(row)
        model, gpus, system = cell
        theirs = paper.values[model, gpus][system]
        shown = row.get("failed") or row.get("oom") or stages_text(row)
        print(
            f"{model} {gpus} {system}: {cell_text(value)} / {cell_text(theirs)}"
            f"  ({row.get('seconds', 0):.0f} s) {shown[:150]}",
            file=sys.stderr,
            flush=True,
        )
        return {
            "model": model,
            "gpus": gpus,
            "system": system,
            "value": value,
            "published": theirs,
            "extrapolated": cell in paper.extrapolated,
            **row,
        }

    with ThreadPoolExecutor(wanted.processes) as pool:
        return list(pool.map(one, cells))


def stages_text(row: Mapping[str, Any]) -> str:
    """Layers and mesh of each stage.

    Example:
        >>> stages_text({"stages": [{"layers": [0, 3], "mesh": [2, 4]}], "num_micro_batches": 8})
        '8 micro-batches; 3 on 2x4'
    """
    parts = [
        f"{stage['layers'][1] - stage['layers'][0]} on {'x'.join(map(str, stage['mesh']))}"
        for stage in row["stages"]
    ]
    return f"{row['num_micro_batches']} micro-batches; " + ", ".join(parts)


def print_figure(cells: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
    """Tables in Markdown, predicted / published, and what they say."""
    for model in dict.fromkeys(cell["model"] for cell in cells):
        own = [cell for cell in cells if cell["model"] == model]
        texts = {
            (cell["system"], cell["gpus"]): f"{cell_text(cell['value'])} / "
            f"{cell_text(cell['published'])}{'*' * cell['extrapolated']}"
            for cell in own
        }
        systems = list(dict.fromkeys(cell["system"] for cell in own))
        gpus = sorted({cell["gpus"] for cell in own})
        print(f"\n{table(model, systems, gpus, texts)}")
    memory, ranking = result["memory"], result["ranking"]
    pairs = sum(column["pairs"] for column in ranking)
    turned = [(c["model"], c["gpus"], *p) for c in ranking for p in c["reversed"]]
    print(f"\nOOM: {memory['agree']} of {memory['cells']} cells agree; others: {memory['differ']}")
    print(f"Ranking: {pairs - len(turned)} of {pairs} pairs agree; reversed: {turned}")
    print(f"Behind a baseline: {result['behind'] or 'never'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict the wanted cells and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=("fig7", "fig8", "fig9", "mixed"))
    parser.add_argument("--models", nargs="+", default=[], choices=list(SIZES))
    parser.add_argument("--gpus", nargs="+", type=int, default=[])
    parser.add_argument("--systems", nargs="+", default=[], help="rows; for fig8: methods")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a cell")
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    parser.add_argument(
        "--folder", type=Path, default=Path(".benchmarks/paper_figures"), help="for cells"
    )
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    parser.add_argument("--case", default="gpt-2.6b", choices=models.CASES, help="of mixed")
    wanted = parser.parse_args(arguments)
    if wanted.figure == "mixed":
        rows = mixed.measure(wanted.case, micro_batches=64, layers=16)
        if wanted.json:
            print(json.dumps({"figure": "mixed", "case": wanted.case, "rows": rows}))
        else:
            mixed.print_rows(rows)
        return
    paper = published(wanted.figure)
    if wanted.figure == "fig8":
        cells = figure8.run(paper, wanted.models, wanted.gpus, wanted.systems)
    else:
        cells = run_figure(paper, wanted, wanted.folder.resolve())
    result = compare(cells, paper, figure8.OURS if wanted.figure == "fig8" else OURS)
    if wanted.json:
        print(json.dumps({"figure": wanted.figure, "cells": cells, **result}))
    else:
        print_figure(cells, result)


if __name__ == "__main__":
    main()
