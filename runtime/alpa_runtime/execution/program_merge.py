"""The programs of all meshes as one list of actions, checked and merged in the plan's order, and
each worker's share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import jax.numpy

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.execution.reshard_steps import ReshardPart, reshard_part, target_tiles
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    FreeOp,
    InputOp,
    Instruction,
    OutputOp,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
    collector_paused,
)
from alpa_runtime.plan.reshard import (
    Box,
    PlacedTile,
    ReshardInfo,
    Tile,
    box_elements,
    box_text,
    contains,
    first_overlap,
    held_boxes,
    place_tiles,
)
from alpa_runtime.plan.stage import FunctionInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.worker_group import Placement


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

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that the action needs, each as often as it does."""
        return ()

    @property
    def makes(self) -> tuple[int, ...]:
        """The values that the action defines."""
        return (self.value,)


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

    @property
    def reads(self) -> tuple[int, ...]:
        return self.inputs

    @property
    def makes(self) -> tuple[int, ...]:
        return self.outputs


@dataclass(frozen=True)
class Zero:
    """Fill values of one mesh with zeros."""

    values: tuple[int, ...]
    last: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        return ()

    @property
    def makes(self) -> tuple[int, ...]:
        return self.values


class _Move:
    """Reads one value and makes one."""

    source: int
    value: int

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source,)

    @property
    def makes(self) -> tuple[int, ...]:
        return (self.value,)


@dataclass(frozen=True)
class Reshard(_Move):
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

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple([v for _, left, right in self.sums for v in (left, right)])

    @property
    def makes(self) -> tuple[int, ...]:
        return tuple([value for value, _, _ in self.sums])


@dataclass(frozen=True)
class Copy(_Move):
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

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source,)

    @property
    def makes(self) -> tuple[int, ...]:
        return ()


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

    @property
    def reads(self) -> tuple[int, ...]:
        return () if self.source is None else (self.source,)

    @property
    def makes(self) -> tuple[int, ...]:
        return () if self.value is None else (self.value,)


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

    @property
    def kept(self) -> set[int]:
        """The values that the step gives to its caller."""
        return {value for result in self.results for value in result}


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
            for value in action.makes:
                open_groups.pop(values[value].mesh, None)
        result.append(action)
    return result


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
            last = {*action.reads, *action.makes}
            last -= read_later
            if last:
                read_later |= last
                action = _changed(action, last=tuple(sorted(last)))
        result.append(action)
    result.reverse()
    return tuple(result)


def with_fused_sums(step: MergedStep) -> MergedStep:
    """The step with as few programs as possible for its sums: `fold_sums`, then `fuse_sums`."""
    values = list(step.values)
    actions = fuse_sums(fold_sums(step.actions, values, step.kept), values)
    return MergedStep(tuple(values), tuple(actions), step.results)


def in_one_process(step: MergedStep) -> MergedStep:
    """The step where one process has all meshes: a copy is one action."""
    actions = [action for action in step.actions if not isinstance(action, Send)]
    return replace(step, actions=drop_at_last_use(actions, step.kept))


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
    reads = Counter(chain.from_iterable([action.reads for action in actions]))
    made = {value: at for at, action in enumerate(actions) for value in action.makes}
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


# The programs of all meshes, checked and merged in the plan's order, and each worker's share.


def check_tables(plan: Plan) -> None:
    """Check stages, meshes and specs by themselves, before any program is looked at."""
    for index, stage in enumerate(plan.stages):
        if stage.mesh >= len(plan.meshes):
            raise PlanMismatchError(
                f"mesh {stage.mesh}, but the plan has {len(plan.meshes)} meshes",
                where=f"stages[{index}].mesh",
            )
        for name, function in stage.functions.items():
            for kind, tensors in (("input", function.inputs), ("output", function.outputs)):
                for i, tensor in enumerate(tensors):
                    where = f"stages[{index}].functions.{name}: {kind} {i}"
                    check_spec(plan, stage.mesh, tensor, where)
    owners = [program.mesh for program in plan.programs]
    if sorted(owners) != list(range(len(plan.meshes))):
        raise PlanMismatchError(
            f"programs for meshes {owners}, expected one for each of {len(plan.meshes)} meshes",
            where="programs",
        )
    used: dict[int, int] = {}
    for index, mesh in enumerate(plan.meshes):
        for device in mesh.devices:
            if device in used:
                raise PlanMismatchError(
                    f"device {device} belongs to mesh {used[device]} as well",
                    where=f"meshes[{index}].devices",
                )
            used[device] = index


def check_spec(plan: Plan, mesh: int, tensor: TensorSpec, where: str) -> None:
    """A spec names axes of its mesh, each once, and splits dimensions evenly."""
    info = plan.meshes[mesh]
    sizes = dict(zip(info.axes, info.shape, strict=True))
    seen: set[str] = set()
    for dim, axes in enumerate(tensor.spec):
        parts = 1
        for axis in axes:
            if axis not in sizes:
                raise PlanMismatchError(
                    f"spec names axis {axis!r}, mesh {mesh} has {', '.join(info.axes)}", where=where
                )
            if axis in seen:
                raise PlanMismatchError(f"axis {axis!r} splits two dimensions", where=where)
            seen.add(axis)
            parts *= sizes[axis]
        if tensor.shape[dim] % parts:
            raise PlanMismatchError(
                f"dimension {dim} of size {tensor.shape[dim]} is split {parts} ways", where=where
            )


def check_members(plan: Plan, mesh: int, op: AllReduceOp, where: str) -> None:
    """An all-reduce names meshes that there are, its own among them, and its reshards."""
    if (
        len(op.members) < 2
        or list(op.members) != sorted(set(op.members))
        or op.members[-1] >= len(plan.meshes)
    ):
        raise PlanMismatchError(
            f"sums over the meshes {list(op.members)}, expected at least two of "
            f"{len(plan.meshes)}, each once and in order",
            where=where,
        )
    if mesh not in op.members:
        raise PlanMismatchError(
            f"a sum over the meshes {list(op.members)} in the program of mesh {mesh}", where=where
        )
    wanted = 0 if mesh == op.members[0] else 2
    if len(op.by) != wanted:
        raise PlanMismatchError(
            f"names {len(op.by)} reshards, expected "
            + ("the two to the first mesh and back" if wanted else "none on the first mesh"),
            where=where,
        )


def check_by(plan: Plan, by: int, source: Value, target: Value, where: str) -> None:
    """The reshard of a transfer goes from where and how the value is to where it should be."""
    if by >= len(plan.reshards):
        raise PlanMismatchError(f"reshard {by} of {len(plan.reshards)}", where=where)
    info = plan.reshards[by]
    for way, value, mesh, tensor in (
        ("takes", source, info.source_mesh, info.source),
        ("gives", target, info.target_mesh, info.target),
    ):
        if (value.mesh, value.tensor) != (mesh, tensor):
            raise PlanMismatchError(
                f"reshard {by} {way} {tensor.as_text()} on mesh {mesh}, here it is "
                f"{value.tensor.as_text()} on mesh {value.mesh}",
                where=where,
            )


def check_order(plan: Plan) -> None:
    """The order takes every instruction of every mesh once."""
    taken = dict.fromkeys(range(len(plan.meshes)), 0)
    for mesh, count in plan.order:
        if mesh not in taken:
            raise PlanMismatchError(f"mesh {mesh} of {len(plan.meshes)}", where="order")
        taken[mesh] += count
    for program in plan.programs:
        if taken[program.mesh] != len(program.instructions):
            raise PlanMismatchError(
                f"takes {taken[program.mesh]} of the {len(program.instructions)} instructions of "
                f"mesh {program.mesh}",
                where="order",
                fix="plan the step again: programs and their order are written together",
            )


def check_reshards(plan: Plan, meshes: Collection[int]) -> None:
    """Check every reshard from or to meshes; sends and receives are checked where they stand.

    Raises:
        PlanMismatchError: names the first that does not do what it says.
    """
    for index, info in enumerate(plan.reshards):
        if info.source_mesh not in meshes and info.target_mesh not in meshes:
            continue
        where = f"reshards[{index}]"
        for mesh, tensor in ((info.source_mesh, info.source), (info.target_mesh, info.target)):
            if mesh >= len(plan.meshes):
                raise PlanMismatchError(f"mesh {mesh} of {len(plan.meshes)}", where=where)
            check_spec(plan, mesh, tensor, where)
        if info.source_mesh == info.target_mesh:
            raise PlanMismatchError(
                f"mesh {info.source_mesh} is the source and the target", where=where
            )
        if (info.source.shape, info.source.dtype) != (info.target.shape, info.target.dtype):
            raise PlanMismatchError(
                f"makes {info.target.as_text()} of {info.source.as_text()}", where=where
            )
        try:
            tiles = place_tiles(info.steps)
            held = held_boxes(info.source, plan.meshes[info.source_mesh])
            _check_sources(info, held)
            wanted = held_boxes(info.target, plan.meshes[info.target_mesh])
            _check_targets(info, tiles, held, wanted)
        except ValueError as error:
            raise PlanMismatchError(
                str(error), where=where, fix="report this transfer as a defect of the compiler"
            ) from None


def _check_sources(info: ReshardInfo, held: Mapping[int, Box]) -> None:
    for number, step in enumerate(info.steps):
        if not isinstance(step, Tile):
            continue
        where = f"step {number} ({step.to_text()})"
        if step.device not in held:
            raise ValueError(f"{where}: device {step.device} is not in mesh {info.source_mesh}")
        shard = held[step.device]
        if len(step.box) != len(shard) or not contains(shard, step.box):
            raise ValueError(f"{where}: the device holds {box_text(shard)} only")


# Many devices and reshards have equal ones.
@lru_cache(maxsize=1 << 16)
def _add_up(boxes: tuple[Box, ...]) -> tuple[int, tuple[int, int] | None]:
    """Elements of boxes, and the first two of them that overlap."""
    return sum(map(box_elements, boxes)), first_overlap(boxes)


def _check_targets(
    info: ReshardInfo,
    tiles: Sequence[PlacedTile],
    held: Mapping[int, Box],
    wanted: Mapping[int, Box],
) -> None:
    for number, tile in enumerate(tiles):
        if tile.device not in wanted and tile.device not in held:
            raise ValueError(
                f"tile {number} goes to device {tile.device}, which is in neither of the meshes"
            )
    for device, own in target_tiles(info.steps, tiles, wanted).items():
        found, overlap = _add_up(tuple(tiles[number].box for number in own))
        if overlap is not None:
            other, number = (own[i] for i in overlap)
            raise ValueError(f"tiles {other} and {number} bring device {device} the same elements")
        if found != box_elements(wanted[device]):
            raise ValueError(
                f"brings {found} of {box_elements(wanted[device])} elements of "
                f"{box_text(wanted[device])} to device {device}"
            )


# The programs of all meshes, checked and merged in the plan's order, and each worker's share.


def step_results(
    plan: Plan, given: Mapping[int, Mapping[int | None, int]], all_are_read: bool
) -> tuple[tuple[int, ...], ...]:
    """For each output of the plan its value, or the parts of all micro-batches.

    Args:
        given: for each output, the value of each micro-batch, or one under None.
        all_are_read: a result without a value is an error, and not that of another mesh.

    Raises:
        PlanMismatchError: a result is missing, or has too few or too many values.
    """
    return tuple(
        _result(plan, given.get(index, {}), index) if all_are_read or index in given else ()
        for index in range(len(plan.outputs))
    )


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


@dataclass
class _Cursor:
    """How far the merging has come in one mesh's list."""

    mesh: int
    instructions: Sequence[Instruction]
    position: int = 0
    slots: dict[int, int] = field(default_factory=dict[int, int])

    def where(self) -> str:
        return f"plan.json: program of mesh {self.mesh}, instruction {self.position}"


@collector_paused()
def merge_step(plan: Plan) -> MergedStep:
    """Check and merge the programs of a plan, for one process that has all meshes.

    Buffers are dropped, or given away, at their last use.

    Raises:
        PlanMismatchError: programs, functions, meshes and signature contradict each other.
    """
    return in_one_process(with_fused_sums(merge_programs(plan)))


@collector_paused()
def merge_programs(plan: Plan, meshes: Collection[int] | None = None) -> MergedStep:
    """Check and merge the programs of a plan, as they are: each sum is an action of its own, and
    values are not dropped anywhere yet.

    Workers that take those of the actions in which they have a part, in this order, never wait
    for each other in a circle: sends do not block, and come before what waits for them.

    Args:
        meshes: whose programs are read; all by default. What they get from others is taken to be
            as their reshards say, and results of others are empty.

    Raises:
        PlanMismatchError: programs, functions, meshes and signature contradict each other.
    """
    wanted = range(len(plan.meshes)) if meshes is None else meshes
    check_tables(plan)
    check_order(plan)
    check_reshards(plan, wanted)
    return _Merger(plan, wanted).run()


class _Merger:
    def __init__(self, plan: Plan, meshes: Collection[int]) -> None:
        self.plan = plan
        self.values: list[Value] = []
        self.held_as: dict[tuple[int, int], Value] = {}  # By mesh and identity of the tensor.
        self.transferred: set[tuple[int, int, int, int]] = set()  # Ways that were checked.
        self.functions: dict[tuple[int, str], tuple[FunctionInfo, tuple[Value, ...]]] = {}
        self.places: dict[tuple[int, int, int | None, TensorSpec], int] = {}
        self.actions: list[Action] = []
        self.sent: dict[int, tuple[Send, SendOp]] = {}  # By tag.
        self.used_tags: set[int] = set()
        # By tag: where in the order the first mesh comes to it, and meshes that follow.
        self.sums: dict[int, tuple[int, set[int]]] = {}
        self.cursors = {
            p.mesh: _Cursor(p.mesh, tuple(p.instructions))
            for p in plan.programs
            if p.mesh in meshes
        }
        self.ahead = 0  # How far the order has come, beside the position of the cursor that moves.
        self.outputs: dict[int, dict[int | None, int]] = {}
        self.take: dict[type, Callable[[_Cursor, Any], None]] = {
            InputOp: self.input,
            RunOp: self.call,
            SendOp: self.send,
            RecvOp: self.receive,
            ReshardOp: self.reshard,
            ZeroOp: self.zero,
            AccumulateOp: self.accumulate,
            AllReduceOp: self.all_reduce,
            FreeOp: self.free,
            OutputOp: self.output,
        }

    def run(self) -> MergedStep:
        done = 0
        for mesh, count in self.plan.order:
            cursor = self.cursors.get(mesh)
            if cursor is not None:
                self.ahead = done - cursor.position
                for op in cursor.instructions[cursor.position : cursor.position + count]:
                    self.take[type(op)](cursor, op)
                    cursor.position += 1
            done += count
        for tag, (sent, send) in self.sent.items():
            if send.to in self.cursors:
                raise PlanMismatchError(
                    f"tag {tag} from mesh {self.values[sent.source].mesh} to mesh {send.to} is "
                    "never received",
                    where="programs",
                )
        self.check_runs()
        results = step_results(self.plan, self.outputs, self.all_are_read)
        return MergedStep(tuple(self.values), tuple(self.actions), results)

    @property
    def all_are_read(self) -> bool:
        return len(self.cursors) == len(self.plan.meshes)

    def held(self, cursor: _Cursor, tensor: TensorSpec, where: str = "") -> Value:
        """A tensor on the mesh of a cursor; equal ones are mostly one object, and checked once."""
        key = cursor.mesh, id(tensor)
        found = self.held_as.get(key)
        if found is None:
            check_spec(self.plan, cursor.mesh, tensor, where or cursor.where())
            found = self.held_as[key] = Value(cursor.mesh, tensor)
        return found

    def add_value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def new_value(self, cursor: _Cursor, slot: int, value: Value) -> int:
        number = cursor.slots[slot] = self.add_value(value)
        return number

    def read(self, cursor: _Cursor, slot: int) -> int:
        if slot not in cursor.slots:
            raise PlanMismatchError(
                f"slot {slot} holds nothing (never set, or freed before)", where=cursor.where()
            )
        return cursor.slots[slot]

    def read_all(self, cursor: _Cursor, slots: Sequence[int]) -> tuple[int, ...]:
        try:
            return tuple([cursor.slots[slot] for slot in slots])
        except KeyError:
            return tuple([self.read(cursor, slot) for slot in slots])

    def send(self, cursor: _Cursor, op: SendOp) -> None:
        self.use_tag(cursor, op.tag, "sent")
        action = Send(self.read(cursor, op.slot), op.by, op.tag)
        self.sent[op.tag] = action, op
        self.actions.append(action)

    def zero(self, cursor: _Cursor, op: ZeroOp) -> None:
        self.actions.append(Zero((self.new_value(cursor, op.slot, self.held(cursor, op.tensor)),)))

    def free(self, cursor: _Cursor, op: FreeOp) -> None:
        for slot in op.slots:
            if cursor.slots.pop(slot, None) is None:
                self.read(cursor, slot)  # Says what is wrong.

    def use_tag(self, cursor: _Cursor, tag: int, how: str) -> None:
        if tag in self.used_tags:
            raise PlanMismatchError(f"tag {tag} is {how} twice", where=cursor.where())
        self.used_tags.add(tag)

    def reshard(self, cursor: _Cursor, op: ReshardOp) -> None:
        source = self.read(cursor, op.operand)
        held = self.values[source]
        if (held.tensor.shape, held.tensor.dtype) != (op.tensor.shape, op.tensor.dtype):
            raise PlanMismatchError(
                f"holds {held.tensor.as_text()} as {op.tensor.as_text()}", where=cursor.where()
            )
        value = self.new_value(cursor, op.slot, self.held(cursor, op.tensor))
        self.actions.append(Reshard(source, value))

    def all_reduce(self, cursor: _Cursor, op: AllReduceOp) -> None:
        """The first mesh adds the others' parts to its own, in their order; all get that sum.

        It takes place where the order comes to one of them; the others follow at once.
        """
        at = self.ahead + cursor.position
        begin, coming = self.sums.get(op.tag, (at, set[int]()))
        if cursor.mesh in coming:
            coming.remove(cursor.mesh)
            if at >= begin + len(op.members):
                raise self.waits(cursor, op, "meshes that the order has at other places")
            return
        check_members(self.plan, cursor.mesh, op, cursor.where())
        self.use_tag(cursor, op.tag, "summed")
        self.sums[op.tag] = begin, set(op.members) - {cursor.mesh}
        ops = {mesh: self.of_member(mesh, cursor, op) for mesh in op.members}
        parts = {mesh: self.part(mesh, ops) for mesh in op.members}
        home = op.members[0]
        result = parts.pop(home)
        total = self.values[result]
        for mesh, part in parts.items():
            own, where, value = ops[mesh], self.where(mesh), self.values[part]
            if (value.tensor.shape, value.tensor.dtype) != (total.tensor.shape, total.tensor.dtype):
                raise PlanMismatchError(
                    f"adds {value.tensor.as_text()} to {total.tensor.as_text()}", where=where
                )
            check_by(self.plan, own.by[0], value, total, where)
            self.actions.append(Send(part, own.by[0], op.tag))
            copied = self.add_value(total)
            self.actions.append(Copy(part, copied, own.by[0], op.tag))
            left, result = result, self.add_value(total)
            self.actions.append(Accumulate(home, ((result, left, copied),)))
        made = {home: result}
        for mesh, part in parts.items():
            back = ops[mesh].by[1]
            check_by(self.plan, back, total, self.values[part], self.where(mesh))
            self.actions.append(Send(result, back, op.tag))
            made[mesh] = self.add_value(self.values[part])
            self.actions.append(Copy(result, made[mesh], back, op.tag))
        for mesh in self.cursors.keys() & made.keys():
            self.cursors[mesh].slots[ops[mesh].slot] = made[mesh]

    def of_member(self, mesh: int, cursor: _Cursor, op: AllReduceOp) -> AllReduceOp:
        """What stands for a sum in the program of one of its meshes."""
        other = self.cursors.get(mesh)
        if other is None:
            (program,) = (p for p in self.plan.programs if p.mesh == mesh)
            there = program.only(AllReduceOp)
        else:
            there = other.instructions[other.position : other.position + 1]
        for own in there:
            if not isinstance(own, AllReduceOp) or own.tag != op.tag:
                continue
            check_members(self.plan, mesh, own, self.where(mesh))
            if own.members == op.members:
                return own
            raise PlanMismatchError(
                f"sums over the meshes {list(own.members)}, but mesh {cursor.mesh} over "
                f"{list(op.members)} under tag {op.tag}",
                where=self.where(mesh),
            )
        raise self.waits(cursor, op, f"mesh {mesh}, which does not come to it in the plan's order")

    def part(self, mesh: int, ops: Mapping[int, AllReduceOp]) -> int:
        """What a mesh adds to a sum, as the reshards say if its program is not read."""
        own = ops[mesh]
        if mesh in self.cursors:
            return self.read(self.cursors[mesh], own.operand)
        if own.by:
            return self.add_value(Value(mesh, self.reshard_info(own.by[0], mesh).source))
        by = ops[own.members[1]].by[0]
        return self.add_value(Value(mesh, self.reshard_info(by, mesh).target))

    def reshard_info(self, by: int, mesh: int) -> ReshardInfo:
        if by >= len(self.plan.reshards):
            raise PlanMismatchError(
                f"reshard {by} of {len(self.plan.reshards)}", where=self.where(mesh)
            )
        return self.plan.reshards[by]

    def where(self, mesh: int) -> str:
        cursor = self.cursors.get(mesh)
        return f"plan.json: program of mesh {mesh}" if cursor is None else cursor.where()

    def waits(self, cursor: _Cursor, op: Instruction, what: str) -> PlanMismatchError:
        return PlanMismatchError(
            f"waits at '{op.to_text()}' for {what}",
            where=cursor.where(),
            fix="plan the step again, or report this order as a defect of the compiler",
        )

    def accumulate(self, cursor: _Cursor, op: AccumulateOp) -> None:
        lefts, rights = self.read_all(cursor, op.lefts), self.read_all(cursor, op.rights)
        for slot, left, right in zip(op.slots, lefts, rights, strict=True):
            a, b = self.values[left], self.values[right]
            if a is not b and a.tensor != b.tensor:
                raise PlanMismatchError(
                    f"adds {b.tensor.as_text()} to {a.tensor.as_text()}", where=cursor.where()
                )
            value = self.new_value(cursor, slot, a)
            self.actions.append(Accumulate(cursor.mesh, ((value, left, right),)))

    def input(self, cursor: _Cursor, op: InputOp) -> None:
        if op.arg >= len(self.plan.inputs):
            raise PlanMismatchError(
                f"argument {op.arg} of {len(self.plan.inputs)}", where=cursor.where()
            )
        info = self.plan.inputs[op.arg]
        where = f"{cursor.where()} ({info.name})"
        if (info.shape, info.dtype) != (op.tensor.shape, op.tensor.dtype):
            raise PlanMismatchError(
                f"{op.tensor.as_text()}, but the argument is {info.dtype}{list(info.shape)}",
                where=where,
            )
        splits = info.kind == "batch" and self.plan.num_micro_batches > 1
        if splits and op.micro_batch is None:
            raise PlanMismatchError("a batch argument without its micro-batch", where=where)
        self.check_micro_batch(cursor, op.micro_batch)
        held = self.held(cursor, op.tensor, where)
        micro_batch = op.micro_batch if splits else None
        key = (cursor.mesh, op.arg, micro_batch, op.tensor)
        if key in self.places:  # the same buffer under a second name
            cursor.slots[op.slot] = self.places[key]
            return
        value = self.new_value(cursor, op.slot, held)
        self.places[key] = value
        self.actions.append(Place(value, op.arg, micro_batch))

    def check_runs(self) -> None:
        """Whether what runs for micro-batches runs for each, on its own part of the batch."""
        count = self.plan.num_micro_batches
        part = {x.value: x.micro_batch for x in self.actions if isinstance(x, Place)}
        found: dict[tuple[int, str], list[int]] = {}
        for run in self.actions:
            if not isinstance(run, Run) or run.micro_batch is None:
                continue
            found.setdefault((run.stage, run.function), []).append(run.micro_batch)
            for value in run.inputs:
                if part.get(value) not in (None, run.micro_batch):
                    raise PlanMismatchError(
                        f"{run.function} of micro-batch {run.micro_batch} reads micro-batch "
                        f"{part[value]} of the batch",
                        where=f"plan.json: program of stage {run.stage}",
                    )
        for (stage, function), numbers in found.items():
            if not len(numbers) == len(set(numbers)) == count:
                raise PlanMismatchError(
                    f"{function} runs {len(numbers)} times, for {len(set(numbers))} of "
                    f"{count} micro-batches",
                    where=f"plan.json: program of stage {stage}",
                    fix="run it once for each",
                )

    def check_micro_batch(self, cursor: _Cursor, micro_batch: int | None) -> None:
        if micro_batch is not None and micro_batch >= self.plan.num_micro_batches:
            raise PlanMismatchError(
                f"micro-batch {micro_batch} of {self.plan.num_micro_batches}", where=cursor.where()
            )

    def function(self, cursor: _Cursor, op: RunOp) -> tuple[FunctionInfo, tuple[Value, ...]]:
        """What a mesh runs, and its results there."""
        if op.stage >= len(self.plan.stages):
            raise PlanMismatchError(
                f"stage {op.stage} of {len(self.plan.stages)}", where=cursor.where()
            )
        stage = self.plan.stages[op.stage]
        if op.function not in stage.functions:
            raise PlanMismatchError(
                f"stage {op.stage} has no function {op.function!r}, only "
                f"{', '.join(stage.functions)}",
                where=cursor.where(),
            )
        if stage.mesh != cursor.mesh:
            raise PlanMismatchError(
                f"stage {op.stage} belongs to mesh {stage.mesh}", where=cursor.where()
            )
        function = stage.functions[op.function]
        return function, tuple(self.held(cursor, tensor) for tensor in function.outputs)

    def call(self, cursor: _Cursor, op: RunOp) -> None:
        key = op.stage, op.function
        known = self.functions.get(key)
        if known is None or self.plan.stages[op.stage].mesh != cursor.mesh:
            known = self.functions[key] = self.function(cursor, op)
        function, results = known
        self.check_micro_batch(cursor, op.micro_batch)
        self.check_count(cursor, op, "inputs", len(op.inputs), len(function.inputs))
        self.check_count(cursor, op, "outputs", len(op.outputs), len(results))
        inputs = self.read_all(cursor, op.inputs)
        values = self.values
        for i, (value, tensor) in enumerate(zip(inputs, function.inputs, strict=True)):
            found = values[value].tensor
            if found is not tensor and found != tensor:
                raise PlanMismatchError(
                    f"input {i} of {op.function} of stage {op.stage} is {found.as_text()}, "
                    f"expected {tensor.as_text()}",
                    where=cursor.where(),
                )
        outputs = tuple(range(len(values), len(values) + len(results)))
        values += results
        cursor.slots.update(zip(op.outputs, outputs, strict=True))
        self.actions.append(Run(op.stage, op.function, op.micro_batch, inputs, outputs))

    def check_count(self, cursor: _Cursor, op: RunOp, kind: str, slots: int, expected: int) -> None:
        if slots != expected:
            raise PlanMismatchError(
                f"{slots} {kind} for {op.function} of stage {op.stage}, which has {expected}",
                where=cursor.where(),
            )

    def receive(self, cursor: _Cursor, op: RecvOp) -> None:
        source, by, to = self.take_sent(cursor, op)
        sent = self.values[source]
        if to != cursor.mesh or sent.mesh != op.source:
            raise PlanMismatchError(
                f"tag {op.tag} goes from mesh {sent.mesh} to mesh {to}, but mesh {cursor.mesh} "
                f"expects it from mesh {op.source}",
                where=cursor.where(),
            )
        way = by, op.by, id(sent), id(op.tensor)
        if way not in self.transferred:
            self.check_transfer(cursor, op, sent, by)
            self.transferred.add(way)
        value = self.new_value(cursor, op.slot, self.held(cursor, op.tensor))
        self.actions.append(Copy(source, value, op.by, op.tag))

    def check_transfer(self, cursor: _Cursor, op: RecvOp, sent: Value, by: int) -> None:
        if (sent.tensor.shape, sent.tensor.dtype) != (op.tensor.shape, op.tensor.dtype):
            raise PlanMismatchError(
                f"tag {op.tag} brings {sent.tensor.as_text()}, expected {op.tensor.as_text()}",
                where=cursor.where(),
            )
        received = self.held(cursor, op.tensor)
        if op.by != by:
            raise PlanMismatchError(
                f"tag {op.tag} is sent by reshard {by} and received by {op.by}",
                where=cursor.where(),
            )
        check_by(self.plan, op.by, sent, received, cursor.where())

    def take_sent(self, cursor: _Cursor, op: RecvOp) -> tuple[int, int, int]:
        """What is sent, by which reshard and to which mesh."""
        if op.tag in self.sent:
            action, send = self.sent.pop(op.tag)
            return action.source, action.by, send.to
        if op.source in self.cursors or self.all_are_read:
            raise self.waits(cursor, op, "a value that is not sent before it in the plan's order")
        held = self.reshard_info(op.by, cursor.mesh).source
        return self.add_value(Value(op.source, held)), op.by, cursor.mesh

    def output(self, cursor: _Cursor, op: OutputOp) -> None:
        if op.result >= len(self.plan.outputs):
            raise PlanMismatchError(
                f"result {op.result} of {len(self.plan.outputs)}", where=cursor.where()
            )
        info = self.plan.outputs[op.result]
        value = self.read(cursor, op.slot)
        found = self.values[value].tensor
        if (info.shape, info.dtype) != (found.shape, found.dtype):
            raise PlanMismatchError(
                f"result {info.name} is {found.as_text()}, expected {info.dtype}{list(info.shape)}",
                where=cursor.where(),
            )
        self.check_micro_batch(cursor, op.micro_batch)
        parts = self.outputs.setdefault(op.result, {})
        if op.micro_batch in parts or (parts and None in (op.micro_batch, *parts)):
            raise PlanMismatchError(f"result {info.name} is given twice", where=cursor.where())
        parts[op.micro_batch] = value


_jnp: Any = jax.numpy


@collector_paused()
def worker_step(plan: Plan, placement: Placement, rank: int) -> MergedStep:
    """What worker `rank` does of a step. Only the programs that it needs for that are read.

    All workers of a mesh do the same with its values, and drop them at the same places, so that
    their programs give the same buffers away. Results of meshes that it has nothing of are empty,
    or listed but not made.

    Raises:
        PlanMismatchError: what it reads contradicts itself.
    """
    share = _Share(plan, placement, set(placement.meshes_of(plan, rank)))
    step = with_fused_sums(merge_programs(plan, share.read))
    actions = [own for action in step.actions for own in share.of(action, step)]
    kept = {v for v in step.kept if step.values[v].mesh in share.mine}
    return replace(step, actions=drop_at_last_use(actions, kept))


def remote_parts(
    plan: Plan, step: MergedStep, placement: Placement, rank: int
) -> dict[int, ReshardPart]:
    """What worker `rank` does of each reshard of which it has a part, and does not do all.

    Args:
        step: its share (`worker_step`).
    """
    numbers = {action.by for action in step.actions if isinstance(action, Send | Exchange)}
    found: dict[int, ReshardPart] = {}
    for by in numbers:
        info = plan.reshards[by]
        itemsize = _jnp.dtype(info.source.dtype).itemsize
        found[by] = reshard_part(info, placement.owners, rank, itemsize)
    return found


def meshes_of_inputs(plan: Plan) -> dict[tuple[int, int | None], int]:
    """The mesh from which an input that was put in workers is read back, for each micro-batch:
    the first that takes it, the same in all workers."""
    found: dict[tuple[int, int | None], int] = {}
    for program in plan.programs:
        for op in program.only(InputOp):
            splits = plan.inputs[op.arg].kind == "batch" and plan.num_micro_batches > 1
            found.setdefault((op.arg, op.micro_batch if splits else None), program.mesh)
    return found


class _Share:
    def __init__(self, plan: Plan, placement: Placement, mine: set[int]) -> None:
        self.plan = plan
        self.ranks = [set(placement.ranks_of(plan, mesh)) for mesh in range(len(plan.meshes))]
        self.mine = mine
        self.later: dict[int, bool] = {}

    @property
    def read(self) -> set[int]:
        """Its meshes, and those whose receives tell when it is done with a value."""
        return self.mine | {
            info.target_mesh
            for by, info in enumerate(self.plan.reshards)
            if info.source_mesh in self.mine and self.is_read_later(by)
        }

    def of(self, action: Action, step: MergedStep) -> Iterator[Action]:
        match action:
            case Place() | Reshard():
                mesh = step.values[action.value].mesh
            case Zero():
                mesh = step.values[action.values[0]].mesh
            case Run():
                mesh = self.plan.stages[action.stage].mesh
            case Accumulate():
                mesh = action.mesh
            case Send():
                info = self.plan.reshards[action.by]
                if info.source_mesh in self.mine and not self.local(action.by):
                    yield action
                return
            case Copy():
                yield from self.copy(action)
                return
            case Exchange():
                raise AssertionError("made here only")
        if mesh in self.mine:
            yield action

    def local(self, by: int) -> bool:
        """Whether one worker has both meshes, and nobody else has a part of them."""
        info = self.plan.reshards[by]
        source, target = self.ranks[info.source_mesh], self.ranks[info.target_mesh]
        return source == target and len(source) == 1

    def copy(self, copy: Copy) -> Iterator[Action]:
        info = self.plan.reshards[copy.by]
        sends, receives = info.source_mesh in self.mine, info.target_mesh in self.mine
        if self.local(copy.by):
            if sends:
                yield copy
        elif receives or (sends and self.is_read_later(copy.by)):
            source = copy.source if sends and self.is_read_later(copy.by) else None
            yield Exchange(source, copy.value if receives else None, copy.by, copy.tag)

    def is_read_later(self, by: int) -> bool:
        """Whether workers of the source mesh have something to do where the copy is received:
        one has devices of both meshes, or a tile goes to another device of the source mesh."""
        found = self.later.get(by)
        if found is None:
            info = self.plan.reshards[by]
            source = set(self.plan.meshes[info.source_mesh].devices)
            moved = any(
                tile.device in source and not isinstance(info.steps[tile.step], Tile)
                for tile in place_tiles(info.steps)
            )
            shared = self.ranks[info.source_mesh] & self.ranks[info.target_mesh]
            found = self.later[by] = moved or bool(shared)
        return found
