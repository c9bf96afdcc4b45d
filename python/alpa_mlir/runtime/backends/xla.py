"""Programs compiled by XLA, for meshes of any size."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from alpa_mlir.runtime.backends.compiled_cache import CompiledCache
from alpa_mlir.runtime.program import Job, Meshes, Program
from alpa_mlir.runtime.xla import (
    Executable,
    check_shardings,
    compile_text,
    load_program,
    named_sharding,
    program_parts,
)


class XlaBackend:
    """XLA, and a cache of what it made before.

    Args:
        cache: None to compile everything.
    """

    name = "xla"

    def __init__(self, cache: CompiledCache | None = None) -> None:
        self._cache = cache

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        """Compile jobs that have one text; see `Backend`."""
        handles: dict[int, Any] = {}
        programs: list[Program] = []
        # What XLA writes of a program that it has read itself lacks its machine code, so the
        # bytes of the compiled one serve all meshes.
        data: bytes | None = None
        for job in jobs:
            mesh = meshes[job.mesh]
            if job.mesh not in handles and data is not None:
                with contextlib.suppress(RuntimeError):
                    handles[job.mesh] = load_program(data, mesh, per_device=job.per_device)
            if job.mesh not in handles:
                handles[job.mesh], data = self._compile(job, mesh, wanted=len(jobs) > 1)
            handle = handles[job.mesh]
            inputs = [(t, named_sharding(mesh, t)) for t in job.inputs]
            outputs = [(t, named_sharding(mesh, t)) for t in job.outputs]
            if not job.per_device:  # XLA knows nothing of wholes; the types were compared
                check_shardings(handle, inputs, outputs, job.label)
            programs.append(Executable(handle, outputs))
        return programs

    def _compile(self, job: Job, mesh: Mesh, wanted: bool) -> tuple[Any, bytes | None]:
        """A program and its bytes, if the cache or the caller has a use for them."""
        cache = self._cache
        parts = None
        if cache is not None:
            parts = program_parts(job.text, mesh, per_device=job.per_device)
        if cache is not None and parts is not None:
            data = cache.get(parts)
            if data is not None:
                try:
                    return load_program(data, mesh, per_device=job.per_device), data
                except RuntimeError as error:
                    cache.drop(parts, f"XLA cannot load it: {str(error).splitlines()[0]}")
        handle = compile_text(job.text, mesh, per_device=job.per_device)
        if parts is None and not wanted:
            return handle, None
        try:
            data = handle.serialize()
        except (RuntimeError, AttributeError):  # Not every platform can.
            return handle, None
        if cache is not None and parts is not None:
            cache.put(parts, data)
        return handle, data
