"""`alpa-mlir simulate`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from alpa_mlir.cli._command import Answer, add_force, file_in_folder, refuse_existing
from alpa_mlir.cli._source import check_plan, cluster_text

DESCRIPTION = (
    "Executes a plan's instruction lists on the cluster it was made for, or on one with other "
    "links between hosts: seconds, busy and idle time of each stage, memory over time, traffic."
)
EXAMPLES = """\
  alpa-mlir simulate my_plan
  alpa-mlir simulate my_plan --cluster faster_links.yaml --trace step.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="a preset or a file; its devices and the links within stages must be those that the "
        "plan was made for",
    )
    parser.add_argument(
        "--trace",
        type=file_in_folder,
        metavar="FILE",
        help="also write a trace for Chrome or Perfetto",
    )
    add_force(parser)
    parser.add_argument(
        "--own-links",
        action="store_true",
        help="every pair of meshes has links of its own: transfers never slow each other down",
    )


def run(options: argparse.Namespace) -> Answer:
    refuse_existing(options, "trace")
    check_plan(options.plan)
    if options.cluster is not None:
        cluster_text(options.cluster)
    from alpa_runtime.execution.program_merge import merge_step
    from alpa_runtime.plan import Plan

    from alpa_mlir.simulator import simulate

    plan = Plan.load(options.plan)
    merge_step(plan)  # Refuses programs that contradict each other.
    timeline = simulate(plan, options.cluster, share_links=not options.own_links)
    text = timeline.as_text()
    if options.trace is not None:
        timeline.to_chrome_trace(options.trace)
        text += f"\nwrote {options.trace}"
    meshes = [
        {"mesh": mesh, "devices": list(plan.meshes[mesh].devices)}
        | asdict(use)
        | {
            "peak_bytes": memory.peak_bytes,
            "predicted_bytes": memory.predicted_bytes,
            "capacity_bytes": memory.capacity_bytes,
        }
        for mesh, (use, memory) in enumerate(zip(timeline.meshes, timeline.memory, strict=True))
    ]
    fields = {
        "plan": options.plan,
        "cluster": timeline.cluster.name,
        "step_seconds": timeline.step_seconds,
        "bubble_fraction": timeline.bubble_fraction,
        "tflops_per_device": timeline.tflops_per_device,
        "meshes": meshes,
        "links": [asdict(link) for link in timeline.links],
        "trace": None if options.trace is None else str(options.trace),
    }
    return Answer(text, fields)
