"""Which inputs of a stage's function give their buffer to one of its outputs."""

from __future__ import annotations

from alpa_runtime.execution.actions import LinearStep, Place, Run, sums_of
from alpa_runtime.plan import Plan


def donations(
    plan: Plan, step: LinearStep, donate_state: bool
) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """For each (stage, function): pairs (input, output) where the output takes the buffer.

    Inputs that are added to outputs (`Run.sums`) count on behind the function's own. An input
    gives its buffer away when every call of the function is its last use, and the caller's arrays
    do only if they are carried state and `donate_state` is set.
    """
    given: dict[tuple[int, str], set[int]] = {}
    origin_arg = {a.value: a.arg for a in step.actions if isinstance(a, Place)}

    def free_to_give(run: Run, value: int) -> bool:
        if value not in run.last or run.inputs.count(value) > 1:
            return False
        if value not in origin_arg:
            return True
        return donate_state and plan.inputs[origin_arg[value]].carried_by is not None

    for action in step.actions:
        if isinstance(action, Run):
            now = {i for i, v in enumerate(action.inputs) if free_to_give(action, v)}
            key = (action.stage, action.function)
            given[key] = given[key] & now if key in given else now
    result: dict[tuple[int, str], tuple[tuple[int, int], ...]] = {}
    carried = _carried_pairs(plan, step, origin_arg)
    sums = sums_of(step)
    for (stage, name), inputs in given.items():
        function = plan.stages[stage].functions[name]
        own = len(function.inputs)
        taken = {j: own + k for k, j in enumerate(sums[stage, name]) if own + k in inputs}
        inputs = {i for i in inputs if i < own}
        for i in sorted(inputs):  # first the buffer of the same piece of state
            j = carried.get((stage, name), {}).get(i)
            if j is not None and function.inputs[i] == function.outputs[j]:
                taken[j] = i
        for i in sorted(inputs - set(taken.values())):
            for j, tensor in enumerate(function.outputs):
                if j not in taken and tensor == function.inputs[i]:
                    taken[j] = i
                    break
        result[stage, name] = tuple(sorted((i, j) for j, i in taken.items()))
    return result


def _carried_pairs(
    plan: Plan, step: LinearStep, origin_arg: dict[int, int]
) -> dict[tuple[int, str], dict[int, int]]:
    """Where a function reads a state argument and makes its next value: input to output."""
    next_value = {
        a.value: step.results[carried][0]
        for a in step.actions
        if isinstance(a, Place) and (carried := plan.inputs[a.arg].carried_by) is not None
    }
    pairs: dict[tuple[int, str], dict[int, int]] = {}
    for action in step.actions:
        if isinstance(action, Run):
            for i, value in enumerate(action.inputs):
                made = next_value.get(value)
                if value in origin_arg and made in action.outputs:
                    found = pairs.setdefault((action.stage, action.function), {})
                    found[i] = action.outputs.index(made)
    return pairs
