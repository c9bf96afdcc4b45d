"""Names of Alpa's that are called otherwise here, or are not needed (docs/coming-from-alpa.md)."""

from __future__ import annotations

from types import MappingProxyType

#: For each of them what to use.
INSTEAD = MappingProxyType(
    {
        "DeviceCluster": "Cluster",
        "DistributedArray": "alpa_runtime.arrays.DistributedArray, or jax.Array",
        "DistributedPhysicalDeviceMesh": "Cluster, and workers=RayWorkers()",
        "LocalPhysicalDeviceMesh": 'Cluster.live(), or init("local")',
        "PhysicalDeviceMesh": "Cluster, and mesh_shape= of ShardParallel",
        "ProfilingResultDatabase": "alpa-mlir profile, which writes what it measures into a "
        "cluster file",
        "collective": "ParallelStep.plan.reshards, which say what goes from device to device",
        "get_global_physical_mesh": "get_global_cluster()",
        "get_global_virtual_physical_mesh": "get_global_cluster()",
        "global_config": "arguments of the methods, of parallelize and of RayWorkers",
        "set_global_virtual_physical_mesh": "init(cluster), or cluster= of parallelize",
        "set_seed": "jax.random.key(seed): random numbers are those of the keys that a step is "
        "given",
        "timers": "ParallelStep.record(), and progress=True",
    }
)
