"""XLA for GPUs that are only described; beside `xla`, the module with private JAX names."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jax.interpreters import mlir

from alpa_mlir.errors import BackendError
from alpa_mlir.gpus import Gpu
from alpa_mlir.runtime.xla import as_any, compile_options

_mlir: Any = mlir
_PLUGIN = "jax_plugins.xla_cuda12"
_PACKAGE = "jax-cuda12-pjrt"
_lock = threading.Lock()


def plugin_version() -> str:
    """The version of XLA for CUDA.

    Raises:
        BackendError: it is not installed.
    """
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        raise BackendError(
            f"the package {_PACKAGE} is not installed",
            where="XLA for GPUs",
            fix="pip install 'alpa-mlir[cuda12]'",
        ) from None


def _lib() -> Any:
    from jax._src import lib

    return as_any(lib)


def described_devices(gpu: Gpu, hosts: int, per_host: int) -> list[Any]:
    """Devices for which XLA compiles without having them, those of a host behind one another.

    Raises:
        BackendError: XLA for CUDA is not installed, or cannot be loaded.
    """
    plugin_version()
    with _lock:
        return _devices(gpu, hosts, per_host)


@cache
def _devices(gpu: Gpu, hosts: int, per_host: int) -> list[Any]:
    client = _lib().xla_client
    spec = find_spec(_PLUGIN)
    if spec is None or spec.origin is None:
        raise BackendError(
            f"there is no module {_PLUGIN}",
            where="XLA for GPUs",
            fix="pip install 'alpa-mlir[cuda12]'",
        )
    try:
        if not client.pjrt_plugin_loaded("cuda"):
            library = Path(spec.origin).parent / "xla_cuda_plugin.so"
            client.load_pjrt_plugin_dynamically("cuda", str(library))
        wanted = {"topology": f"1x{hosts}x{per_host}", "target_config": gpu.as_text()}
        topology = _lib()._jax.get_default_c_api_topology("cuda", "", wanted)
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
    listed = _lib().xla_client.DeviceList(tuple(devices))
    try:
        with _mlir.make_ir_context():
            return client.compile(_mlir.ir.Module.parse(text), listed, options)
    except RuntimeError as error:
        raise BackendError(
            f"XLA cannot compile it for {devices[0].device_kind}: {str(error).splitlines()[0]}",
            where=where,
        ) from None
