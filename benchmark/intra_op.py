"""One mesh, whole training steps: how the intra-operator problem is built and solved.

One row a model: trace (JAX to StableHLO, shapes only), import (parse and phases), then, by one
`alpa-opt` process, build (the problem) and solve, with that process's CPU seconds and peak memory
(reading the module's text included), the size of the problem, and the answer: predicted seconds
of a step, lower bound, gap and status, and the bytes of a device.

The cases: `gpt` (39 billion parameters at 48 layers) on 8 x p3.16xlarge, where memory binds, and
the same without a limit; `llama` (8 billion) on 8 x dgx-a100 as 8x8 and as 4x4x4.

Run: python benchmark/intra_op.py [case ...] [--layers N ...] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace
from models import BenchmarkModel, gpt, llama

TOOL = Path(os.environ.get("ALPA_BUILD", Path(__file__).resolve().parents[1] / "build"), "bin")
gpt_wide = partial(
    gpt, hidden=8192, heads=64, vocab=51200, seq=1024, dtype="float16", batch_size=1024, remat=True
)
llama_wide = partial(llama, batch_size=256, remat=True)


@dataclass(frozen=True)
class Case:
    """A model by number of layers, and where it runs.

    Attributes:
        make: the model with so many layers.
        layers: layers if none are asked for.
        cluster: preset.
        mesh: devices along each axis.
        micro_batches: parts of the batch; each divides over the whole mesh.
        limited: whether a device's memory is a limit.
    """

    make: Callable[[int], BenchmarkModel]
    layers: int
    cluster: str
    mesh: tuple[int, ...]
    micro_batches: int
    limited: bool = True


CASES = {
    "gpt": Case(gpt_wide, 48, "p3.16xlarge:8", (8, 8), 16),
    "gpt-unlimited": Case(gpt_wide, 48, "p3.16xlarge:8", (8, 8), 16, limited=False),
    "llama": Case(llama_wide, 32, "dgx-a100:8", (8, 8), 4),
    "llama-cube": Case(llama_wide, 32, "dgx-a100:8", (4, 4, 4), 4),
}
NO_LIMIT = 1 << 60


def imported(model: BenchmarkModel, micro_batches: int, path: Path) -> dict[str, float]:
    """Write the imported step to `path`; seconds of tracing and import."""
    start = time.perf_counter()
    traced = trace(model.step, model.state, model.batch)
    middle = time.perf_counter()
    module = Module(traced.text, model.name).annotate(traced.signature.to_json())
    module.run(f"alpa-import,alpa-split-batch{{micro-batches={micro_batches}}}")
    seconds = {"trace": middle - start, "import": time.perf_counter() - middle}
    path.write_text(module.as_text())
    return seconds


def solved(case: Case, path: Path, time_limit: float) -> dict[str, Any]:
    """Build and solve in a process of its own; what it reports and what it used."""
    options = f"cluster={case.cluster} mesh-shape={','.join(map(str, case.mesh))}"
    options += f" micro-batches={case.micro_batches} time-limit={time_limit}"
    if not case.limited:
        options += f" memory-limit={NO_LIMIT}"
    output = path.with_suffix(".solved.mlir")
    with subprocess.Popen(
        [TOOL / "alpa-opt", path, f"-alpa-solve-sharding={options}", "-o", output],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    row: dict[str, Any] = {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }
    if process.returncode:
        return row | {"status": "error", "error": errors.strip().splitlines()[0]}
    text = output.read_text()
    for name in ("alpa.solver", "alpa.predicted"):
        found = re.search(rf"{re.escape(name)} = \{{([^}}]*)\}}", text)
        assert found is not None, f"no {name} on the module"
        for key, value in re.findall(r"(\w+) = ([^,]+)", found[1]):
            plain = value.split(" : ")[0].strip('"')
            row[key] = plain if key == "status" else float(plain)
    return row


def measure(name: str, layers: int | None, time_limit: float) -> dict[str, Any]:
    """One row."""
    case = CASES[name]
    model = case.make(layers or case.layers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.mlir")
        seconds = imported(model, case.micro_batches, path)
        ops = sum(" = " in line for line in path.read_text().splitlines())
        row = {"case": name, "model": model.name, "parameters": model.parameters, "ops": ops}
        return row | seconds | solved(case, path, time_limit)


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    start = f"{row['case']:<14}{row['model']:<16}{row['parameters'] / 1e9:>6.2f}{row['ops']:>8}"
    used = f"{row['cpu_seconds']:>8.2f}{row['peak_mib']:>7.0f}"
    if "error" in row:
        return f"{start}{row['trace']:>7.1f}{row['import']:>7.2f}{'':>16}{used}  {row['error']}"
    held = sum(row[f"{kind}_bytes"] for kind in ("state", "activation", "temporary"))
    return (
        f"{start}{row['trace']:>7.1f}{row['import']:>7.2f}{row['build_seconds']:>8.2f}"
        f"{row['seconds']:>8.2f}{used}{row['nodes']:>7.0f}{row['choices']:>8.0f}"
        f"{row['objective_seconds']:>10.4f}{row['lower_bound_seconds']:>10.4f}"
        f"{row['gap']:>9.1e} {row['status']:<9}{held / 2**30:>7.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the wanted cases and print the table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--layers", nargs="*", type=int, help="default: the case's own")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of the solver, seconds")
    parser.add_argument("--json", action="store_true", help="one object a row, for machines")
    options = parser.parse_args(arguments)
    for name in options.cases:
        if name not in CASES:
            parser.error(f"no case {name!r}; there are {', '.join(CASES)}")
    if not options.json:
        print(
            f"{'case':<14}{'model':<16}{'10^9':>6}{'ops':>8}{'trace':>7}{'import':>7}{'build':>8}"
            f"{'solve':>8}{'cpu':>8}{'MiB':>7}{'nodes':>7}{'choices':>8}{'cost s':>10}"
            f"{'bound s':>10}{'gap':>9} {'status':<9}{'GiB':>7}"
        )
    for name in options.cases:
        for layers in options.layers or [None]:
            row = measure(name, layers, options.time_limit)
            print(json.dumps(row) if options.json else line(row), flush=True)


if __name__ == "__main__":
    main()
