"""XLA for GPUs that are only described; beside `xla`, the module with private JAX names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jax.interpreters import mlir

from alpa_runtime.backends.gpus import Gpu
from alpa_runtime.backends.xla_runtime import as_any, compile_options
from alpa_runtime.errors import BackendError

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


def _lib() -> Any:
    from jax._src import lib

    return as_any(lib)


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
    client = _lib().xla_client
    spec = find_spec(plugin)
    if spec is None or spec.origin is None:
        raise BackendError(f"there is no module {plugin}", where="XLA for GPUs", fix=_FIX)
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
