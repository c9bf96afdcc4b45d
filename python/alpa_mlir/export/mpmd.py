"""A plan in Shardy's MPMD dialect: fragments on meshes, and transfers, in the plan's order.

The form is that which the dialect's own passes end in: every program of a stage is a function, and
`@main` calls it for each micro-batch by `mpmd.fragment_call`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from alpa_runtime.backends.xla import HOST_MEMORY, mlir_type
from alpa_runtime.execution.program_merge import merge_programs
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    InputOp,
    Instruction,
    OutputOp,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
)
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.text import ranges_text

from alpa_mlir.errors import ExportError, PlanMismatchError
from alpa_mlir.export.formats import Exported

_FUNCTION = re.compile(r"^  func\.func @(\w+)(\(.*) \{$", re.MULTILINE)
_ALIAS = re.compile(r"(, )?tf\.aliasing_output = \d+ : i32(, )?")
_MESH = re.compile(r"@mesh\b")
_TRANSPOSED = ("backward", "backward_input", "backward_weight")


def export(plan: Plan) -> Exported:
    """The module.

    Raises:
        ExportError: stages are programs of one device.
        PlanMismatchError: the plan's programs do not fit together.
    """
    merge_programs(plan)  # What follows relies on programs that fit together.
    for index, stage in enumerate(plan.stages):
        if stage.export != "shardy":
            raise ExportError(
                f"stage {index} is a program of one device, the dialect wants whole ones",
                where=f"plan of {plan.name}",
                fix='plan with export="shardy"',
            )
    notes = [
        "transfers say what goes from mesh to mesh; by which tiles, broadcasts and gathers is left "
        "to who runs them",
        "buffers are freed by who runs the module, after their last use",
    ]
    if plan.num_micro_batches > 1:
        notes.append(
            f"each of the {plan.num_micro_batches} micro-batches of a batch is an argument of its "
            "own: rows one behind another"
        )
    try:
        text = _Writer(plan).text(notes)
    except (KeyError, IndexError) as error:
        raise PlanMismatchError(
            f"its programs do not fit together ({error})", where=f"plan of {plan.name}: programs"
        ) from None
    return Exported(text, tuple(notes))


@dataclass(frozen=True)
class _Value:
    name: str
    tensor: TensorSpec


@dataclass
class _Writer:
    """Writes `@main` instruction by instruction, in the order of all programs."""

    plan: Plan
    lines: list[str] = field(default_factory=list[str])
    helpers: dict[str, str] = field(default_factory=dict[str, str])  # Text to name.
    values: dict[tuple[int, int], _Value] = field(default_factory=dict[tuple[int, int], _Value])
    sent: dict[tuple[int, int, int], _Value] = field(
        default_factory=dict[tuple[int, int, int], _Value]
    )
    parts: dict[int, dict[int, AllReduceOp]] = field(
        default_factory=dict[int, dict[int, AllReduceOp]]
    )
    results: dict[tuple[int, int], tuple[int, _Value]] = field(
        default_factory=dict[tuple[int, int], tuple[int, _Value]]
    )
    count: int = 0

    def text(self, notes: Sequence[str]) -> str:
        plan = self.plan
        arguments, inputs = self.arguments()
        received = {
            (op.source, program.mesh, op.tag): op.tensor
            for program in plan.programs
            for op in program.instructions
            if isinstance(op, RecvOp)
        }
        for mesh, op in _ordered(plan):
            self.write(mesh, op, inputs, received)
        outputs = [self.results[key] for key in sorted(self.results)]
        stage_functions = [
            text for index in range(len(plan.stages)) for text in self.functions(index)
        ]
        topology = ", ".join(
            f'<"mesh_{i}" : <{_axes(mesh)}>>' for i, mesh in enumerate(plan.meshes)
        )
        types = ", ".join(self.type(mesh, value.tensor) for mesh, value in outputs)
        names = ", ".join(value.name for _, value in outputs)
        listed = ", ".join(f"{name}: {kind}" for name, kind, _ in arguments)
        return "\n".join(
            [
                f"// {plan.name}, planned for {plan.cluster.get('name', 'a cluster')}: "
                f"{len(plan.stages)} stages, {plan.num_micro_batches} micro-batches"
                + (f", schedule {plan.pipeline_schedule}." if plan.pipeline_schedule else "."),
                *(
                    f"// mesh_{i}: {'x'.join(map(str, mesh.shape))} on devices "
                    f"{ranges_text(mesh.devices)}."
                    for i, mesh in enumerate(plan.meshes)
                ),
                *(f"// Note: {note}." for note in notes),
                f"module @{_symbol(plan.name)} {{",
                *(f"  sdy.mesh @mesh_{i} = <{_axes(mesh)}>" for i, mesh in enumerate(plan.meshes)),
                *(f"  // {name}: {what}" for name, _, what in arguments),
                *(
                    f"  // result {place}: {plan.outputs[result].name}"
                    + (f", micro-batch {part}" if part >= 0 else "")
                    for place, (result, part) in enumerate(sorted(self.results))
                ),
                f"  func.func public @main({listed}) -> ({types}) "
                f"attributes {{topology = #mpmd.topology<{topology}>}} {{",
                *self.lines,
                f"    return {names} : {types}" if names else "    return",
                "  }",
                *stage_functions,
                *(f"  func.func private @{name}{text}" for text, name in self.helpers.items()),
                "}",
                "",
            ]
        )

    def arguments(
        self,
    ) -> tuple[list[tuple[str, str, str]], dict[tuple[int, int, int], _Value]]:
        """Name, type and meaning of each argument of `@main`; and each by its number,
        micro-batch and mesh. Who reads one on two meshes gives it to both."""
        found = sorted(
            {
                (op.arg, -1 if op.micro_batch is None else op.micro_batch, program.mesh): op.tensor
                for program in self.plan.programs
                for op in program.only(InputOp)
            }.items(),
            key=lambda item: item[0],
        )
        listed: list[tuple[str, str, str]] = []
        inputs: dict[tuple[int, int, int], _Value] = {}
        for (arg, part, mesh), tensor in found:
            name = f"%arg{len(listed)}"
            what = self.plan.inputs[arg].name + (f", micro-batch {part}" if part >= 0 else "")
            listed.append((name, self.type(mesh, tensor), what))
            inputs[arg, part, mesh] = _Value(name, tensor)
        return listed, inputs

    def write(
        self,
        mesh: int,
        op: Instruction,
        inputs: dict[tuple[int, int, int], _Value],
        received: dict[tuple[int, int, int], TensorSpec],
    ) -> None:
        values = self.values
        match op:
            case InputOp():
                part = -1 if op.micro_batch is None else op.micro_batch
                values[mesh, op.slot] = inputs[op.arg, part, mesh]
            case RunOp():
                info = self.plan.stages[op.stage].functions[op.function]
                made = self.call(
                    mesh,
                    f"stage_{op.stage}_{op.function}",
                    f'"stage_{op.stage}"({int(op.function in _TRANSPOSED)})',
                    [values[mesh, slot] for slot in op.inputs],
                    info.outputs,
                    op.micro_batch,
                )
                values.update(zip([(mesh, slot) for slot in op.outputs], made, strict=True))
            case SendOp():
                to = received[mesh, op.to, op.tag]
                self.sent[mesh, op.to, op.tag] = self.transfer(
                    mesh, values[mesh, op.slot], op.to, to
                )
            case RecvOp():
                values[mesh, op.slot] = self.sent.pop((op.source, mesh, op.tag))
            case ReshardOp():
                given = values[mesh, op.operand]
                values[mesh, op.slot] = self.transfer(mesh, given, mesh, op.tensor)
            case ZeroOp():
                values[mesh, op.slot] = self.zero(mesh, op.tensor)
            case AllReduceOp():
                parts = self.parts.setdefault(op.tag, {})
                parts[mesh] = op
                if len(parts) == len(op.members):
                    self.add_among_meshes(self.parts.pop(op.tag))
            case AccumulateOp():
                pairs = zip(op.lefts, op.rights, strict=True)
                sums = [
                    self.add(mesh, values[mesh, left], values[mesh, right]) for left, right in pairs
                ]
                values.update(zip([(mesh, slot) for slot in op.slots], sums, strict=True))
            case OutputOp():
                part = -1 if op.micro_batch is None else op.micro_batch
                self.results[op.result, part] = mesh, values[mesh, op.slot]
            case _:
                pass  # Buffers are freed by who runs it.

    def new(self) -> str:
        self.count += 1
        return f"%{self.count}"

    def type(self, mesh: int, tensor: TensorSpec) -> str:
        memory = f', memory_kind="{HOST_MEMORY}"' if tensor.on_host else ""
        held = f"<@mesh_{mesh}, {_dims(tensor)}>"
        return f'!mpmd.mesh_tensor<"mesh_{mesh}", {mlir_type(tensor)}, sharding={held}{memory}>'

    def transfer(self, source: int, value: _Value, target: int, tensor: TensorSpec) -> _Value:
        made = _Value(self.new(), tensor)
        types = f"({self.type(source, value.tensor)}) -> {self.type(target, tensor)}"
        self.lines.append(f"    {made.name} = mpmd.transfer {value.name} : {types}")
        return made

    def call(
        self,
        mesh: int,
        function: str,
        origin: str,
        given: Sequence[_Value],
        made: Sequence[TensorSpec],
        micro_batch: int | None = None,
    ) -> list[_Value]:
        name = self.new()
        counter = "" if micro_batch is None else f" {{call_counter = {micro_batch} : ui32}}"
        operands = ", ".join(value.name for value in given)
        types = ", ".join(self.type(mesh, value.tensor) for value in given)
        results = ", ".join(self.type(mesh, tensor) for tensor in made)
        left = "" if not made else f"{name}:{len(made)} = " if len(made) > 1 else f"{name} = "
        self.lines.append(
            f'    {left}mpmd.fragment_call<mesh="mesh_{mesh}", origin=[{origin}]> '
            f"@{function}({operands}){counter} : ({types}) -> ({results})"
        )
        if len(made) == 1:
            return [_Value(name, made[0])]
        return [_Value(f"{name}#{i}", tensor) for i, tensor in enumerate(made)]

    def helper(
        self, mesh: int, name: str, given: Sequence[TensorSpec], body: str, made: TensorSpec
    ) -> str:
        """Name of a small function between stages; equal ones are one."""
        held = [
            f"%{i}: {mlir_type(x)} {{{self.sharding(mesh, x)}}}".replace("%", "%arg")
            for i, x in enumerate(given)
        ]
        text = (
            f"({', '.join(held)}) -> ({mlir_type(made)} {{{self.sharding(mesh, made)}}}) "
            f"{_shape(self.plan.meshes[mesh])} {{\n    {body}\n"
            f"    return %0 : {mlir_type(made)}\n  }}"
        )
        return self.helpers.setdefault(text, f"{name}_{len(self.helpers)}")

    def sharding(self, mesh: int, tensor: TensorSpec) -> str:
        return f"sdy.sharding = #sdy.sharding<@mesh_{mesh}, {_dims(tensor)}>"

    def zero(self, mesh: int, tensor: TensorSpec) -> _Value:
        kind = mlir_type(tensor)
        element = kind.removesuffix(">").rpartition("x")[2].removeprefix("tensor<")
        number = "false" if element == "i1" else "0.0" if tensor.dtype[0] in "fb" else "0"
        body = f"%0 = stablehlo.constant dense<{number}> : {kind}"
        name = self.helper(mesh, "zero", [], body, tensor)
        return self.call(mesh, name, '"zero"', [], [tensor])[0]

    def add(self, mesh: int, left: _Value, right: _Value) -> _Value:
        body = f"%0 = stablehlo.add %arg0, %arg1 : {mlir_type(left.tensor)}"
        tensors = [left.tensor, right.tensor]
        name = self.helper(mesh, "accumulate", tensors, body, left.tensor)
        return self.call(mesh, name, '"accumulate"', [left, right], [left.tensor])[0]

    def add_among_meshes(self, parts: dict[int, AllReduceOp]) -> None:
        """On the first mesh, in the order of the meshes, and back."""
        first, *others = next(iter(parts.values())).members
        held = {mesh: self.values[mesh, op.operand] for mesh, op in parts.items()}
        total = held[first]
        for mesh in others:
            part = self.transfer(mesh, held[mesh], first, held[first].tensor)
            total = self.add(first, total, part)
        for mesh, op in parts.items():
            back = total
            if mesh != first:
                back = self.transfer(first, total, mesh, held[mesh].tensor)
            self.values[mesh, op.slot] = back

    def functions(self, index: int) -> Iterator[str]:
        """The programs of a stage, under names of their own."""
        stage = self.plan.stages[index]
        mesh = self.plan.meshes[stage.mesh]
        text = self.plan.modules[stage.module]
        first = _FUNCTION.search(text)
        if first is None:
            raise PlanMismatchError(
                "there are no functions as alpa_mlir prints them", where=stage.module
            )
        body = text[first.start() :].rstrip().removesuffix("}").rstrip("\n")
        body = _MESH.sub(f"@mesh_{stage.mesh}", body)
        # Which buffers may be given away depends on who else uses them.
        body = _ALIAS.sub(lambda found: ", " if found[1] and found[2] else "", body)
        yield _FUNCTION.sub(
            lambda found: (
                f"  func.func private @stage_{index}_{found[1]}{found[2]} {_shape(mesh)} {{"
            ),
            body,
        )


def _ordered(plan: Plan) -> Iterator[tuple[int, Instruction]]:
    """All instructions, in the one order in which they can run."""
    programs = {program.mesh: iter(program.instructions) for program in plan.programs}
    for mesh, count in plan.order:
        for op in itertools.islice(programs[mesh], count):
            yield mesh, op


def _axes(mesh: MeshInfo) -> str:
    pairs = zip(mesh.axes, mesh.shape, strict=True)
    return "[" + ", ".join(f'"{axis}"={size}' for axis, size in pairs) + "]"


def _shape(mesh: MeshInfo) -> str:
    return f"attributes {{mesh_shape = #sdy.mesh<{_axes(mesh)}>}}"


def _dims(tensor: TensorSpec) -> str:
    dims = ["{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in tensor.spec]
    return f"[{', '.join(dims)}]"


def _symbol(name: str) -> str:
    return re.sub(r"\W", "_", name) or "step"
