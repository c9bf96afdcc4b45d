"""Layers of a plan and what else their ops could have chosen, from the plan's explanations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.tensor import numpy_name

from alpa_mlir.report._model import (
    Candidate,
    Certificate,
    Compared,
    DearOp,
    Decision,
    LayerGroup,
    LayerOp,
    Operand,
    Spec,
)

_TYPE = re.compile(r"((?:\d+x)*)([A-Za-z]\S*)")
# Plans of earlier compilers say `partial`.
_TENSOR = re.compile(r"\[([^\]]*)\](?: (?:unreduced|partial) ([\d ]+))?")


def _parts(text: str) -> tuple[str, str]:
    """Operands and results of a text with an arrow; without one it is a result alone."""
    before, arrow, after = text.partition(" -> ")
    return (before.strip("()"), after) if arrow else ("", before)


def _types(text: str) -> list[tuple[tuple[int, ...], str] | None]:
    found: list[tuple[tuple[int, ...], str] | None] = []
    for part in text.split(", ") if text else []:
        match = _TYPE.fullmatch(part)
        if match is None:
            found.append(None)
            continue
        shape = tuple(int(size) for size in match[1].split("x") if size)
        found.append((shape, numpy_name(match[2]) or match[2]))
    return found


def _specs(text: str, axes: Sequence[str]) -> list[tuple[Spec, tuple[str, ...]]]:
    def named(numbers: str) -> tuple[str, ...]:
        return tuple(axes[int(n)] if int(n) < len(axes) else f"axis {n}" for n in numbers)

    found: list[tuple[Spec, tuple[str, ...]]] = []
    for match in _TENSOR.finditer(text):
        dims = [dim.strip() for dim in match[1].split(",")] if match[1] else []
        spec = tuple(named(dim.removeprefix("S")) if dim != "R" else () for dim in dims)
        found.append((spec, named("".join((match[2] or "").split()))))
    return found


def read_operands(
    chosen: str, types: str | None, reads: Sequence[str], axes: Sequence[str]
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Operands and results of an op.

    Args:
        chosen: their shardings.
        types: shapes and dtypes in the same form, or None if the plan does not say.
        reads: for each operand the argument that it is, or nothing.
        axes: names of the mesh's axes.

    Example:
        >>> read_operands("([S0, R]) -> [R, R] unreduced 0", "(8x4xf32) -> 8x4xf32", ["w"], "xy")[0]
        (Operand(name='w', shape=(8, 4), dtype='float32', spec=(('x',), ()), unreduced=()),)
    """
    sides: list[tuple[Operand, ...]] = []
    for side, text in enumerate(_parts(chosen)):
        specs = _specs(text, axes)
        known = _types(_parts(types)[side]) if types else []
        tensors: list[Operand] = []
        for number, (spec, unreduced) in enumerate(specs):
            form = known[number] if len(known) == len(specs) else None
            if form is not None and len(form[0]) != len(spec):
                form = None
            name = reads[number] if side == 0 and number < len(reads) else ""
            shape, dtype = form if form is not None else (None, None)
            tensors.append(Operand(name, shape, dtype, spec, unreduced))
        sides.append(tuple(tensors))
    return sides[0], sides[1]


_SCOPES = re.compile(r"(?:transpose\()?jvp\(\w+\)\)?|alpa_\w+|jit\(step\)")
_DIGITS = re.compile(r"\d+")


def short_where(where: str) -> str:
    """JAX's name without the scopes that the tracer adds.

    Example:
        >>> short_where("jit(step)/jvp(alpa_eqn_3)/jit(_block)/dot_general")
        'jit(_block)/dot_general'
    """
    parts = [part for part in where.split("/") if part and not _SCOPES.fullmatch(part)]
    return "/".join(parts) or where


def alike(name: str) -> str:
    """A name without its numbers: that of all layers.

    Example:
        >>> alike("state['layers'][12]['qkv']")
        "state['layers'][*]['qkv']"
    """
    return _DIGITS.sub("*", name)


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
    operands = tuple((alike(t.name), t.shape, t.dtype, t.spec, t.unreduced) for t in op.operands)
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


_Placed = tuple[int, Row]  # A row, and its stage.

_MOST_ROWS = 400  # Of ops and decisions, the dearest; layers that are alike are one row.
_MOST_CHANGES = 200  # Of a comparison.


def candidates(plan: Plan) -> tuple[Candidate, ...]:
    """What the search tried, the fastest first; the one that it took is marked."""
    step = plan.predicted.get("step_seconds")

    def is_chosen(seconds: float | None, count: int, schedule: str) -> bool:
        return (seconds, count, schedule) == (step, plan.num_micro_batches, plan.schedule)

    rows = [
        Candidate(
            tried.num_micro_batches,
            tried.remat,
            tried.schedule,
            tried.stages,
            tried.seconds,
            tried.measured_seconds,
            tried.peak_bytes,
            tried.exact,
            tried.reason,
            is_chosen(tried.seconds, tried.num_micro_batches, tried.schedule)
            or (tried.measured_seconds is not None and tried.measured_seconds == step),
        )
        for tried in plan.tried
    ]

    def order(row: Candidate) -> tuple[bool, float]:
        known = row.measured_seconds if row.measured_seconds is not None else row.seconds
        return known is None, known or 0.0

    return tuple(sorted(rows, key=order))


def compared(plan: Plan, others: Mapping[str, Plan]) -> tuple[Compared, ...]:
    """Other plans, and what they decide otherwise."""
    rows: list[Compared] = []
    for name, other in others.items():
        diff = plan.diff(other)
        changes = [*diff.decisions, *diff.predictions, *diff.shardings]
        peaks = [s.predicted["peak_bytes"] for s in other.stages if "peak_bytes" in s.predicted]
        rows.append(
            Compared(
                name,
                other.predicted.get("step_seconds"),
                max(peaks, default=None),
                len(other.stages),
                other.num_micro_batches,
                other.schedule,
                sum(len(mesh.devices) for mesh in other.meshes),
                tuple((c.what, c.before, c.after) for c in changes[:_MOST_CHANGES]),
                max(0, len(changes) - _MOST_CHANGES),
            )
        )
    return tuple(rows)


def decisions(explanations: Sequence[Row | None]) -> tuple[tuple[Decision, ...], int]:
    """Decisions that had another choice, alike ones as one row, the dearest to change last; and
    how many rows there are in all."""
    changeable = [item for item in _rows(explanations, "decisions") if "runner_up" in item[1]]
    rows = [
        Decision(
            op,
            where,
            phase,
            chosen,
            runner_up,
            len(members),
            max(row["choices"] for _, row in members),
            sum(row["seconds"] for _, row in members),
            min(row["runner_up_more_seconds"] for _, row in members),
            _stages(members),
        )
        for (op, where, phase, chosen, runner_up), members in _kinds(
            changeable, "chosen", "runner_up"
        )
    ]
    rows.sort(key=lambda row: -row.seconds)
    return tuple(rows[:_MOST_ROWS]), len(rows)


def dear_ops(explanations: Sequence[Row | None]) -> tuple[tuple[DearOp, ...], int]:
    """What ops cost, alike ones as one row, the dearest first; and how many rows there are."""
    rows = [
        DearOp(
            op,
            where,
            phase,
            specs,
            len(members),
            sum(row["compute_seconds"] for _, row in members),
            sum(row["communication_seconds"] for _, row in members),
            _stages(members),
        )
        for (op, where, phase, specs), members in _kinds(_rows(explanations, "ops"), "specs")
    ]
    rows.sort(key=lambda row: -(row.compute_seconds + row.communication_seconds))
    return tuple(rows[:_MOST_ROWS]), len(rows)


def _rows(explanations: Sequence[Row | None], table: str) -> list[_Placed]:
    """A table of all stages, with the number of each row's stage."""
    return [
        (stage, row)
        for stage, explanation in enumerate(explanations)
        for row in (explanation or {}).get(table, ())
    ]


def _kinds(
    rows: Iterable[_Placed], *fields: str
) -> Iterable[tuple[tuple[str, ...], list[_Placed]]]:
    """Rows that are alike but for their layers, by op, place, phase and these fields."""
    groups: dict[tuple[str, ...], list[_Placed]] = {}
    for stage, row in rows:
        op, where = row["op"].removeprefix("stablehlo."), alike(short_where(row["where"]))
        names = (op, where, row["phase"], *(row[field] for field in fields))
        groups.setdefault(names, []).append((stage, row))
    return groups.items()


def _stages(members: Sequence[_Placed]) -> tuple[int, ...]:
    return tuple(sorted({stage for stage, _ in members}))


def certificates(plan: Plan) -> tuple[Certificate, ...]:
    """What the solver says of each stage; stages of which it says nothing are left out."""
    rows: list[Certificate] = []
    for number, stage in enumerate(plan.stages):
        solver = stage.solver
        if "status" in solver:
            numbers = ("objective_seconds", "lower_bound_seconds", "gap", "nodes", "choices")
            objective, bound, gap, nodes, choices = map(solver.get, numbers)
            rows.append(
                Certificate(
                    number,
                    str(solver["status"]),
                    objective,
                    bound,
                    gap,
                    nodes,
                    choices,
                    solver.get("seconds"),
                )
            )
    return tuple(rows)
