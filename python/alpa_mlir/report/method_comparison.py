"""What a step would take if it were parallelized in one of the ways that have names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.text import bytes_text, seconds_text, table

from alpa_mlir.errors import AlpaError
from alpa_mlir.methods.automatic import AutoParallel, ShardParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.stages import TracedStep

#: Methods with all devices as one mesh, and what they are called.
_SHARDINGS = {
    "auto": "one mesh, best shardings",
    "data-parallel": "data parallelism",
    "zero-2": "ZeRO, stage 2",
    "zero-3": "ZeRO, stage 3",
}
#: Pipelines of the search that are parts of all.
_PIPELINES = {
    "inter-only": "pipeline, a device each stage",
    "equal-layer": "pipeline, equal layers",
    "uniform": "pipeline, equal layers and meshes",
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
    """

    name: str
    plan: Plan | None
    reason: str = ""

    @property
    def seconds(self) -> float | None:
        """Predicted for a step."""
        return None if self.plan is None else self.plan.predicted.get("step_seconds")

    @property
    def peak_bytes(self) -> float | None:
        """The most memory that a device needs."""
        return None if self.plan is None else self.plan.peak_bytes


def alternatives_text(found: Sequence[Alternative], chosen: float | None) -> str:
    """A table of those that have a plan, and for the others why not.

    Args:
        chosen: predicted seconds of the plan that was chosen.
    """
    header = ("other ways", "a step", "of this plan", "memory/device")
    rows: list[list[str]] = []
    lines: list[str] = []
    for other in found:
        if other.seconds is None:
            lines.append(f"- no plan for {other.name}: {other.reason}")
            continue
        times = f"{other.seconds / chosen:.3g} x" if chosen else ""
        memory = bytes_text(other.peak_bytes or 0)
        rows.append([other.name, seconds_text(other.seconds), times, memory])
    return "\n".join(([table(header, rows)] if rows else []) + lines)


def alternatives(
    step: TracedStep, progress: Callable[[int, int, str], None] | None = None
) -> tuple[Alternative, ...]:
    """Plan a step in each of the ways that have names, for its cluster.

    Layers, memory and the like are as the step's method has them. Pipelines search the number of
    micro-batches; a step that comes from a file has its own.

    Args:
        progress: called with (done, total, name).

    Example:
        >>> for other in alternatives(train_step.trace(state, batch)):     # doctest: +SKIP
        ...     print(other.name, other.seconds)
    """
    found: list[Alternative] = []
    named = list(_named(step))
    for number, (name, method) in enumerate(named):
        if progress is not None:
            progress(number, len(named), name)
        try:
            found.append(Alternative(name, step.plan(method=method).plan))
        except AlpaError as error:
            found.append(Alternative(name, None, error.what))
    if progress is not None:
        progress(len(named), len(named), "planned")
    return tuple(found)


def _named(step: TracedStep) -> Iterator[tuple[str, Method]]:
    base = step.method
    shared: dict[str, Any] = {name: getattr(base, name) for name in _SHARED}
    given: Any = base.num_micro_batches
    for method, name in _SHARDINGS.items():
        # One mesh gains nothing from several, unless memory asks for them.
        count = given if isinstance(given, int) else 1
        yield name, ShardParallel(**shared, method=method, num_micro_batches=count)
    searched = base if isinstance(base, AutoParallel) else AutoParallel(**shared)
    if step.fn is None:
        searched = replace(searched, num_micro_batches=given)
    for pipeline, name in _PIPELINES.items():
        yield name, replace(searched, pipeline=pipeline, finalists=0)
