"""Devices of this process: virtual ones for the CPU, and the meshes of a plan."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from alpa_runtime.backends.xla import Device
from alpa_runtime.errors import WHOLE, DevicesError, check_type
from alpa_runtime.jax_internals import backends_are_up
from alpa_runtime.plan import Plan
from alpa_runtime.plan.stage import MeshInfo

_jax: Any = jax
_FLAG = "xla_force_host_platform_device_count"
# Each has four threads. Of 100,000 the process took 13 GB without coming to an end.
_MOST_VIRTUAL = 1024


def use_virtual_devices(count: int) -> list[Device]:
    """Make JAX offer at least `count` virtual CPU devices in this process.

    Call it before the first use of JAX's devices. If there are several, it also gives XLA a
    thread pool that is large enough for all of them: with a small one, programs with collectives
    can wait for each other forever.

    Args:
        count: how many devices, 1 to 1024.

    Returns:
        The first `count` devices.

    Raises:
        DevicesError: so many cannot be had, or JAX has made fewer devices already.

    Example:
        >>> import alpa_mlir
        >>> devices = alpa_mlir.use_virtual_devices(8)  # doctest: +SKIP
    """
    check_type("use_virtual_devices", "count", count, WHOLE)
    if count < 1:
        raise DevicesError(f"{count} virtual devices", fix="ask for at least one")
    if count > _MOST_VIRTUAL:
        raise DevicesError(
            f"{count} virtual devices, each of which takes threads and memory of this machine",
            fix=f"ask for at most {_MOST_VIRTUAL}",
        )
    if not backends_are_up():
        flags = os.environ.get("XLA_FLAGS", "")
        present = re.search(rf"--{_FLAG}=(\d+)", flags)
        threads = max(16, 4 * count)
        several = count > 1 or (present is not None and int(present[1]) > 1)
        if several and int(os.environ.get("NPROC", "0") or 0) < threads:
            os.environ["NPROC"] = str(threads)
        if present is None:
            _jax.config.update("jax_num_cpu_devices", count)
        elif int(present[1]) < count:
            os.environ["XLA_FLAGS"] = flags.replace(present[0], f"--{_FLAG}={count}")
        _jax.config.update("jax_platforms", "cpu")
    devices = _jax.devices()
    if len(devices) < count:
        raise DevicesError(
            f"JAX has started with {len(devices)} {devices[0].platform} devices, {count} wanted",
            where="use_virtual_devices",
            fix="call it before anything that makes arrays or asks for devices",
        )
    return devices[:count]


def make_meshes(plan: Plan, devices: list[Device] | None = None) -> list[Mesh]:
    """The meshes of a plan on real devices; device number i is `devices[i]`.

    Raises:
        DevicesError: the plan needs more devices than there are, or one is given twice.
    """
    present: list[Any] = list(_jax.devices() if devices is None else devices)
    if len(set(present)) < len(present):
        twice = next(device for device in present if present.count(device) > 1)
        raise DevicesError(
            f"device {twice} is given twice",
            where=f"plan of {plan.name}",
            fix="give each device of the plan one of its own",
        )
    if plan.num_devices > len(present):
        raise DevicesError(
            f"the plan needs {plan.num_devices} devices, JAX has {len(present)}",
            where=f"plan of {plan.name}",
            fix=f"call alpa_mlir.use_virtual_devices({plan.num_devices}) first, or plan for a "
            "smaller cluster",
        )
    by_number = dict(enumerate(present))
    return [mesh_on(mesh, by_number) for mesh in plan.meshes]


def mesh_on(info: MeshInfo, devices: Mapping[int, Device]) -> Mesh:
    """A mesh of a plan on the devices that have its numbers."""
    grid = np.array([devices[number] for number in info.devices]).reshape(info.shape)
    return Mesh(grid, info.axes)
