"""Alpa's functions: methods that follow from a few numbers, or from a plan."""

from __future__ import annotations

from alpa_runtime.errors import check_type
from alpa_runtime.plan import Plan

from alpa_mlir.cluster import Cluster, as_cluster
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.automatic import ShardParallel
from alpa_mlir.methods.kept_stages import method_of
from alpa_mlir.methods.method import ManualShardingOption, Method, UniformStageOption
from alpa_mlir.methods.pipeshard import PipeshardParallel
from alpa_mlir.session import default_cluster

_WHERE = "get_3d_parallel_method"


def get_3d_parallel_method(
    num_micro_batches: int,
    data_parallel: int,
    operator_parallel: int,
    pipeline_parallel: int,
    allow_degenerate_into_shard_parallel: bool = True,
    manual_layer_num: int | None = None,
    manual_sharding_option: ManualShardingOption | None = None,
    *,
    cluster: Cluster | None = None,
) -> Method:
    """The grid of data, operator and pipeline parallelism of Megatron-LM.

    All stages have as many layers and meshes of shape (data_parallel, operator_parallel), in which
    the batch is split over the first axis and operators over the second (`megatron`); without
    operator parallelism, gradients and optimizer state are split over the first (`zero-2`).

    Args:
        data_parallel: -1 for what the others leave of the cluster.
        allow_degenerate_into_shard_parallel: whether one stage is a `ShardParallel`.
        manual_layer_num: how many layers the step marks; by default the compiler makes one for
            each stage.
        manual_sharding_option: shardings by hand instead.
        cluster: by default that of `init`, and without it the devices of this process.

    Raises:
        MethodError: the three numbers do not make up the cluster's devices.

    Example:
        >>> method = get_3d_parallel_method(4, -1, 2, 2, cluster=Cluster.load("cpu-test"))
        >>> method.stage_option.submesh_logical_shape
        (2, 2)
    """
    where = as_cluster(default_cluster(cluster))
    others = operator_parallel * pipeline_parallel
    if min(operator_parallel, pipeline_parallel) < 1 or (data_parallel < 1 and data_parallel != -1):
        raise MethodError(
            f"data_parallel={data_parallel}, operator_parallel={operator_parallel}, "
            f"pipeline_parallel={pipeline_parallel}",
            where=_WHERE,
            fix="use whole numbers of at least 1, or data_parallel=-1",
        )
    data = where.num_devices // others if data_parallel == -1 else data_parallel
    if data * others != where.num_devices:
        raise MethodError(
            f"{data} x {operator_parallel} x {pipeline_parallel} devices of a cluster with "
            f"{where.num_devices}",
            where=_WHERE,
            fix="use numbers whose product is the number of devices",
        )
    method = "megatron" if operator_parallel > 1 else "zero-2"
    method = "auto" if manual_sharding_option is not None else method
    shape = (data, operator_parallel)
    if pipeline_parallel == 1 and allow_degenerate_into_shard_parallel:
        return ShardParallel(
            mesh_shape=shape,
            method=method,
            num_micro_batches=num_micro_batches,
            manual_sharding_option=manual_sharding_option,
        )
    if manual_layer_num is not None and manual_layer_num % pipeline_parallel:
        raise MethodError(
            f"{manual_layer_num} layers in {pipeline_parallel} stages",
            where=_WHERE,
            fix="use a number of stages that divides the layers",
        )
    return PipeshardParallel(
        num_micro_batches=num_micro_batches,
        method=method,
        layers=manual_layer_num or pipeline_parallel,
        stage_option=UniformStageOption(num_stages=pipeline_parallel, submesh_logical_shape=shape),
        manual_sharding_option=manual_sharding_option,
    )


def plan_to_method(plan: Plan) -> Method:
    """A method that makes the stages and meshes of a plan again, for this step or one like it.

    Shardings are searched again. To run the very plan, load it: `alpa_mlir.load`,
    `TracedStep.with_plan`.

    Raises:
        MethodError: the plan's schedule is one of somebody's own.

    Example:
        >>> step = parallelize(train_step, method=plan_to_method(plan))     # doctest: +SKIP
    """
    check_type("plan_to_method", "plan", plan, Plan)
    return method_of(plan)
