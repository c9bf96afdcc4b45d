"""`alpa-mlir compile`."""

from __future__ import annotations

import argparse

from alpa_runtime.backends.gpus import GPUS

from alpa_mlir.cli._command import Answer
from alpa_mlir.cli._source import check_plan

DESCRIPTION = (
    "Compiles every program of a plan and stores it in the plan's folder, from where loading takes "
    "it. GPUs need not be here. Prints the size of each program and the memory that it needs, and "
    "refuses a plan that does not fit."
)
EXAMPLES = """\
  alpa-mlir compile my_plan
  alpa-mlir compile my_plan --target a100-80gb --backend iree
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "--target",
        choices=("cpu", *GPUS),
        help="kind of device; by default the devices that the plan was made for",
    )
    parser.add_argument(
        "--backend", choices=("xla", "iree"), default="xla", help="who compiles (default: xla)"
    )


def run(options: argparse.Namespace) -> Answer:
    check_plan(options.plan)
    from alpa_runtime.aot import compile_ahead
    from alpa_runtime.devices import use_virtual_devices
    from alpa_runtime.plan import Plan
    from alpa_runtime.plan.plan import device_types

    plan = Plan.load(options.plan)
    if "cpu" in (device_types(plan.cluster) if options.target is None else (options.target,)):
        use_virtual_devices(plan.num_devices)
    done = compile_ahead(
        options.plan, options.target, backend=options.backend, progress=not options.quiet
    )
    programs = [
        {
            "program": item.label,
            "target": item.target,
            "compiler": item.compiler,
            "bytes": len(item.program),
            "memory_bytes": item.memory_bytes,
        }
        for item in done.binaries
    ]
    meshes = [
        {"mesh": peak.mesh, "peak_bytes": peak.bytes, "limit_bytes": limit, "program": peak.label}
        for peak, limit in zip(done.peaks, done.limits, strict=True)
    ]
    count = len(done.binaries)
    wrote = f"wrote {count} program{'s' * (count > 1)} to {options.plan}"
    text = f"{done.as_text()}\n{wrote}"
    return Answer(text, {"plan": options.plan, "programs": programs, "meshes": meshes})
