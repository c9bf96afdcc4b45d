"""Automatic parallelization of JAX training steps.

Example:
    >>> import alpa_mlir
    >>> devices = alpa_mlir.use_virtual_devices(8)     # doctest: +SKIP
    >>> @alpa_mlir.parallelize(cluster="cpu-test")     # doctest: +SKIP
    ... def train_step(state, batch): ...
"""

from alpa_mlir.api import (
    ParallelFunction,
    ParallelStep,
    PlannedStep,
    TracedStep,
    compile,
    load,
    parallelize,
)
from alpa_mlir.boundary import layer_boundary
from alpa_mlir.cluster import Cluster
from alpa_mlir.compiler import cluster_presets, solver_methods
from alpa_mlir.errors import (
    AlpaError,
    ArgumentMismatchError,
    ClusterFileError,
    DevicesError,
    InfeasiblePlanError,
    MethodError,
    MicroBatchError,
    ModuleSyntaxError,
    PassError,
    PlanFormatError,
    PlanMismatchError,
    ProblemFormatError,
    SolverError,
    TraceError,
    UnsupportedOpError,
)
from alpa_mlir.explain import explain
from alpa_mlir.plan import Plan, PlanDiff
from alpa_mlir.problem import ProblemSolution, solve_problem
from alpa_mlir.runtime import LoadedPlan, use_virtual_devices
from alpa_mlir.schedule import Schedule, ScheduleProblem
from alpa_mlir.search import AutoParallel, Method, PipeshardParallel, ShardParallel
from alpa_mlir.simulator import Timeline, simulate
from alpa_mlir.tagging import grad, value_and_grad

__all__ = [
    "AlpaError",
    "ArgumentMismatchError",
    "AutoParallel",
    "Cluster",
    "ClusterFileError",
    "DevicesError",
    "InfeasiblePlanError",
    "LoadedPlan",
    "Method",
    "MethodError",
    "MicroBatchError",
    "ModuleSyntaxError",
    "ParallelFunction",
    "ParallelStep",
    "PassError",
    "PipeshardParallel",
    "Plan",
    "PlanDiff",
    "PlanFormatError",
    "PlanMismatchError",
    "PlannedStep",
    "ProblemFormatError",
    "ProblemSolution",
    "Schedule",
    "ScheduleProblem",
    "ShardParallel",
    "SolverError",
    "Timeline",
    "TraceError",
    "TracedStep",
    "UnsupportedOpError",
    "cluster_presets",
    "compile",
    "explain",
    "grad",
    "layer_boundary",
    "load",
    "parallelize",
    "simulate",
    "solve_problem",
    "solver_methods",
    "use_virtual_devices",
    "value_and_grad",
]
