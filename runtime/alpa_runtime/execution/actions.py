"""What the driver of a step does, action after action, on values with one definition each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

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

    `number` counts the step's copies, in the order in which they are sent.
    """

    source: int
    value: int
    by: int
    number: int
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Send:
    """Where the source of copy `number` may be sent: what a sending worker does of it first."""

    source: int
    by: int
    number: int
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
    number: int
    last: tuple[int, ...] = ()


Action = Place | Run | Zero | Reshard | Accumulate | Copy | Send | Exchange


@dataclass(frozen=True)
class LinearStep:
    """A whole step, ready to be bound to devices.

    Attributes:
        results: for each one its value, or the micro-batches' parts of it, to be joined along
            dimension 0.
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
                    result[position] = replace(group, sums=group.sums + action.sums)
                    continue
            open_groups[action.mesh] = len(result)
        elif not isinstance(action, Place | Send):  # A sum that comes before a send harms none.
            for value in (*reads_of(action), *makes_of(action)):
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


def sums_of(step: LinearStep) -> dict[tuple[int, str], tuple[int, ...]]:
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
        last = {v for v in (*reads_of(action), *makes_of(action)) if v not in read_later}
        read_later.update(reads_of(action))
        if not isinstance(action, Place):
            action = replace(action, last=tuple(sorted(last)))
        result.append(action)
    return tuple(reversed(result))


def in_one_process(step: LinearStep) -> LinearStep:
    """The step where one process has all meshes: a copy is one action."""
    actions = [action for action in step.actions if not isinstance(action, Send)]
    kept = {value for result in step.results for value in result}
    return replace(step, actions=drop_at_last_use(actions, kept))
