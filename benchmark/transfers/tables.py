"""Published transfers between meshes: Wide-ResNet pipelines, and micro-benchmarks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from alpa_mlir import AutoParallel, PipeshardParallel, Plan, parallelize
from alpa_mlir.cluster import Cluster
from alpa_mlir.simulator import simulate
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    InputOp,
    Instruction,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
)
from alpa_runtime.plan.reshard import ReshardInfo, read_step
from alpa_runtime.plan.tensor import Spec, TensorSpec
from paper.models import make_case
from planning_job import cluster_of

from transfers.cases import AXES, Case, Side


@dataclass(frozen=True)
class Transfer:
    """A transfer of a table, and how often it happens in a step."""

    table: str
    name: str
    case: Case
    times: int = 1


@dataclass(frozen=True)
class Pipeline:
    """A Wide-ResNet, and its [first, end) of blocks and devices of each stage; searched if empty.

    Attributes:
        one_axis: meshes have one axis, not two; with stages only.
    """

    case: str
    gpus: int
    layers: tuple[tuple[int, int], ...] = ()
    devices: tuple[int, ...] = ()
    one_axis: bool = False

    @property
    def name(self) -> str:
        meshes = "one axis a mesh" if self.one_axis else "two axes a mesh"
        stages = f"the paper's stages, {meshes}" if self.layers else "our stages"
        return f"{self.case} on {self.gpus} GPUs, {stages}"

    def method(self, micro_batches: tuple[int, ...]) -> AutoParallel | PipeshardParallel:
        semantics = "independent"  # Batch norm takes the statistics of a micro-batch.
        if not self.layers:
            return AutoParallel(
                num_micro_batches=micro_batches,
                micro_batch_semantics=semantics,
                layers=16,
                remat="none",
            )
        return PipeshardParallel(
            submeshes=[(1, devices) for devices in self.devices],
            mesh_shapes=[(devices, 1) for devices in self.devices] if self.one_axis else None,
            layer_ranges=self.layers,
            num_micro_batches=32,
            micro_batch_semantics=semantics,
        )


# Stages and micro-batches as the paper's public scripts give them for its Wide-ResNets
# (github.com/alpa-projects/alpa, `artifact_result_e2e_wresnet_suite`), where meshes have one axis.
# Shardings inside of stages were found by its ILP; here by ours.
_4B = ((0, 5), (5, 9), (9, 16)), (4, 4, 8)
_6B = ((0, 5), (5, 9), (9, 13), (13, 16)), (8, 8, 8, 8)
PIPELINES = (
    Pipeline("wresnet-4b", 16, *_4B, one_axis=True),
    Pipeline("wresnet-4b", 16, *_4B),
    Pipeline("wresnet-4b", 16),
    Pipeline("wresnet-6.8b", 32, *_6B, one_axis=True),
    Pipeline("wresnet-6.8b", 32, *_6B),
    Pipeline("wresnet-6.8b", 32),
)


def wide_resnets() -> Iterator[tuple[str, Plan]]:
    """The plan of each pipeline."""
    for pipeline in PIPELINES:
        model = make_case(pipeline.case)
        cluster = cluster_of(model.cluster, pipeline.gpus)
        function = parallelize(
            model.step, cluster=cluster, method=pipeline.method(model.micro_batches)
        )
        yield pipeline.name, function.plan(model.state, model.batch).plan


# From a mesh as it holds a tensor, to a mesh as that wants it.
Ends = tuple[int, TensorSpec, int, TensorSpec]


def ends_of(plan: Plan) -> dict[int, Ends]:
    """What each tag of the plan transfers."""
    sent: dict[int, TensorSpec] = {}
    received: dict[int, tuple[int, int, TensorSpec]] = {}
    for program in plan.programs:
        slots: dict[int, TensorSpec] = {}
        for op in program.instructions:
            match op:
                case InputOp() | ZeroOp() | ReshardOp():
                    slots[op.slot] = op.tensor
                case RunOp():
                    results = plan.stages[op.stage].functions[op.function].outputs
                    slots.update(zip(op.outputs, results, strict=True))
                case AccumulateOp():
                    slots.update((a, slots[b]) for a, b in zip(op.slots, op.lefts, strict=True))
                case AllReduceOp():
                    slots[op.slot] = slots[op.operand]
                case RecvOp():
                    slots[op.slot] = op.tensor
                    received[op.tag] = (op.source, program.mesh, op.tensor)
                case SendOp():
                    sent[op.tag] = slots[op.slot]
                case _:
                    pass
    return {tag: (a, sent[tag], b, tensor) for tag, (a, b, tensor) in received.items()}


def case_of(plan: Plan, ends: Ends) -> Case:
    """A transfer of a plan."""
    a, held, b, wanted = ends
    sides = _side(plan, a, held.spec), _side(plan, b, wanted.spec)
    return Case(dict(plan.cluster), held.shape, held.dtype, *sides)


def of_plan(table: str, plan: Plan) -> Iterator[Transfer]:
    """The different transfers of a step, and how often each happens."""
    for ends, times in Counter(ends_of(plan).values()).items():
        a, held, b, wanted = ends
        name = f"{held.to_text()} {a} -> {wanted.to_text().rpartition('[')[2][:-1]} {b}"
        yield Transfer(table, name, case_of(plan, ends), times)


def step_seconds(plan: Plan, strategy: str) -> float:
    """Simulated seconds of the plan's step, all of its sends planned by one strategy.

    With the strategy "none" nothing is sent, which is what the paper calls a signal.
    """
    ends = ends_of(plan)
    numbers: dict[Ends, int] = {}
    reshards = list(plan.reshards)
    for a, held, b, wanted in ends.values():
        if (a, held, b, wanted) in numbers:
            continue
        numbers[a, held, b, wanted] = len(reshards)
        found: dict[str, Any] = {"steps": (), "seconds": 0.0}
        if strategy != "none":
            found = case_of(plan, (a, held, b, wanted)).plan(strategy)
        steps = tuple(map(read_step, found["steps"]))
        reshards.append(ReshardInfo(a, held, b, wanted, strategy, found["seconds"], steps))

    def renamed(op: Instruction) -> Instruction:
        return replace(op, by=numbers[ends[op.tag]]) if isinstance(op, SendOp | RecvOp) else op

    programs = tuple(
        replace(program, instructions=tuple(map(renamed, program.instructions)))
        for program in plan.programs
    )
    return simulate(replace(plan, reshards=tuple(reshards), programs=programs)).step_seconds


def _side(plan: Plan, mesh: int, spec: Spec) -> Side:
    info = plan.meshes[mesh]
    if info.axes != AXES[: len(info.axes)]:
        raise ValueError(f"mesh {mesh} has the axes {info.axes}, expected {AXES}")
    return Side(info.shape, info.devices, spec)


MICRO_TABLE = "MLSys 2023"
# Meshes of (hosts, devices of each), tensor and specs of the n-to-m suite of the public scripts
# (github.com/alpa-projects/alpa, benchmark/alpa/resharding; its case 8 repeats case 7), in float32.
WIDE = (1024, 1024, 512)
MICRO = (
    ("1", (2, 4), (2, 4), WIDE, "S0,R,R", "S0,R,R"),
    ("2", (2, 4), (2, 4), WIDE, "R,R,R", "S0,R,R"),
    ("3", (2, 4), (2, 4), WIDE, "R,S0,R", "S0,R,R"),
    ("4", (2, 4), (2, 4), WIDE, "R,S01,R", "S01,R,R"),
    ("5", (2, 4), (2, 4), WIDE, "S1,R,R", "S0,R,R"),
    ("6", (2, 4), (3, 4), (3072, 1024, 170), "S0,R,R", "S0,R,R"),
    ("7", (1, 4), (2, 4), WIDE, "S1,R,R", "R,R,R"),
    ("9", (2, 4), (2, 4), WIDE, "R,S0,R", "R,R,S0"),
)
# (Hosts, devices of each) that get 1 GiB from one device of another host.
ONE_TO_MANY = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 2), (4, 2))


def micro() -> Iterator[Transfer]:
    """The micro-benchmarks of the MLSys 2023 paper, on hosts like its p3.8xlarge: 4 V100, 10 Gbit/s
    between hosts."""
    described: dict[str, Any] = json.loads(Cluster.load("p3.16xlarge").text)
    links = {**described["links"]}
    links["inter_host"] = {**links["inter_host"], "bandwidth": 1.25e9}
    (host,) = described["hosts"]
    cluster = {
        **described,
        "name": "p3.8xlarge",
        "hosts": [{**host, "count": 5, "devices": 4}],
        "links": links,
    }

    def mesh(first: int, hosts: int, devices: int) -> tuple[int, ...]:
        return tuple(4 * (first + i) + j for i in range(hosts) for j in range(devices))

    for name, from_mesh, to_mesh, shape, source, target in MICRO:
        case = Case(
            cluster,
            shape,
            "float32",
            Side(from_mesh, mesh(0, *from_mesh), _spec(source)),
            Side(to_mesh, mesh(from_mesh[0], *to_mesh), _spec(target)),
        )
        title = f"case {name}: {source} on {_grid(from_mesh)} -> {target} on {_grid(to_mesh)}"
        yield Transfer(MICRO_TABLE, title, case)
    for hosts, devices in ONE_TO_MANY:
        one, many = Side((1,), (0,), ((),)), Side((hosts, devices), mesh(1, hosts, devices), ((),))
        case = Case(cluster, (1 << 28,), "float32", one, many)
        title = f"1 device -> {_grid((hosts, devices))}, replicated"
        yield Transfer(MICRO_TABLE, title, case)


def _grid(mesh: tuple[int, int]) -> str:
    return f"{mesh[0]}x{mesh[1]}"


def _spec(text: str) -> Spec:
    """`S01,R` as axes."""
    return tuple(
        tuple(AXES[int(axis)] for axis in dim[1:]) if dim != "R" else () for dim in text.split(",")
    )
