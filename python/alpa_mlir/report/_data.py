"""Collects what a report shows from a plan, its simulation and what was recorded."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import Exactness
from alpa_runtime.plan.plan import VERSION, host_groups
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.version import VERSION as PACKAGE_VERSION

from alpa_mlir.errors import AlpaError, PlanFormatError
from alpa_mlir.report import _layers as alternatives
from alpa_mlir.report import _traffic
from alpa_mlir.report._activity import RecordLike, memory_curve, real_activity, simulated_activity
from alpa_mlir.report._layers import collect_layers
from alpa_mlir.report._model import (
    Activity,
    Certificate,
    Header,
    HostGroup,
    Mesh,
    MicroBatches,
    ReportData,
    Stage,
    Tensors,
)
from alpa_mlir.report._traffic import collect_tensors
from alpa_mlir.simulator.costs import item_bytes

if TYPE_CHECKING:
    from alpa_mlir.simulator import Timeline

#: Plans to stand beside this one, by name, or in order.
Others = Mapping[str, Plan] | Sequence[Plan]


def collect(
    plan: Plan,
    *,
    timeline: Timeline | None = None,
    record: RecordLike | None = None,
    compare: Others = (),
) -> ReportData:
    """Everything that a report of a plan shows.

    Args:
        timeline: a simulation of this plan; by default it is simulated on its own cluster.
        record: what was recorded of its steps: a `Recording`, its trace, or the trace's file.
        compare: plans to stand beside it.

    Raises:
        PlanFormatError: an explanation of the plan is malformed, or `record` holds no steps.

    Example:
        >>> collect(Plan.load("my_plan")).header.stages      # doctest: +SKIP
        4
    """
    missing: dict[str, tuple[str, ...]] = {}
    if timeline is None:
        timeline, reason = _simulated(plan)
        if reason:
            for section in ("timeline", "memory"):
                missing[section] = (f"The step could not be simulated: {reason}.",)
    cluster: Mapping[str, Any] = plan.cluster
    if timeline is not None:
        cluster = _fields(timeline)
    hosts = _hosts(cluster)
    host_of = [
        host
        for host, devices in enumerate(g.devices for g in hosts for _ in range(g.count))
        for _ in range(devices)
    ]
    if not hosts:
        missing["cluster"] = ("The plan does not say of which hosts its cluster is made.",)
    explanations = [plan.explanation(number) for number in range(len(plan.stages))]
    with _readable("stage_*.explain.json", "plan the step again, or remove these files"):
        layers, unsaid = collect_layers(plan, explanations)
        decisions, all_decisions = alternatives.decisions(explanations)
        ops, all_ops = alternatives.dear_ops(explanations)
        collectives = _traffic.collectives(plan, explanations, host_of)
    if unsaid:
        missing["sharding"] = unsaid
    silent = [str(number) for number, found in enumerate(explanations) if not found]
    if silent:
        text = f"The plan does not say what takes the time of stage {', '.join(silent)}."
        missing["communication"] = (text,)
    if not plan.tried:
        missing["alternatives"] = ("The plan does not say which other candidates were tried.",)
    certificates = alternatives.certificates(plan)
    known = {row.stage for row in certificates}
    unproven = [str(number) for number in range(len(plan.stages)) if number not in known]
    if unproven:
        missing["certificates"] = (
            f"No solver says anything of stage {', '.join(unproven)}: the plan was written by "
            "hand, or by a tool that does not note it.",
        )
    for section, shown, count, what in (
        ("alternatives", decisions, all_decisions, "decisions"),
        ("communication", ops, all_ops, "ops"),
    ):
        if count > len(shown):
            note = f"Of {count} kinds of {what} the {len(shown)} dearest are listed."
            missing[section] = (*missing.get(section, ()), note)
    with _readable("record", "give what `step.record` or its file holds"):
        real = None if record is None else real_activity(record)
    tensors = collect_tensors(plan)
    others = compare if isinstance(compare, Mapping) else _named(compare)
    return ReportData(
        _header(plan, cluster, hosts, timeline, real, tensors, certificates),
        _micro_batches(plan.exactness),
        hosts,
        tuple(_mesh(mesh, host_of) for mesh in plan.meshes),
        _stages(plan),
        tensors,
        layers,
        None if timeline is None else simulated_activity(timeline),
        real,
        () if timeline is None else tuple(map(memory_curve, timeline.memory)),
        collectives,
        _traffic.crossings(plan),
        () if timeline is None else _traffic.link_kinds(timeline),
        ops,
        decisions,
        alternatives.candidates(plan),
        alternatives.compared(plan, others),
        certificates,
        tuple(sorted(plan.predicted.items())),
        missing,
    )


@contextmanager
def _readable(where: str, fix: str) -> Generator[None]:
    """What is not of the form that others have written is one error."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        what = f"a malformed entry: {type(error).__name__} {error}"
        raise PlanFormatError(what, where=where, fix=fix) from error


def _simulated(plan: Plan) -> tuple[Timeline | None, str]:
    simulator: Any = importlib.import_module("alpa_mlir.simulator")
    if not plan.cluster:
        return None, "the plan does not say its cluster"
    try:
        return simulator.simulate(plan), ""
    except AlpaError as error:
        return None, error.what.rstrip(".")


def _fields(timeline: Timeline) -> Mapping[str, Any]:
    json: Any = importlib.import_module("json")
    return json.loads(timeline.cluster.text)


def _named(plans: Sequence[Plan]) -> dict[str, Plan]:
    return {f"{number}: {plan.name}": plan for number, plan in enumerate(plans, 1)}


def _hosts(cluster: Mapping[str, Any]) -> tuple[HostGroup, ...]:
    types: Mapping[str, Any] = cluster.get("device_types", {})
    groups: list[HostGroup] = []
    for group in host_groups(cluster):
        kind = str(group["device_type"])
        memory: Any = types.get(kind, {}).get("memory_bytes")
        size = float(memory) if isinstance(memory, int | float) else None
        groups.append(HostGroup(int(group.get("count", 1)), int(group["devices"]), kind, size))
    return tuple(groups)


def _mesh(mesh: MeshInfo, host_of: Sequence[int]) -> Mesh:
    runs: list[list[int]] = []
    for device in mesh.devices:
        if runs and device == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([device, 1])
    links = _traffic.axis_links(mesh, host_of)
    return Mesh(mesh.shape, mesh.axes, tuple((first, count) for first, count in runs), links)


def _stages(plan: Plan) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            stage.mesh,
            stage.layers,
            stage.predicted.get("forward_seconds"),
            stage.predicted.get("backward_seconds"),
            stage.predicted.get("update_seconds"),
            stage.predicted.get("peak_bytes"),
            stage.predicted.get("state_bytes"),
            int(stage.predicted.get("rematerialized_layers", 0)),
            len(stage.weights),
        )
        for stage in plan.stages
    )


def _header(
    plan: Plan,
    cluster: Mapping[str, Any],
    hosts: Sequence[HostGroup],
    timeline: Timeline | None,
    real: Activity | None,
    tensors: Tensors,
    certificates: Sequence[Certificate],
) -> Header:
    kinds = Counter[str]()
    for group in hosts:
        kinds[group.device_type] += group.count * group.devices
    used = sum(len(mesh.devices) for mesh in plan.meshes)
    weights = _weights(tensors)
    state = [info for info in plan.inputs if info.kind == "state" and info.is_given]
    by_dtype = Counter[str]()
    for shape, dtype in weights:
        by_dtype[dtype] += int(prod(shape) * item_bytes(dtype))
    dtype = max(by_dtype, key=lambda name: by_dtype[name]) if by_dtype else None
    peak, capacity = _memory(plan, timeline)
    statuses = [row.status for row in certificates]
    gaps = [row.gap for row in certificates if row.gap is not None]
    return Header(
        name=plan.name,
        cluster=str(cluster.get("name", "")),
        devices=sum(kinds.values()) or plan.num_devices,
        used_devices=used,
        hosts=sum(group.count for group in hosts) or None,
        device_types=tuple(sorted(kinds.items())),
        stages=len(plan.stages),
        num_micro_batches=plan.num_micro_batches,
        schedule=plan.schedule,
        predicted_seconds=plan.predicted.get("step_seconds"),
        simulated_seconds=None if timeline is None else timeline.step_seconds,
        real_seconds=() if real is None else tuple(end - start for start, end in real.steps),
        examples=_examples(plan),
        model_flops=None if timeline is None else timeline.model_flops,
        tflops_per_device=None if timeline is None else timeline.tflops_per_device,
        peak_tflops=_peak_tflops(cluster, dtype),
        dtype=dtype,
        bubble_fraction=None if timeline is None else timeline.bubble_fraction,
        peak_bytes=peak,
        capacity_bytes=capacity,
        weights=sum(prod(shape) for shape, _ in weights),
        state_bytes=sum(prod(info.shape) * item_bytes(info.dtype) for info in state),
        solver=_worst(statuses) if len(statuses) == len(plan.stages) else None,
        gap=max(gaps, default=None),
        search_seconds=plan.predicted.get("search_seconds"),
        compiler=plan.compiler,
        version=PACKAGE_VERSION,
        plan_version=VERSION,
        fingerprint=plan.fingerprint,
    )


def _micro_batches(found: Exactness) -> MicroBatches:
    def lines(places: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place or "a line without a name" for place in places))

    parts = (found.sums, found.joins, found.scales, found.repeats)
    sums, joins, scales, repeats = (len(lines(places)) for places in parts)
    return MicroBatches(found.exact, sums, joins, scales, repeats, lines(found.estimates))


def _weights(tensors: Tensors) -> list[tuple[tuple[int, ...], str]]:
    forms = zip(tensors.kinds, tensors.form, strict=True)
    return [tensors.forms[form][:2] for kind, form in forms if kind == "weight"]


def _worst(statuses: Sequence[str]) -> str | None:
    others = [status for status in statuses if status != "optimal"]
    return others[0] if others else (statuses[0] if statuses else None)


def _memory(plan: Plan, timeline: Timeline | None) -> tuple[float | None, float | None]:
    """Of the device with the least room left: what it needs, and what it has."""
    if timeline is not None:
        rows = [(use.peak_bytes, use.capacity_bytes) for use in timeline.memory]
        return max(rows, key=lambda row: row[0] / (row[1] or 1.0), default=(None, None))
    peaks = [s.predicted["peak_bytes"] for s in plan.stages if "peak_bytes" in s.predicted]
    return max(peaks, default=None), None


def _peak_tflops(cluster: Mapping[str, Any], dtype: str | None) -> float | None:
    """What the slowest device could do; float32 stands in for dtypes without a rate."""
    types: Mapping[str, Any] = cluster.get("device_types", {})
    peaks: list[float] = []
    for kind in types.values():
        rates: Mapping[str, Any] = kind.get("peak_flops", {})
        name = "float8" if dtype is not None and dtype.startswith("float8") else dtype
        rate: Any = rates.get(name or "", rates.get("float32"))
        if not isinstance(rate, int | float):
            return None
        peaks.append(float(rate))
    return min(peaks) / 1e12 if peaks and dtype is not None else None


def _examples(plan: Plan) -> int | None:
    """Examples of a step, if its batch arguments agree on them."""
    sizes = {
        info.shape[0]
        for info in plan.inputs
        if info.kind == "batch" and info.shape and not info.per_micro_batch
    }
    return sizes.pop() * plan.num_micro_batches if len(sizes) == 1 else None
