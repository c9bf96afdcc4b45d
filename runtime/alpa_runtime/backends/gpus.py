"""GPUs as XLA's compiler wants them described: their public data sheets, as numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: The dtypes that a device type may have a rate for.
DTYPES = ("float64", "float32", "bfloat16", "float16", "float8", "int8")


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        description: the name that the device itself gives.
        capability: compute capability, (major, minor).
        cores: streaming multiprocessors.
        memory_bytes, memory_bandwidth, l2_bytes: bytes, and bytes/s.
        clock_ghz: boost clock.
        threads, lanes: of a core: resident threads, and float32 lanes.
        core_shared_bytes, block_shared_bytes: shared memory of a core, and what a block may have.
    """

    description: str
    capability: tuple[int, int]
    cores: int
    memory_bytes: int
    memory_bandwidth: float
    l2_bytes: int
    clock_ghz: float
    threads: int
    lanes: int
    core_shared_bytes: int
    block_shared_bytes: int

    @property
    def arch(self) -> str:
        """`sm_80`."""
        return "sm_{}{}".format(*self.capability)

    @property
    def iree_arch(self) -> str:
        """The newest that IREE 3.13 knows and that this device can run: its binaries hold PTX,
        which the driver translates for later devices."""
        return min(self.arch, "sm_80")

    def as_text(self) -> str:
        """XLA's GpuTargetConfigProto as text."""
        major, minor = self.capability
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.core_shared_bytes}
  shared_memory_per_block_optin: {self.block_shared_bytes}
  threads_per_core_limit: {self.threads}
  core_count: {self.cores}
  fpus_per_core: {self.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(self.memory_bandwidth)}
  l2_cache_size: {self.l2_bytes}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{self.description}"
"""


_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10

# By the names of device types in the presets of clusters.
GPUS = {
    "v100": Gpu(
        "Tesla V100-SXM2-16GB", (7, 0), 80, 16 * _GIB, 900e9, 6 * _MIB, 1.53, 2048, 64,
        96 * _KIB, 96 * _KIB,
    ),
    "a100-40gb": Gpu(
        "NVIDIA A100-SXM4-40GB", (8, 0), 108, 40 * _GIB, 1555e9, 40 * _MIB, 1.41, 2048, 64,
        164 * _KIB, 163 * _KIB,
    ),
    "a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 * _GIB, 2039e9, 40 * _MIB, 1.41, 2048, 64,
        164 * _KIB, 163 * _KIB,
    ),
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 80 * _GIB, 3350e9, 50 * _MIB, 1.98, 2048, 128,
        228 * _KIB, 227 * _KIB,
    ),
    "h200": Gpu(
        "NVIDIA H200", (9, 0), 132, 141 * 10**9, 4800e9, 50 * _MIB, 1.98, 2048, 128,
        228 * _KIB, 227 * _KIB,
    ),
}  # fmt: skip


#: What JAX reads when it makes the GPUs of a process: GiB of its host's memory that programs may
#: keep arrays in.
HOST_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"


def host_limit_bytes(environment: Mapping[str, str]) -> int:
    """Host memory that programs of this process's GPUs may keep arrays in.

    Example:
        >>> host_limit_bytes({}) >> 30, host_limit_bytes({HOST_LIMIT: "500"}) >> 30
        (64, 500)
    """
    given = environment.get(HOST_LIMIT, "")
    return (int(given) if given.isdecimal() else 64) << 30


def allow_host_memory() -> None:
    """Let programs keep arrays in all memory of this host, unless the environment says how much:
    before JAX makes devices."""
    os.environ.setdefault(HOST_LIMIT, str(max(64, machine_memory_bytes() >> 30)))


def machine_memory_bytes() -> int:
    """Of this machine, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
