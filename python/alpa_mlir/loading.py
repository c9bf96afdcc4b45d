"""A saved plan as a step; needs neither the compiler nor a solver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpa_runtime import parallel_step
from alpa_runtime.cache import CacheLike
from alpa_runtime.errors import check_type
from alpa_runtime.parallel_step import ParallelStep, Progress
from alpa_runtime.plan.plan import PlanLike, read_plan
from alpa_runtime.worker_group import Hosts

if TYPE_CHECKING:
    from alpa_mlir.cluster import ClusterLike


def load(
    plan: PlanLike | str | Path,
    *,
    cluster: ClusterLike = None,
    arguments: Any = None,
    result: Any = None,
    devices: Sequence[Any] | None = None,
    workers: Hosts | None = None,
    donate_state: bool | None = None,
    progress: bool | Progress = False,
    backend: str = "auto",
    cache: CacheLike = True,
) -> ParallelStep:
    """A saved plan as a step, called like the function it was made from, without tracing it.

    Args:
        plan: the folder that `save` wrote, a plan, or a step, which stands for its plan.
        cluster: refuse a plan for any other cluster.
        arguments: an example of the tuple of arguments that are not static, whose leaves may be
            anything; needed where their trees hold classes that a plan cannot store.
        result: an example of the result, needed for the same reason.
        devices: `devices[i]` is device i of the plan; by default `jax.devices()`.
        workers: where to start workers, such as `ThreadWorkers()`; None runs the plan in this
            process.
        donate_state: whether a call uses up its state; by default as when the plan was made.
        progress: True for a progress bar, or a function of (done, total, label).
        backend: who compiles the stages, one of `"auto"`, `"xla"`, `"iree"`; see docs/backends.md.
        cache: whether compiled programs are kept on disk and found again, or the folder to keep
            them in.

    Raises:
        BackendError: the backend is not installed, or cannot compile a stage.
        PlanFormatError: the folder holds no plan of this version.
        PlanMismatchError: the plan is for another cluster, its parts contradict each other, or
            its trees need an example.
        DevicesError: there are fewer devices than the plan needs.
        PlacementError, WorkerError: the workers cannot hold the plan, or could not be started.

    Example:
        >>> step = alpa_mlir.load("my_plan")             # doctest: +SKIP
        >>> state, loss = step(state, batch)             # doctest: +SKIP
    """
    plan = read_plan("load", plan)
    if cluster is not None:
        # Presets are the compiler's.
        from alpa_mlir.cluster import CLUSTER, as_cluster

        check_type("load", "cluster", cluster, CLUSTER)

        plan.check(cluster=as_cluster(cluster))
    return parallel_step.load(
        plan,
        arguments=arguments,
        result=result,
        devices=devices,
        workers=workers,
        donate_state=donate_state,
        progress=progress,
        backend=backend,
        cache=cache,
    )
