"""Which of the values that programs give are the results of a step."""

from __future__ import annotations

from collections.abc import Mapping

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.plan import Plan


def step_results(
    plan: Plan, given: Mapping[int, Mapping[int | None, int]]
) -> tuple[tuple[int, ...], ...]:
    """For each output of the plan its value, or the parts of all micro-batches.

    Args:
        given: for each output, the value of each micro-batch, or one under None.

    Raises:
        PlanMismatchError: a result is missing, or has too few or too many values.
    """
    return tuple(_result(plan, given.get(index, {}), index) for index in range(len(plan.outputs)))


def _result(plan: Plan, parts: Mapping[int | None, int], index: int) -> tuple[int, ...]:
    info = plan.outputs[index]
    count = plan.num_micro_batches
    where = f"outputs[{index}] ({info.name})"
    if not parts:
        raise PlanMismatchError("no program gives this result", where=where)
    is_joined = info.reduction == "concat" and count > 1
    if None in parts and is_joined:
        raise PlanMismatchError("one value for a result that joins micro-batches", where=where)
    if None in parts or count == 1:
        return tuple(parts.values())
    if len(parts) != count or not is_joined:
        raise PlanMismatchError(
            f"values of micro-batches {sorted(m for m in parts if m is not None)}, expected "
            + (f"all {count}" if is_joined else "one value"),
            where=where,
        )
    return tuple(parts[m] for m in range(count))
