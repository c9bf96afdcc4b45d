"""Automatic parallelization of JAX training steps.

Names are imported when they are first used: a process that only runs a saved plan needs
neither the compiler nor a solver, and may set its environment before JAX is imported.

Example:
    >>> import alpa_mlir
    >>> devices = alpa_mlir.use_virtual_devices(8)     # doctest: +SKIP
    >>> @alpa_mlir.parallelize(cluster="cpu-test")     # doctest: +SKIP
    ... def train_step(state, batch): ...
"""

from __future__ import annotations

import importlib
import importlib.util
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alpa_runtime.version import VERSION

from alpa_mlir.errors import (
    AlpaError,
    ArgumentMismatchError,
    ArgumentTypeError,
    BackendError,
    CheckpointError,
    ClusterFileError,
    DamagedCheckpointError,
    DeletedArrayError,
    DevicesError,
    InfeasiblePlanError,
    MethodError,
    MicroBatchError,
    ModuleSyntaxError,
    PassError,
    PlacementError,
    PlanFormatError,
    PlanMismatchError,
    ProblemFormatError,
    SolverError,
    TraceError,
    UnsupportedOpError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerStalledError,
)

if TYPE_CHECKING:
    from alpa_runtime.aot import CompiledAhead, compile_ahead
    from alpa_runtime.arrays import prefetch
    from alpa_runtime.checkpoint import latest_checkpoint, restore_checkpoint, save_checkpoint
    from alpa_runtime.devices import use_virtual_devices
    from alpa_runtime.execution.loaded_plan import LoadedPlan
    from alpa_runtime.hosts.launched import LaunchedWorkers
    from alpa_runtime.hosts.ray_hosts import RayWorkers
    from alpa_runtime.hosts.subprocesses import ProcessWorkers
    from alpa_runtime.hosts.threads import ThreadWorkers
    from alpa_runtime.parallel_step import ParallelStep
    from alpa_runtime.plan import Plan, PlanDiff
    from alpa_runtime.step_arguments import PlacementSpec
    from alpa_runtime.worker_group import Placement

    from alpa_mlir.api import compile, parallelize
    from alpa_mlir.cluster import Cluster
    from alpa_mlir.compat import get_3d_parallel_method, plan_to_method
    from alpa_mlir.compiler import cluster_presets, solver_methods
    from alpa_mlir.data_loader import DataLoader, MeshDriverDataLoader
    from alpa_mlir.follow_parallel import CreateStateParallel, FollowParallel, StateFunction
    from alpa_mlir.loading import load
    from alpa_mlir.methods.automatic import (
        AutoParallel,
        DataParallel,
        ShardParallel,
        Zero2Parallel,
        Zero3Parallel,
    )
    from alpa_mlir.methods.kept_stages import keep_stages
    from alpa_mlir.methods.method import (
        AutoLayerOption,
        AutoShardingOption,
        AutoStageOption,
        ManualLayerOption,
        ManualShardingOption,
        ManualStageOption,
        Method,
        UniformStageOption,
    )
    from alpa_mlir.methods.pipeshard import PipeshardParallel
    from alpa_mlir.methods.schedule import Schedule, ScheduleProblem
    from alpa_mlir.report.explanation import explain
    from alpa_mlir.search.frontier import Frontier, FrontierPoint
    from alpa_mlir.session import (
        clear_executable_cache,
        get_global_cluster,
        get_global_num_devices,
        init,
        shutdown,
    )
    from alpa_mlir.simulator import Timeline, simulate
    from alpa_mlir.solver import ProblemSolution, solve_problem
    from alpa_mlir.stages import ParallelFunction, PlannedStep, TracedStep
    from alpa_mlir.trace.call_rules import sharding_rule
    from alpa_mlir.trace.layer_markers import layer_boundary, mark_pipeline_boundary
    from alpa_mlir.trace.layer_remat import automatic_remat, manual_remat
    from alpa_mlir.trace.tagging import grad, value_and_grad

__version__ = VERSION

# Where the names come from that are imported on first use.
_HOME = {
    name: module
    for module, names in {
        "alpa_mlir.api": ("compile", "parallelize"),
        "alpa_mlir.cluster": ("Cluster",),
        "alpa_mlir.compat": ("get_3d_parallel_method", "plan_to_method"),
        "alpa_mlir.compiler": ("cluster_presets", "solver_methods"),
        "alpa_mlir.data_loader": ("DataLoader", "MeshDriverDataLoader"),
        "alpa_mlir.follow_parallel": ("CreateStateParallel", "FollowParallel", "StateFunction"),
        "alpa_mlir.loading": ("load",),
        "alpa_mlir.methods.automatic": (
            "AutoParallel",
            "DataParallel",
            "ShardParallel",
            "Zero2Parallel",
            "Zero3Parallel",
        ),
        "alpa_mlir.methods.kept_stages": ("keep_stages",),
        "alpa_mlir.methods.method": (
            "AutoLayerOption",
            "AutoShardingOption",
            "AutoStageOption",
            "ManualLayerOption",
            "ManualShardingOption",
            "ManualStageOption",
            "Method",
            "UniformStageOption",
        ),
        "alpa_mlir.methods.pipeshard": ("PipeshardParallel",),
        "alpa_mlir.methods.schedule": ("Schedule", "ScheduleProblem"),
        "alpa_mlir.report.explanation": ("explain",),
        "alpa_mlir.search.frontier": ("Frontier", "FrontierPoint"),
        "alpa_mlir.session": (
            "clear_executable_cache",
            "get_global_cluster",
            "get_global_num_devices",
            "init",
            "shutdown",
        ),
        "alpa_mlir.simulator": ("Timeline", "simulate"),
        "alpa_mlir.solver": ("ProblemSolution", "solve_problem"),
        "alpa_mlir.stages": ("ParallelFunction", "PlannedStep", "TracedStep"),
        "alpa_mlir.trace.call_rules": ("sharding_rule",),
        "alpa_mlir.trace.layer_markers": ("layer_boundary", "mark_pipeline_boundary"),
        "alpa_mlir.trace.layer_remat": ("automatic_remat", "manual_remat"),
        "alpa_mlir.trace.tagging": ("grad", "value_and_grad"),
        "alpa_runtime.aot": ("CompiledAhead", "compile_ahead"),
        "alpa_runtime.arrays": ("prefetch",),
        "alpa_runtime.checkpoint": ("latest_checkpoint", "restore_checkpoint", "save_checkpoint"),
        "alpa_runtime.devices": ("use_virtual_devices",),
        "alpa_runtime.execution.loaded_plan": ("LoadedPlan",),
        "alpa_runtime.hosts.launched": ("LaunchedWorkers",),
        "alpa_runtime.hosts.ray_hosts": ("RayWorkers",),
        "alpa_runtime.hosts.subprocesses": ("ProcessWorkers",),
        "alpa_runtime.hosts.threads": ("ThreadWorkers",),
        "alpa_runtime.parallel_step": ("ParallelStep",),
        "alpa_runtime.step_arguments": ("PlacementSpec",),
        "alpa_runtime.plan": ("Plan", "PlanDiff"),
        "alpa_runtime.worker_group": ("Placement",),
    }.items()
    for name in names
}

__all__ = [
    "AlpaError",
    "ArgumentMismatchError",
    "ArgumentTypeError",
    "AutoLayerOption",
    "AutoParallel",
    "AutoShardingOption",
    "AutoStageOption",
    "BackendError",
    "CheckpointError",
    "Cluster",
    "ClusterFileError",
    "CompiledAhead",
    "CreateStateParallel",
    "DamagedCheckpointError",
    "DataLoader",
    "DataParallel",
    "DeletedArrayError",
    "DevicesError",
    "FollowParallel",
    "Frontier",
    "FrontierPoint",
    "InfeasiblePlanError",
    "LaunchedWorkers",
    "LoadedPlan",
    "ManualLayerOption",
    "ManualShardingOption",
    "ManualStageOption",
    "MeshDriverDataLoader",
    "Method",
    "MethodError",
    "MicroBatchError",
    "ModuleSyntaxError",
    "ParallelFunction",
    "ParallelStep",
    "PassError",
    "PipeshardParallel",
    "Placement",
    "PlacementError",
    "PlacementSpec",
    "Plan",
    "PlanDiff",
    "PlanFormatError",
    "PlanMismatchError",
    "PlannedStep",
    "ProblemFormatError",
    "ProblemSolution",
    "ProcessWorkers",
    "RayWorkers",
    "Schedule",
    "ScheduleProblem",
    "ShardParallel",
    "SolverError",
    "StateFunction",
    "ThreadWorkers",
    "Timeline",
    "TraceError",
    "TracedStep",
    "UniformStageOption",
    "UnsupportedOpError",
    "WorkerError",
    "WorkerLostError",
    "WorkerMemoryError",
    "WorkerStalledError",
    "Zero2Parallel",
    "Zero3Parallel",
    "automatic_remat",
    "clear_executable_cache",
    "cluster_presets",
    "compile",
    "compile_ahead",
    "explain",
    "get_3d_parallel_method",
    "get_global_cluster",
    "get_global_num_devices",
    "grad",
    "init",
    "keep_stages",
    "latest_checkpoint",
    "layer_boundary",
    "load",
    "manual_remat",
    "mark_pipeline_boundary",
    "parallelize",
    "plan_to_method",
    "prefetch",
    "restore_checkpoint",
    "save_checkpoint",
    "sharding_rule",
    "shutdown",
    "simulate",
    "solve_problem",
    "solver_methods",
    "use_virtual_devices",
    "value_and_grad",
]

# Names of Alpa's that are called otherwise here, or are not needed (docs/coming-from-alpa.md): what
# to use.
_INSTEAD = MappingProxyType(
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


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
