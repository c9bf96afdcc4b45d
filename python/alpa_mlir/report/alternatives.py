"""What else could have been: other candidates, other plans, runners-up of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alpa_runtime.plan import Plan

from alpa_mlir.report.model import Candidate, Certificate, Compared, DearOp, Decision
from alpa_mlir.report.specs import alike, short_where

Row = Mapping[str, Any]
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
