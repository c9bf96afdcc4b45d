"""XLA: StableHLO text to executables for meshes of any size, for GPUs that are only described too,
and arrays to their devices.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import backend
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from alpa_runtime.backends.gpus import Gpu
from alpa_runtime.backends.interface import Job, Meshes, Program, axis_sizes
from alpa_runtime.cache import CompiledCache
from alpa_runtime.errors import BackendError, PlanMismatchError
from alpa_runtime.foreign_errors import missing_kernel, says_read
from alpa_runtime.jax_internals import c_api_topology, hlo_sharding, pxla, same_shards, xla_client
from alpa_runtime.plan.plan import key_of
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec, mlir_name

# As Linux names them on x86 and on Arm; others are counts, speeds and numbers of this boot.
_X86 = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_ARM = (
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "Features",
)
_FIELDS = frozenset((*_X86, *_ARM))


@cache
def host_cpu() -> str | None:
    """Make, model and instruction sets of the processor; None where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    found: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FIELDS:
            found[name.strip()] = " ".join(sorted(value.split()))
    if not found.keys() & {"flags", "Features"}:
        return None
    return "; ".join(f"{name}: {value}" for name, value in sorted(found.items()))


# JAX's name of the memory of hosts that devices copy from and to, those of the CPU too.
HOST_MEMORY = "pinned_host"

Device = Any
# JAX leaves many of its types unknown to checkers; the aliases say so in one place.
_jax: Any = jax
_backend: Any = backend


def mesh_devices(mesh: Mesh) -> list[Device]:
    """The mesh's devices in row-major order."""
    grid: Any = mesh.devices
    return list(grid.flat)


def mlir_type(tensor: TensorSpec) -> str:
    """`tensor<4x8xf32>`."""
    sizes = "".join(f"{size}x" for size in tensor.shape)
    return f"tensor<{sizes}{mlir_name(tensor.dtype) or tensor.dtype}>"


@lru_cache(maxsize=8192)
def named_sharding(mesh: Mesh, tensor: TensorSpec) -> NamedSharding:
    """The JAX sharding of a spec on a mesh; equal ones are one object."""
    spec = P(*[axes or None for axes in tensor.spec])
    return NamedSharding(mesh, spec, memory_kind=HOST_MEMORY if tensor.on_host else None)


def mesh_text(info: MeshInfo) -> str:
    """The `sdy.mesh` op of a mesh, named `@mesh`."""
    axes = ", ".join(f'"{a}"={n}' for a, n in zip(info.axes, info.shape, strict=True))
    return f"sdy.mesh @mesh = <[{axes}]>"


def axes_text(tensor: TensorSpec) -> str:
    """A spec on `@mesh` as Shardy writes it."""
    dims = ", ".join("{" + ", ".join(f'"{a}"' for a in axes) + "}" for axes in tensor.spec)
    return f"<@mesh, [{dims}]>"


def sharding_text(tensor: TensorSpec) -> str:
    """The `sdy.sharding` attribute of a spec on `@mesh`."""
    return f"sdy.sharding = #sdy.sharding{axes_text(tensor)}"


def zero_text(dtype: str) -> str:
    """Zero as constants of a dtype have it."""
    if dtype == "bool":
        return "false"
    if dtype.startswith("complex"):
        return "(0.0, 0.0)"
    return "0" if dtype.startswith(("int", "uint")) else "0.0"


def sum_text(dtype: str) -> str:
    """The op that adds two tensors of a dtype up."""
    return f"stablehlo.{'or' if dtype == 'bool' else 'add'}"


#: What XLA tells of a program's memory on a device.
MEMORY_STATS = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "generated_code_size_in_bytes",
)


class Executable:
    """A compiled program on the devices of a mesh.

    `call(args)` takes arrays that have exactly the shardings the program was compiled for
    (XLA does not look) and returns without waiting for the results.

    Args:
        per_device: the program says what one device does, so that XLA takes a device's part for
            the whole result. From JAX 0.12 on such an array does not come to the host; its parts
            are put together anew.
    """

    def __init__(
        self,
        handle: Any,
        outputs: Sequence[tuple[TensorSpec, NamedSharding]],
        per_device: bool = False,
    ) -> None:
        placement = pxla()
        self.handle = handle
        self._execute = handle.execute_sharded
        self._in_parts = per_device and any(sharding.num_devices > 1 for _, sharding in outputs)
        self._handlers = [
            placement.global_aval_to_result_handler(_aval(tensor), sharding, True)
            for tensor, sharding in outputs
        ]

    def call(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """Start the program; results are futures."""
        try:
            results = self._execute(args)
        except RuntimeError as error:
            if not says_read(error):
                raise
            # NumPy's arrays of host memory are views. Nothing was started, and nothing given away.
            results = self._execute([_copied_if_on_host(x) for x in args])
        if self._in_parts:
            parts = results.disassemble_into_single_device_arrays()
            return [handler(x) for handler, x in zip(self._handlers, parts, strict=True)]
        return results.consume_with_handlers(self._handlers)

    def memory_bytes(self) -> int:
        """Arguments, results and temporaries on one device, aliased buffers counted once."""
        return program_bytes(self.handle)

    def memory_stats(self) -> dict[str, int]:
        """What XLA says of one device, by its own names."""
        stats = self.handle.get_compiled_memory_stats()
        return {name: int(getattr(stats, name)) for name in MEMORY_STATS}


def _copied_if_on_host(x: jax.Array) -> jax.Array:
    """By way of the devices: XLA copies within no host."""
    sharding: Any = x.sharding
    if sharding.memory_kind != HOST_MEMORY:
        return x
    there = _jax.device_put(x, NamedSharding(sharding.mesh, sharding.spec))
    return _jax.device_put(there, sharding)


def program_bytes(handle: Any) -> int:
    """Arguments, results and temporaries of a compiled program on one device, aliased buffers
    counted once."""
    stats = handle.get_compiled_memory_stats()
    return int(
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes
    )


def num_bytes(tensor: TensorSpec) -> int:
    """Of the whole tensor."""
    return prod(tensor.shape) * np.dtype(_jax.numpy.dtype(tensor.dtype)).itemsize


@lru_cache(maxsize=4096)
def _aval(tensor: TensorSpec) -> Any:
    return _jax.core.ShapedArray(tensor.shape, np.dtype(_jax.numpy.dtype(tensor.dtype)))


def compile_options(client: Any, devices: Sequence[Device], per_device: bool) -> Any:
    """XLA's options for a program on devices in the order of their mesh."""
    ids: Any = np.array([device.id for device in devices])
    # Explicit collectives: replicas, nothing left to partition.
    counts, grid = ((len(ids), 1), ids[:, None]) if per_device else ((1, len(ids)), ids[None, :])
    options = _backend.get_compile_options(*counts, device_assignment=grid, backend=client)
    options.executable_build_options.use_shardy_partitioner = not per_device
    return options


def compile_text(text: str, mesh: Mesh, *, per_device: bool = False) -> Any:
    """Compile a module for the devices of a mesh.

    Args:
        per_device: the module says what one device does, with explicit collectives among
            replicas; otherwise it is the whole program, with Shardy annotations.
    """
    devices = mesh_devices(mesh)
    client = devices[0].client
    return client.compile_and_load(text, devices, compile_options(client, devices, per_device))


def load_kernels(text: str) -> None:
    """Load the library of LAPACK that a module calls: JAX does so where it lowers such a call
    alone, and without it the call jumps nowhere."""
    if "@lapack_" in text:
        from jaxlib import lapack  # Reads SciPy's: 0.2 s.

        library: Any = lapack
        library.prepare_lapack_call("potrf_ffi", np.float32)


def load_program(data: bytes, mesh: Mesh, *, per_device: bool = False) -> Any:
    """What `handle.serialize()` gave, on the devices of a mesh of the same shape.

    Raises:
        RuntimeError: XLA cannot read it.
    """
    devices = mesh_devices(mesh)
    client = devices[0].client
    return client.deserialize_executable(
        data, devices, compile_options(client, devices, per_device)
    )


def program_parts(text: str, mesh: Mesh, *, per_device: bool = False) -> dict[str, str] | None:
    """All that a compiled program depends on, by name; None if it is good for this process only.

    Which devices of their kind the mesh has is no part of it.
    """
    devices = mesh_devices(mesh)
    first = devices[0]
    client = first.client
    # Addresses of Python functions stand in the text of callbacks.
    if "callback" in text:
        return None
    options = compile_options(client, devices, per_device)
    grid = np.arange(len(devices)).reshape((-1, 1) if per_device else (1, -1))
    options.device_assignment = xla_client().DeviceAssignment.create(grid)
    build = options.executable_build_options
    build.device_assignment = options.device_assignment
    build.debug_options.xla_force_host_platform_device_count = 0
    parts = {
        "compiler": "xla",
        "text": text,
        "export": "collectives" if per_device else "shardy",
        "mesh": f"{tuple(mesh.axis_names)} {mesh.axis_sizes}",
        "processes": _processes(devices, client.process_index()),
        "devices": ", ".join(sorted({device.device_kind for device in devices})),
        "platform": f"{first.platform} {client.platform_version}",
        "jaxlib": version("jaxlib"),
        "flags": " ".join(sorted(f for f in _flags() if not f.startswith(_IRRELEVANT_FLAGS))),
        "options": hashlib.sha256(options.SerializeAsString()).hexdigest(),
    }
    if first.platform == "cpu":
        host = host_cpu()
        if host is None:
            return None
        # XLA cuts loops into as many parts as it has threads.
        parts |= {"host": host, "threads": os.environ.get("NPROC") or str(os.cpu_count())}
    return parts


def _processes(devices: Sequence[Device], own: int) -> str:
    """Which devices of a mesh lie in one process, and which process this is among them.

    Example: "0 1 0 1, here 1".
    """
    numbers = [device.process_index for device in devices]
    there = sorted(set(numbers))
    if own not in there:
        return "elsewhere"
    return f"{' '.join(str(there.index(n)) for n in numbers)}, here {there.index(own)}"


_IRRELEVANT_FLAGS = ("--xla_dump", "--xla_force_host_platform_device_count")


def _flags() -> list[str]:
    return os.environ.get("XLA_FLAGS", "").split()


def check_shardings(
    handle: Any,
    inputs: Sequence[tuple[TensorSpec, NamedSharding]],
    outputs: Sequence[tuple[TensorSpec, NamedSharding]],
    where: str,
) -> None:
    """XLA's own shardings of arguments and results must be those of the plan.

    Raises:
        PlanMismatchError: one differs; running would give wrong values without a word.
    """
    for kind, expected, found in (
        ("input", inputs, handle.get_parameter_shardings()),
        ("output", outputs, handle.get_output_shardings()),
    ):
        if found is None:  # XLA says nothing for programs of one device
            continue
        if len(found) != len(expected):
            raise PlanMismatchError(
                f"the program has {len(found)} {kind}s, the plan {len(expected)}", where=where
            )
        for i, ((tensor, sharding), actual) in enumerate(zip(expected, found, strict=True)):
            if sharding.num_devices > 1 and not same_shards(actual, sharding, tensor.shape):
                raise PlanMismatchError(
                    f"{kind} {i} is compiled as {hlo_sharding(actual)}, the plan says "
                    f"{tensor.as_text()}",
                    where=where,
                    fix="annotate every argument and result of the stage with sdy.sharding",
                )


def put_shards(
    tensor: TensorSpec, sharding: NamedSharding, shards: Sequence[Any], devices: Sequence[Any]
) -> jax.Array:
    """An array made of one buffer per device, each copied to its device if it is elsewhere."""
    return pxla().batched_device_put(_aval(tensor), sharding, shards, devices, True)


def put_on(
    shape: tuple[int, ...], dtype: str, device: Device, memory_kind: str | None = None
) -> Callable[[Any], jax.Array]:
    """A function that copies arrays of one device and of this form to a device."""
    sharding = SingleDeviceSharding(device, memory_kind=memory_kind)
    put, aval, devices = pxla().batched_device_put, _aval(TensorSpec(shape, dtype, ())), [device]
    return lambda x: put(aval, sharding, [x], devices, True)


# Programs compiled by XLA, for meshes of any size, and for GPUs that are only described.

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
        load_kernels(jobs[0].text)
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
        try:
            handle = compile_text(job.text, mesh, per_device=job.per_device)
        except RuntimeError as error:
            kernel = missing_kernel(error)
            if kernel is None:
                raise
            raise BackendError(
                f"the step was planned for GPUs: XLA has no kernel {kernel!r} for "
                f"{mesh_devices(mesh)[0].platform}",
                where=job.label,
                fix="run the plan on GPUs, or make one for the devices that are here, in a process "
                "that has at least as many as the cluster",
            ) from None
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
