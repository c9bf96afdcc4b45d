"""Measuring the finalists: the stages of a few best plans are compiled and timed.

The search foresees seconds from formulas or from measured operations. XLA fuses, schedules and
overlaps, which neither knows. So the last choice can be left to the devices: every function of
every stage is compiled for as many devices of this process as its mesh has, run on zeros, and its
seconds take the place of the predicted ones. One host is enough for plans of many. The option
`finalists` of the methods does so for the best candidates of a search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from math import prod
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from alpa_runtime.backends.interface import Job
from alpa_runtime.backends.xla import named_sharding
from alpa_runtime.execution.compilation import compile_jobs, stage_jobs
from alpa_runtime.foreign_errors import first_line
from alpa_runtime.plan import Plan
from alpa_runtime.plan.tensor import TensorSpec
from jax.sharding import Mesh

from alpa_mlir.errors import DevicesError, InfeasiblePlanError, is_out_of_memory
from alpa_mlir.simulator import simulate
from alpa_mlir.simulator.costs import BACKWARD_PARTS

_jax: Any = jax
Progress = Callable[[int, int, str], None]
#: Seconds and bytes of programs by text, whether it is that of one device, and mesh shape.
Known = dict[tuple[str, bool, tuple[int, ...]], tuple[float, int]]


@dataclass(frozen=True)
class StageMeasurement:
    """One function of a stage on real devices.

    Attributes:
        stage, function: which.
        predicted_seconds: what the search foresaw for the phase; updates count together, and so do
            the parts of a backward that it did not foresee.
        seconds: what one run took.
        memory_bytes: XLA's own count of one device's arguments, results and temporaries.
    """

    stage: int
    function: str
    predicted_seconds: float
    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan whose stages' predicted seconds are measured ones.

    Attributes:
        plan: the plan with measured seconds in `stages[i].predicted`; `predicted["step_seconds"]`
            is what the simulator makes of them, and the slowest stage and update follow them too.
        stages: one entry a function.
        left_out: stages that keep their predictions, since this process has too few devices.
    """

    plan: Plan
    stages: tuple[StageMeasurement, ...]
    left_out: tuple[int, ...]

    @property
    def step_seconds(self) -> float:
        """Of one step, simulated with what was measured."""
        return self.plan.predicted["step_seconds"]

    def as_text(self) -> str:
        """One line a function: predicted and measured seconds, and XLA's memory."""
        lines = ["stage | function | predicted s | measured s | memory MiB"]
        lines += [
            f"{m.stage:5} | {m.function:8} | {m.predicted_seconds:11.4g} | {m.seconds:10.4g} | "
            f"{m.memory_bytes / 2**20:10.1f}"
            for m in self.stages
        ]
        lines += [f"{stage:5} | not measured: it needs more devices" for stage in self.left_out]
        return "\n".join(lines)


def measure_plan(
    plan: Plan,
    *,
    devices: Sequence[Any] | None = None,
    progress: Progress | None = None,
    known: Known | None = None,
) -> MeasuredPlan:
    """Compile and time the stages of a plan on devices of this process.

    Stages with equal programs on equal meshes are measured once.

    Args:
        devices: by default those of this process; a stage takes the first of them.
        progress: called with (done, total, label) as programs are compiled.
        known: what was measured of other plans on the same devices; gets what is new.

    Raises:
        DevicesError: there are too few devices for every stage.
        InfeasiblePlanError: a device runs out of memory.
        PlanMismatchError: the parts of the plan contradict each other.

    Example:
        >>> measured = measure_plan(planned.plan)          # doctest: +SKIP
        >>> print(measured.as_text())                      # doctest: +SKIP
    """
    present: list[Any] = list(_jax.local_devices() if devices is None else devices)
    left_out = too_large(plan, len(present))
    fitting = [i for i in range(len(plan.stages)) if i not in left_out]
    if not fitting:
        smallest = min(prod(mesh.shape) for mesh in plan.meshes)
        raise DevicesError(
            f"the smallest stage takes {smallest} devices, this process has {len(present)}",
            where=f"plan of {plan.name}",
            fix="measure on a host with more devices",
        )
    functions = {(i, name): () for i in fitting for name in plan.stages[i].functions}
    jobs = stage_jobs(plan, dict[tuple[int, str], tuple[tuple[int, int], ...]](functions))
    meshes = [
        Mesh(np.array(present[: prod(info.shape)]).reshape(info.shape), info.axes)
        if prod(info.shape) <= len(present)
        else None
        for info in plan.meshes
    ]
    known = {} if known is None else known
    with _enough_memory(f"plan of {plan.name}"):
        results = _measure(list(jobs.values()), meshes, progress, known)
    return _with_measured(plan, dict(zip(jobs, results, strict=True)), left_out)


def too_large(plan: Plan, devices: int) -> tuple[int, ...]:
    """The stages of a plan whose meshes have more devices than that."""
    sizes = [prod(plan.meshes[stage.mesh].shape) for stage in plan.stages]
    return tuple(i for i, size in enumerate(sizes) if size > devices)


def devices_text() -> str:
    """The devices that a measurement in this process rests on, and the compiler of their programs:
    what is measured here counts only where this text is the same."""
    devices: list[Any] = list(_jax.local_devices())
    kinds = sorted({f"{device.platform} {device.device_kind}" for device in devices})
    return f"{len(devices)} x {', '.join(kinds)}, jaxlib {version('jaxlib')}"


def fastest(
    plans: Sequence[Plan],
    *,
    devices: Sequence[Any] | None = None,
    progress: Callable[[int], Progress] | None = None,
) -> tuple[int | None, list[MeasuredPlan | InfeasiblePlanError]]:
    """Measure several plans for one step.

    Stages that several plans share are measured once.

    Args:
        plans: at least one.
        devices: see `measure_plan`.
        progress: gives for the number of a plan what is called as its programs are compiled.

    Returns:
        The number of the fastest plan, None if none fits into memory; and for each plan what
        was measured, or why it does not fit.

    Raises:
        DevicesError: there are too few devices for every stage of a plan.
        PlanMismatchError: the parts of a plan contradict each other.

    Example:
        >>> best, measured = fastest([planned.plan, other.plan])  # doctest: +SKIP
    """
    known: Known = {}
    results: list[MeasuredPlan | InfeasiblePlanError] = []
    seconds: dict[int, float] = {}
    for index, plan in enumerate(plans):
        shown = None if progress is None else progress(index)
        try:
            found = measure_plan(plan, devices=devices, progress=shown, known=known)
        except InfeasiblePlanError as error:
            results.append(error)
            continue
        results.append(found)
        seconds[index] = found.step_seconds
    return min(seconds, key=lambda index: seconds[index], default=None), results


def _measure(
    jobs: list[Job], meshes: Sequence[Any], progress: Progress | None, known: Known
) -> list[tuple[float, int]]:
    """Seconds and bytes of each job; equal ones share both."""
    keys = [(job.text, job.per_device, tuple(meshes[job.mesh].shape.values())) for job in jobs]
    first = {key: job for key, job in reversed(list(zip(keys, jobs, strict=True)))}
    first = {key: job for key, job in first.items() if key not in known}
    compiled = compile_jobs(list(first.values()), meshes, progress)
    for (key, job), executable in zip(first.items(), compiled, strict=True):
        mesh = meshes[job.mesh]
        arguments = [_zeros(tensor, mesh) for tensor in job.inputs]
        known[key] = (_seconds(executable.call, arguments), executable.memory_bytes())
    return [known[key] for key in keys]


@contextmanager
def _enough_memory(where: str) -> Generator[None]:
    """XLA's error for memory, be it of compiling or of running, is the plan's."""
    try:
        yield
    except _jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InfeasiblePlanError(
            f"a device runs out of memory: {first_line(error)}",
            where=where,
            fix="plan with a smaller memory_fraction",
        ) from None


def _zeros(tensor: TensorSpec, mesh: Mesh) -> Any:
    make = partial(_jax.numpy.zeros, tensor.shape, tensor.dtype)
    return _jax.jit(make, out_shardings=named_sharding(mesh, tensor))()


def _seconds(call: Callable[[Any], Any], arguments: Any, least_seconds: float = 0.1) -> float:
    """The least of a few runs; every run has ended before the next."""
    taken: list[float] = []
    _jax.block_until_ready(call(arguments))
    while len(taken) < 3 or (sum(taken) < least_seconds and len(taken) < 100):
        start = time.perf_counter()
        _jax.block_until_ready(call(arguments))
        taken.append(time.perf_counter() - start)
    return min(taken)


def _with_measured(
    plan: Plan, measured: dict[tuple[int, str], tuple[float, int]], left_out: tuple[int, ...]
) -> MeasuredPlan:
    rows: list[StageMeasurement] = []
    stages = list(plan.stages)
    for index, stage in enumerate(plan.stages):
        seconds: dict[str, float] = {}
        for name in stage.functions:
            if (index, name) not in measured:
                continue
            phase = name.partition("_")[0]
            took, memory = measured[index, name]
            seconds[phase] = seconds.get(phase, 0.0) + took
            predicted = stage.predicted.get(f"{phase}_seconds", 0.0)
            if name in BACKWARD_PARTS:
                seconds[name] = took
                predicted = stage.predicted.get(f"{name}_seconds", predicted)
            rows.append(StageMeasurement(index, name, predicted, took, memory))
        changed = {f"{phase}_seconds": value for phase, value in seconds.items()}
        stages[index] = replace(stage, predicted=MappingProxyType({**stage.predicted, **changed}))
    plan = replace(plan, stages=tuple(stages))
    found = [stage.predicted for stage in stages]
    step = {
        "step_seconds": simulate(plan).step_seconds,
        "slowest_stage_seconds": max(
            p.get("forward_seconds", 0.0) + p.get("backward_seconds", 0.0) for p in found
        ),
        "update_seconds": max(p.get("update_seconds", 0.0) for p in found),
    }
    plan = replace(plan, predicted=MappingProxyType({**plan.predicted, **step}))
    return MeasuredPlan(plan, tuple(rows), left_out)
