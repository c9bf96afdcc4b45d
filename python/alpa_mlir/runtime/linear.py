"""From one instruction list per mesh to one flat list of actions, checked on the way.

The lists are merged in an order in which every value is made before it is used. Slots become
values with one definition each, a send and its receive become one copy, neighbouring
accumulations become one action, and buffers are dropped (or given away) at their last use.
No device is needed for any of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from alpa_mlir.errors import PlanMismatchError
from alpa_mlir.plan import (
    AccumulateOp,
    FreeOp,
    InputOp,
    Instruction,
    OutputOp,
    Plan,
    RecvOp,
    RunOp,
    SendOp,
    TensorSpec,
)
from alpa_mlir.runtime.checks import check_spec, check_tables


@dataclass(frozen=True)
class Value:
    """A buffer of the step; `is_sum`: it is the plain sum of the micro-batches' values."""

    mesh: int
    tensor: TensorSpec
    is_sum: bool = False


@dataclass(frozen=True)
class Place:
    """Put argument `arg`, or its part of one micro-batch, on the value's mesh."""

    value: int
    arg: int
    micro_batch: int | None


@dataclass(frozen=True)
class Run:
    """Run a function of a stage; `last` are inputs that nobody needs afterwards."""

    stage: int
    function: str
    micro_batch: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Accumulate:
    """For every (result, left, right): result = left + right, in left's buffer."""

    mesh: int
    sums: tuple[tuple[int, int, int], ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Move a value from one mesh to another, in the receiver's sharding."""

    source: int
    value: int
    tag: int
    last: tuple[int, ...] = ()


Action = Place | Run | Accumulate | Copy


@dataclass(frozen=True)
class Result:
    """A result of the step: its values (one a micro-batch, or one) and how they become one.

    `scale` multiplies what is left after joining: 1/micro-batches for a mean of which the
    program gives the plain sum.
    """

    values: tuple[int, ...]
    join: str | None
    scale: float


@dataclass(frozen=True)
class LinearStep:
    """A whole step, ready to be bound to devices."""

    values: tuple[Value, ...]
    actions: tuple[Action, ...]
    results: tuple[Result, ...]


@dataclass
class _Cursor:
    """How far the merging has come in one mesh's list."""

    mesh: int
    instructions: Sequence[Instruction]
    position: int = 0
    clock: float = 0.0
    slots: dict[int, int] = field(default_factory=dict[int, int])

    def where(self) -> str:
        return f"plan.json: program of mesh {self.mesh}, instruction {self.position}"


def linearize(plan: Plan) -> LinearStep:
    """Check and merge the programs of a plan.

    Raises:
        PlanMismatchError: programs, functions, meshes and signature contradict each other.
    """
    check_tables(plan)
    return _Merger(plan).run()


class _Merger:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: list[Value] = []
        self.places: dict[tuple[int, int, int | None, TensorSpec], int] = {}
        self.actions: list[Action] = []
        self.sent: dict[int, tuple[int, int]] = {}  # tag -> value, receiving mesh
        self.arrival: dict[int, float] = {}
        self.used_tags: set[int] = set()
        self.outputs: dict[int, dict[int | None, int]] = {}

    def run(self) -> LinearStep:
        cursors = [_Cursor(p.mesh, tuple(p.instructions)) for p in self.plan.programs]
        while True:
            open_ = [c for c in cursors if c.position < len(c.instructions)]
            if not open_:
                break
            ready = [c for c in open_ if not self.waits(c)]
            if not ready:
                raise PlanMismatchError(
                    "every mesh waits for a value that is never sent: "
                    + "; ".join(
                        f"{c.where()} waits at '{c.instructions[c.position].to_text()}'"
                        for c in open_
                    ),
                    fix="report this schedule as a defect of the compiler",
                )
            cursor = min(ready, key=lambda c: c.clock)
            self.step(cursor, cursor.instructions[cursor.position])
            cursor.position += 1
        if self.sent:
            tag, (value, to) = next(iter(self.sent.items()))
            raise PlanMismatchError(
                f"tag {tag} from mesh {self.values[value].mesh} to mesh {to} is never received",
                where="programs",
            )
        results = tuple(self.result(i) for i in range(len(self.plan.outputs)))
        kept = {value for result in results for value in result.values}
        actions = _drop_at_last_use(_fuse_sums(self.actions, self.values), kept)
        return LinearStep(tuple(self.values), tuple(actions), results)

    def waits(self, cursor: _Cursor) -> bool:
        op = cursor.instructions[cursor.position]
        return isinstance(op, RecvOp) and op.tag not in self.sent

    def new_value(self, cursor: _Cursor, slot: int, value: Value) -> int:
        self.values.append(value)
        cursor.slots[slot] = len(self.values) - 1
        return len(self.values) - 1

    def read(self, cursor: _Cursor, slot: int) -> int:
        if slot not in cursor.slots:
            raise PlanMismatchError(
                f"slot {slot} holds nothing (never set, or freed before)", where=cursor.where()
            )
        return cursor.slots[slot]

    def step(self, cursor: _Cursor, op: Instruction) -> None:
        match op:
            case InputOp():
                self.input(cursor, op)
            case RunOp():
                self.call(cursor, op)
            case SendOp():
                if op.tag in self.used_tags:
                    raise PlanMismatchError(f"tag {op.tag} is sent twice", where=cursor.where())
                self.used_tags.add(op.tag)
                self.sent[op.tag] = (self.read(cursor, op.slot), op.to)
                self.arrival[op.tag] = cursor.clock
            case RecvOp():
                self.receive(cursor, op)
            case AccumulateOp():
                self.accumulate(cursor, op)
            case FreeOp():
                for slot in op.slots:
                    self.read(cursor, slot)
                    del cursor.slots[slot]
            case OutputOp():
                self.output(cursor, op)

    def accumulate(self, cursor: _Cursor, op: AccumulateOp) -> None:
        lefts = [self.read(cursor, slot) for slot in op.lefts]
        rights = [self.read(cursor, slot) for slot in op.rights]
        for slot, left, right in zip(op.slots, lefts, rights, strict=True):
            a, b = self.values[left].tensor, self.values[right].tensor
            if a != b:
                raise PlanMismatchError(
                    f"adds {b.as_text()} to {a.as_text()}", where=cursor.where()
                )
            value = self.new_value(cursor, slot, Value(cursor.mesh, a, True))
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
        source, to = self.sent.pop(op.tag)
        sent = self.values[source]
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
        value = self.new_value(cursor, op.slot, Value(cursor.mesh, op.tensor, sent.is_sum))
        self.actions.append(Copy(source, value, op.tag))
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

    def result(self, index: int) -> Result:
        info = self.plan.outputs[index]
        parts = self.outputs.get(index, {})
        count = self.plan.num_micro_batches
        where = f"outputs[{index}] ({info.name})"
        if not parts:
            raise PlanMismatchError("no program gives this result", where=where)
        if None in parts or count == 1:
            value = next(iter(parts.values()))
            if info.reduction == "concat" and count > 1:
                raise PlanMismatchError(
                    "one value for a result that joins micro-batches", where=where
                )
            raw = self.values[value].is_sum and info.reduction == "mean"
            scale = 1 / count if raw else 1.0
            return Result((value,), None, scale)
        if len(parts) != count or info.reduction is None:
            raise PlanMismatchError(
                f"values of micro-batches {sorted(m for m in parts if m is not None)}, expected "
                + ("one value" if info.reduction is None else f"all {count}"),
                where=where,
            )
        values = tuple(parts[m] for m in range(count))
        if info.reduction == "concat":
            return Result(values, "concat", 1.0)
        return Result(values, "sum", 1 / count if info.reduction == "mean" else 1.0)


def _seconds(predicted: object, function: str) -> float:
    """Predicted seconds of one call, for the order of merging only."""
    assert hasattr(predicted, "get")
    name = "update" if function.startswith("update") else function
    return predicted.get(f"{name}_seconds", 0.0) or 1e-3  # type: ignore[attr-defined]


def _fuse_sums(actions: Iterable[Action], values: list[Value]) -> list[Action]:
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
        elif isinstance(action, Copy):
            open_groups.pop(values[action.source].mesh, None)
            open_groups.pop(values[action.value].mesh, None)
        elif isinstance(action, Run):
            open_groups.pop(values[(action.outputs + action.inputs)[0]].mesh, None)
        result.append(action)
    return result


def _reads(action: Action) -> tuple[int, ...]:
    match action:
        case Place():
            return ()
        case Run():
            return action.inputs
        case Accumulate():
            return tuple(v for _, left, right in action.sums for v in (left, right))
        case Copy():
            return (action.source,)


def _makes(action: Action) -> tuple[int, ...]:
    match action:
        case Place() | Copy():
            return (action.value,)
        case Run():
            return action.outputs
        case Accumulate():
            return tuple(value for value, _, _ in action.sums)


def _drop_at_last_use(actions: list[Action], kept: set[int]) -> list[Action]:
    """Every action learns which values nobody reads after it."""
    read_later = set(kept)
    result: list[Action] = []
    for action in reversed(actions):
        last = {v for v in (*_reads(action), *_makes(action)) if v not in read_later}
        read_later.update(_reads(action))
        if not isinstance(action, Place):
            action = replace(action, last=tuple(sorted(last)))
        result.append(action)
    return result[::-1]
