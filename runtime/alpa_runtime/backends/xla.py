"""Programs compiled by XLA, for meshes of any size, and for GPUs that are only described."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jax.interpreters import mlir
from jax.sharding import Mesh

from alpa_runtime.backends.gpus import Gpu
from alpa_runtime.backends.interface import Job, Meshes, Program, axis_sizes
from alpa_runtime.backends.xla_runtime import (
    Executable,
    check_shardings,
    compile_options,
    compile_text,
    load_program,
    mesh_devices,
    named_sharding,
    program_parts,
)
from alpa_runtime.cache import CompiledCache
from alpa_runtime.errors import BackendError
from alpa_runtime.jax_internals import c_api_topology, xla_client
from alpa_runtime.plan.plan import key_of

_mlir: Any = mlir
# By package; one of them will do, and the first that is there counts.
_PLUGINS = {
    "jax-cuda12-pjrt": "jax_plugins.xla_cuda12",
    "jax-cuda13-pjrt": "jax_plugins.xla_cuda13",
}
_FIX = "pip install 'alpa-mlir[cuda12]', or [cuda13]"
_lock = threading.Lock()


def plugin_version() -> str:
    """The version of XLA for CUDA.

    Raises:
        BackendError: it is not installed.
    """
    return version(_package())


def _package() -> str:
    for name in _PLUGINS:
        with contextlib.suppress(PackageNotFoundError):
            version(name)
            return name
    raise BackendError(
        f"neither {' nor '.join(_PLUGINS)} is installed", where="XLA for GPUs", fix=_FIX
    )


def described_devices(gpu: Gpu, hosts: int, per_host: int) -> list[Any]:
    """Devices for which XLA compiles without having them, those of a host behind one another.

    Raises:
        BackendError: XLA for CUDA is not installed, or cannot be loaded.
    """
    plugin = _PLUGINS[_package()]
    with _lock:
        return _devices(plugin, gpu, hosts, per_host)


@cache
def _devices(plugin: str, gpu: Gpu, hosts: int, per_host: int) -> list[Any]:
    client = xla_client()
    spec = find_spec(plugin)
    if spec is None or spec.origin is None:
        raise BackendError(f"there is no module {plugin}", where="XLA for GPUs", fix=_FIX)
    try:
        if not client.pjrt_plugin_loaded("cuda"):
            library = Path(spec.origin).parent / "xla_cuda_plugin.so"
            client.load_pjrt_plugin_dynamically("cuda", str(library))
        wanted = {"topology": f"1x{hosts}x{per_host}", "target_config": gpu.as_text()}
        topology = c_api_topology("cuda", wanted)
    except RuntimeError as error:
        raise BackendError(
            f"XLA cannot describe {hosts} hosts of {per_host} {gpu.description}: "
            f"{str(error).splitlines()[0]}",
            where="XLA for GPUs",
            fix="install jax, jaxlib and the plugin in the same version",
        ) from None
    return list(topology._make_compile_only_devices())


def compile_described(text: str, devices: Sequence[Any], *, per_device: bool, where: str) -> Any:
    """Compile a module for described devices in the order of a mesh.

    Returns:
        What has `serialize` and `get_compiled_memory_stats`, but cannot run here.

    Raises:
        BackendError: XLA cannot compile it.
    """
    client = devices[0].client
    options = compile_options(client, devices, per_device)
    listed = xla_client().DeviceList(tuple(devices))
    try:
        with _mlir.make_ir_context():
            return client.compile(_mlir.ir.Module.parse(text), listed, options)
    except RuntimeError as error:
        raise BackendError(
            f"XLA cannot compile it for {devices[0].device_kind}: {str(error).splitlines()[0]}",
            where=where,
        ) from None


class XlaBackend:
    """XLA, programs that were compiled ahead of time, and a cache of what it made before.

    Args:
        cache: None to keep nothing.
        shipped: programs by their key.
    """

    name = "xla"

    def __init__(
        self, cache: CompiledCache | None = None, shipped: Mapping[str, bytes] | None = None
    ) -> None:
        self._cache = cache
        self._shipped: Mapping[str, bytes] = {} if shipped is None else shipped

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
            programs.append(Executable(handle, outputs, job.per_device))
        return programs

    def _compile(self, job: Job, mesh: Mesh, wanted: bool) -> tuple[Any, bytes | None]:
        """A program and its bytes, if the cache or the caller has a use for them."""
        found = self._load_shipped(job, mesh)
        if found is not None:
            return found
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

    def _load_shipped(self, job: Job, mesh: Mesh) -> tuple[Any, bytes] | None:
        if not self._shipped:
            return None
        parts = shipped_parts(job.text, mesh, per_device=job.per_device)
        data = None if parts is None else self._shipped.get(key_of(parts))
        if data is None:
            return None
        try:
            return load_program(data, mesh, per_device=job.per_device), data
        except RuntimeError as error:
            warnings.warn(
                f"{job.label} was compiled ahead of time, but XLA cannot load it here and compiles "
                f"it again: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
            return None


def shipped_parts(text: str, mesh: Mesh, *, per_device: bool) -> dict[str, str] | None:
    """What a program that was compiled ahead of time for these devices was made of; None if none
    can be."""
    devices = mesh_devices(mesh)
    if devices[0].platform == "cpu":
        return program_parts(text, mesh, per_device=per_device)
    archs = {str(getattr(device, "compute_capability", "")) for device in devices}
    own = devices[0].client.process_index()
    if len(archs) > 1 or "" in archs or any(d.process_index != own for d in devices):
        return None
    try:
        arch = f"sm_{archs.pop().replace('.', '')}"
        return described_parts(text, axis_sizes(mesh), arch, plugin_version(), per_device)
    except BackendError:
        return None


def described_parts(
    text: str, shape: tuple[int, ...], arch: str, plugin: str, per_device: bool
) -> dict[str, str]:
    """All that a program depends on that XLA compiles for GPUs without having them.

    Args:
        shape: of the mesh.
        arch: of the devices, such as `sm_80`.
        plugin: the version of XLA for CUDA.
    """
    return {
        "compiler": "xla",
        "text": text,
        "export": "collectives" if per_device else "shardy",
        "mesh": str(shape),
        "arch": arch,
        "plugin": plugin,
    }
