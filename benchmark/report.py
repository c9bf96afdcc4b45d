"""The report of a plan: seconds to write and to open it, and its size.

By default the plan of OPT-175B on 1,024 A100s, which takes one to two minutes to make; another one
with `--plan`, or a made-up pipeline of so many stages and micro-batches, for the timeline. Opening
is from the moment when the browser is told the file until all of it is drawn; `draw_seconds` is one
frame of the timeline, the whole step.

Run: python benchmark/report.py [--json] [--plan FOLDER | --stages N --micro-batches N]
     [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "test")]
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "test" / "python" / "support")]

OPENINGS = 5
DRAW = """
const view = document.querySelector("canvas.timeline");
if (!view) return null;
const start = performance.now();
for (let i = 0; i < 10; i++) view.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
view.getContext("2d").getImageData(0, 0, 1, 1);
return (performance.now() - start) / 10 / 1000;
"""


def opt_175b() -> Any:
    """The plan of the paper's largest model, as its conditions are (docs/figures.md)."""
    from alpa_mlir import AutoParallel, parallelize
    from paper.models import opt_175b as make_model

    model = make_model()
    method = AutoParallel(num_micro_batches=model.micro_batches, layers=model.layers, remat="none")
    function = parallelize(model.step, cluster=model.cluster, method=method)
    return function.plan(model.state, model.batch, progress=True).plan


def made_up(stages: int, micro_batches: int) -> tuple[Any, Any]:
    """A pipeline on a device a stage, and its simulation."""
    from alpa_mlir import Cluster, simulate

    pipelines: Any = importlib.import_module("pipelines")
    plan = pipelines.pipeline([(1, 2, 1)] * stages, micro_batches)
    cluster = Cluster.load("dgx-a100").with_hosts(0, -(-stages // 8))
    return plan, simulate(plan, cluster)


def measure(plan: Any, timeline: Any, path: Path) -> dict[str, Any]:
    """Write the report, and open it some times."""
    from alpa_mlir.report import write_report
    from browser import chromium

    start = time.perf_counter()
    write_report(plan, path, timeline=timeline)
    written = time.perf_counter() - start
    opened: list[float] = []
    with chromium() as browser:
        browser.resize(1280)
        for _ in range(OPENINGS):
            start = time.perf_counter()
            browser.open(path)
            drawn = "return new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
            browser.run(drawn)
            opened.append(time.perf_counter() - start)
        draw: float | None = browser.run(DRAW)
        elements: int = browser.run("return document.querySelectorAll('*').length")
    if browser.errors:
        raise SystemExit(f"the page has errors: {browser.errors}")
    return {
        "devices": sum(len(mesh.devices) for mesh in plan.meshes),
        "stages": len(plan.stages),
        "micro_batches": plan.num_micro_batches,
        "bytes": path.stat().st_size,
        "write_seconds": written,
        "open_seconds": statistics.median(opened),
        "first_open_seconds": opened[0],
        "draw_seconds": draw,
        "elements": elements,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plan", type=Path, metavar="FOLDER", help="a saved plan")
    parser.add_argument("--stages", type=int, metavar="N", help="a made-up pipeline")
    parser.add_argument("--micro-batches", type=int, default=128, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to leave the report")
    options = parser.parse_args()
    timeline: Any = None
    if options.stages:
        plan, timeline = made_up(options.stages, options.micro_batches)
    elif options.plan:
        from alpa_mlir import Plan

        plan = Plan.load(options.plan)
    else:
        print("planning OPT-175B", file=sys.stderr)
        plan = opt_175b()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(plan, timeline, options.output or Path(folder) / "plan.html")
    if options.json:
        print(json.dumps(row))
        return
    for name, value in row.items():
        print(f"{name:20} {value:.3g}" if isinstance(value, float) else f"{name:20} {value:,}")


if __name__ == "__main__":
    main()
