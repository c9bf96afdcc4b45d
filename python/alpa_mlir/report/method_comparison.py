"""What a step would take if it were parallelized in one of the ways that have names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.strategy import strategy_text
from alpa_runtime.plan.text import bytes_text, seconds_text, table

from alpa_mlir.errors import AlpaError, InfeasiblePlanError
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.simulator.figures import amount_text, figures_of, percent_text
from alpa_mlir.stages import TracedStep

#: Ways that people take by hand: what they are called, their pipeline and shardings.
BASELINES = {
    "data parallel": ("intra-only", "data-parallel"),
    "FSDP": ("intra-only", "zero-3"),
    "Megatron-LM, best grid": ("uniform", "megatron-zero-1"),
}
#: Parts of what is searched.
PARTS = {
    "no pipeline": ("intra-only", "auto"),
    "pipeline, a device each stage": ("inter-only", "auto"),
    "pipeline, equal layers": ("equal-layer", "auto"),
    "pipeline, equal layers and meshes": ("uniform", "auto"),
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
                "" if fullest is None else bytes_text(fullest.bound_bytes),
                strategy_text(other.plan),
            ]
        )
    header = ("way", "a step", "time", rate, "MFU", "memory/device", "strategy")
    return "\n".join([table(header, rows), *lines])


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
    the best of Megatron-LM's grids of data, tensor and pipeline parallelism, all with whatever
    number of micro-batches, schedule and rematerialization are best for them.

    Layers, memory and the like are as the step's method has them; a step that comes from a file has
    its own number of micro-batches.

    Args:
        progress: called with (done, total, name).
        parts: also parts of what is searched: one mesh, and simple pipelines.

    Example:
        >>> for other in alternatives(train_step.trace(state, batch)):     # doctest: +SKIP
        ...     print(other.name, other.seconds)
    """
    found: list[Alternative] = []
    named = list(_named(step, BASELINES | PARTS if parts else BASELINES))
    for number, (name, method) in enumerate(named):
        if progress is not None:
            progress(number, len(named), name)
        try:
            found.append(Alternative(name, step.plan(method=method).plan))
        except InfeasiblePlanError as error:
            found.append(Alternative(name, None, error.what, fits=False))
        except AlpaError as error:
            found.append(Alternative(name, None, error.what))
    if progress is not None:
        progress(len(named), len(named), "planned")
    return tuple(found)


def _named(step: TracedStep, ways: dict[str, tuple[str, str]]) -> Iterator[tuple[str, Method]]:
    base = step.method
    shared: dict[str, Any] = {name: getattr(base, name) for name in _SHARED}
    searched = base if isinstance(base, AutoParallel) else AutoParallel(**shared)
    if step.fn is None:
        searched = replace(searched, num_micro_batches=base.num_micro_batches)
    for name, (pipeline, shardings) in ways.items():
        yield (
            name,
            replace(searched, pipeline=pipeline, method=shardings, finalists=0, max_devices=None),
        )
