"""What the driver of a step does, action after action, on values with one definition each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from alpa_runtime.plan.tensor import TensorSpec


@dataclass(frozen=True)
class Value:
    """A buffer of the step."""

    mesh: int
    tensor: TensorSpec


@dataclass(frozen=True)
class Place:
    """Put argument `arg`, or its part of one micro-batch, on the value's mesh."""

    value: int
    arg: int
    micro_batch: int | None


@dataclass(frozen=True)
class Run:
    """Run a function of a stage; `last` are inputs that nobody needs afterwards.

    Attributes:
        sums: outputs of the function to which the run adds its last inputs, one for each.
    """

    stage: int
    function: str
    micro_batch: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sums: tuple[int, ...] = ()
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Zero:
    """Fill values of one mesh with zeros."""

    values: tuple[int, ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reshard:
    """Hold a value of the same mesh otherwise."""

    source: int
    value: int
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Accumulate:
    """For every (result, left, right): result = left + right, in left's buffer."""

    mesh: int
    sums: tuple[tuple[int, int, int], ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Move a value from one mesh to another, in the receiver's sharding, by reshard `by`.

    `tag` is that of the plan's instructions; with the reshard it names one copy of the step.
    """

    source: int
    value: int
    by: int
    tag: int
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Send:
    """Where the source of a copy may be sent: what a sending worker does of it first."""

    source: int
    by: int
    tag: int
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exchange:
    """The rest of a worker's part in a copy between workers.

    Attributes:
        source: None if the worker has nothing of it, or sends it only.
        value: None if the worker has nothing of the copy.
    """

    source: int | None
    value: int | None
    by: int
    tag: int
    last: tuple[int, ...] = ()


Action = Place | Run | Zero | Reshard | Accumulate | Copy | Send | Exchange
_Changed = TypeVar("_Changed", bound=Action)


def _changed(action: _Changed, **fields: Any) -> _Changed:
    """`dataclasses.replace` in a tenth of its time: a step may have a hundred thousand actions."""
    result = object.__new__(type(action))
    result.__dict__.update(action.__dict__, **fields)
    return result


@dataclass(frozen=True)
class MergedStep:
    """A whole step, ready to be bound to devices.

    Attributes:
        results: for each one its value, or the micro-batches' parts of it, to be joined along
            dimension 0; nothing where the programs that make it were not read.
    """

    values: tuple[Value, ...]
    actions: tuple[Action, ...]
    results: tuple[tuple[int, ...], ...]


def fuse_sums(actions: Iterable[Action], values: list[Value]) -> list[Action]:
    """Neighbouring accumulations of one mesh become one action.

    An accumulation joins the open group of its mesh unless the mesh has done something else
    since, or it reads what the group makes.
    """
    result: list[Action] = []
    open_groups: dict[int, int] = {}
    for action in actions:
        if isinstance(action, Accumulate):
            position = open_groups.get(action.mesh)
            if position is not None:
                group = result[position]
                assert isinstance(group, Accumulate)
                made = {value for value, _, _ in group.sums}
                if not made & {v for _, left, right in action.sums for v in (left, right)}:
                    result[position] = _changed(group, sums=group.sums + action.sums)
                    continue
            open_groups[action.mesh] = len(result)
        elif not isinstance(action, Place):  # A sum that comes before a send harms none.
            for value in makes_of(action):
                open_groups.pop(values[value].mesh, None)
        result.append(action)
    return result


def reads_of(action: Action) -> tuple[int, ...]:
    """The values that an action needs, each as often as it does."""
    match action:
        case Place() | Zero():
            return ()
        case Run():
            return action.inputs
        case Accumulate():
            return tuple(v for _, left, right in action.sums for v in (left, right))
        case Copy() | Reshard() | Send():
            return (action.source,)
        case Exchange():
            return () if action.source is None else (action.source,)


def makes_of(action: Action) -> tuple[int, ...]:
    """The values that an action defines."""
    match action:
        case Place() | Copy() | Reshard():
            return (action.value,)
        case Zero():
            return action.values
        case Send():
            return ()
        case Exchange():
            return () if action.value is None else (action.value,)
        case Run():
            return action.outputs
        case Accumulate():
            return tuple(value for value, _, _ in action.sums)


def sums_of(step: MergedStep) -> dict[tuple[int, str], tuple[int, ...]]:
    """For each (stage, function) that is run, to which outputs its runs add."""
    return {(a.stage, a.function): a.sums for a in step.actions if isinstance(a, Run)}


def drop_at_last_use(actions: Iterable[Action], kept: Collection[int]) -> tuple[Action, ...]:
    """Every action learns which values nobody reads after it.

    Args:
        kept: values that the step gives to its caller.
    """
    read_later = set(kept)
    result: list[Action] = []
    for action in reversed(list(actions)):
        if not isinstance(action, Place):
            reads = reads_of(action)
            last = {v for v in (*reads, *makes_of(action)) if v not in read_later}
            if last:
                read_later.update(reads)
                action = _changed(action, last=tuple(sorted(last)))
        result.append(action)
    return tuple(reversed(result))


def in_one_process(step: MergedStep) -> MergedStep:
    """The step where one process has all meshes: a copy is one action."""
    actions = [action for action in step.actions if not isinstance(action, Send)]
    kept = {value for result in step.results for value in result}
    return replace(step, actions=drop_at_last_use(actions, kept))


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
    outputs_of = {key: sorted(outputs) for key, outputs in summed.items()}
    result: list[Action] = []
    for at, action in enumerate(actions):
        if isinstance(action, Run):
            outputs = outputs_of.get((action.stage, action.function))
            if outputs is None:
                result.append(action)
            else:
                result += _with_sums(action, outputs, folded.get(at, {}), values)
        elif isinstance(action, Accumulate):
            left = tuple(s for s in action.sums if s[0] not in gone)
            if left:
                result.append(_changed(action, sums=left))
        else:
            result.append(action)
    return result


def _foldable(
    actions: Sequence[Action], values: Sequence[Value], kept: Collection[int]
) -> dict[int, dict[int, tuple[int, int]]]:
    """By the run's position and its output: the sum that takes the output's place, and what is
    added to it."""
    reads = Counter(chain.from_iterable(map(reads_of, actions)))
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
    summing = _changed(run, inputs=(*run.inputs, *added), outputs=tuple(made), sums=tuple(outputs))
    return [Zero(tuple(zeros)), summing] if zeros else [summing]
