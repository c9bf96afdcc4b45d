"""Sums of micro-batches' results, made by the programs that give the results.

A program of its own for a sum reads both operands and writes one again; a function that is given
what has been summed so far adds to it where its result is still at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from alpa_runtime.execution.actions import Accumulate, Action, Run, Value, Zero, makes_of, reads_of


def fold_sums(
    actions: Sequence[Action], values: list[Value], kept: Collection[int]
) -> list[Action]:
    """Accumulations become part of the runs that make their right operands.

    Such a run has the left operands as further inputs, and the sums as outputs. Every run of a
    function sums the same of its outputs, so that it is one program; zeros are added where there
    is no sum yet, as with the first micro-batch.

    Args:
        actions: in order; `last` is not set yet.
        values: those of the step; zeros are added to them.
        kept: values that the step gives to its caller.
    """
    folded = _foldable(actions, values, kept)
    summed: dict[tuple[int, str], set[int]] = {}
    for at, sums in folded.items():
        run = actions[at]
        assert isinstance(run, Run)
        summed.setdefault((run.stage, run.function), set()).update(sums)
    gone = {result for sums in folded.values() for result, _ in sums.values()}
    result: list[Action] = []
    for at, action in enumerate(actions):
        if isinstance(action, Run):
            outputs = sorted(summed.get((action.stage, action.function), ()))
            result += _with_sums(action, outputs, folded.get(at, {}), values)
        elif isinstance(action, Accumulate):
            left = tuple(s for s in action.sums if s[0] not in gone)
            if left:
                result.append(replace(action, sums=left))
        else:
            result.append(action)
    return result


def _foldable(
    actions: Sequence[Action], values: Sequence[Value], kept: Collection[int]
) -> dict[int, dict[int, tuple[int, int]]]:
    """By the run's position and its output: the sum that takes the output's place, and what is
    added to it."""
    reads = Counter(value for action in actions for value in reads_of(action))
    made = {value: at for at, action in enumerate(actions) for value in makes_of(action)}
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for action in actions:
        if not isinstance(action, Accumulate):
            continue
        for result, left, right in action.sums:
            at = made[right]
            run = actions[at]
            if (
                isinstance(run, Run)
                and values[right].mesh == action.mesh
                and values[right].tensor.dtype != "bool"
                and reads[right] == 1
                and right not in kept
                and made[left] < at
            ):
                found.setdefault(at, {})[run.outputs.index(right)] = result, left
    return found


def _with_sums(
    run: Run, outputs: Sequence[int], sums: dict[int, tuple[int, int]], values: list[Value]
) -> list[Action]:
    """A run that adds to those outputs, behind the zeros that it needs for it."""
    made, added, zeros = list(run.outputs), list[int](), list[int]()
    for output in outputs:
        if output in sums:
            made[output], left = sums[output]
        else:
            like = values[made[output]]
            left = len(values)
            values.append(Value(like.mesh, like.tensor))
            zeros.append(left)
        added.append(left)
    summing = replace(run, inputs=(*run.inputs, *added), outputs=tuple(made), sums=tuple(outputs))
    return [Zero(tuple(zeros)), summing] if zeros else [summing]
