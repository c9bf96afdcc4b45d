"""One checked order of the programs of all meshes, and each worker's share of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy

from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.execution.actions import (
    Accumulate,
    Action,
    Copy,
    Exchange,
    MergedStep,
    Place,
    Reshard,
    Run,
    Send,
    Value,
    Zero,
    drop_at_last_use,
    fold_sums,
    fuse_sums,
    in_one_process,
)
from alpa_runtime.execution.plan_checks import (
    check_by,
    check_members,
    check_reshards,
    check_spec,
    check_tables,
)
from alpa_runtime.execution.reshard_part import ReshardPart, reshard_part
from alpa_runtime.placement import Placement
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
)
from alpa_runtime.plan.reshard import Tile, place_tiles
from alpa_runtime.plan.tensor import TensorSpec


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


@dataclass
class _Cursor:
    """How far the merging has come in one mesh's list."""

    mesh: int
    instructions: Sequence[Instruction]
    position: int = 0
    clock: float = 0.0
    slots: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def current(self) -> Instruction | None:
        """The next instruction; None at the end."""
        at = self.position
        return self.instructions[at] if at < len(self.instructions) else None

    def where(self) -> str:
        return f"plan.json: program of mesh {self.mesh}, instruction {self.position}"


def merge_step(plan: Plan) -> MergedStep:
    """Check and merge the programs of a plan, for one process that has all meshes.

    Buffers are dropped, or given away, at their last use.

    Raises:
        PlanMismatchError: programs, functions, meshes and signature contradict each other.
    """
    return in_one_process(merge_programs(plan))


def merge_programs(plan: Plan) -> MergedStep:
    """Check and merge the programs of a plan. Values are not dropped anywhere yet.

    Workers that take those of the actions in which they have a part, in this order, never wait
    for each other in a circle: sends do not block, and come before what waits for them.

    Raises:
        PlanMismatchError: programs, functions, meshes and signature contradict each other.
    """
    check_tables(plan)
    check_reshards(plan)
    return _Merger(plan).run()


class _Merger:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: list[Value] = []
        self.places: dict[tuple[int, int, int | None, TensorSpec], int] = {}
        self.actions: list[Action] = []
        self.sent: dict[int, tuple[Send, SendOp]] = {}  # By tag.
        self.copies = 0
        self.arrival: dict[int, float] = {}
        self.used_tags: set[int] = set()
        self.cursors = {p.mesh: _Cursor(p.mesh, tuple(p.instructions)) for p in plan.programs}
        self.outputs: dict[int, dict[int | None, int]] = {}

    def run(self) -> MergedStep:
        while open_ := [c for c in self.cursors.values() if c.current is not None]:
            ready = [c for c in open_ if not self.waits(c)]
            if not ready:
                raise PlanMismatchError(
                    "every mesh waits for a value that is never sent: "
                    + "; ".join(
                        f"{c.where()} waits at '{c.current.to_text()}'"
                        for c in open_
                        if c.current is not None
                    ),
                    fix="report this schedule as a defect of the compiler",
                )
            self.step(min(ready, key=lambda c: c.clock))
        if self.sent:
            tag, (sent, send) = next(iter(self.sent.items()))
            raise PlanMismatchError(
                f"tag {tag} from mesh {self.values[sent.source].mesh} to mesh {send.to} is never "
                "received",
                where="programs",
            )
        results = step_results(self.plan, self.outputs)
        kept = {value for result in results for value in result}
        folded = fold_sums(self.actions, self.values, kept)
        actions = tuple(fuse_sums(folded, self.values))
        return MergedStep(tuple(self.values), actions, results)

    def waits(self, cursor: _Cursor) -> bool:
        match cursor.current:
            case RecvOp(tag=tag):
                return tag not in self.sent
            case AllReduceOp() as op:
                check_members(self.plan, cursor.mesh, op, cursor.where())
                there = [self.cursors[mesh].current for mesh in op.members]
                return any(not isinstance(o, AllReduceOp) or o.tag != op.tag for o in there)
            case _:
                return False

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

    def step(self, cursor: _Cursor) -> None:
        """Take the instruction where a cursor stands, all of them that meet in an all-reduce."""
        op = cursor.current
        assert op is not None
        if isinstance(op, AllReduceOp):
            self.all_reduce([self.cursors[mesh] for mesh in op.members])
            return
        self.take(cursor, op)
        cursor.position += 1

    def take(self, cursor: _Cursor, op: Instruction) -> None:
        match op:
            case InputOp():
                self.input(cursor, op)
            case RunOp():
                self.call(cursor, op)
            case SendOp():
                self.use_tag(cursor, op.tag, "sent")
                self.sent[op.tag] = (self.send(self.read(cursor, op.slot), op.by), op)
                self.arrival[op.tag] = cursor.clock
            case RecvOp():
                self.receive(cursor, op)
            case ReshardOp():
                self.reshard(cursor, op)
            case ZeroOp():
                check_spec(self.plan, cursor.mesh, op.tensor, cursor.where())
                value = self.new_value(cursor, op.slot, Value(cursor.mesh, op.tensor))
                self.actions.append(Zero((value,)))
            case AccumulateOp():
                self.accumulate(cursor, op)
            case AllReduceOp():
                raise AssertionError("its meshes take it together")
            case FreeOp():
                for slot in op.slots:
                    self.read(cursor, slot)
                    del cursor.slots[slot]
            case OutputOp():
                self.output(cursor, op)

    def send(self, source: int, by: int) -> Send:
        action = Send(source, by, self.copies)
        self.copies += 1
        self.actions.append(action)
        return action

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
        check_spec(self.plan, cursor.mesh, op.tensor, cursor.where())
        value = self.new_value(cursor, op.slot, Value(cursor.mesh, op.tensor))
        self.actions.append(Reshard(source, value))

    def all_reduce(self, cursors: list[_Cursor]) -> None:
        """The first mesh adds the others' parts to its own, in their order; all get that sum."""
        first = cursors[0]
        ops = [op for c in cursors if isinstance(op := c.current, AllReduceOp)]
        self.use_tag(first, ops[0].tag, "summed")
        parts = [self.read(c, op.operand) for c, op in zip(cursors, ops, strict=True)]
        held = [self.values[part] for part in parts]
        home = held[0].tensor
        for cursor, op, value in zip(cursors, ops, held, strict=True):
            if op.members != ops[0].members:
                raise PlanMismatchError(
                    f"sums over the meshes {list(op.members)}, but mesh {first.mesh} over "
                    f"{list(ops[0].members)} under tag {op.tag}",
                    where=cursor.where(),
                )
            if (value.tensor.shape, value.tensor.dtype) != (home.shape, home.dtype):
                raise PlanMismatchError(
                    f"adds {value.tensor.as_text()} to {home.as_text()}", where=cursor.where()
                )
        total = Value(first.mesh, home)
        result = parts[0]
        others = list(zip(cursors, ops, parts, held, strict=True))[1:]
        for cursor, op, part, value in others:
            check_by(self.plan, op.by[0], value, total, cursor.where())
            copied = self.add_value(total)
            self.actions.append(Copy(part, copied, op.by[0], self.send(part, op.by[0]).number))
            left, result = result, self.add_value(total)
            self.actions.append(Accumulate(first.mesh, ((result, left, copied),)))
        first.slots[ops[0].slot] = result
        for cursor, op, _, value in others:
            copy = Value(cursor.mesh, value.tensor)
            check_by(self.plan, op.by[1], total, copy, cursor.where())
            sent = self.send(result, op.by[1])
            copied = self.new_value(cursor, op.slot, copy)
            self.actions.append(Copy(result, copied, op.by[1], sent.number))
        clock = max(cursor.clock for cursor in cursors)
        for cursor in cursors:
            cursor.clock = clock
            cursor.position += 1

    def accumulate(self, cursor: _Cursor, op: AccumulateOp) -> None:
        lefts = [self.read(cursor, slot) for slot in op.lefts]
        rights = [self.read(cursor, slot) for slot in op.rights]
        for slot, left, right in zip(op.slots, lefts, rights, strict=True):
            a, b = self.values[left], self.values[right]
            if a.tensor != b.tensor:
                raise PlanMismatchError(
                    f"adds {b.tensor.as_text()} to {a.tensor.as_text()}", where=cursor.where()
                )
            value = self.new_value(cursor, slot, Value(cursor.mesh, a.tensor))
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
        check_spec(self.plan, cursor.mesh, op.tensor, where)
        micro_batch = op.micro_batch if splits else None
        key = (cursor.mesh, op.arg, micro_batch, op.tensor)
        if key in self.places:  # the same buffer under a second name
            cursor.slots[op.slot] = self.places[key]
            return
        value = self.new_value(cursor, op.slot, Value(cursor.mesh, op.tensor))
        self.places[key] = value
        self.actions.append(Place(value, op.arg, micro_batch))

    def check_micro_batch(self, cursor: _Cursor, micro_batch: int | None) -> None:
        if micro_batch is not None and micro_batch >= self.plan.num_micro_batches:
            raise PlanMismatchError(
                f"micro-batch {micro_batch} of {self.plan.num_micro_batches}", where=cursor.where()
            )

    def call(self, cursor: _Cursor, op: RunOp) -> None:
        if op.stage >= len(self.plan.stages):
            raise PlanMismatchError(
                f"stage {op.stage} of {len(self.plan.stages)}", where=cursor.where()
            )
        self.check_micro_batch(cursor, op.micro_batch)
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
        what = f"{op.function} of stage {op.stage}"
        for kind, slots, tensors in (
            ("inputs", op.inputs, function.inputs),
            ("outputs", op.outputs, function.outputs),
        ):
            if len(slots) != len(tensors):
                raise PlanMismatchError(
                    f"{len(slots)} {kind} for {what}, which has {len(tensors)}",
                    where=cursor.where(),
                )
        inputs = tuple(self.read(cursor, slot) for slot in op.inputs)
        for i, (value, tensor) in enumerate(zip(inputs, function.inputs, strict=True)):
            found = self.values[value].tensor
            if found != tensor:
                raise PlanMismatchError(
                    f"input {i} of {what} is {found.as_text()}, expected {tensor.as_text()}",
                    where=cursor.where(),
                )
        outputs = tuple(
            self.new_value(cursor, slot, Value(cursor.mesh, tensor))
            for slot, tensor in zip(op.outputs, function.outputs, strict=True)
        )
        self.actions.append(Run(op.stage, op.function, op.micro_batch, inputs, outputs))
        cursor.clock += _seconds(stage.predicted, op.function)

    def receive(self, cursor: _Cursor, op: RecvOp) -> None:
        action, send = self.sent.pop(op.tag)
        sent, to = self.values[action.source], send.to
        if to != cursor.mesh or sent.mesh != op.source:
            raise PlanMismatchError(
                f"tag {op.tag} goes from mesh {sent.mesh} to mesh {to}, but mesh {cursor.mesh} "
                f"expects it from mesh {op.source}",
                where=cursor.where(),
            )
        if (sent.tensor.shape, sent.tensor.dtype) != (op.tensor.shape, op.tensor.dtype):
            raise PlanMismatchError(
                f"tag {op.tag} brings {sent.tensor.as_text()}, expected {op.tensor.as_text()}",
                where=cursor.where(),
            )
        check_spec(self.plan, cursor.mesh, op.tensor, cursor.where())
        if op.by != send.by:
            raise PlanMismatchError(
                f"tag {op.tag} is sent by reshard {send.by} and received by {op.by}",
                where=cursor.where(),
            )
        received = Value(cursor.mesh, op.tensor)
        check_by(self.plan, op.by, sent, received, cursor.where())
        value = self.new_value(cursor, op.slot, received)
        self.actions.append(Copy(action.source, value, op.by, action.number))
        cursor.clock = max(cursor.clock, self.arrival.pop(op.tag))

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


def _seconds(predicted: object, function: str) -> float:
    """Predicted seconds of one call, for the order of merging only."""
    assert hasattr(predicted, "get")
    name = "update" if function.startswith("update") else function
    return predicted.get(f"{name}_seconds", 0.0) or 1e-3  # type: ignore[attr-defined]


_jnp: Any = jax.numpy


def worker_step(plan: Plan, step: MergedStep, placement: Placement, rank: int) -> MergedStep:
    """What worker `rank` does of the merged programs (`merge_programs`).

    All workers of a mesh do the same with its values, and drop them at the same places, so that
    their programs give the same buffers away. Results of meshes that it has nothing of are
    listed, but not made.
    """
    mine = set(placement.meshes_of(plan, rank))
    share = _Share(plan, step, placement, mine)
    actions = [own for action in step.actions for own in share.of(action)]
    kept = {v for r in step.results for v in r if step.values[v].mesh in mine}
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


def meshes_of_inputs(step: MergedStep) -> dict[tuple[int, int | None], int]:
    """The mesh from which an input that was put in workers is read back, for each micro-batch:
    the first that takes it, the same in all workers."""
    found: dict[tuple[int, int | None], int] = {}
    for action in step.actions:
        if isinstance(action, Place):
            key = action.arg, action.micro_batch
            found.setdefault(key, step.values[action.value].mesh)
    return found


class _Share:
    def __init__(self, plan: Plan, step: MergedStep, placement: Placement, mine: set[int]) -> None:
        self.plan = plan
        self.step = step
        self.ranks = [set(placement.ranks_of(plan, mesh)) for mesh in range(len(plan.meshes))]
        self.mine = mine
        self.later: dict[int, bool] = {}

    def of(self, action: Action) -> Iterator[Action]:
        match action:
            case Place() | Reshard():
                mesh = self.step.values[action.value].mesh
            case Zero():
                mesh = self.step.values[action.values[0]].mesh
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
            yield Exchange(source, copy.value if receives else None, copy.by, copy.number)

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
