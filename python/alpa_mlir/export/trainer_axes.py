"""The axes of a plan's meshes as those of trainers with meshes of named axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import host_groups, plan_summary
from alpa_runtime.plan.strategy import axis_kinds, strategy_of

from alpa_mlir.errors import ExportError

# Of each axis of a trainer's mesh: devices within a host, and over how many hosts it goes.
Sizes = dict[str, tuple[int, int]]


# What an axis of each kind does, of those that trainers may lack.
_SAME_PRODUCTS = {
    "whole, split weights": "does nothing but keep pieces of weights, its devices compute the same",
    "whole products": "splits nothing, its devices compute the same",
}
_DOES = _SAME_PRODUCTS | {
    "expert": "splits experts",
    "sequence": "splits tokens",
    "sequence, split weights": "splits tokens and keeps pieces of weights",
    "mixed": "splits one thing in some products and another in others",
}


def trainer_axes(
    plan: Plan, index: int, names: Mapping[str, str], trainer: str
) -> tuple[Sizes, set[str]]:
    """Sizes of a trainer's axes in a stage, and the kinds of the plan's.

    Args:
        names: the trainer's axis for each kind that `axis_kinds` knows and the trainer has.

    Raises:
        ExportError: the plan has another one, or does not say of which kinds its axes are.
    """
    where = f"plan of {plan.name}"
    mesh = plan.meshes[plan.stages[index].mesh]
    sizes: Sizes = dict.fromkeys(names.values(), (1, 1))
    kinds = axis_kinds(plan, index)
    if kinds is None:
        raise ExportError(
            f"the plan does not say what the axes of stage {index} split",
            where=where,
            fix="plan the step again, and copy the whole folder",
        )
    for place, (kind, size) in enumerate(zip(kinds, mesh.shape, strict=True)):
        if size == 1:
            continue
        if kind not in names:
            raise ExportError(
                f"axis {mesh.axes[place]} of stage {index} {_DOES.get(kind, kind)}, which no axis "
                f"of {trainer}'s mesh does",
                where=where,
                fix=f"{_remedy(plan, kind, kinds, mesh.shape)}, or export it to "
                + ("mpmd" if len(plan.stages) > 1 else "jax or mpmd"),
            )
        stride = prod(mesh.shape[place + 1 :])
        line = [mesh.devices[i * stride] for i in range(size)]
        pairs = zip(sizes[names[kind]], within_and_over_hosts(plan, line), strict=True)
        within, over = (a * b for a, b in pairs)
        sizes[names[kind]] = within, over
    return sizes, {kind for kind, size in zip(kinds, mesh.shape, strict=True) if size > 1}


def _remedy(plan: Plan, kind: str, kinds: Sequence[str], shape: Sequence[int]) -> str:
    """What to plan otherwise, where a trainer has no axis of this kind."""
    splits_rows = {*_SAME_PRODUCTS, "data", "ZeRO", "FSDP"}
    count = prod(n for other, n in zip(kinds, shape, strict=True) if other in splits_rows)
    rows = _rows(plan)
    if kind in _SAME_PRODUCTS and rows % count:
        return (
            f"plan with micro-batches whose rows {count} devices can share (they have {rows}), or "
            "with another mesh_shape"
        )
    return "plan with another mesh_shape"


def within_and_over_hosts(plan: Plan, line: Sequence[int]) -> tuple[int, int]:
    """How many devices of a line share a host, and over how many hosts it goes."""
    hosts: list[int] = []
    for group in host_groups(plan.cluster):
        for _ in range(int(group.get("count", 1))):
            hosts += [hosts[-1] + 1 if hosts else 0] * int(group["devices"])
    if max(line) >= len(hosts):
        return len(line), 1
    over = len({hosts[device] for device in line})
    return (len(line) // over, over) if len(line) % over == 0 else (1, len(line))


def axes_text(sizes: Sizes) -> str:
    shown = [f"{axis} {prod(part)}" for axis, part in sizes.items() if prod(part) > 1]
    return " x ".join(shown) or "one device"


def batch_rows(plan: Plan) -> int:
    """Rows of a micro-batch.

    Raises:
        ExportError: there is no batch with rows.
    """
    rows = _rows(plan)
    if not rows:
        raise ExportError("its step has no batch with rows", where=f"plan of {plan.name}")
    return rows


def _rows(plan: Plan) -> int:
    """Of a micro-batch; 0 if there is no batch with rows."""
    given = (x for x in plan.inputs if x.kind == "batch" and x.shape and x.is_given)
    return max((x.shape[0] for x in given), default=0)


def head_lines(plan: Plan, yours: str, notes: Sequence[str]) -> list[str]:
    """Comments at the top of a file: the plan, and what the file does not say."""
    kinds = strategy_of(plan).text
    return [
        f"# {plan_summary(plan)}.",
        *([f"# Strategy: {kinds}."] if kinds else []),
        f"# For {sum(len(mesh.devices) for mesh in plan.meshes)} devices.",
        "#",
        f"# {yours}",
        *(f"# Note: {note}." for note in notes),
    ]


def weight_lines(plan: Plan) -> list[str]:
    """Comments on the largest weights, and how they lie."""
    lines = ["", "# The plan's weights, and the mesh axes that split each of their dimensions:"]
    names = strategy_of(plan).axes
    for index, stage in enumerate(plan.stages):
        if len(plan.stages) > 1:
            lines.append(f"# stage {index}")
        for weight in sorted(stage.weights, key=lambda weight: -prod(weight.shape))[:12]:
            dims = "x".join(map(str, weight.shape))
            lines.append(f"#   {weight.name} {dims} {names[stage.mesh].spec(weight.spec)}")
    return lines
