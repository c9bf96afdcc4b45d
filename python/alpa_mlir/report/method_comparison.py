"""What a step would take if it were parallelized in one of the ways that have names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
from alpa_runtime.cache import chosen_folder
from alpa_runtime.plan import Plan
from alpa_runtime.plan.strategy import strategy_text
from alpa_runtime.plan.text import bytes_text, seconds_text, table

from alpa_mlir.cluster import Cluster, as_cluster
from alpa_mlir.errors import AlpaError, InfeasiblePlanError
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.search.planner import PLACED_ON_HOST
from alpa_mlir.simulator.figures import amount_text, figures_of, percent_text
from alpa_mlir.stages import TracedStep, find_step


@dataclass(frozen=True)
class Way:
    """A way to parallelize.

    Attributes:
        pipeline, shardings: by their names.
        schedules: of which the best is taken; None for what the step's own method may take.
        offloads: whether values may wait in the hosts' memory, if the step's own method lets them.
        replicates: whether each device holds all of the state.
        contains: ways before it that are special cases of it.
    """

    pipeline: str
    shardings: str
    schedules: tuple[str, ...] | None = None
    offloads: bool = True
    replicates: bool = False
    contains: tuple[str, ...] = ()


#: Ways that people take by hand, with the schedules that these have.
BASELINES = {
    "data parallel": Way("intra-only", "data-parallel", ("1f1b",), offloads=False, replicates=True),
    "FSDP": Way("intra-only", "zero-3", ("1f1b",), offloads=False),
    "Megatron-LM, best grid": Way(
        "uniform",
        "megatron-zero-1",
        ("1f1b", "interleaved-1f1b"),
        offloads=False,
        contains=("data parallel",),  # Without its distributed optimizer.
    ),
}
#: Parts of what is searched.
PARTS = {
    "no pipeline": Way("intra-only", "auto"),
    "pipeline, a device each stage": Way("inter-only", "auto"),
    "pipeline, equal layers": Way("equal-layer", "auto"),
    "pipeline, equal layers and meshes": Way("uniform", "auto"),
}
_SHARED = (
    "layers",
    "max_layers",
    "layer_balance",
    "sharding_constraints",
    "padding",
    "memory_fraction",
    "time_limit_seconds",
    "num_mesh_axes",
    "export",
)


@dataclass(frozen=True)
class Alternative:
    """Another way to parallelize a step.

    Attributes:
        plan: the best plan of that kind; None if there is none.
        reason: why there is none.
        fits: False if there is none because of memory.
    """

    name: str
    plan: Plan | None
    reason: str = ""
    fits: bool = True

    @property
    def seconds(self) -> float | None:
        """Predicted for a step."""
        return None if self.plan is None else self.plan.predicted.get("step_seconds")

    @property
    def peak_bytes(self) -> float | None:
        """The most memory that a device needs."""
        return None if self.plan is None else self.plan.peak_bytes

    @property
    def why_not(self) -> str:
        """Why there is no plan, in a few words and the reason."""
        return f"{'no plan' if self.fits else 'does not fit'}: {self.reason}"


def alternatives_text(found: Sequence[Alternative], chosen: Plan) -> str:
    """A table of the chosen plan and of others beside it, and why some have none."""
    rows: list[list[str]] = []
    lines: list[str] = []
    best = chosen.predicted.get("step_seconds")
    rate = "rows/s"
    for other in (Alternative("this plan", chosen), *found):
        if other.plan is None:
            rows.append([other.name, other.why_not.partition(":")[0], *[""] * 5])
            lines.append(f"- {other.name}: {other.reason}")
            continue
        if best and other.seconds and other.seconds < best:
            part = 1 - other.seconds / best
            why = ", within the 1 % that the search leaves" if part <= _LEFT else ""
            lines.append(f"- {other.name}: {part:.1%} faster than this plan{why}")
        figures = figures_of(other.plan)
        fullest = figures.fullest
        if figures.tokens is not None:
            rate = "tokens/s"
        each = figures.tokens_per_second or figures.examples_per_second
        rows.append(
            [
                other.name,
                "" if other.seconds is None else seconds_text(other.seconds),
                _times(other.seconds, best),
                "" if each is None else amount_text(each),
                "" if figures.mfu is None else percent_text(figures.mfu),
                "" if fullest is None else bytes_text(fullest.needed_bytes),
                strategy_text(other.plan),
            ]
        )
    header = ("way", "a step", "time", rate, "MFU", "memory/device", "strategy")
    return "\n".join([table(header, rows), *lines])


# A search ends where no plan can be faster by more than this part.
_LEFT = 0.01


def _times(seconds: float | None, best: float | None) -> str:
    if not seconds or not best:
        return ""
    return f"{seconds / best:.2f} x"


def alternatives(
    step: TracedStep,
    progress: Callable[[int, int, str], None] | None = None,
    *,
    parts: bool = True,
) -> tuple[Alternative, ...]:
    """Plan a step in each of the ways that have names, for its cluster: data parallel, FSDP, and
    the best of Megatron-LM's grids of data, tensor and pipeline parallelism with 1F1B, interleaved
    or not, all with whatever number of micro-batches and rematerialization are best for them and
    nothing in the hosts' memory.

    Layers, memory and the like are as the step's method has them; a step that comes from a file has
    its own number of micro-batches.

    Args:
        progress: called with (done, total, name).
        parts: also parts of what is searched: one mesh, and simple pipelines.

    Example:
        >>> for other in alternatives(train_step.trace(state, batch)):     # doctest: +SKIP
        ...     print(other.name, other.seconds)
    """
    cluster = as_cluster(step.cluster)
    found: list[Alternative] = []
    named = list(_named(step, BASELINES | PARTS if parts else BASELINES))
    for number, (name, way, methods) in enumerate(named):
        if progress is not None:
            progress(number, len(named), name)
        reason = _too_large(step, cluster, methods[0]) if way.replicates else ""
        if reason:
            found.append(Alternative(name, None, reason, fits=False))
            continue
        own = [_planned(step, cluster, name, method) for method in methods]
        others = [replace(other, name=name) for other in found if other.name in way.contains]
        found.append(_best([*own, *others]))
    if progress is not None:
        progress(len(named), len(named), "planned")
    return tuple(found)


def _too_large(step: TracedStep, cluster: Cluster, method: Method) -> str:
    """Why no plan can hold all of the state on each device; empty if one may. Searches for plans
    that cannot fit take longest."""
    signature = step.traced.signature
    if method.offload != "none" or PLACED_ON_HOST in step.traced.text:
        return ""
    held = sum(
        prod(item.shape) * np.dtype(item.dtype).itemsize
        for item in signature.inputs
        if item.kind == "state" and item.shape[:1] != (signature.batch_size,)
    )
    room = method.memory_fraction * cluster.least_memory_bytes
    if held <= room:
        return ""
    return (
        f"each device holds all {bytes_text(held)} of the state, {bytes_text(room)} are available"
    )


def _planned(step: TracedStep, cluster: Cluster, name: str, method: Method) -> Alternative:
    try:
        found = find_step(
            step, cluster, method, folder=chosen_folder(step.options.cache), explains=False
        )
    except InfeasiblePlanError as error:
        return Alternative(name, None, error.what, fits=False)
    except AlpaError as error:
        return Alternative(name, None, error.what)
    return Alternative(name, found.plan)


def _best(found: Sequence[Alternative]) -> Alternative:
    """The fastest; the first if none has a plan."""
    return min(found, key=lambda other: inf if other.seconds is None else other.seconds)


def _named(step: TracedStep, ways: dict[str, Way]) -> Iterator[tuple[str, Way, list[Method]]]:
    base = step.method
    shared: dict[str, Any] = {name: getattr(base, name) for name in _SHARED}
    searched = base if isinstance(base, AutoParallel) else AutoParallel(**shared)
    if step.fn is None:
        searched = replace(searched, num_micro_batches=base.num_micro_batches)
    for name, way in ways.items():
        options: dict[str, Any] = {"pipeline": way.pipeline, "method": way.shardings}
        if not way.offloads and searched.offload == "auto":
            options["offload"] = "none"
        method = replace(searched, **options, finalists=0, max_devices=None)
        yield (
            name,
            way,
            [
                method if schedule is None else replace(method, schedule=schedule, virtual_stages=0)
                for schedule in way.schedules or (None,)
            ],
        )
