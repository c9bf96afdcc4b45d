"""How the ops of each layer are split, layers that are alike as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from alpa_runtime.plan import Plan

from alpa_mlir.report.model import LayerGroup, LayerOp
from alpa_mlir.report.specs import alike, read_operands, short_where

Row = Mapping[str, Any]

_LONGEST_BLOCK = 200  # Ops of a run that is looked for.


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
            blocks = _blocks(ops)
            forms = tuple((times, tuple(map(_form, block))) for times, block in blocks)
            group = found.setdefault(
                (mesh.shape, mesh.axes, forms), LayerGroup(mesh.shape, mesh.axes, (), blocks)
            )
            found[mesh.shape, mesh.axes, forms] = replace(
                group, layers=(*group.layers, (number, layer))
            )
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


def _blocks(ops: list[LayerOp]) -> tuple[tuple[int, tuple[LayerOp, ...]], ...]:
    """The ops as runs, each the shortest that is repeated over the longest stretch from there."""
    numbers: dict[Any, int] = {}
    forms = [numbers.setdefault(_form(op), len(numbers)) for op in ops]
    blocks: list[tuple[int, tuple[LayerOp, ...]]] = []
    single: list[LayerOp] = []
    at = 0
    while at < len(ops):
        period, times = _repeats(forms, at)
        if times == 1:
            single.append(ops[at])
            at += 1
            continue
        if single:
            blocks.append((1, tuple(single)))
            single = []
        end = at + period * times
        means = [
            sum(op.seconds for op in ops[at + i : end : period]) / times for i in range(period)
        ]
        run = [replace(ops[at + i], seconds=means[i]) for i in range(period)]
        blocks.append((times, tuple(run)))
        at = end
    if single:
        blocks.append((1, tuple(single)))
    return tuple(blocks)


def _repeats(forms: list[int], at: int) -> tuple[int, int]:
    """The length of the run at a place, and how many times it stands there, one after another."""
    best = (1, 1)
    for period in range(1, min((len(forms) - at) // 2, _LONGEST_BLOCK) + 1):
        block = forms[at : at + period]
        times = 1
        while forms[at + period * times : at + period * (times + 1)] == block:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
