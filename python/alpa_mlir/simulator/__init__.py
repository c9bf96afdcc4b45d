"""Simulates the steps of a plan on a described cluster; no device is needed.

Example:
    >>> timeline = simulate(Plan.load("my_plan"))    # doctest: +SKIP
    >>> print(timeline.as_text())                    # doctest: +SKIP
"""

from __future__ import annotations

from alpa_runtime.execution.program_merge import merge_programs
from alpa_runtime.plan.plan import PlanLike, as_plan

from alpa_mlir.cluster import Cluster, ClusterLike, as_cluster
from alpa_mlir.simulator.costs import check_prices, function_seconds
from alpa_mlir.simulator.engine import Work, collect_steps, execute, plan_routes
from alpa_mlir.simulator.timeline import LinkTraffic, MemoryUse, MeshUse, Span, Timeline, Transfer

__all__ = ["LinkTraffic", "MemoryUse", "MeshUse", "Span", "Timeline", "Transfer", "simulate"]


def simulate(plan: PlanLike, cluster: ClusterLike = None, *, share_links: bool = True) -> Timeline:
    """Execute a plan's instruction lists on a described cluster.

    Calls and transfers take the seconds that the plan foresees for them.

    Args:
        plan: or a planned or loaded step, which stands for its plan.
        cluster: by default the one that the plan was made for. Of another one, devices and the
            links within stages must be the same; what lies between the meshes may differ.
        share_links: whether transfers between different meshes slow each other down where they
            use the same link; without, every pair of meshes has links of its own.

    Raises:
        ClusterFileError: the cluster's description is wrong, or lacks a device of the plan.
        PlanFormatError: the plan does not say the seconds of its stages.
        PlanMismatchError: the programs do not fit together, or the stages would take other
            seconds on that cluster.

    Example:
        >>> simulate(plan).step_seconds                  # doctest: +SKIP
        0.0123
    """
    plan = as_plan("simulate", plan)
    described = Cluster.from_dict(plan.cluster) if cluster is None else as_cluster(cluster)
    merge_programs(plan)  # What follows relies on programs that fit together.
    steps, transfers = collect_steps(plan)
    seconds = function_seconds(plan)
    routes = plan_routes(plan, described)
    if cluster is not None and plan.cluster:
        check_prices(plan, described)
    work = Work(steps, seconds, transfers, routes)
    return Timeline(plan, described, share_links, work, execute(work, share_links))
