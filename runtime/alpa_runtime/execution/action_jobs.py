"""The small programs that a step needs besides its stages: sums, zeros, other shardings."""

from __future__ import annotations

from collections.abc import Sequence

from alpa_runtime.backends.interface import Job
from alpa_runtime.backends.xla_runtime import mesh_text, mlir_type, sharding_text
from alpa_runtime.execution.actions import Accumulate, LinearStep, Reshard, Zero
from alpa_runtime.plan import Plan
from alpa_runtime.plan.tensor import TensorSpec


def action_jobs(plan: Plan, step: LinearStep) -> dict[int, Job]:
    """The programs of those actions that are neither stages' functions nor copies, by number."""
    jobs: dict[int, Job] = {}
    for number, action in enumerate(step.actions):
        match action:
            case Accumulate():
                jobs[number] = _accumulate_job(plan, step, action)
            case Zero():
                jobs[number] = _zero_job(plan, step, action)
            case Reshard():
                jobs[number] = _reshard_job(plan, step, action)
            case _:
                pass
    return jobs


def _job(
    plan: Plan,
    what: str,
    mesh: int,
    arguments: Sequence[tuple[str, TensorSpec, str]],
    body: Sequence[str],
    results: Sequence[tuple[str, TensorSpec]],
) -> Job:
    """A program on whole tensors.

    Args:
        arguments: name, form and further attributes of each.
        results: name and form of each.
    """
    given = [f"{n}: {mlir_type(t)} {{{sharding_text(t)}{more}}}" for n, t, more in arguments]
    gives = ", ".join(f"{mlir_type(t)} {{{sharding_text(t)}}}" for _, t in results)
    names, types = ", ".join(n for n, _ in results), ", ".join(mlir_type(t) for _, t in results)
    text = "\n".join(
        (
            f"module @{what} {{",
            f"  {mesh_text(plan.meshes[mesh])}",
            f"  func.func public @main({', '.join(given)}) -> ({gives}) {{",
            *[f"    {line}" for line in body],
            f"    return {names} : {types}",
            "  }",
            "}",
        )
    )
    inputs, outputs = tuple(t for _, t, _ in arguments), tuple(t for _, t in results)
    return Job(f"mesh {mesh} {what}", text, mesh, inputs, outputs, of_stage=False)


def given_lefts(action: Accumulate) -> set[int]:
    """The left operands whose buffers the sums take over."""
    reads = [v for _, left, right in action.sums for v in (left, right)]
    return {left for _, left, _ in action.sums if left in action.last and reads.count(left) == 1}


def _accumulate_job(plan: Plan, step: LinearStep, action: Accumulate) -> Job:
    """The program of a group of accumulations: left arguments first, then right ones."""
    tensors = [step.values[value].tensor for value, _, _ in action.sums]
    given_away = given_lefts(action)
    arguments: list[tuple[str, TensorSpec, str]] = []
    for i, (tensor, (_, left, _)) in enumerate(zip(tensors, action.sums, strict=True)):
        aliasing = f", tf.aliasing_output = {i} : i32" if left in given_away else ""
        arguments.append((f"%l{i}", tensor, aliasing))
    arguments += [(f"%r{i}", tensor, "") for i, tensor in enumerate(tensors)]
    body = [
        f"%s{i} = stablehlo.{'or' if tensor.dtype == 'bool' else 'add'} %l{i}, %r{i} : "
        f"{mlir_type(tensor)}"
        for i, tensor in enumerate(tensors)
    ]
    results = [(f"%s{i}", tensor) for i, tensor in enumerate(tensors)]
    return _job(plan, "accumulate", action.mesh, arguments, body, results)


def _zero_job(plan: Plan, step: LinearStep, action: Zero) -> Job:
    tensors = [step.values[value].tensor for value in action.values]
    mesh = step.values[action.values[0]].mesh
    body = [
        f"%z{i} = stablehlo.constant dense<{_zero_text(tensor.dtype)}> : {mlir_type(tensor)}"
        for i, tensor in enumerate(tensors)
    ]
    return _job(plan, "zero", mesh, [], body, [(f"%z{i}", t) for i, t in enumerate(tensors)])


def _zero_text(dtype: str) -> str:
    if dtype == "bool":
        return "false"
    if dtype.startswith("complex"):
        return "(0.0, 0.0)"
    return "0" if dtype.startswith(("int", "uint")) else "0.0"


def _reshard_job(plan: Plan, step: LinearStep, action: Reshard) -> Job:
    value, source = step.values[action.value], step.values[action.source].tensor
    return _job(plan, "reshard", value.mesh, [("%x", source, "")], [], [("%x", value.tensor)])
