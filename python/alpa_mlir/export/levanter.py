"""A plan as the `trainer` section of a configuration file of Levanter."""

from __future__ import annotations

from math import prod
from typing import Any

from alpa_runtime.plan import Plan

from alpa_mlir.errors import ExportError
from alpa_mlir.export.formats import Exported
from alpa_mlir.export.trainer_axes import batch_rows, head_lines, trainer_axes, weight_lines

_AXES = {"data": "replica", "ZeRO": "data", "FSDP": "data", "tensor": "model"}


def export(plan: Plan) -> Exported:
    """The file.

    Raises:
        ExportError: the plan has axes that Levanter's mesh has not.
    """
    where = f"plan of {plan.name}"
    sizes, kinds = trainer_axes(plan, 0, _AXES, "Levanter")
    if sizes["model"][1] > 1:
        raise ExportError(
            f"tensor parallelism over {sizes['model'][1]} hosts, Levanter's is within one",
            where=where,
            fix="plan with a mesh_shape whose tensor axis fits into a host",
        )
    notes: list[str] = []
    rows, count = batch_rows(plan), plan.num_micro_batches
    examples = prod(sizes["replica"]) * prod(sizes["data"])
    fields: dict[str, Any] = {
        "replica_ici_axis_size": sizes["replica"][0],
        "replica_dcn_axis_size": sizes["replica"][1],
        "model_axis_size": sizes["model"][0],
        "train_batch_size": rows * count,
    }
    if rows % examples == 0:
        fields["per_device_parallelism"] = rows // examples
    else:
        notes.append(
            f"a micro-batch of {rows} rows is no multiple of the {examples} devices that Levanter "
            "splits it over; set per_device_parallelism and train_batch_size"
        )
    if prod(sizes["data"]) == 1:
        fields["fsdp_axis"] = "null"
    if "ZeRO" in kinds:
        notes.append("Levanter splits weights where the plan splits the optimizer's state alone")
    if "tensor" in kinds:
        fields["tensor_parallel_axes"] = '["mlp", "heads"]'
        notes.append(
            "tensor_parallel_axes are those of most models; the plan's largest weights are listed "
            "in the file"
        )
    again = sum(int(stage.predicted.get("rematerialized_layers", 0)) for stage in plan.stages)
    notes.append(
        f"gradient_checkpointing is a field of the model: the plan computes {again} layers again "
        "beside what the step that was planned does by itself"
    )
    if plan.padded:
        notes.append(f"the plan pads dimensions ({', '.join(plan.padded)}), Levanter does not")
    yours = "All that is not about devices is yours to add."
    lines = [
        *head_lines(plan, yours, notes),
        "trainer:",
        *(f"  {name}: {value}" for name, value in fields.items()),
        *weight_lines(plan),
    ]
    return Exported("\n".join(lines) + "\n", tuple(notes))
