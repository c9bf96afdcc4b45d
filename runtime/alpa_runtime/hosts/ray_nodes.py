"""What the nodes of a Ray cluster have, as far as Ray and the nodes' drivers say."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any

from alpa_runtime.errors import DevicesError
from alpa_runtime.hosts.process import Platform

_MIB = 1 << 20
_ASK_SECONDS = 60.0


@dataclass(frozen=True)
class RayNodes:
    """Nodes that are up.

    Attributes:
        platform: "gpu" if any of them has GPUs.
        devices: of each node that is taken.
        memory_bytes: of the device that has the least.
    """

    platform: Platform
    devices: tuple[int, ...]
    memory_bytes: int


def ray_nodes(ray: Any, devices_per_node: int | None, num_nodes: int | None) -> RayNodes:
    """The nodes to plan for.

    Args:
        ray: connected to the cluster.
        devices_per_node: by default all GPUs of each; has to be given for virtual devices.
        num_nodes: by default all.

    Raises:
        DevicesError: there are fewer nodes or devices than asked for.
    """
    nodes: list[dict[str, Any]] = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    gpus = sorted((int(n.get("GPU", 0)) for n in nodes), reverse=True)
    found = [count for count in gpus if count] if any(gpus) else [0] * len(nodes)
    where = "init"
    if not any(gpus) and devices_per_node is None:
        raise DevicesError(
            f"the {len(nodes)} nodes of the Ray cluster have no GPUs",
            where=where,
            fix="give devices_per_node, for virtual devices",
        )
    wanted = len(found) if num_nodes is None else num_nodes
    each = 1 if devices_per_node is None else devices_per_node
    least = each if any(gpus) else 0
    if not 1 <= wanted <= len(found) or each < 1 or found[wanted - 1] < least:
        raise DevicesError(
            f"num_nodes={num_nodes}, devices_per_node={devices_per_node}; the Ray cluster has "
            f"nodes of {', '.join(map(str, found))} GPUs",
            where=where,
            fix="ask for at least 1 and for no more than there is",
        )
    devices = tuple(devices_per_node or count for count in found[:wanted])
    if any(gpus):
        task = ray.remote(_gpu_memory).options(num_gpus=1, num_cpus=0)
        return RayNodes("gpu", devices, int(ray.get(task.remote(), timeout=_ASK_SECONDS)))
    memory = min(int(n.get("memory", 0)) for n in nodes)
    return RayNodes("cpu", devices, max(memory // max(devices), _MIB))


def _gpu_memory() -> int:
    """Bytes of the smallest GPU of the node where this runs."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return min(int(line) for line in done.stdout.split()) * _MIB
