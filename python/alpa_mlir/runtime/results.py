"""How the values that programs give become the results of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpa_mlir.errors import PlanMismatchError
from alpa_mlir.plan import Plan
from alpa_mlir.runtime.actions import Result, Value


def step_results(
    plan: Plan, values: Sequence[Value], given: Mapping[int, Mapping[int | None, int]]
) -> tuple[Result, ...]:
    """One entry for each output of the plan.

    Args:
        given: for each output, the value of each micro-batch, or one under None.

    Raises:
        PlanMismatchError: a result is missing, or has too few or too many values.
    """
    return tuple(_result(plan, values, given, i) for i in range(len(plan.outputs)))


def _result(
    plan: Plan,
    values: Sequence[Value],
    given: Mapping[int, Mapping[int | None, int]],
    index: int,
) -> Result:
    info = plan.outputs[index]
    parts = given.get(index, {})
    count = plan.num_micro_batches
    where = f"outputs[{index}] ({info.name})"
    if not parts:
        raise PlanMismatchError("no program gives this result", where=where)
    if None in parts or count == 1:
        value = next(iter(parts.values()))
        if info.reduction == "concat" and count > 1:
            raise PlanMismatchError("one value for a result that joins micro-batches", where=where)
        raw = values[value].is_sum and info.reduction == "mean"
        return Result((value,), None, 1 / count if raw else 1.0)
    if len(parts) != count or info.reduction is None:
        raise PlanMismatchError(
            f"values of micro-batches {sorted(m for m in parts if m is not None)}, expected "
            + ("one value" if info.reduction is None else f"all {count}"),
            where=where,
        )
    joined = tuple(parts[m] for m in range(count))
    if info.reduction == "concat":
        return Result(joined, "concat", 1.0)
    return Result(joined, "sum", 1 / count if info.reduction == "mean" else 1.0)
