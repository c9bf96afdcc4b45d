"""How the ops of each layer are split, layers that are alike as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from alpa_mlir.plan import Plan
from alpa_mlir.report.model import LayerGroup, LayerOp
from alpa_mlir.report.specs import alike, read_operands, short_where

Row = Mapping[str, Any]


def collect_layers(
    plan: Plan, explanations: Sequence[Row | None]
) -> tuple[tuple[LayerGroup, ...], tuple[str, ...]]:
    """Groups in the order of their first layers, and what the plan does not say."""
    found: dict[Any, LayerGroup] = {}
    silent: list[int] = []
    old = False
    for number, explanation in enumerate(explanations):
        if not explanation:
            silent.append(number)
            continue
        mesh = plan.meshes[plan.stages[number].mesh]
        layers: dict[int | None, list[LayerOp]] = {}
        for row in explanation.get("decisions", ()):
            old = old or "types" not in row
            if row["op"] != "argument" and row["phase"] == "forward":
                layers.setdefault(row.get("layer"), []).append(_op(row, mesh.axes))
        # What no layer has stands at the end.
        for layer, ops in sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0)):
            block, repeats = _block(ops)
            key = (mesh.shape, repeats, tuple(map(_form, block)))
            if key in found:
                before = found[key]
                found[key] = replace(before, layers=(*before.layers, (number, layer)))
            else:
                found[key] = LayerGroup(mesh.shape, ((number, layer),), repeats, tuple(block))
    missing: list[str] = []
    if silent:
        stages = ", ".join(map(str, silent))
        missing.append(f"The plan does not say how the ops of stage {stages} are split.")
    if old:
        missing.append(
            "The plan was made by a compiler that did not note layers and shapes of ops; boxes are "
            "drawn without sizes, and all layers of a stage are one list."
        )
    return tuple(found.values()), tuple(missing)


def _op(row: Row, axes: Sequence[str]) -> LayerOp:
    operands, results = read_operands(row["chosen"], row.get("types"), row.get("reads", ()), axes)
    return LayerOp(
        row["op"].removeprefix("stablehlo."),
        short_where(row["where"]),
        operands,
        results,
        row["seconds"],
        row["choices"],
        row.get("runner_up"),
        row.get("runner_up_more_seconds"),
    )


def _form(op: LayerOp) -> Any:
    """What ops that are alike have in common: all but numbers in names, and seconds."""
    operands = tuple((alike(t.name), t.shape, t.dtype, t.spec, t.partial) for t in op.operands)
    return op.op, alike(op.where), operands, op.results


def _block(ops: list[LayerOp]) -> tuple[list[LayerOp], int]:
    """The shortest run of ops that, repeated, is the whole list; its seconds are the means."""
    forms = [_form(op) for op in ops]
    size = len(ops)
    for period in range(1, size // 2 + 1):
        if size % period == 0 and forms == forms[:period] * (size // period):
            repeats = size // period
            mean = [sum(op.seconds for op in ops[i::period]) / repeats for i in range(period)]
            return [replace(ops[i], seconds=mean[i]) for i in range(period)], repeats
    return ops, 1
