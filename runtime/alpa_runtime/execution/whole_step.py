"""The step of a plan on one mesh as one program, so that XLA joins kernels across its functions,
keeps what it can make again cheaply, and a call starts one program instead of several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.interpreters import mlir

from alpa_runtime.backends.interface import Job
from alpa_runtime.backends.xla import (
    axes_text,
    mesh_text,
    mlir_type,
    sharding_text,
    sum_text,
    zero_text,
)
from alpa_runtime.execution.compilation import part_of
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Action,
    MergedStep,
    Place,
    Reshard,
    Run,
    Value,
    Zero,
)
from alpa_runtime.plan import Plan
from alpa_runtime.plan.tensor import TensorSpec

_mlir: Any = mlir

#: The function that a step in one program is, of its first stage.
FUNCTION = "step"


@dataclass(frozen=True)
class _Loop:
    """Equal runs of actions, one for each micro-batch, of which values go from one to the next.

    Attributes:
        body: the actions of the first micro-batch.
        parts: for values of the body that are parts of a batch, those of all micro-batches.
        carried: for values that the body reads of the micro-batch before (the first one finds them
            from before the loop), the value of the body that is next.
        given: for values of the last micro-batch that are read behind the loop, that which the
            body carries.
        last: for values of the last micro-batch that nothing carries and that are read behind the
            loop, such as a key that each of them makes alike, the value of the body.
        stacked: for values of the body that are parts of results, those of all micro-batches.
    """

    body: tuple[Action, ...]
    parts: Mapping[int, tuple[int, ...]]
    carried: Mapping[int, int]
    given: Mapping[int, int]
    last: Mapping[int, int]
    stacked: Mapping[int, tuple[int, ...]]

    @property
    def count(self) -> int:
        return len(next(iter((*self.parts.values(), *self.stacked.values()))))


@dataclass(frozen=True)
class _Order:
    """The actions of a step but for its places: before, in and behind a loop over micro-batches."""

    before: tuple[Action, ...]
    loop: _Loop | None
    behind: tuple[Action, ...]


def whole_step(
    plan: Plan, step: MergedStep, jobs: Mapping[tuple[int, str], Job], donate_state: bool
) -> tuple[MergedStep, dict[tuple[int, str], Job]] | None:
    """A step of one mesh as one program.

    With several micro-batches the program is a loop over them, so that its size does not depend on
    their number. What a function computes again, and weights that it gathers again, it makes anew:
    barriers keep XLA from taking what another function made of the same values.

    Args:
        jobs: the programs of the stages' functions.
        donate_state: whether state that is carried gives its buffer to the result that replaces it.

    Returns:
        The step with one run, and its program as the function `step` of stage 0. None for steps of
        several meshes, on the memory of hosts, of one program, or whose micro-batches differ.
    """
    places = [action for action in step.actions if isinstance(action, Place)]
    others = [action for action in step.actions if not isinstance(action, Place)]
    per_device = {job.per_device for job in jobs.values()}
    if (
        len({value.mesh for value in step.values}) != 1
        or len(per_device) != 1
        or sum(isinstance(action, Run) for action in others) < 2
        or not all(isinstance(action, Run | Zero | Accumulate | Reshard) for action in others)
        or any(value.tensor.on_host for value in step.values)
        or not all(step.results)
        or (per_device == {True} and any(isinstance(action, Reshard) for action in others))
    ):
        return None
    order = _order(others, places, step.results)
    # What a device has of a joined result is not joined of what it has of the parts.
    is_joined = any(len(parts) > 1 for parts in step.results)
    if order is None or (per_device == {True} and is_joined):
        return None
    whole, job = _Writer(plan, step, jobs, donate_state, places, order).write()
    return whole, {(0, FUNCTION): job}


def _order(
    others: Sequence[Action], places: Sequence[Place], results: Sequence[tuple[int, ...]]
) -> _Order | None:
    """None if the micro-batches are not alike, one behind another."""
    zeros = [action for action in others if isinstance(action, Zero)]
    rest = [action for action in others if not isinstance(action, Zero)]
    starts: list[int] = []
    for at, action in enumerate(rest):
        number = action.micro_batch if isinstance(action, Run) else None
        if number is None or number == len(starts) - 1:
            continue
        if number != len(starts):
            return None
        starts.append(at)
    if len(starts) < 2:
        return _Order((*zeros, *rest), None, ())
    length = starts[1] - starts[0]
    groups = [rest[at : at + length] for at in starts]
    if starts != list(range(starts[0], starts[0] + length * len(starts), length)):
        return None
    before, behind = [*zeros, *rest[: starts[0]]], rest[starts[-1] + length :]
    if any(isinstance(a, Run) and a.micro_batch is not None for a in behind):
        return None
    loop = _loop(groups, places, [v for a in behind for v in a.reads], results)
    return None if loop is None else _Order(tuple(before), loop, tuple(behind))


def _loop(
    groups: Sequence[Sequence[Action]],
    places: Sequence[Place],
    read_behind: Iterable[int],
    results: Sequence[tuple[int, ...]],
) -> _Loop | None:
    place_of = {place.value: place for place in places}
    made = [[v for action in group for v in action.makes] for group in groups]
    position = [{v: at for at, v in enumerate(group)} for group in made]
    first = made[0]
    parts: dict[int, tuple[int, ...]] = {}
    carried: dict[int, int] = {}
    for actions in zip(*groups, strict=True):
        if len({_kind(action) for action in actions}) != 1:
            return None
        for values in zip(*[action.reads for action in actions], strict=True):
            begin = values[0]
            if begin in position[0]:
                at = position[0][begin]
                if any(own.get(v) != at for own, v in zip(position, values, strict=True)):
                    return None
            elif begin in place_of and place_of[begin].micro_batch is not None:
                if not _are_parts(place_of, values) or parts.setdefault(begin, values) != values:
                    return None
            elif len(set(values)) > 1:
                at = position[0].get(values[1])
                if at is None or any(
                    own.get(v) != at for own, v in zip(position, values[1:], strict=False)
                ):
                    return None
                if carried.setdefault(begin, first[at]) != first[at]:
                    return None
    if len(set(carried.values())) != len(carried):
        return None
    ends = {made[-1][position[0][value]]: value for value in carried.values()}
    stacked: dict[int, tuple[int, ...]] = {}
    for result in results:
        if len(result) > 1 and not all(v in place_of for v in result):
            if result != tuple(group[position[0].get(result[0], 0)] for group in made):
                return None
            stacked[result[0]] = result
    inside = {v for group in made for v in group}
    last: dict[int, int] = {}
    for value in (*read_behind, *[r[0] for r in results if len(r) == 1]):
        if value in inside and value not in ends:
            at = position[-1].get(value)
            if at is None:
                return None
            last[value] = first[at]
    if not parts and not stacked:
        return None
    return _Loop(tuple(groups[0]), parts, carried, ends, last, stacked)


def _kind(action: Action) -> tuple[Any, ...]:
    match action:
        case Run():
            return "run", action.stage, action.function, action.sums
        case Accumulate():
            return "sum", len(action.sums)
        case _:
            return (type(action).__name__,)


def _are_parts(place_of: Mapping[int, Place], values: Sequence[int]) -> bool:
    """Whether values are the parts of one argument, those of all micro-batches in order."""
    found = [place_of.get(v) for v in values]
    return [(p.arg, p.micro_batch) for p in found if p] == [
        (place_of[values[0]].arg, m) for m in range(len(values))
    ]


class _Writer:
    """Writes the program: a function that calls those of the stages in order."""

    def __init__(
        self,
        plan: Plan,
        step: MergedStep,
        jobs: Mapping[tuple[int, str], Job],
        donate_state: bool,
        places: Sequence[Place],
        order: _Order,
    ) -> None:
        self.plan = plan
        self.step = step
        self.jobs = jobs
        self.donates = donate_state
        self.places = places
        self.order = order
        (self.mesh,) = {value.mesh for value in step.values}
        self.info = plan.meshes[self.mesh]
        self.per_device = next(iter(jobs.values())).per_device
        self.is_annotated = not self.per_device and len(self.info.devices) > 1
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.count = 0
        self.seen: set[int] = set()  # Values that a run of this micro-batch has read.
        self.counter = ""  # Of the loop that is written.
        self.functions = {key: f"f{number}" for number, key in enumerate(jobs)}

    def write(self) -> tuple[MergedStep, Job]:
        step = self.step
        placed = {place.value for place in self.places}
        values = list(step.values)
        results: list[int] = []
        returned: dict[int, tuple[int, ...]] = {}  # Arguments that are results.
        for parts in step.results:
            result = parts[0]
            if len(parts) > 1:
                tensor = values[result].tensor
                whole = replace(tensor, shape=(tensor.shape[0] * len(parts), *tensor.shape[1:]))
                result = len(values)
                values.append(Value(self.mesh, whole))
                if placed.issuperset(parts):
                    returned[result] = parts
            results.append(result)
        outputs = list(dict.fromkeys(value for value in results if value not in placed))
        tensors = [value.tensor for value in values]
        for place in self.places:
            self.names[place.value] = f"%a{place.value}"
        for result, parts in returned.items():
            self.names[result] = self._joined(*self._stack(parts), tensors[result])
        for action in self.order.before:
            self.action(action)
        if self.order.loop is not None:
            joined = dict(zip(step.results, results, strict=True))
            self.loop(self.order.loop, joined, tensors)
        self.seen.clear()
        for action in self.order.behind:
            self.action(action)

        inputs = [place.value for place in self.places]
        given = self._given(placed, results, outputs, tensors)
        text = self._module(inputs, outputs, tensors, given)
        job = Job(
            FUNCTION,
            text,
            self.mesh,
            tuple(tensors[v] for v in inputs),
            tuple(tensors[v] for v in outputs),
            self.per_device,
        )
        kept = set(results)
        last = tuple(v for v in inputs if v not in kept)
        run = Run(0, FUNCTION, None, tuple(inputs), tuple(outputs), last=last)
        return MergedStep(tuple(values), (*self.places, run), tuple((v,) for v in results)), job

    def _given(
        self,
        placed: set[int],
        results: Sequence[int],
        outputs: Sequence[int],
        tensors: Sequence[TensorSpec],
    ) -> dict[int, int]:
        """Places that give their buffers to outputs."""
        takers: dict[int, int] = {}  # By output.
        kept, number_of = set(results), {value: i for i, value in enumerate(outputs)}
        for place in self.places if self.donates else ():
            carrier = self.plan.inputs[place.arg].carried_by
            if carrier is None or place.value in kept:
                continue
            value = results[carrier]
            if value not in placed and tensors[value] == tensors[place.value]:
                takers.setdefault(number_of[value], place.value)
        return {value: number for number, value in takers.items()}

    def type(self, tensor: TensorSpec) -> str:
        return mlir_type(part_of(tensor, self.info) if self.per_device else tensor)

    def tensor(self, value: int) -> TensorSpec:
        return self.step.values[value].tensor

    def fresh(self) -> str:
        self.count += 1
        return f"%t{self.count}"

    def held(self, name: str, tensor: TensorSpec) -> str:
        """A value held as a tensor says."""
        if not self.is_annotated:
            return name
        made, how = self.fresh(), axes_text(tensor)
        self.lines.append(f"{made} = sdy.sharding_constraint {name} {how} : {self.type(tensor)}")
        return made

    def action(self, action: Action) -> None:
        match action:
            case Run():
                self.run(action)
            case Zero():
                for value in action.values:
                    self.names[value] = self.held(
                        self.zeros(self.tensor(value)), self.tensor(value)
                    )
            case Accumulate():
                for result, left, right in action.sums:
                    tensor, name = self.tensor(result), self.fresh()
                    self.lines.append(
                        f"{name} = {sum_text(tensor.dtype)} {self.names[left]}, "
                        f"{self.names[right]} : {self.type(tensor)}"
                    )
                    self.names[result] = name
            case Reshard():
                tensor = self.tensor(action.value)
                self.names[action.value] = self.held(self.names[action.source], tensor)
            case _:
                raise AssertionError("of several meshes")

    def zeros(self, tensor: TensorSpec) -> str:
        name, zero = self.fresh(), zero_text(tensor.dtype)
        self.lines.append(f"{name} = stablehlo.constant dense<{zero}> : {self.type(tensor)}")
        return name

    def run(self, run: Run) -> None:
        own = run.inputs[: len(run.inputs) - len(run.sums)]
        names = dict(zip(run.inputs, [self.names[v] for v in run.inputs], strict=True))
        hidden = self._made_anew(run, own)
        again = [v for v in dict.fromkeys(own) if v in hidden]
        if again:
            names |= zip(again, self.barrier([names[v] for v in again], again), strict=True)
        if run.micro_batch is not None:
            self.seen.update(own)
        types = ", ".join(self.type(self.tensor(v)) for v in run.inputs)
        given = ", ".join(self.type(self.tensor(v)) for v in run.outputs)
        made = self.fresh()
        count = len(run.outputs)
        left = f"{made}:{count} = " if count > 1 else f"{made} = " if count else ""
        function = self.functions[run.stage, run.function]
        arguments = ", ".join(names[v] for v in run.inputs)
        self.lines.append(f"{left}func.call @{function}({arguments}) : ({types}) -> ({given})")
        for i, value in enumerate(run.outputs):
            name = f"{made}#{i}" if count > 1 else made
            self.names[value] = self.held(name, self.tensor(value))

    def _made_anew(self, run: Run, own: Sequence[int]) -> set[int]:
        """Inputs of which a run may not use what other runs made of the same values, for that would
        be kept: all if its stage computes some of it again, else those that several devices gather.
        In a loop what is made of weights is not kept for all iterations either."""
        if run.micro_batch is None:
            return set()
        recomputes = bool(self.plan.stages[run.stage].predicted.get("rematerialized_layers", 1))
        if recomputes and self.seen:
            return set(own)
        outside = set(own) - {v for action in self._body() for v in action.makes}
        if len(self.info.devices) == 1 and not self.counter:
            return set()
        return outside if self.counter else outside & self.seen

    def _body(self) -> Sequence[Action]:
        return self.order.before if self.order.loop is None else self.order.loop.body

    def barrier(self, names: Sequence[str], values: Sequence[int]) -> list[str]:
        """The same values, unknown to be the same. In a loop they depend on the iteration."""
        types = [self.type(self.tensor(v)) for v in values]
        if self.counter:
            names, types = [*names, self.counter], [*types, "tensor<i32>"]
        made = self.fresh()
        count = len(names)
        left = f"{made}:{count}" if count > 1 else made
        self.lines.append(
            f"{left} = stablehlo.optimization_barrier {', '.join(names)} : {', '.join(types)}"
        )
        return [f"{made}#{i}" if count > 1 else made for i in range(len(values))]

    def loop(
        self, loop: _Loop, joined: Mapping[tuple[int, ...], int], tensors: Sequence[TensorSpec]
    ) -> None:
        """Write a loop; values go through it that it only reads as well."""
        inside = {v for action in loop.body for v in action.makes} | set(loop.parts)
        reads = dict.fromkeys(v for action in loop.body for v in action.reads)
        kept = [v for v in reads if v not in inside and v not in loop.carried]
        stacks = {v: self._stack(parts) for v, parts in loop.parts.items()}
        results = {v: self._empty(v, loop.count) for v in loop.stacked}
        last = list(dict.fromkeys(loop.last.values()))
        number = self.fresh()
        self.lines.append(f"{number} = stablehlo.constant dense<0> : tensor<i32>")
        begin = [
            (number, "tensor<i32>"),
            *[(self.names[v], self.type(self.tensor(v))) for v in (*loop.carried, *kept)],
            *stacks.values(),
            *results.values(),
            *[(self.zeros(self.tensor(v)), self.type(self.tensor(v))) for v in last],
        ]
        names = [self.fresh() for _ in begin]
        types = ", ".join(type_ for _, type_ in begin)
        whole, end, goes_on = self.fresh(), self.fresh(), self.fresh()
        arguments = ", ".join(f"{n} = {given}" for n, (given, _) in zip(names, begin, strict=True))
        self.lines += [
            f"{whole}:{len(begin)} = stablehlo.while({arguments}) : {types}",
            "cond {",
            f"{end} = stablehlo.constant dense<{loop.count}> : tensor<i32>",
            f"{goes_on} = stablehlo.compare LT, {names[0]}, {end} : "
            "(tensor<i32>, tensor<i32>) -> tensor<i1>",
            f"stablehlo.return {goes_on} : tensor<i1>",
            "} do {",
        ]
        outside = dict(self.names)
        turn = iter(names)
        self.counter = next(turn)
        for value in (*loop.carried, *kept):
            self.names[value] = next(turn)
        for value, (_, type_) in stacks.items():
            self.names[value] = self._row(next(turn), type_, value)
        stacked = {value: next(turn) for value in results}
        for action in loop.body:
            self.action(action)
        for value, (_, type_) in results.items():
            stacked[value] = self._put_row(stacked[value], type_, value)
        one, following = self.fresh(), self.fresh()
        next_ = [
            following,
            *[self.names[v] for v in loop.carried.values()],
            *names[1 + len(loop.carried) : 1 + len(loop.carried) + len(kept) + len(stacks)],
            *stacked.values(),
            *[self.names[v] for v in last],
        ]
        self.lines += [
            f"{one} = stablehlo.constant dense<1> : tensor<i32>",
            f"{following} = stablehlo.add {self.counter}, {one} : tensor<i32>",
            f"stablehlo.return {', '.join(next_)} : {types}",
            "}",
        ]
        self.counter, self.names = "", outside
        at_end = {value: 1 + i for i, value in enumerate(loop.carried.values())}
        at_end |= {value: len(begin) - len(last) + i for i, value in enumerate(last)}
        for end_value, value in (*loop.given.items(), *loop.last.items()):
            self.names[end_value] = f"{whole}#{at_end[value]}"
        for i, (value, (_, type_)) in enumerate(results.items()):
            result = joined[loop.stacked[value]]
            at = len(begin) - len(last) - len(results) + i
            self.names[result] = self._joined(f"{whole}#{at}", type_, tensors[result])

    def _stacked_type(self, value: int, count: int) -> str:
        return self.type(self.tensor(value)).replace("<", f"<{count}x", 1)

    def _stack(self, parts: Sequence[int]) -> tuple[str, str]:
        """The parts of an argument, along a dimension of their own in front."""
        row, whole = (self._stacked_type(parts[0], count) for count in (1, len(parts)))
        rows = [self.fresh() for _ in parts]
        for name, part in zip(rows, parts, strict=True):
            type_ = self.type(self.tensor(part))
            given = self.names[part]
            self.lines.append(f"{name} = stablehlo.reshape {given} : ({type_}) -> {row}")
        made = self.fresh()
        types = ", ".join([row] * len(rows))
        self.lines.append(
            f"{made} = stablehlo.concatenate {', '.join(rows)}, dim = 0 : ({types}) -> {whole}"
        )
        return made, whole

    def _empty(self, value: int, count: int) -> tuple[str, str]:
        tensor = self.tensor(value)
        whole = replace(tensor, shape=(count, *tensor.shape), spec=((), *tensor.spec))
        return self.held(self.zeros(whole), whole), self.type(whole)

    def _starts(self, rank: int) -> list[str]:
        zero = self.fresh()
        self.lines.append(f"{zero} = stablehlo.constant dense<0> : tensor<i32>")
        return [self.counter, *[zero] * rank]

    def _row(self, stack: str, type_: str, value: int) -> str:
        tensor = self.tensor(value)
        shape = (part_of(tensor, self.info) if self.per_device else tensor).shape
        row, starts = self._stacked_type(value, 1), self._starts(len(shape))
        sliced, made = self.fresh(), self.fresh()
        indices = ", ".join(["tensor<i32>"] * len(starts))
        self.lines += [
            f"{sliced} = stablehlo.dynamic_slice {stack}, {', '.join(starts)}, "
            f"sizes = [{', '.join(map(str, (1, *shape)))}] : ({type_}, {indices}) -> {row}",
            f"{made} = stablehlo.reshape {sliced} : ({row}) -> {self.type(tensor)}",
        ]
        return self.held(made, tensor)

    def _put_row(self, stack: str, type_: str, value: int) -> str:
        tensor = self.tensor(value)
        row, starts = self._stacked_type(value, 1), self._starts(len(tensor.shape))
        shaped, made = self.fresh(), self.fresh()
        indices = ", ".join(["tensor<i32>"] * len(starts))
        self.lines += [
            f"{shaped} = stablehlo.reshape {self.names[value]} : ({self.type(tensor)}) -> {row}",
            f"{made} = stablehlo.dynamic_update_slice {stack}, {shaped}, {', '.join(starts)} : "
            f"({type_}, {row}, {indices}) -> {type_}",
        ]
        return made

    def _joined(self, stack: str, type_: str, whole: TensorSpec) -> str:
        made = self.fresh()
        self.lines.append(f"{made} = stablehlo.reshape {stack} : ({type_}) -> {self.type(whole)}")
        return self.held(made, whole)

    def _module(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        tensors: Sequence[TensorSpec],
        given: Mapping[int, int],
    ) -> str:
        def attributes(value: int, more: Iterator[str]) -> str:
            how = [sharding_text(tensors[value])] if self.is_annotated else []
            text = ", ".join([*how, *more])
            return f"{self.type(tensors[value])} {{{text}}}" if text else self.type(tensors[value])

        def aliasing(value: int) -> Iterator[str]:
            if value in given:
                yield f"tf.aliasing_output = {given[value]} : i32"

        arguments = ", ".join(f"%a{v}: {attributes(v, aliasing(v))}" for v in inputs)
        results = ", ".join(attributes(v, iter(())) for v in outputs)
        types = ", ".join(self.type(tensors[v]) for v in outputs)
        names = ", ".join(self.names[v] for v in outputs)
        declared: list[str] = []
        for key, job in self.jobs.items():
            takes = ", ".join(self.type(tensor) for tensor in job.inputs)
            makes = ", ".join(self.type(tensor) for tensor in job.outputs)
            declared.append(f"func.func private @{self.functions[key]}({takes}) -> ({makes})")
        text = "\n".join(
            (
                f"module @{FUNCTION} {{",
                *([mesh_text(self.info)] if self.is_annotated else []),
                f"func.func public @main({arguments}) -> ({results}) {{",
                *self.lines,
                f"return {names} : {types}" if outputs else "return",
                "}",
                *declared,
                "}",
            )
        )
        return _linked(text, {self.functions[key]: job.text for key, job in self.jobs.items()})


def _linked(text: str, functions: Mapping[str, str]) -> str:
    """A module whose declared functions are the `main` of other modules."""
    ir = _mlir.ir
    with _mlir.make_ir_context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(text)
        for op in [*module.body.operations]:
            if _symbol(op) in functions:
                op.operation.erase()
        for name, own in functions.items():
            other = ir.Module.parse(own)
            for op in [*other.body.operations]:
                symbol = _symbol(op)
                if op.operation.name == "func.func":
                    new = name if symbol == "main" else f"{name}.{symbol}"
                    ir.SymbolTable.replace_all_symbol_uses(symbol, new, other.operation)
                    attributes = op.operation.attributes
                    attributes["sym_name"] = ir.StringAttr.get(new)
                    attributes["sym_visibility"] = ir.StringAttr.get("private")
                    if symbol == "main":
                        for key in ("arg_attrs", "res_attrs"):
                            if key in attributes:
                                del attributes[key]
                elif op.operation.name == "sdy.mesh":  # That of the step.
                    continue
                op.operation.detach_from_parent()
                module.body.append(op)
        return str(module.operation.get_asm())


def _symbol(op: Any) -> str:
    attributes = op.operation.attributes
    return str(attributes["sym_name"]).strip('"') if "sym_name" in attributes else ""
