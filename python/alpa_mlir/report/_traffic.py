"""Communication by kind and link, and the tensors that go between meshes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec

from alpa_mlir.report._layers import alike
from alpa_mlir.report._model import Collective, Crossing, LinkKind, Tensors
from alpa_mlir.simulator.costs import device_bytes, tensor_bytes

if TYPE_CHECKING:
    from alpa_mlir.simulator import Timeline


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


def axis_links(mesh: MeshInfo, host_of: Sequence[int]) -> tuple[str | None, ...]:
    """What joins the devices of each axis: links within hosts, or those between hosts.

    Example:
        >>> axis_links(MeshInfo((2, 2), ("x", "y"), (0, 1, 2, 3)), [0, 0, 1, 1])
        ('network', 'host')
    """
    links: list[str | None] = []
    stride = len(mesh.devices)
    for size in mesh.shape:
        stride //= size
        if size == 1 or any(device >= len(host_of) for device in mesh.devices):
            links.append(None)
            continue
        hosts = [host_of[device] for device in mesh.devices]
        spans = any(
            hosts[i] != hosts[i + stride]
            for i in range(len(hosts))
            if (i // stride) % size != size - 1
        )
        links.append("network" if spans else "host")
    return tuple(links)


def collectives(
    plan: Plan, explanations: Sequence[Mapping[str, Any] | None], host_of: Sequence[int]
) -> tuple[Collective, ...]:
    """What the stages' own collectives take in a step, the dearest first."""
    rows: list[Collective] = []
    for number, explanation in enumerate(explanations):
        mesh = plan.meshes[plan.stages[number].mesh]
        links = axis_links(mesh, host_of)
        for row in (explanation or {}).get("communication", ()):
            number_of_axis: int = row.get("axis", len(mesh.axes))
            axis = slice(number_of_axis, number_of_axis + 1)
            rows.append(
                Collective(
                    number,
                    row["collective"],
                    next(iter(mesh.axes[axis]), None),
                    next(iter(mesh.shape[axis]), None),
                    next(iter(links[axis]), None),
                    row["count"],
                    row["bytes"],
                    row["seconds"],
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def crossings(plan: Plan) -> tuple[Crossing, ...]:
    """What goes from mesh to mesh in a step, by the programs' sends."""
    sent = Counter(
        op.by
        for program in plan.programs
        for op in program.instructions
        if isinstance(op, SendOp) and op.by < len(plan.reshards)
    )
    found: dict[tuple[int, int], list[tuple[str, int, float, float]]] = {}
    for number, count in sent.items():
        reshard = plan.reshards[number]
        size = tensor_bytes(reshard.source)
        found.setdefault((reshard.source_mesh, reshard.target_mesh), []).append(
            (reshard.strategy, count, count * size, count * reshard.seconds)
        )
    return tuple(
        Crossing(
            source,
            target,
            tuple(sorted({row[0] for row in rows})),
            sum(row[1] for row in rows),
            sum(row[2] for row in rows),
            sum(row[3] for row in rows),
        )
        for (source, target), rows in sorted(found.items())
    )


def link_kinds(timeline: Timeline) -> tuple[LinkKind, ...]:
    """The links that transfers between meshes use, by kind and direction."""
    groups: dict[tuple[str, float], list[Any]] = {}
    for link in timeline.links:
        groups.setdefault((alike(link.link), link.bandwidth), []).append(link)
    kinds: list[LinkKind] = []
    for (kind, bandwidth), links in groups.items():
        busiest = max(links, key=lambda link: link.bytes)
        total = sum(link.bytes for link in links)
        most = (busiest.link, busiest.bytes, busiest.utilization)
        kinds.append(LinkKind(kind, bandwidth, len(links), total, *most))
    return tuple(sorted(kinds, key=lambda kind: -kind.utilization))
