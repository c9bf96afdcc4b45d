"""Compiling what a plan runs: every function once per mesh, in parallel threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

from jax.sharding import Mesh

from alpa_mlir.errors import PlanMismatchError
from alpa_mlir.plan import MeshInfo, Plan, TensorSpec
from alpa_mlir.runtime.xla import (
    Executable,
    FunctionText,
    check_shardings,
    compile_text,
    mlir_type,
    named_sharding,
    reload_on,
    split_functions,
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Job:
    """A program to compile: its text, mesh and the tensors it takes and gives.

    With `per_device` the text says what one device does with its parts of these tensors.
    """

    label: str
    text: str
    mesh: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    per_device: bool = False


def stage_jobs(
    plan: Plan, donated: dict[tuple[int, str], tuple[tuple[int, int], ...]]
) -> dict[tuple[int, str], Job]:
    """One job for every function of every stage that some program runs.

    Raises:
        PlanMismatchError: a module lacks a function or has other tensor types than the plan.
    """
    jobs: dict[tuple[int, str], Job] = {}
    for index, stage in enumerate(plan.stages):
        wanted = {name: pairs for (s, name), pairs in donated.items() if s == index}
        if not wanted:
            continue
        texts = split_functions(plan.modules[stage.module], dict(wanted), stage.module)
        for name in wanted:
            if name not in texts:
                raise PlanMismatchError(
                    f"no function {name!r}, only {', '.join(sorted(texts))}", where=stage.module
                )
            info = stage.functions[name]
            per_device = stage.export == "collectives"
            mesh = plan.meshes[stage.mesh] if per_device else None
            where = f"{stage.module}: @{name}"
            _check_types(texts[name], info.inputs, info.outputs, where, mesh)
            jobs[index, name] = Job(
                f"stage {index} {name}",
                texts[name].text,
                stage.mesh,
                info.inputs,
                info.outputs,
                per_device,
            )
    return jobs


def _check_types(
    text: FunctionText,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    where: str,
    mesh: MeshInfo | None,
) -> None:
    """Of whole tensors, or with a mesh of the parts that its devices hold."""
    for kind, found, tensors in (
        ("input", text.inputs, inputs),
        ("output", text.outputs, outputs),
    ):
        types = [f"tensor<{''.join(f'{d}x' for d in shape)}{dtype}>" for shape, dtype in found]
        wanted = [
            mlir_type(tensor if mesh is None else part_of(tensor, mesh)) for tensor in tensors
        ]
        if len(types) != len(wanted):
            raise PlanMismatchError(
                f"{len(types)} {kind}s, plan.json lists {len(wanted)}", where=where
            )
        for i, (a, b) in enumerate(zip(types, wanted, strict=True)):
            if a != b:
                raise PlanMismatchError(f"{kind} {i} is {a}, plan.json says {b}", where=where)


def part_of(tensor: TensorSpec, mesh: MeshInfo) -> TensorSpec:
    """What one device of the mesh holds of a tensor.

    Example:
        >>> mesh = MeshInfo((2, 2), ("x", "y"), (0, 1, 2, 3))
        >>> part_of(TensorSpec((8, 6), "float32", (("x", "y"), ())), mesh).shape
        (2, 6)
    """
    sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
    shape = tuple(
        size // prod(sizes[axis] for axis in axes)
        for size, axes in zip(tensor.shape, tensor.spec, strict=True)
    )
    return TensorSpec(shape, tensor.dtype, ((),) * len(shape))


def axis_sizes(mesh: Mesh) -> tuple[int, ...]:
    """Sizes of the mesh's axes."""
    return tuple(int(n) for n in mesh.axis_sizes)


def compile_jobs(
    jobs: Sequence[Job], meshes: Sequence[Mesh], progress: Progress | None = None
) -> list[Executable]:
    """Compile in parallel threads; equal texts for equal mesh shapes are compiled once.

    Args:
        progress: called with (done, total, label) after each compiled text.
    """
    groups: dict[tuple[str, bool, tuple[int, ...]], list[int]] = {}
    for i, job in enumerate(jobs):
        key = (job.text, job.per_device, axis_sizes(meshes[job.mesh]))
        groups.setdefault(key, []).append(i)
    result: list[Executable | None] = [None] * len(jobs)
    done = 0

    def build(members: list[int]) -> list[int]:
        by_mesh: dict[int, Any] = {}
        for i in members:
            job = jobs[i]
            mesh = meshes[job.mesh]
            handle = by_mesh.get(job.mesh)
            if handle is None and by_mesh:
                known = next(iter(by_mesh.values()))
                handle = reload_on(known, mesh, per_device=job.per_device)
            if handle is None:
                handle = compile_text(job.text, mesh, per_device=job.per_device)
            by_mesh[job.mesh] = handle
            inputs = [(t, named_sharding(mesh, t)) for t in job.inputs]
            outputs = [(t, named_sharding(mesh, t)) for t in job.outputs]
            if not job.per_device:  # XLA knows nothing of wholes; the types were compared
                check_shardings(handle, inputs, outputs, job.label)
            result[i] = Executable(handle, outputs)
        return members

    largest_first = sorted(groups.values(), key=lambda members: -len(jobs[members[0]].text))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for members in pool.map(build, largest_first):
            done += 1
            if progress is not None:
                progress(done, len(groups), jobs[members[0]].label)
    return [executable for executable in result if executable is not None]
