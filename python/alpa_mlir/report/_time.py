"""Where the seconds of a step go, and how near stages come to the roofs of their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.strategy import (
    is_attention,
    is_product,
    is_recomputed,
    unnamed_recomputation,
)

from alpa_mlir.report._model import RooflinePoint, TimeUse

if TYPE_CHECKING:
    from alpa_mlir.simulator import Timeline

Row = Mapping[str, Any]

#: Parts of a step's seconds, in the order in which they are shown.
PARTS = (
    "products",
    "attention",
    "other ops",
    "recomputation",
    "update",
    "communication",
    "host copies",
    "waiting",
)


def _part(row: Row) -> str:
    if row["phase"] == "update":
        return "update"
    if is_recomputed(row):
        return "recomputation"
    if is_attention(row):
        return "attention"
    return "products" if is_product(row) else "other ops"


def time_uses(
    plan: Plan, explanations: Sequence[Row | None], timeline: Timeline | None
) -> tuple[TimeUse, ...]:
    """Of the devices of each mesh, what the seconds of a step are spent on: what ops take by the
    cost model, collectives that nothing hides, copies from host memory that the step waits for, and
    the rest of the step as waiting. The last row is the mean of all devices.

    Empty if the plan does not say, or if the step's seconds are not known.
    """
    step = plan.predicted.get("step_seconds") if timeline is None else timeline.step_seconds
    if not step or not all(explanations):
        return ()
    rows: list[TimeUse] = []
    total: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    devices = 0
    for mesh, info in enumerate(plan.meshes):
        parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        stages = tuple(i for i, stage in enumerate(plan.stages) if stage.mesh == mesh)
        for found in (explanations[i] for i in stages):
            assert found is not None
            forward = 0.0
            for row in found["ops"]:
                part = _part(row)
                parts[part] += row["compute_seconds"]
                forward += row["compute_seconds"] * (
                    part == "products" and row["phase"] == "forward"
                )
            # Products are computed again in the seconds that forward runs take for them.
            again = forward * unnamed_recomputation(found["ops"])
            parts["products"] -= again
            parts["recomputation"] += again
            parts["communication"] += found["communication_seconds"]
            parts["communication"] += found.get("exposed_communication_seconds", 0.0)
            parts["host copies"] += found.get("host_seconds", 0.0)
        parts["waiting"] = max(0.0, step - sum(parts.values()))
        rows.append(TimeUse(mesh, stages, tuple(parts.values())))
        for name, seconds in parts.items():
            total[name] += seconds * len(info.devices)
        devices += len(info.devices)
    mean = tuple(seconds / devices for seconds in total.values())
    return (*rows, TimeUse(None, tuple(range(len(plan.stages))), mean))


def roofline(plan: Plan, explanations: Sequence[Row | None]) -> tuple[RooflinePoint, ...]:
    """FLOPs for each byte of memory traffic, and FLOP/s while they run, of each stage's forward and
    backward runs on one device; nothing waits in between."""
    points: list[RooflinePoint] = []
    for index, (stage, found) in enumerate(zip(plan.stages, explanations, strict=True)):
        devices = len(plan.meshes[stage.mesh].devices)
        for phase in ("forward", "backward"):
            flops = stage.predicted.get(f"{phase}_flops", 0.0) * plan.num_micro_batches / devices
            rows = [row for row in (found or {}).get("ops", ()) if row["phase"] == phase]
            traffic = sum(row.get("memory_traffic_bytes", 0.0) for row in rows)
            seconds = sum(row["compute_seconds"] for row in rows)
            if flops and traffic and seconds:
                points.append(RooflinePoint(index, phase, flops / traffic, flops / seconds))
    return tuple(points)
