"""The figures of a plan that people ask for: tokens a second, MFU, memory, price, and how far the
plan and the costs that it was chosen by may be off.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import prod
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo, example_shape, tokens_of
from alpa_runtime.plan.plan import device_count, device_types, host_groups
from alpa_runtime.plan.program import FreeOp, InputOp, OutputOp
from alpa_runtime.plan.strategy import is_product, is_recomputed, product_shapes
from alpa_runtime.plan.tensor import numpy_name
from alpa_runtime.plan.text import bytes_text, seconds_text

from alpa_mlir.compiler import check_cluster, cluster_presets
from alpa_mlir.errors import AlpaError
from alpa_mlir.simulator import Timeline, simulate
from alpa_mlir.simulator.costs import device_bytes, flops_of, hardware_flops

Row = Mapping[str, Any]
_HOUR = 3600.0
_BILLION = 1e9
_MILLION = 1e6


@dataclass(frozen=True)
class StageMemory:
    """Memory of a device of one mesh.

    Attributes:
        foreseen_bytes: the greater of what the search foresaw for all stages of the mesh and what
            the simulated step holds at most. A bound of what the step holds between programs, and
            an estimate of what a compiler adds within them. State that a call does not use up
            (`donate_state=False`) counts twice, the old beside the new, as in no search.
        simulated_bytes: None if the step cannot be simulated.
        compiled_bytes: by the count of the compiler that made the plan's programs for its own
            devices; None where nobody did.
        capacity_bytes: what a device has; None if the plan does not say.
    """

    mesh: int
    stages: tuple[int, ...]
    foreseen_bytes: float
    simulated_bytes: float | None
    compiled_bytes: float | None
    capacity_bytes: float | None

    @property
    def needed_bytes(self) -> float:
        """As compiled, else as foreseen."""
        return self.foreseen_bytes if self.compiled_bytes is None else self.compiled_bytes


@dataclass(frozen=True)
class PublishedError:
    """How far predictions are from published runs on the preset that a plan was made for.

    Attributes:
        runs: how many there are.
        error: mean of the sources' median errors, each as often as it has runs.
        least, most: of the sources' median errors.
    """

    runs: int
    error: float
    least: float
    most: float


# That a step takes longer by simulation than the search foresaw, to be said.
_MUCH_MORE = 0.05
# That products run in the update, of the seconds of all.
_MUCH_ONCE = 0.05


@dataclass(frozen=True)
class Figures:
    """Figures of a plan. Seconds are the predicted ones; None is what the plan does not say.

    Attributes:
        step_seconds: of a step.
        num_devices, idle_devices: that the plan uses, and others of the cluster.
        tokens: of a step, by `tokens_of`.
        examples: of a step, by the first dimension of its batch.
        model_flops: of a step on all devices, each product once: forward, and backward without what
            is computed again.
        hardware_flops: of a step on all devices, all that is computed.
        dtype: in which products spend most seconds, by the type of their operands and as the
            devices multiply it: float32 in TF32 where they have it.
        peak_flops: FLOP/s of all used devices together in that type.
        memory: of each mesh.
        gap: by how much the shardings of a stage may be off the best for these costs, at most.
        is_optimal: all stages' shardings are proved to be the best for these costs.
        published: of the cluster's preset; None for other clusters, or if no run judges it.
        price: of a device for an hour.
        simulated_seconds: of a step, where each transfer is followed over the links that it shares
            with others; None where it cannot be simulated.
        once_part: of the seconds of all products those of products in the update, where there are
            micro-batches.
    """

    step_seconds: float | None
    num_devices: int
    idle_devices: int
    tokens: int | None
    tokens_of: str
    examples: int | None
    model_flops: float | None
    hardware_flops: float | None
    dtype: str | None
    peak_flops: float | None
    memory: tuple[StageMemory, ...]
    gap: float | None
    is_optimal: bool
    published: PublishedError | None
    price: float | None = None
    simulated_seconds: float | None = None
    once_part: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return _quotient(self.tokens, self.step_seconds)

    @property
    def examples_per_second(self) -> float | None:
        return _quotient(self.examples, self.step_seconds)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (Chowdhery et al., "PaLM", 2022, appendix B)."""
        return self._utilization(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilization: what is computed again counts again."""
        return self._utilization(self.hardware_flops)

    def _utilization(self, flops: float | None) -> float | None:
        reached = _quotient(flops, self.step_seconds)
        return _quotient(reached, self.peak_flops)

    @property
    def fullest(self) -> StageMemory | None:
        """The mesh whose devices have the least room left."""
        return max(
            self.memory,
            key=lambda m: m.needed_bytes / m.capacity_bytes if m.capacity_bytes else 0.0,
            default=None,
        )

    @property
    def unit_price(self) -> float | None:
        """Of 10^9 tokens, or of 10^6 examples of a step that has no tokens; for all devices of the
        cluster, idle ones as well."""
        if self.price is None or self.step_seconds is None:
            return None
        step = self.price * (self.num_devices + self.idle_devices) * self.step_seconds / _HOUR
        count, unit = (self.tokens, _BILLION) if self.tokens else (self.examples, _MILLION)
        return None if not count else step * unit / count

    def to_fields(self) -> dict[str, Any]:
        """For machines."""
        fullest = self.fullest
        return {
            "step_seconds": self.step_seconds,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "examples_per_second": self.examples_per_second,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "dtype": self.dtype,
            "foreseen_bytes": None if fullest is None else fullest.foreseen_bytes,
            "compiled_bytes": None if fullest is None else fullest.compiled_bytes,
            "memory_bytes": None if fullest is None else fullest.capacity_bytes,
            "gap": self.gap,
            "is_optimal": self.is_optimal,
            "published_error": None if self.published is None else self.published.error,
            "idle_devices": self.idle_devices,
            "unit_price": self.unit_price,
        }

    def lines(self) -> tuple[str, ...]:
        """One line for each: speed, memory, price, and how far it may be off."""
        texts = (
            self._speed(),
            self._once(),
            self._simulation(),
            self._memory(),
            self._price(),
            self._optimality(),
            self._costs(),
        )
        return tuple(text for text in texts if text)

    def _speed(self) -> str:
        if not self.step_seconds:
            return ""
        parts = [f"{seconds_text(self.step_seconds)} a step"]
        rate, what = self.tokens_per_second, "tokens"
        if rate is None:
            rate, what = self.examples_per_second, "rows"
        if rate is not None:
            each = f" ({amount_text(rate / self.num_devices)} a device)"
            parts.append(f"{amount_text(rate)} {what}/s{each if self.num_devices > 1 else ''}")
        if self.mfu is not None and self.hfu is not None and self.peak_flops:
            peak = self.peak_flops / self.num_devices / 1e12
            parts.append(
                f"MFU {percent_text(self.mfu)}, HFU {percent_text(self.hfu)} of {peak:.4g} TFLOP/s "
                f"({self.dtype})"
            )
        return f"predicted: {', '.join(parts)}"

    def _once(self) -> str:
        if self.once_part < _MUCH_ONCE:
            return ""
        return (
            f"update: {percent_text(self.once_part)} of the products' time, once a step and not in "
            "micro-batches"
        )

    def _simulation(self) -> str:
        if not self.step_seconds or not self.simulated_seconds:
            return ""
        more = self.simulated_seconds / self.step_seconds - 1
        if more < _MUCH_MORE:
            return ""
        return (
            f"simulated: {seconds_text(self.simulated_seconds)} a step, {percent_text(more)} more, "
            "with each transfer on the links that it shares with others (alpa-mlir simulate)"
        )

    def _memory(self) -> str:
        found = self.fullest
        if found is None:
            return ""
        where = ""
        if len(self.memory) > 1:
            numbers = ", ".join(map(str, found.stages))
            where = f" (stage{'s' * (len(found.stages) > 1)} {numbers})"
        is_known = found.compiled_bytes is not None
        text = f"memory: {'' if is_known else 'about '}{bytes_text(found.needed_bytes)}"
        if found.capacity_bytes:
            part = percent_text(found.needed_bytes / found.capacity_bytes)
            text += f" of {bytes_text(found.capacity_bytes)}, {part},"
        text += f" on a device{where}"
        if is_known:
            text += f", as compiled; about {bytes_text(found.foreseen_bytes)} were foreseen"
        return text

    def _price(self) -> str:
        if self.unit_price is None:
            return ""
        unit = "1B tokens" if self.tokens else "1M rows"
        text = f"price: {unit} for {self.unit_price:,.4g}, at {self.price:g} for a device and hour"
        if not self.idle_devices:
            return text
        return f"{text} of {self.num_devices + self.idle_devices} devices, {self.idle_devices} idle"

    def _optimality(self) -> str:
        if self.is_optimal:
            return "optimality: each stage's shardings are proved optimal for these costs"
        if self.gap is None:
            return ""
        return (
            f"optimality: each stage's shardings are within {percent_text(self.gap, up=True)} of "
            "the optimum for these costs"
        )

    def _costs(self) -> str:
        found = self.published
        if found is None:
            return ""
        runs = "1 published run" if found.runs == 1 else f"{found.runs} published runs"
        text = f"costs: median error {percent_text(found.error)} on {runs} of this preset"
        if found.most > found.least:
            span = f"{percent_text(found.least)} to {percent_text(found.most)}"
            text += f" (by source {span})"
        return text


def _quotient(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def amount_text(value: float) -> str:
    """`865k`: three figures and a letter."""
    for letter, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return (
                f"{value / scale:.3g}{letter}"
                if value < 999.5 * scale
                else f"{value / scale:.0f}{letter}"
            )
    return f"{value:.3g}"


def percent_text(part: float, *, up: bool = False) -> str:
    """`52.1 %`; with `up` never less than the part is, as a bound has to be."""
    value = 100 * part
    digits = 0 if value >= 99.95 else 1 if value >= 1 else 2
    shown = round(value, digits)
    if up and shown < value:
        shown += 10.0**-digits
    return f"{shown:.{digits}f} %"


def figures_of(
    plan: Plan,
    *,
    timeline: Timeline | str | None = None,
    price: float | None = None,
    tokens: int | None = None,
    explanations: Sequence[Row | None] | None = None,
) -> Figures:
    """The figures of a plan.

    Args:
        timeline: its simulation, or why there is none; by default it is simulated, if its cluster
            allows it.
        price: of a device for an hour, in any currency.
        tokens: of a step; by default counted in its batch.
        explanations: of each stage, if they have been read.

    Example:
        >>> figures_of(Plan.load("my_plan")).mfu                      # doctest: +SKIP
        0.521
    """
    if timeline is None:
        timeline = _simulated(plan)
    elif isinstance(timeline, str):
        timeline = None
    used = plan.used_devices
    total = device_count(plan.cluster)
    if explanations is None:
        explanations = [plan.explanation(index) for index in range(len(plan.stages))]
    if tokens is not None:
        counted = tokens, "as given"
    else:
        products = product_shapes(explanations)
        counted = tokens_of(_batches(plan), products, plan.num_micro_batches)
    dtype, peak = _peak(plan.cluster, used, product_dtype(explanations))
    gaps = [stage.solver.get("gap") for stage in plan.stages]
    known = [gap for gap in gaps if gap is not None]
    return Figures(
        step_seconds=plan.predicted.get("step_seconds"),
        num_devices=len(used),
        idle_devices=max(0, total - len(used)),
        tokens=None if counted is None else counted[0],
        tokens_of="" if counted is None else counted[1],
        examples=examples_of(plan),
        model_flops=model_flops(plan, explanations),
        hardware_flops=hardware_flops(plan),
        dtype=dtype,
        peak_flops=peak,
        memory=_memory(plan, timeline),
        gap=max(known) if len(known) == len(gaps) else None,
        is_optimal=all(stage.solver.get("status") == "optimal" for stage in plan.stages),
        published=published_error(plan.cluster),
        price=price,
        simulated_seconds=None if timeline is None else timeline.step_seconds,
        once_part=once_part(plan, explanations),
    )


def _simulated(plan: Plan) -> Timeline | None:
    try:
        return simulate(plan) if plan.cluster else None
    except AlpaError:
        return None


def _batches(plan: Plan) -> list[InputInfo]:
    """The batch arguments, at full size."""
    of_rounds = plan.call is not None and plan.call.batch_of_rounds

    def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
        return example_shape((shape[0] * plan.num_micro_batches, *shape[1:]), of_rounds)

    return [
        replace(info, shape=whole(info.shape))
        for info in plan.arguments
        if info.kind == "batch" and info.shape and info.is_given and not info.per_micro_batch
        if not of_rounds or len(info.shape) > 1
    ]


def examples_of(plan: Plan) -> int | None:
    """Examples of a step, if its batch arguments agree on them."""
    sizes = {info.shape[0] for info in _batches(plan)}
    return sizes.pop() if len(sizes) == 1 else None


def model_flops(plan: Plan, explanations: Sequence[Row | None]) -> float | None:
    """FLOPs of a step's model, without the update and what is computed again.

    That are the products of backward runs whose names say so, by their part of the seconds of all.
    Gradients of a product take two products as large, one of them where its weight is not trained;
    what backward runs compute beyond that, they compute again, too.

    Args:
        explanations: of each stage.
    """
    forward, backward = flops_of(plan, "forward"), 0.0
    for stage, found in zip(plan.stages, explanations, strict=True):
        backward += stage.predicted.get("backward_flops", 0.0) * (1 - _named_part(found))
    once = flops_of(plan, "barrier")
    if forward is None or once is None:
        return None
    most = 2.0 * forward
    if any(stage.predicted.get("rematerialized_layers") for stage in plan.stages) or _recomputes(
        plan
    ):
        most = (1.0 + _trained_part(plan)) * forward
    return (forward + min(backward, most)) * plan.num_micro_batches + once


def once_part(plan: Plan, explanations: Sequence[Row | None]) -> float:
    """Of the seconds that devices spend on products those in the update; 0 for one micro-batch.

    Products that need all examples at once, such as those of a second gradient at weights that the
    first one has moved, run there, on the whole batch.

    Args:
        explanations: of each stage.
    """
    if plan.num_micro_batches == 1:
        return 0.0
    once = often = 0.0
    for stage, found in zip(plan.stages, explanations, strict=True):
        devices = len(plan.meshes[stage.mesh].devices)
        for row in () if found is None else found["ops"]:
            if not is_product(row):
                continue
            if row["phase"] == "update":
                once += devices * row["compute_seconds"]
            elif row["phase"] in ("forward", "backward"):
                often += devices * plan.num_micro_batches * row["compute_seconds"]
    return once / (once + often) if once else 0.0


def _named_part(found: Row | None) -> float:
    """Of the seconds of the products in a stage's backward runs, those of products that are named
    as computed again."""
    ops: Sequence[Row] = () if found is None else found["ops"]
    products = [row for row in ops if row["phase"] == "backward" and is_product(row)]
    seconds = sum(row["compute_seconds"] for row in products)
    again = sum(row["compute_seconds"] for row in products if is_recomputed(row))
    return again / seconds if seconds else 0.0


def _recomputes(plan: Plan) -> bool:
    """Whether the step's own `jax.checkpoint` makes backward runs compute again."""
    return any("checkpoint" in text for text in plan.explanations.values())


def _trained_part(plan: Plan) -> float:
    """Of the numbers that forward runs read as weights, those that the step does not hand back as
    they came."""
    kept: set[int] = set()
    for program in plan.programs:
        slots: dict[int, int] = {}
        for op in program.instructions:
            if isinstance(op, InputOp):
                slots[op.slot] = op.arg
            elif isinstance(op, OutputOp) and op.slot in slots:
                kept.add(slots[op.slot])
            elif isinstance(op, FreeOp):
                for slot in op.slots:
                    slots.pop(slot, None)
    weights = {weight.name for stage in plan.stages for weight in stage.weights}
    total = trained = 0.0
    for number, info in enumerate(plan.inputs):
        if info.name in weights:
            size = float(prod(info.shape))
            total += size
            trained += size * (info.carried_by is not None and number not in kept)
    return trained / total if total else 1.0


def product_dtype(explanations: Sequence[Row | None]) -> str | None:
    """The type in which products spend most seconds, by their first operands."""
    seconds = Counter[str]()
    for found in explanations:
        for row in (found or {}).get("ops", ()):
            if is_product(row) and "types" in row:
                first = row["types"].lstrip("(").partition(",")[0].partition(")")[0]
                seconds[first.rpartition("x")[2]] += row["compute_seconds"]
    if not seconds:
        return None
    name = max(seconds, key=lambda name: seconds[name])
    return numpy_name(name) or name


def _peak(
    cluster: Mapping[str, Any], devices: Sequence[int], dtype: str | None
) -> tuple[str | None, float | None]:
    """The type in which these devices multiply another one, and FLOP/s of all of them in it."""
    kinds = [
        str(group["device_type"])
        for group in host_groups(cluster)
        for _ in range(int(group.get("count", 1)) * int(group["devices"]))
    ]
    types: Mapping[str, Any] = cluster.get("device_types", {})
    if dtype is None or not kinds or max(devices) >= len(kinds):
        return dtype, None
    names = [dtype, "float32"]
    if dtype == "float32":
        names = ["tf32", "float32"]
    elif dtype.startswith(("float8", "float4")):
        names = [dtype[:6], "bfloat16", "float32"]
    total = 0.0
    used = dtype
    for device in devices:
        rates: Mapping[str, Any] = types.get(kinds[device], {}).get("peak_flops", {})
        name = next((name for name in names if name in rates), None)
        rate: Any = None if name is None else rates[name]
        if name is None or not isinstance(rate, int | float):
            return dtype, None
        used = "TF32" if name == "tf32" else dtype if name == dtype[:6] else name
        total += rate
    return used, total


def _memory(plan: Plan, timeline: Timeline | None) -> tuple[StageMemory, ...]:
    rows: list[StageMemory] = []
    for mesh in range(len(plan.meshes)):
        stages = tuple(i for i, stage in enumerate(plan.stages) if stage.mesh == mesh)
        foreseen = sum(plan.stages[i].predicted.get("peak_bytes", 0.0) for i in stages)
        use = None if timeline is None else timeline.memory[mesh]
        simulated = None if use is None else use.peak_bytes
        if foreseen or simulated:
            both = max(foreseen, simulated or 0.0) + _kept_bytes(plan, mesh)
            compiled = _compiled_bytes(plan, mesh)
            capacity = None if use is None else use.capacity_bytes
            rows.append(StageMemory(mesh, stages, both, simulated, compiled, capacity))
    return tuple(rows)


def _kept_bytes(plan: Plan, mesh: int) -> float:
    """Of state that stays where the step gives its next value."""
    if plan.call is None or plan.call.donate_state:
        return 0.0
    return sum(
        device_bytes(op.tensor, plan.meshes[mesh])
        for program in plan.programs
        if program.mesh == mesh
        for op in program.instructions
        if isinstance(op, InputOp) and plan.inputs[op.arg].carried_by is not None
    )


def _compiled_bytes(plan: Plan, mesh: int) -> float | None:
    """The most that a compiler counted for the devices that the plan is for."""
    types = device_types(plan.cluster)
    own = {types[d] for d in plan.meshes[mesh].devices if d < len(types)}
    counted = [m.bytes for m in plan.compiled_memory if m.mesh == mesh and {m.target} == own]
    return max(counted, default=None)


@cache
def published_errors() -> dict[str, list[dict[str, Any]]]:
    """What published runs say of each preset (benchmark/published_runs.py --write)."""
    file = resources.files("alpa_mlir.cluster").joinpath("published_errors.json")
    return json.loads(file.read_text(encoding="utf-8"))


def published_error(cluster: Mapping[str, Any]) -> PublishedError | None:
    """Of the preset that a described cluster is, of whatever number of hosts."""
    preset = str(cluster.get("name", "")).partition(":")[0]
    rows = published_errors().get(preset, [])
    if not rows or preset not in cluster_presets():
        return None
    known: Mapping[str, Any] = json.loads(check_cluster(preset))
    if any(known.get(part) != cluster.get(part) for part in ("device_types", "links")):
        return None
    runs = sum(row["predicted"] for row in rows)
    errors = [row["median_error"] for row in rows]
    mean = sum(row["predicted"] * row["median_error"] for row in rows) / runs
    return PublishedError(runs, mean, min(errors), max(errors))
