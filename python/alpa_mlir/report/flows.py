"""Which tensors the programs of a plan handle: names, shardings, and who uses them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    FreeOp,
    InputOp,
    OutputOp,
    ProgramInfo,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
)
from alpa_runtime.plan.tensor import TensorSpec

from alpa_mlir.report.model import Tensors
from alpa_mlir.simulator.costs import device_bytes, tensor_bytes


@dataclass
class Flow:
    """A tensor on a mesh, as the walk through the mesh's program finds it."""

    name: str
    kind: str
    tensor: TensorSpec
    mesh: int
    stages: set[int] = field(default_factory=set[int])
    phases: set[str] = field(default_factory=set[str])
    leaves: bool = False


def collect_tensors(plan: Plan) -> Tensors:
    """Every argument, result, and value that a stage keeps or hands on, of one micro-batch."""
    forms: dict[TensorSpec, dict[int, int]] = {}
    table: list[tuple[tuple[int, ...], str, tuple[tuple[str, ...], ...], float, float]] = []
    names: list[str] = []
    kinds: list[str] = []
    form: list[int] = []
    mesh: list[int] = []
    stages: list[tuple[int, ...]] = []
    for program in plan.programs:
        for flow in _flows(plan, program):
            known = forms.setdefault(flow.tensor, {})
            if flow.mesh not in known:
                known[flow.mesh] = len(table)
                t = flow.tensor
                held = device_bytes(t, plan.meshes[flow.mesh])
                table.append((t.shape, t.dtype, t.spec, tensor_bytes(t), held))
            names.append(flow.name)
            kinds.append(_kind(flow))
            form.append(known[flow.mesh])
            mesh.append(flow.mesh)
            stages.append(tuple(sorted(flow.stages)))
    return Tensors(
        tuple(table), tuple(names), tuple(kinds), tuple(form), tuple(mesh), tuple(stages)
    )


def _kind(flow: Flow) -> str:
    if flow.kind == "state":
        return "weight" if flow.phases & {"forward", "backward"} else "state"
    return flow.kind


def _phase(function: str) -> str:
    return function.partition("_")[0]


def _flows(plan: Plan, program: ProgramInfo) -> Iterator[Flow]:
    """In the order of the program; values of the first micro-batch stand for all."""
    at: dict[int, Flow] = {}  # By slot.
    inputs: dict[int, Flow] = {}
    made: dict[tuple[int, str, int], Flow] = {}
    results: dict[int, Flow] = {}
    mesh = program.mesh
    for op in program.instructions:
        match op:
            case InputOp():
                info = plan.inputs[op.arg]
                if op.arg not in inputs:
                    kind = info.kind if info.is_given else "batch"
                    inputs[op.arg] = Flow(info.name, kind, op.tensor, mesh)
                at[op.slot] = inputs[op.arg]
            case RunOp():
                _run(plan, op, mesh, at, made)
            case RecvOp():
                at[op.slot] = Flow(f"received from mesh {op.source}", "activation", op.tensor, mesh)
            case ReshardOp():
                before = at.get(op.operand)
                name = before.name if before else "value"
                at[op.slot] = Flow(name, "activation", op.tensor, mesh)
            case ZeroOp():
                at[op.slot] = Flow("zeros", "gradient", op.tensor, mesh)
            case AccumulateOp():
                for slot, left in zip(op.slots, op.lefts, strict=True):
                    if left in at:
                        at[slot] = at[left]
            case AllReduceOp():
                if op.operand in at:
                    at[op.slot] = at[op.operand]
            case SendOp():
                if op.slot in at:
                    at[op.slot].leaves = True
            case OutputOp():
                found = at.get(op.slot)
                if found is not None and op.result not in results:
                    results[op.result] = found
            case FreeOp():
                for slot in op.slots:
                    at.pop(slot, None)
    yield from inputs.values()
    carried = {info.carried_by for info in plan.inputs}
    returned = {id(flow) for flow in results.values()}
    for flow in made.values():
        if (flow.phases or flow.leaves) and not (flow.kind == "update" and id(flow) in returned):
            yield flow
    for number, flow in results.items():
        if number not in carried:
            yield Flow(plan.outputs[number].name, "result", flow.tensor, mesh, flow.stages)


def _run(
    plan: Plan, op: RunOp, mesh: int, at: dict[int, Flow], made: dict[tuple[int, str, int], Flow]
) -> None:
    for slot in op.inputs:
        if slot in at:
            at[slot].stages.add(op.stage)
            at[slot].phases.add(_phase(op.function))
    kind = {"forward": "activation", "backward": "gradient"}.get(_phase(op.function), "update")
    outputs = plan.stages[op.stage].functions[op.function].outputs
    for number, (slot, tensor) in enumerate(zip(op.outputs, outputs, strict=True)):
        key = (op.stage, op.function, number)
        if key not in made:
            name = f"stage {op.stage} {op.function.replace('_', ' ')}: result {number}"
            made[key] = Flow(name, kind, tensor, mesh, {op.stage})
        at[slot] = made[key]
