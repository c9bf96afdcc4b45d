"""Methods that keep the stages of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

from alpa_runtime.errors import check_type
from alpa_runtime.plan import Plan

from alpa_mlir.cluster import Cluster
from alpa_mlir.methods.automatic import AutoParallel, ShardParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.methods.pipeshard import PipeshardParallel

# What the kept plan decides; all else is as the given method has it.
_KEPT = ("num_micro_batches", "schedule", "virtual_stages", "layers")


def keep_stages(plan: Plan, method: Method | None = None) -> Method:
    """A method that keeps the layers and the mesh of each stage of a plan, and its number of
    micro-batches.

    Shardings and schedule are chosen anew, for this step or one like it, on the same cluster or
    another one that has these meshes. A schedule with several stages on each mesh is kept.

    Args:
        method: what says the options that all methods have; `AutoParallel()` by default.

    Raises:
        MethodError: the plan's schedule is one of somebody's own.

    Example:
        >>> step = parallelize(train_step, method=keep_stages(plan))     # doctest: +SKIP
    """
    check_type("keep_stages", "plan", plan, Plan)
    check_type("keep_stages", "method", method, Method, None)
    kept = method_of(plan)
    given = AutoParallel() if method is None else method
    names = {item.name for item in fields(Method)} - {*_KEPT}
    schedule = kept.schedule if kept.stages_per_mesh > 1 else "auto"
    return replace(kept, schedule=schedule, **{name: getattr(given, name) for name in names})


def method_of(plan: Plan) -> Method:
    """A method with a plan's stages, meshes, schedule and micro-batches.

    Raises:
        MethodError: the plan's schedule is one of somebody's own.
    """
    if len(plan.stages) == 1:
        mesh, count = plan.meshes[0], plan.num_micro_batches
        return ShardParallel(mesh_shape=mesh.shape, num_micro_batches=count)
    cluster = Cluster.from_dict(plan.cluster)
    return PipeshardParallel(
        submeshes=[submesh_of(cluster, mesh.devices) for mesh in plan.meshes],
        mesh_shapes=[mesh.shape for mesh in plan.meshes],
        layers=plan.stages[-1].layers[1],
        layer_ranges=[stage.layers for stage in plan.stages],
        schedule=plan.schedule,
        virtual_stages=len(plan.stages) // len(plan.meshes),
        num_micro_batches=plan.num_micro_batches,
    )


def submesh_of(cluster: Cluster, devices: Sequence[int]) -> tuple[int, int] | tuple[int, int, str]:
    """(hosts, devices of each, device type) of a mesh that has these devices of a cluster."""
    hosts: list[int] = []
    for host, count in enumerate(cluster.devices_per_host):
        hosts += [host] * count
    taken = Counter(hosts[device] for device in devices)
    kinds = {cluster.host_device_types[host] for host in taken}
    each = len(devices) // len(taken)
    if len(set(cluster.host_device_types)) == 1:
        return len(taken), each
    return len(taken), each, kinds.pop()
