"""Stages on one device of the CPU compiled and run by IREE, on JAX's own buffers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import jax
from jax.sharding import Mesh

from alpa_runtime.backends.compiled_cache import CompiledCache
from alpa_runtime.backends.host import host_cpu
from alpa_runtime.backends.interface import Job, Meshes, Program
from alpa_runtime.backends.iree_compiler import (
    IreeBinary,
    compile_binary,
    iree_parts,
    iree_version,
    plain_text,
)
from alpa_runtime.backends.xla_runtime import (
    array_of_capsule,
    mesh_devices,
    named_sharding,
    num_bytes,
    put_shards,
    shards_of,
)
from alpa_runtime.errors import BackendError
from alpa_runtime.plan.binaries import key_of

_jax: Any = jax
_DLPACK_CPU = 1


class IreeBackend:
    """IREE, programs that were compiled ahead of time, and a cache of what it made before.

    Args:
        cache: None to keep nothing.
        shipped: programs by their key.
    """

    name = "iree"

    def __init__(
        self, cache: CompiledCache | None = None, shipped: Mapping[str, bytes] | None = None
    ) -> None:
        self._cache = cache
        self._shipped: Mapping[str, bytes] = {} if shipped is None else shipped
        self._version = iree_version()

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        """Compile jobs that have one text; see `Backend`.

        Raises:
            BackendError: a mesh has several devices or one that is no CPU, or IREE cannot
                compile the text.
        """
        for job in jobs:
            _check_mesh(job, meshes[job.mesh])
        text, given = plain_text(jobs[0].text)
        binary = self._binary(text, jobs[0].label)
        return [IreeProgram(binary, job, meshes[job.mesh], given) for job in jobs]

    def ships(self, job: Job) -> bool:
        """Whether a job was compiled ahead of time for this host."""
        parts = self._parts(plain_text(job.text)[0])
        return parts is not None and key_of(parts) in self._shipped

    def _parts(self, text: str) -> dict[str, str] | None:
        host = host_cpu()
        return None if host is None else iree_parts(text, "host", self._version) | {"host": host}

    def _binary(self, text: str, where: str) -> IreeBinary:
        parts = self._parts(text)
        if parts is not None and key_of(parts) in self._shipped:
            try:
                return IreeBinary.from_bytes(self._shipped[key_of(parts)])
            except ValueError as error:
                warnings.warn(f"{where} is compiled again: {error}", stacklevel=2)
        cache = self._cache
        if cache is None or parts is None:
            return compile_binary(text, "host", where)
        data = cache.get(parts)
        if data is not None:
            try:
                return IreeBinary.from_bytes(data)
            except ValueError as error:
                cache.drop(parts, str(error))
        binary = compile_binary(text, "host", where)
        cache.put(parts, binary.to_bytes())
        return binary


def _check_mesh(job: Job, mesh: Mesh) -> None:
    devices = mesh_devices(mesh)
    if len(devices) > 1:
        raise BackendError(
            f"IREE runs stages on one device, this one has {len(devices)}",
            where=job.label,
            fix='use backend="xla", or plan meshes of one device '
            "(PipeshardParallel(submeshes=[(1, 1), ..]))",
        )
    if devices[0].platform != "cpu":
        raise BackendError(
            f"IREE runs stages on the CPU, this device is {devices[0]}",
            where=job.label,
            fix='use backend="xla"',
        )


class IreeProgram:
    """A program of IREE on a device of JAX's CPU.

    It reads JAX's buffers and its results are JAX's arrays, without copies. A call returns when
    the work is done, and does not hold the interpreter's lock meanwhile.
    """

    def __init__(
        self,
        binary: IreeBinary,
        job: Job,
        mesh: Mesh,
        given: Sequence[int],
    ) -> None:
        rt, instance, device = _runtime()
        self._rt, self._device = rt, device
        module = rt.VmModule.copy_buffer(instance, binary.module)
        hal = rt.create_hal_module(instance, device)
        self._context = rt.VmContext(instance, modules=[hal, module])
        self._main = module.lookup_function("main")
        self._devices = mesh_devices(mesh)
        self._outputs = [(tensor, named_sharding(mesh, tensor)) for tensor in job.outputs]
        self._given = tuple(given)
        self._label = job.label
        own = sum(map(num_bytes, (*job.inputs, *job.outputs)))
        self._bytes = own + binary.transient_bytes + binary.constant_bytes

    def call(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """Run; see `Program`."""
        rt = self._rt
        _jax.block_until_ready(args)
        given = rt.VmVariantList(len(args))
        for x in args:
            given.push_ref(self._device.from_dlpack_capsule(shards_of(x)[0].__dlpack__()))
        made = rt.VmVariantList(len(self._outputs))
        try:
            self._context.invoke(self._main, given, made)
        except (RuntimeError, ValueError) as error:
            raise BackendError(
                f"IREE failed: {str(error).splitlines()[0]}",
                where=self._label,
                fix='use backend="xla" for this plan',
            ) from None
        results: list[jax.Array] = []
        for i, (tensor, sharding) in enumerate(self._outputs):
            # Mapped into NumPy, memory would not keep the buffer alive; a capsule does.
            view = made.get_as_object(i, rt.HalBufferView)
            capsule = self._device.create_dlpack_capsule(view, _DLPACK_CPU, 0)
            part = array_of_capsule(capsule, self._devices[0])
            results.append(put_shards(tensor, sharding, [part], self._devices))
        for i in self._given:
            if not args[i].is_deleted():
                args[i].delete()
        return results

    def memory_bytes(self) -> int:
        """Arguments, results, constants and what IREE says it allocates besides."""
        return self._bytes


@cache
def _runtime() -> tuple[Any, Any, Any]:
    """IREE's runtime, an instance of it and its device for the CPU: all programs share threads."""
    rt: Any = import_module("iree.runtime")
    return rt, rt.VmInstance(), rt.get_device("local-task")
