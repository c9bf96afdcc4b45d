"""Compiling what a plan runs: every function once per mesh, in parallel threads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import prod
from typing import Any

from alpa_runtime.backends.interface import Backend, Job, Meshes, Program, Progress, axis_sizes
from alpa_runtime.backends.xla import XlaBackend
from alpa_runtime.backends.xla_runtime import mesh_devices, mlir_type
from alpa_runtime.errors import PlanMismatchError
from alpa_runtime.execution.stage_text import FunctionText, split_functions
from alpa_runtime.plan import Plan
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec


def stage_jobs(
    plan: Plan,
    donated: Mapping[tuple[int, str], Sequence[tuple[int, int]]],
    sums: Mapping[tuple[int, str], Sequence[int]] | None = None,
) -> dict[tuple[int, str], Job]:
    """One job for every function of every stage that some program runs.

    Args:
        donated: pairs (input, output) of which the output takes the buffer, for each of them.
        sums: outputs to which further inputs are added; none by default.

    Raises:
        PlanMismatchError: a module lacks a function or has other tensor types than the plan.
    """
    jobs: dict[tuple[int, str], Job] = {}
    for index, stage in enumerate(plan.stages):
        wanted = {name: pairs for (s, name), pairs in donated.items() if s == index}
        if not wanted:
            continue
        added = {name: (sums or {}).get((index, name), ()) for name in wanted}
        texts = split_functions(plan.modules[stage.module], wanted, stage.module, added)
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
                (*info.inputs, *[info.outputs[output] for output in added[name]]),
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


def compile_jobs(
    jobs: Sequence[Job],
    meshes: Meshes,
    progress: Progress | None = None,
    backend: Backend | None = None,
) -> list[Program]:
    """Compile in parallel threads; equal texts for equal meshes of equal devices are compiled once.

    Args:
        progress: called with (done, total, label) after each compiled text.
        backend: by default XLA, which compiles everything anew.
    """
    backend = XlaBackend() if backend is None else backend
    groups: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        mesh = meshes[job.mesh]
        kinds = tuple(device.device_kind for device in mesh_devices(mesh))
        key = (job.text, job.per_device, job.of_stage, axis_sizes(mesh), kinds)
        groups.setdefault(key, []).append(i)
    result: list[Program | None] = [None] * len(jobs)
    # The longest to compile first, so that none of them is left alone at the end.
    largest_first = sorted(groups.values(), key=lambda members: -len(jobs[members[0]].text))
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        pending = {
            pool.submit(backend.build, [jobs[i] for i in members], meshes): members
            for members in largest_first
        }
        for done, future in enumerate(as_completed(pending), 1):
            members = pending[future]
            for i, program in zip(members, future.result(), strict=True):
                result[i] = program
            if progress is not None:
                progress(done, len(groups), jobs[members[0]].label)
    finally:
        pool.shutdown(cancel_futures=True)
    return [program for program in result if program is not None]
