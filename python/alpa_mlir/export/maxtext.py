"""A plan as a configuration file of MaxText: over its `base.yml`, what says how a step is split."""

from __future__ import annotations

import re
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import InputOp

from alpa_mlir.errors import ExportError
from alpa_mlir.export.formats import Exported
from alpa_mlir.export.trainer_axes import (
    axes_text,
    batch_rows,
    head_lines,
    trainer_axes,
    weight_lines,
    within_and_over_hosts,
)

# What an axis of MaxText's mesh splits; FSDP also splits the batch, as the plan's does.
_AXES = {
    "data": "data",
    "ZeRO": "data",
    "FSDP": "fsdp",
    "tensor": "tensor",
    "expert": "expert",
    "sequence": "context",
    "sequence, split weights": "context",
}
_LAYER = re.compile(r"layers?_?(?:\[')?(\d+)")


def export(plan: Plan) -> Exported:
    """The file.

    Raises:
        ExportError: axes of the plan's meshes split what no axis of MaxText's does, or its stages
            are not alike, as MaxText's are.
    """
    where = f"plan of {plan.name}"
    found = [trainer_axes(plan, index, _AXES, "MaxText") for index in range(len(plan.stages))]
    sizes, kinds = found[0]
    for index, (others, _) in enumerate(found):
        if others != sizes:
            raise ExportError(
                f"stage {index} is {axes_text(others)}, stage 0 {axes_text(sizes)}; those of "
                "MaxText are alike",
                where=where,
                fix="plan with PipeshardParallel(submeshes=..) of equal meshes, or for one mesh",
            )
    count, stages = plan.num_micro_batches, len(plan.stages)
    notes: list[str] = []
    fields: dict[str, Any] = {"hardware": "gpu"}
    for axis, (within, over) in sizes.items():
        fields[f"ici_{axis}_parallelism"], fields[f"dcn_{axis}_parallelism"] = within, over
        if over > 1 and axis == "tensor":
            notes.append("tensor parallelism goes over hosts, which MaxText never recommends")
    if "ZeRO" in kinds:
        fields["shard_optimizer_over_data"] = True
        if "data" in kinds:
            notes.append(
                "MaxText splits the optimizer over all of its data axis; the plan does not"
            )
    if "expert" in kinds:
        notes.append("MaxText's expert axis splits the batch, and weights that are no experts, too")
    if "sequence" in kinds:
        notes.append("MaxText's context axis splits weights, too; the plan's does not")
    devices = sum(len(mesh.devices) for mesh in plan.meshes)
    rows = batch_rows(plan)
    if stages == 1:
        fields["gradient_accumulation_steps"] = count
        fields["per_device_batch_size"] = rows / devices
    else:
        fields |= _pipeline(plan, notes, where)
        fields["per_device_batch_size"] = rows * count / devices
    again = [
        (int(stage.predicted.get("rematerialized_layers", 0)), stage.layers[1] - stage.layers[0])
        for stage in plan.stages
    ]
    if any(count for count, _ in again):
        if all(count == layers for count, layers in again):
            fields["remat_policy"] = "full"
        else:
            shown = ", ".join(f"{count} of {layers}" for count, layers in again)
            notes.append(
                f"the plan computes layers again in some places ({shown} of each stage's); "
                "MaxText's remat_policy is one for all layers"
            )
    else:
        notes.append(
            "remat_policy is left as it is: that which the step was planned with is part of the "
            "plan, which adds none"
        )
    if any(op.tensor.on_host for program in plan.programs for op in program.only(InputOp)):
        fields["optimizer_memory_host_offload"] = True
    if not plan.exactness.exact:
        notes.append("the plan takes micro-batches as batches of their own")
    if plan.padded:
        notes.append(f"the plan pads dimensions ({', '.join(plan.padded)}), which MaxText does not")
    notes.append(
        "which dimension of a weight an axis splits is up to MaxText's logical_axis_rules; the "
        "plan's largest weights are listed in the file"
    )
    return Exported(_text(plan, fields, notes), tuple(notes))


def _text(plan: Plan, fields: dict[str, Any], notes: list[str]) -> str:
    yours = "model_name, max_target_length and all that is not about devices is yours to add."
    lines = [
        *head_lines(plan, yours, notes),
        'base_config: "base.yml"',
        *(f"{name}: {'true' if value is True else value}" for name, value in fields.items()),
        *weight_lines(plan),
    ]
    return "\n".join(lines) + "\n"


def _pipeline(plan: Plan, notes: list[str], where: str) -> dict[str, Any]:
    """Fields of pipelines; notes on what is otherwise than in the plan."""
    stages, count = len(plan.stages), plan.num_micro_batches
    layers = [_decoder_layers(plan, index) for index in range(stages)]
    fields: dict[str, Any] = {}
    firsts = [plan.meshes[stage.mesh].devices[0] for stage in plan.stages]
    within, over = within_and_over_hosts(plan, firsts)
    fields["ici_pipeline_parallelism"] = within
    fields["dcn_pipeline_parallelism"] = over
    if count % stages:
        raise ExportError(
            f"{count} micro-batches for {stages} stages; MaxText wants a multiple",
            where=where,
            fix=f"plan with a multiple of {stages} micro-batches that divides the batch",
        )
    fields["num_pipeline_microbatches"] = count
    if len({*layers}) == 1 and layers[0]:
        fields["num_layers_per_pipeline_stage"] = layers[0]
    elif all(layers):
        raise ExportError(
            f"stages of {', '.join(map(str, layers))} decoder layers; those of MaxText are equal",
            where=where,
            fix="plan with fewer stages, or for one mesh",
        )
    else:
        notes.append(
            "set num_layers_per_pipeline_stage to the decoder layers of a stage: the plan's "
            "weights do not say how many these are"
        )
    notes.append(
        f"the plan's schedule is {plan.schedule}; MaxText runs its own, all forward runs before "
        "all backward runs, which keeps the activations of every micro-batch"
    )
    return fields


def _decoder_layers(plan: Plan, index: int) -> int:
    """How many decoder layers a stage has: pieces of stacks, or layers that have numbers; 0 if
    neither says it."""
    rows = {
        piece.size
        for program in plan.programs
        if program.mesh == plan.stages[index].mesh
        for op in program.only(InputOp)
        for piece in [plan.inputs[op.arg].piece]
        if piece is not None
    }
    if len(rows) == 1:
        return rows.pop()
    numbers = {found[1] for w in plan.stages[index].weights if (found := _LAYER.search(w.name))}
    return len(numbers)
