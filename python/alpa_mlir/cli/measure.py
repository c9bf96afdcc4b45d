"""`alpa-mlir measure`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alpa_mlir.cli._command import (
    Answer,
    add_force,
    add_virtual_devices,
    refuse_existing_plan,
    reserved,
    use_devices,
)
from alpa_mlir.cli._source import check_plan
from alpa_mlir.errors import DevicesError

DESCRIPTION = (
    "Compiles and times every function of the plans' stages on the devices of this host, simulates "
    "the steps with these seconds, and names the fastest plan. A stage that needs more devices "
    "keeps its predicted seconds."
)
EXAMPLES = """\
  alpa-mlir measure my_plan
  alpa-mlir measure one_plan another_plan --virtual-devices 8 -o fastest_plan
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="also save the fastest plan, with the measured seconds",
    )
    add_force(parser)
    add_virtual_devices(parser)


def run(options: argparse.Namespace) -> Answer:
    refuse_existing_plan(options)
    for name in options.plans:
        check_plan(name)
    with reserved(options.output):
        return _measured(options)


def _measured(options: argparse.Namespace) -> Answer:
    use_devices(options)
    from alpa_runtime.parallel_step import progress_bar
    from alpa_runtime.plan import Plan
    from alpa_runtime.plan.text import seconds_text

    from alpa_mlir.search.autotune import MeasuredPlan, fastest

    names: list[str] = options.plans
    plans = [Plan.load(name) for name in names]
    best, results = fastest(
        plans,
        progress=None if options.quiet else lambda i: progress_bar(f"measuring {names[i]}"),
    )
    parts: list[str] = []
    rows: list[dict[str, Any]] = []
    for name, plan, result in zip(names, plans, results, strict=True):
        predicted = plan.predicted.get("step_seconds")
        row: dict[str, Any] = {"plan": name, "predicted_seconds": predicted}
        if not isinstance(result, MeasuredPlan):
            parts.append(f"{name}: {result.what}\n")
            rows.append(row | {"error": result.what, "code": result.code})
            continue
        before = "" if predicted is None else f" (predicted {seconds_text(predicted)})"
        parts.append(f"{name}: a step takes {seconds_text(result.step_seconds)}{before}")
        parts.append(f"{result.as_text()}\n")
        stages = [asdict(stage) for stage in result.stages]
        rows.append(
            row | {"seconds": result.step_seconds, "stages": stages, "left_out": [*result.left_out]}
        )
    chosen = None if best is None else results[best]
    if best is None or not isinstance(chosen, MeasuredPlan):
        reasons = "; ".join(f"{row['plan']}: {row['error']}" for row in rows)
        raise DevicesError(f"no plan fits into memory: {reasons}", where="measure")
    if len(names) > 1:
        parts.append(f"fastest: {names[best]}")
    if options.output is not None:
        chosen.plan.save(options.output)
        parts.append(f"wrote {options.output}")
    output = None if options.output is None else str(options.output)
    fields = {"plans": rows, "fastest": names[best], "output": output}
    return Answer("\n".join(parts).rstrip("\n"), fields)
