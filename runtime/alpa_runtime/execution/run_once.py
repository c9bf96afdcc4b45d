"""Programs that run once, beside the steps of a plan, such as those that make its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from alpa_runtime.backends.interface import Backend, Job
from alpa_runtime.backends.xla_runtime import mesh_devices, named_sharding, put_shards
from alpa_runtime.execution.compilation import compile_jobs

_jax: Any = jax


def run_once(
    jobs: Sequence[Job],
    arguments: Sequence[Any],
    meshes: Mapping[int, Mesh],
    backend: Backend | None = None,
) -> list[list[jax.Array]]:
    """Compile and run programs; results are futures.

    Args:
        jobs: all take the same arguments, whole on every device.
        arguments: arrays of NumPy.
        meshes: of the jobs, by number in the plan.

    Returns:
        The results of each program.
    """
    numbers = list(meshes)
    own = [
        Job(job.label, job.text, numbers.index(job.mesh), job.inputs, job.outputs, job.per_device)
        for job in jobs
    ]
    compiled = compile_jobs(own, list(meshes.values()), None, backend)
    results: list[list[jax.Array]] = []
    for job, program in zip(jobs, compiled, strict=True):
        mesh = meshes[job.mesh]
        own = [d for d in mesh_devices(mesh) if d.process_index == _jax.process_index()]
        placed = [
            # Not device_put: other processes of the mesh have nothing to compare with.
            put_shards(tensor, named_sharding(mesh, tensor), [np.asarray(x)] * len(own), own)
            for x, tensor in zip(arguments, job.inputs, strict=True)
        ]
        results.append(program.call(placed))
    return results
