"""Plans of pipelines written by hand, for tests that look at instruction lists and seconds.

Stage s runs on mesh s. A micro-batch's activation goes from stage to stage, its gradient goes
back, and every stage adds up the gradient of its weight and updates it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo, OutputInfo
from alpa_runtime.plan.program import (
    AccumulateOp,
    FreeOp,
    InputOp,
    OutputOp,
    ProgramInfo,
    RecvOp,
    RunOp,
    SendOp,
    read_order,
)
from alpa_runtime.plan.stage import FunctionInfo, MeshInfo, StageInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.text import Node
from handmade import order_of
from reshard_plans import reshard

ACTIVATION = TensorSpec((250_000,), "float32", ((),))  # 1 MB
WEIGHT = TensorSpec((500_000,), "float32", ((),))


def orders(schedule: str, stage: int, stages: int, micro_batches: int):
    """(is backward, micro-batch) of a stage's runs."""
    warm_up = micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)
    calls = [(False, m) for m in range(warm_up)]
    for m in range(micro_batches):
        calls.append((True, m))
        if m + warm_up < micro_batches:
            calls.append((False, m + warm_up))
    return calls


def program(stage: int, stages: int, micro_batches: int, schedule: str) -> ProgramInfo:
    ops: list = []
    slots = iter(range(1_000_000))
    weight = next(slots)
    ops.append(InputOp(weight, stage, None, WEIGHT))
    kept: dict[int, int] = {}
    total = None
    down, back = 0, micro_batches * stages  # First tags of activations and of gradients.
    for backward, m in orders(schedule, stage, stages, micro_batches):
        slot = next(slots)
        if not backward:
            if stage == 0:
                ops.append(InputOp(slot, stages, m, ACTIVATION))
            else:
                tag = down + (stage - 1) * micro_batches + m
                ops.append(RecvOp(slot, stage - 1, tag, 2 * stage - 2, ACTIVATION))
            result = next(slots)
            ops.append(RunOp(stage, "forward", m, (weight, slot), (result,)))
            kept[m] = slot
            if stage + 1 < stages:
                tag = down + stage * micro_batches + m
                ops.append(SendOp(result, stage + 1, tag, 2 * stage))
                ops.append(FreeOp((result,)))
            else:
                ops.append(FreeOp((result,)))
            continue
        inputs = (weight, kept.pop(m))
        if stage + 1 < stages:
            tag = back + stage * micro_batches + m
            ops.append(RecvOp(slot, stage + 1, tag, 2 * stage + 1, ACTIVATION))
            inputs = (*inputs, slot)
        gradient, given = next(slots), next(slots)
        outputs = (gradient, given) if stage else (gradient,)
        ops.append(RunOp(stage, "backward", m, inputs, outputs))
        ops.append(FreeOp(inputs[1:]))
        if stage:
            tag = back + (stage - 1) * micro_batches + m
            ops.append(SendOp(given, stage - 1, tag, 2 * stage - 1))
            ops.append(FreeOp((given,)))
        if total is None:
            total = gradient
        else:
            ops.append(AccumulateOp((total,), (total,), (gradient,)))
            ops.append(FreeOp((gradient,)))
    new = next(slots)
    ops.append(RunOp(stage, "update_0", None, (weight, total), (new,)))
    ops.append(FreeOp((weight, total)))
    ops.append(OutputOp(new, stage, None))
    return ProgramInfo(stage, next(slots), tuple(ops))


def pipeline(
    seconds: Sequence[tuple[float, float, float]],
    micro_batches: int,
    schedule: str = "1f1b",
    devices: Sequence[Sequence[int]] | None = None,
) -> Plan:
    """A plan whose stage s takes `seconds[s]` (forward, backward, update)."""
    stages = len(seconds)
    devices = devices or [[s] for s in range(stages)]
    infos = []
    for stage, (forward, backward, update) in enumerate(seconds):
        grads = (ACTIVATION,) if stage + 1 < stages else ()
        functions = {
            "forward": FunctionInfo((WEIGHT, ACTIVATION), (ACTIVATION,)),
            "backward": FunctionInfo(
                (WEIGHT, ACTIVATION, *grads), (WEIGHT, ACTIVATION) if stage else (WEIGHT,)
            ),
            "update_0": FunctionInfo((WEIGHT, WEIGHT), (WEIGHT,)),
        }
        predicted = {
            "forward_seconds": forward,
            "backward_seconds": backward,
            "update_seconds": update,
            "forward_flops": 1e9,
            "backward_flops": 2e9,
            "update_flops": 0.0,
        }
        infos.append(
            StageInfo(stage, (stage, stage + 1), "", "shardy", functions, predicted, {}, ())
        )
    meshes = tuple(MeshInfo((len(d),), ("x",), tuple(d)) for d in devices)
    weights = [InputInfo(f"w{s}", WEIGHT.shape, "float32", "state", s) for s in range(stages)]
    batch = InputInfo("batch", ACTIVATION.shape, "float32", "batch", None)
    plan = Plan(
        "pipeline",
        MappingProxyType({}),
        micro_batches,
        schedule,
        (*weights, batch),
        tuple(OutputInfo(f"w{s}", WEIGHT.shape, "float32", None) for s in range(stages)),
        meshes,
        tuple(infos),
        MappingProxyType({}),
        tuple(program(s, stages, micro_batches, schedule) for s in range(stages)),
        MappingProxyType({}),
        reshards=tuple(
            reshard(ACTIVATION, meshes[a], ACTIVATION, meshes[b], "broadcast", (a, b))
            for s in range(stages - 1)
            for a, b in ((s, s + 1), (s + 1, s))
        ),
    )
    return with_order(plan)


def with_order(plan: Plan) -> Plan:
    """The plan with an order in which its programs run, as far as they do."""
    programs = [
        {"mesh": p.mesh, "instructions": [op.to_text() for op in p.instructions]}
        for p in plan.programs
    ]
    return replace(plan, order=read_order(Node(order_of(programs), "order")))
