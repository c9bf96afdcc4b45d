"""`alpa-mlir plan`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alpa_mlir.cli._command import Answer, new_folder, reserved
from alpa_mlir.cli._source import SOURCE, Source, add_source, plan_source
from alpa_mlir.errors import EntryPointError

DESCRIPTION = (
    "Finds the best plan for a step on a cluster: pipeline stages, the devices of each, how every "
    "tensor is split, micro-batches and schedule. Prints it, and writes it with -o; a saved plan "
    "runs without the compiler and the model's code."
)
EXAMPLES = """\
  alpa-mlir plan train.py:entry --cluster dgx-a100 -o my_plan
  alpa-mlir plan my_package.train:entry --cluster p4d.24xlarge:16 --set layers=24 -o my_plan
  alpa-mlir plan train.py:entry --cluster cluster.yaml --micro-batches 4,8 --schedule 1f1b
  alpa-mlir plan train.py:entry --cluster dgx-a100 --method shard --shardings zero-2 --json
  alpa-mlir plan train.py:entry --cluster cluster.yaml --method pipeshard --submeshes 1x4,1x4
  alpa-mlir plan model.mlir --cluster dgx-a100 --batch-arguments 5 -o my_plan
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "an entry point (module:function, path/file.py:function), or a .mlir file")
    parser.add_argument(
        "-o", "--output", type=new_folder, metavar="FOLDER", help="where to write the plan"
    )


def run(options: argparse.Namespace) -> Answer:
    if Path(options.source).is_dir():
        raise EntryPointError(
            "a folder is no step", where=options.source, fix=f"give {SOURCE.partition(', ')[2]}"
        )
    with reserved(options.output):
        source = plan_source(options)
        text = source.as_text()
        fields = plan_fields(source)
        if options.output is not None:
            source.plan.save(options.output)
            text += f"\nwrote {options.output}"
            fields["output"] = str(options.output)
    return Answer(text, fields)


def plan_fields(source: Source) -> dict[str, Any]:
    """What a plan decides, for machines."""
    from alpa_runtime.plan.plan import parallelism_text

    plan = source.plan
    return {
        "name": plan.name,
        "cluster": plan.cluster.get("name"),
        "num_devices": sum(len(mesh.devices) for mesh in plan.meshes),
        "num_micro_batches": plan.num_micro_batches,
        "exact": plan.exactness.exact,
        "schedule": plan.schedule,
        "parallelism": parallelism_text(plan),
        "predicted": dict(plan.predicted),
        "timed_out_solves": plan.timed_out_solves,
        "idle_reason": plan.idle_reason,
        "padded": list(plan.padded),
        "planning": dict(plan.planning),
        "stages": [
            {
                "layers": list(stage.layers),
                "mesh": stage.mesh,
                "mesh_shape": list(plan.meshes[stage.mesh].shape),
                "devices": list(plan.meshes[stage.mesh].devices),
                "predicted": dict(stage.predicted),
                "solver": dict(stage.solver),
                "weights": [
                    {"name": w.name, "shape": list(w.shape), "spec": [list(d) for d in w.spec]}
                    for w in stage.weights
                ],
            }
            for stage in plan.stages
        ],
        "tried": [asdict(row) for row in plan.tried],
    }
