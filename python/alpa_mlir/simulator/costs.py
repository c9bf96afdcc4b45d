"""Seconds of a plan's functions and bytes of its tensors on a device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from alpa_runtime.plan import Plan
from alpa_runtime.plan.stage import MeshInfo, StageInfo
from alpa_runtime.plan.tensor import TensorSpec

from alpa_mlir.errors import PlanFormatError

BACKWARD_PARTS = ("backward_input", "backward_weight")


def item_bytes(dtype: str) -> float:
    """Bytes of an element, by the digits of NumPy's name; narrow types take their part."""
    if dtype == "bool":
        return 1
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 4


def tensor_bytes(tensor: TensorSpec) -> float:
    """Bytes of the whole tensor."""
    return prod(tensor.shape) * item_bytes(tensor.dtype)


def device_bytes(tensor: TensorSpec, mesh: MeshInfo) -> float:
    """Bytes of the part of a tensor that each device of the mesh holds."""
    sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
    parts = [prod(sizes.get(axis, 1) for axis in axes) for axes in tensor.spec]
    dims = [-(-size // part) for size, part in zip(tensor.shape, parts, strict=True)]
    return prod(dims) * item_bytes(tensor.dtype)


def function_seconds(plan: Plan) -> dict[tuple[int, str], float]:
    """Predicted seconds of one call of each stage's functions, by (stage, function).

    The seconds of a stage's update are shared out to its update functions by the bytes that each
    reads and writes on a device, since updates are bound by memory. Those of a backward that is cut
    in two are shared out by FLOPs, or in halves, if the plan does not say what each part takes.

    Raises:
        PlanFormatError: the plan has no predicted seconds for a function.
    """
    seconds: dict[tuple[int, str], float] = {}
    for index, stage in enumerate(plan.stages):
        updates = _update_shares(stage, plan.meshes[stage.mesh])
        for name in stage.functions:
            kind, share = name, 1.0
            if name in updates:
                kind, share = "update", updates[name]
            elif name in BACKWARD_PARTS and f"{name}_seconds" not in stage.predicted:
                kind, share = "backward", _backward_share(stage, name)
            key = f"{kind}_seconds"
            if key not in stage.predicted:
                raise PlanFormatError(
                    f"no predicted seconds for @{name}",
                    where=f"stages[{index}].predicted.{key}",
                    fix="plan the step with alpa_mlir, which foresees the seconds of every stage",
                )
            seconds[index, name] = stage.predicted[key] * share
    return seconds


def _backward_share(stage: StageInfo, name: str) -> float:
    flops = {part: stage.predicted.get(f"{part}_flops", 0.0) for part in BACKWARD_PARTS}
    total = sum(flops.values())
    return flops[name] / total if total else 1 / len(BACKWARD_PARTS)


def _update_shares(stage: StageInfo, mesh: MeshInfo) -> Mapping[str, float]:
    moved = {
        name: sum(device_bytes(t, mesh) for t in (*function.inputs, *function.outputs))
        for name, function in stage.functions.items()
        if name.startswith("update")
    }
    total = sum(moved.values())
    return {name: count / total if total else 1 / len(moved) for name, count in moved.items()}
