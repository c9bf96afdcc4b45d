"""Collects what a report shows: activity, layers and communication, from a plan, its simulation and
what was recorded.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from alpa_runtime.execution.program_merge import merge_programs
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import Exactness
from alpa_runtime.plan.modules import modules_of, stage_modules
from alpa_runtime.plan.plan import VERSION, host_groups, idle_text, padded_text
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    FreeOp,
    InputOp,
    OutputOp,
    ProgramInfo,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
)
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.strategy import AxisNames, Strategy, strategy_of
from alpa_runtime.plan.tensor import TensorSpec, numpy_name
from alpa_runtime.plan.text import read_file
from alpa_runtime.version import VERSION as PACKAGE_VERSION
from numpy.typing import NDArray

from alpa_mlir.errors import AlpaError, PlanFormatError
from alpa_mlir.report._model import (
    Activity,
    Candidate,
    Certificate,
    Collective,
    Compared,
    Crossing,
    DearOp,
    Decision,
    Header,
    HostGroup,
    LayerGroup,
    LayerOp,
    LinkKind,
    Memory,
    Mesh,
    MicroBatches,
    Operand,
    PlanFigures,
    ReportData,
    Spec,
    Stage,
    Tensors,
)
from alpa_mlir.report._names import alike, op_path
from alpa_mlir.report._time import PARTS, roofline, time_uses
from alpa_mlir.report.explanation import runner_up_text
from alpa_mlir.simulator.costs import device_bytes, item_bytes, tensor_bytes
from alpa_mlir.simulator.figures import Figures, figures_of

if TYPE_CHECKING:
    from alpa_mlir.simulator import MemoryUse, Timeline

KINDS = (
    "prepare",
    "forward",
    "barrier",
    "backward",
    "backward_input",
    "backward_weight",
    "update",
    "wait",
    "other",
)
_MOST_POINTS = 1500  # Of a memory curve; more cannot be told apart on a screen.


class Trace(Protocol):
    """What was recorded: `Recording.trace`, an `alpa_runtime.step_trace.StepTrace`."""

    def chrome_events(self) -> list[dict[str, Any]]: ...


class Recorded(Protocol):
    """The `Recording` that `step.record` gives."""

    @property
    def trace(self) -> Trace | None: ...


#: A recording, its trace, or the file that one of them was written to.
RecordLike = Recorded | Trace | str | Path


def _span_kind(name: str) -> int:
    for number, kind in enumerate(KINDS[:-2]):
        if name == kind or (kind == "update" and name.startswith("update")):
            return number
    return KINDS.index("wait") if name == "wait" else KINDS.index("other")


Span = tuple[int, float, float, int, int, int]  # Kind, start, end, micro-batch, stage, step.


def _columns(spans: Sequence[Span]) -> tuple[tuple[int | float, ...], ...]:
    return tuple(zip(*spans, strict=True)) if spans else ((),) * 6


def simulated_activity(timeline: Timeline) -> Activity:
    """The spans and transfers of a simulated step."""
    rows: list[tuple[tuple[int | float, ...], ...]] = []
    for spans in timeline.spans:
        table: list[Span] = []
        for s in spans:
            batch = -1 if s.micro_batch is None else s.micro_batch
            stage = -1 if s.stage is None else s.stage
            table.append((_span_kind(s.what), s.start, s.end, batch, stage, 0))
        rows.append(_columns(table))
    transfers = tuple((t.source, t.target, t.start, t.end, t.bytes) for t in timeline.transfers)
    meshes = tuple(range(len(rows)))
    step = ((0.0, timeline.step_seconds),)
    labels = ("",) * len(rows)
    return Activity(timeline.step_seconds, KINDS, labels, meshes, tuple(rows), transfers, step)


def real_activity(record: RecordLike) -> Activity:
    """The spans and transfers of recorded steps.

    Raises:
        PlanFormatError: the file holds no recorded steps, or nothing was recorded.
    """
    events, where = _events(record)
    titles = {
        event["pid"]: str(event["args"]["name"])
        for event in events
        if event.get("ph") == "M" and event.get("name") == "process_name"
    }

    def process(start: str) -> int | None:
        found = [
            p for p, name in titles.items() if name.startswith(start) and name.endswith(", real")
        ]
        return found[0] if found else None

    meshes, moves = process("meshes of "), process("transfers of ")
    if meshes is None:
        raise PlanFormatError(
            "no recorded steps", where=where, fix="give what `step.record` or its file holds"
        )
    labels: dict[tuple[int, int], str] = {
        (event["pid"], event["tid"]): str(event["args"]["name"])
        for event in events
        if event.get("ph") == "M" and event.get("name") == "thread_name"
    }
    numbers = sorted(tid for pid, tid in labels if pid == meshes)
    rows: dict[int, list[Span]] = {tid: [] for tid in numbers}
    transfers: list[tuple[int, int, float, float, float]] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        start = event["ts"] / 1e6
        end = start + event["dur"] / 1e6
        if event["pid"] == meshes:
            given: Mapping[str, Any] = event.get("args", {})
            batch, stage = given.get("micro_batch", -1), given.get("stage", -1)
            name = str(event["name"]).split(" ")[0]
            span = (_span_kind(name), start, end, batch, stage, given.get("step", 0))
            rows[event["tid"]].append(span)
        elif moves is not None and event["pid"] == moves:
            pair = [int(word) for word in labels[moves, event["tid"]].split() if word.isdigit()]
            transfers.append((pair[0], pair[1], start, end, event["args"].get("bytes", 0)))
    spans = [span for row in rows.values() for span in row]
    if not spans:
        raise PlanFormatError("no recorded steps", where=where, fix="call the step while recording")
    steps: dict[int, tuple[float, float]] = {}
    for _, start, end, _, _, step in spans:
        first, last = steps.get(step, (start, end))
        steps[step] = min(first, start), max(last, end)
    return Activity(
        max([end for _, end in steps.values()] + [t[3] for t in transfers]),
        KINDS,
        tuple("".join(labels[meshes, tid].partition(", worker ")[1:])[2:] for tid in numbers),
        tuple(int(labels[meshes, tid].split()[1].rstrip(":")) for tid in numbers),
        tuple(_columns(sorted(rows[tid], key=lambda span: span[1])) for tid in numbers),
        tuple(transfers),
        tuple(span for _, span in sorted(steps.items())),
    )


def _events(record: RecordLike) -> tuple[list[dict[str, Any]], str]:
    if isinstance(record, str | Path):
        where = str(record)
        try:
            text: Any = json.loads(read_file(Path(record)).decode())
            return list(text["traceEvents"]), where
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise PlanFormatError(
                f"no trace: {error}", where=where, fix="give a file that `step.record` wrote"
            ) from None
    trace: Any = getattr(record, "trace", record)
    if trace is None:
        raise PlanFormatError(
            "nothing was recorded", where="record", fix="give the recording after its `with` block"
        )
    return list(trace.chrome_events()), "record"


def memory_curve(use: MemoryUse) -> Memory:
    """A mesh's memory, with at most as many points as a screen shows; no peak is lost."""
    times, held = _thinned(use.times, use.bytes)
    return Memory(
        tuple(times.tolist()),
        tuple(held.tolist()),
        use.peak_bytes,
        use.predicted_bytes,
        use.capacity_bytes,
    )


def _thinned(
    times: NDArray[np.float64], held: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each stretch of time its first, least and most value, in order."""
    if len(times) <= _MOST_POINTS:
        return times, held
    buckets = np.minimum(
        ((times - times[0]) / (times[-1] - times[0]) * (_MOST_POINTS // 3)).astype(int),
        _MOST_POINTS // 3 - 1,
    )
    kept: set[int] = {0, len(times) - 1}
    starts = np.flatnonzero(np.diff(buckets, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(times)], strict=True):
        part = held[first:end]
        kept |= {int(first), int(first + part.argmin()), int(first + part.argmax())}
    chosen = np.array(sorted(kept))
    return times[chosen], held[chosen]


# Layers of a plan and what else their ops could have chosen, from the plan's explanations.

_TYPE = re.compile(r"((?:\d+x)*)([A-Za-z]\S*)")
# Plans of earlier compilers say `partial`.
_TENSOR = re.compile(r"\[([^\]]*)\](?: (?:unreduced|partial) ([\d ]+))?")


def _parts(text: str) -> tuple[str, str]:
    """Operands and results of a text with an arrow; without one it is a result alone."""
    before, arrow, after = text.partition(" -> ")
    return (before.strip("()"), after) if arrow else ("", before)


def _types(text: str) -> list[tuple[tuple[int, ...], str] | None]:
    found: list[tuple[tuple[int, ...], str] | None] = []
    for part in text.split(", ") if text else []:
        match = _TYPE.fullmatch(part)
        if match is None:
            found.append(None)
            continue
        shape = tuple(int(size) for size in match[1].split("x") if size)
        found.append((shape, numpy_name(match[2]) or match[2]))
    return found


def _specs(text: str, names: AxisNames) -> list[tuple[Spec, tuple[str, ...]]]:
    axes = names.axes

    def named(numbers: str) -> tuple[str, ...]:
        return names.dimension(
            [axes[int(n)] if int(n) < len(axes) else f"axis {n}" for n in numbers]
        )

    found: list[tuple[Spec, tuple[str, ...]]] = []
    for match in _TENSOR.finditer(text):
        dims = [dim.strip() for dim in match[1].split(",")] if match[1] else []
        spec = tuple(named(dim.removeprefix("S")) if dim != "R" else () for dim in dims)
        found.append((spec, named("".join((match[2] or "").split()))))
    return found


def read_operands(
    chosen: str, types: str | None, reads: Sequence[str], names: AxisNames
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Operands and results of an op.

    Args:
        chosen: their shardings.
        types: shapes and dtypes in the same form, or None if the plan does not say.
        reads: for each operand the argument that it is, or nothing.
        names: of the mesh's axes.

    Example:
        >>> names = AxisNames.plain(("x", "y"), (2, 2))
        >>> shardings, types = "([S0, R]) -> [R, R] unreduced 0", "(8x4xf32) -> 8x4xf32"
        >>> read_operands(shardings, types, ["w"], names)[0]
        (Operand(name='w', shape=(8, 4), dtype='float32', spec=(('x',), ()), unreduced=()),)
    """
    sides: list[tuple[Operand, ...]] = []
    for side, text in enumerate(_parts(chosen)):
        specs = _specs(text, names)
        known = _types(_parts(types)[side]) if types else []
        tensors: list[Operand] = []
        for number, (spec, unreduced) in enumerate(specs):
            form = known[number] if len(known) == len(specs) else None
            if form is not None and len(form[0]) != len(spec):
                form = None
            name = reads[number] if side == 0 and number < len(reads) else ""
            shape, dtype = form if form is not None else (None, None)
            tensors.append(Operand(name, shape, dtype, spec, unreduced))
        sides.append(tuple(tensors))
    return sides[0], sides[1]


Row = Mapping[str, Any]

_LONGEST_BLOCK = 200  # Ops of a run that is looked for.


def collect_layers(
    plan: Plan, explanations: Sequence[Row | None], axes: Sequence[AxisNames]
) -> tuple[tuple[LayerGroup, ...], tuple[str, ...]]:
    """Groups in the order of their first layers, and what the plan does not say."""
    found: dict[Any, LayerGroup] = {}
    weights: dict[Any, list[str]] = {}
    silent: list[int] = []
    old = False
    for number, explanation in enumerate(explanations):
        if not explanation:
            silent.append(number)
            continue
        names = axes[plan.stages[number].mesh]
        layers: dict[int | None, list[LayerOp]] = {}
        seconds = _stage_seconds(explanation)
        for row in explanation.get("decisions", ()):
            old = old or "types" not in row
            if row["op"] != "argument" and row["phase"] == "forward":
                layers.setdefault(row.get("layer"), []).append(_op(row, names, seconds))
        # What no layer has stands at the end.
        for layer, ops in sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0)):
            blocks = _blocks(ops)
            forms = tuple((times, tuple(map(_form, block))) for times, block in blocks)
            key = (names.shape, names.names, forms)
            group = found.setdefault(
                key, LayerGroup(names.shape, names.names, names.kinds, (), "", blocks)
            )
            found[key] = replace(group, layers=(*group.layers, (number, layer)))
            read = [tensor.name for op in ops for tensor in op.operands if tensor.name]
            weights.setdefault(key, []).extend(read)
    modules = modules_of(plan)
    known = {weight.name for stage in plan.stages for weight in stage.weights}
    groups = tuple(
        replace(group, modules=modules.text(name for name in weights[key] if name in known))
        for key, group in found.items()
    )
    missing: list[str] = []
    if silent:
        stages = ", ".join(map(str, silent))
        missing.append(f"The plan does not say how the ops of stage {stages} are split.")
    if old:
        missing.append(
            "The plan was made by a compiler that did not note layers and shapes of ops; boxes are "
            "drawn without sizes, and all layers of a stage are one list."
        )
    return groups, tuple(missing)


def _stage_seconds(explanation: Row) -> float:
    return sum(explanation.get(f"{name}_seconds", 0.0) for name in ("compute", "communication"))


def _op(row: Row, names: AxisNames, stage_seconds: float) -> LayerOp:
    operands, results = read_operands(row["chosen"], row.get("types"), row.get("reads", ()), names)
    has_other = "runner_up" in row
    return LayerOp(
        row["op"].removeprefix("stablehlo."),
        op_path(row["where"]),
        operands,
        results,
        row["seconds"],
        row["choices"],
        names.in_text(row["runner_up"]) if has_other else None,
        row.get("runner_up_more_seconds"),
        runner_up_text(row, stage_seconds) if has_other else "",
    )


def _form(op: LayerOp) -> Any:
    """What ops that are alike have in common: all but numbers in names, and seconds."""
    operands = tuple((alike(t.name), t.shape, t.dtype, t.spec, t.unreduced) for t in op.operands)
    return op.op, alike(op.where), operands, op.results


def _blocks(ops: list[LayerOp]) -> tuple[tuple[int, tuple[LayerOp, ...]], ...]:
    """The ops as runs, each the shortest that is repeated over the longest stretch from there."""
    numbers: dict[Any, int] = {}
    forms = [numbers.setdefault(_form(op), len(numbers)) for op in ops]
    blocks: list[tuple[int, tuple[LayerOp, ...]]] = []
    single: list[LayerOp] = []
    at = 0
    while at < len(ops):
        period, times = _repeats(forms, at)
        if times == 1:
            single.append(ops[at])
            at += 1
            continue
        if single:
            blocks.append((1, tuple(single)))
            single = []
        end = at + period * times
        means = [
            sum(op.seconds for op in ops[at + i : end : period]) / times for i in range(period)
        ]
        run = [replace(ops[at + i], seconds=means[i]) for i in range(period)]
        blocks.append((times, tuple(run)))
        at = end
    if single:
        blocks.append((1, tuple(single)))
    return tuple(blocks)


def _repeats(forms: list[int], at: int) -> tuple[int, int]:
    """The length of the run at a place, and how many times it stands there, one after another."""
    best = (1, 1)
    for period in range(1, min((len(forms) - at) // 2, _LONGEST_BLOCK) + 1):
        block = forms[at : at + period]
        times = 1
        while forms[at + period * times : at + period * (times + 1)] == block:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


_Placed = tuple[int, Row]  # A row, and its stage.

_MOST_ROWS = 400  # Of ops and decisions, the dearest; layers that are alike are one row.
_MOST_CHANGES = 200  # Of a comparison.


def candidates(plan: Plan) -> tuple[Candidate, ...]:
    """What the search tried, the fastest first; the one that it took is marked."""
    step = plan.predicted.get("step_seconds")

    def is_chosen(seconds: float | None, count: int, schedule: str) -> bool:
        return (seconds, count, schedule) == (step, plan.num_micro_batches, plan.schedule)

    rows = [
        Candidate(
            tried.num_micro_batches,
            tried.remat,
            tried.schedule,
            tried.stages,
            tried.seconds,
            tried.measured_seconds,
            tried.peak_bytes,
            tried.exact,
            tried.reason,
            is_chosen(tried.seconds, tried.num_micro_batches, tried.schedule)
            or (tried.measured_seconds is not None and tried.measured_seconds == step),
        )
        for tried in plan.tried
    ]

    def order(row: Candidate) -> tuple[bool, float]:
        known = row.measured_seconds if row.measured_seconds is not None else row.seconds
        return known is None, known or 0.0

    return tuple(sorted(rows, key=order))


def compared(plan: Plan, others: Mapping[str, Plan | str]) -> tuple[Compared, ...]:
    """Other plans, and what they decide otherwise; text says why there is none."""
    rows: list[Compared] = []
    for name, other in others.items():
        if isinstance(other, str):
            rows.append(Compared(name, "", None, 0, 0, "", 0, None, other, (), 0))
            continue
        explanations = [other.explanation(index) for index in range(len(other.stages))]
        diff = plan.diff(other)
        changes = [*diff.decisions, *diff.predictions, *diff.shardings]
        timeline, reason = _simulated(other)
        rows.append(
            Compared(
                name,
                strategy_of(other, explanations).text,
                _figures(
                    figures_of(other, timeline=timeline or reason, explanations=explanations),
                    other.cluster,
                ),
                len(other.stages),
                other.num_micro_batches,
                other.pipeline_schedule,
                sum(len(mesh.devices) for mesh in other.meshes),
                None if timeline is None else timeline.bubble_fraction,
                "another step" if other.fingerprint != plan.fingerprint else "",
                tuple((c.what, c.before, c.after) for c in changes[:_MOST_CHANGES]),
                max(0, len(changes) - _MOST_CHANGES),
            )
        )
    return tuple(rows)


def collect_decisions(
    explanations: Sequence[Row | None], axes: Sequence[AxisNames]
) -> tuple[tuple[Decision, ...], int]:
    """Decisions that had another choice, alike ones as one row, the dearest to change last; and
    how many rows there are in all."""
    placed = _rows(explanations, "decisions")
    changeable = [item for item in placed if "runner_up" in item[1]]
    seconds = [_stage_seconds(found or {}) for found in explanations]

    def least(members: Sequence[_Placed]) -> _Placed:
        return min(members, key=lambda item: item[1]["runner_up_more_seconds"])

    rows = [
        Decision(
            op,
            where,
            phase,
            chosen,
            runner_up,
            len(members),
            max(row["choices"] for _, row in members),
            sum(row["seconds"] for _, row in members),
            least(members)[1]["runner_up_more_seconds"],
            runner_up_text(least(members)[1], seconds[least(members)[0]]),
            _stages_of(members),
        )
        for (op, where, phase, chosen, runner_up), members in _kinds(
            changeable, axes, "chosen", "runner_up"
        )
    ]
    rows.sort(key=lambda row: -row.seconds)
    return tuple(rows[:_MOST_ROWS]), len(rows)


def dear_ops(
    explanations: Sequence[Row | None], axes: Sequence[AxisNames]
) -> tuple[tuple[DearOp, ...], int]:
    """What ops cost, alike ones as one row, the dearest first; and how many rows there are."""
    rows = [
        DearOp(
            op,
            where,
            phase,
            specs,
            len(members),
            sum(row["compute_seconds"] for _, row in members),
            sum(row["communication_seconds"] for _, row in members),
            _stages_of(members),
        )
        for (op, where, phase, specs), members in _kinds(_rows(explanations, "ops"), axes, "specs")
    ]
    rows.sort(key=lambda row: -(row.compute_seconds + row.communication_seconds))
    return tuple(rows[:_MOST_ROWS]), len(rows)


def _rows(explanations: Sequence[Row | None], table: str) -> list[_Placed]:
    """A table of all stages, with the number of each row's stage."""
    return [
        (stage, row)
        for stage, explanation in enumerate(explanations)
        for row in (explanation or {}).get(table, ())
    ]


def _kinds(
    rows: Iterable[_Placed], axes: Sequence[AxisNames], *fields: str
) -> Iterable[tuple[tuple[str, ...], list[_Placed]]]:
    """Rows that are alike but for their layers, by op, place, phase and these shardings; `axes` has
    the names of each stage's axes."""
    groups: dict[tuple[str, ...], list[_Placed]] = {}
    for stage, row in rows:
        op, where = row["op"].removeprefix("stablehlo."), alike(op_path(row["where"]))
        shardings = [axes[stage].in_text(row[field]) for field in fields]
        names = (op, where, row["phase"], *shardings)
        groups.setdefault(names, []).append((stage, row))
    return groups.items()


def _stages_of(members: Sequence[_Placed]) -> tuple[int, ...]:
    return tuple(sorted({stage for stage, _ in members}))


def collect_certificates(plan: Plan) -> tuple[Certificate, ...]:
    """What the solver says of each stage; stages of which it says nothing are left out."""
    rows: list[Certificate] = []
    seconds = plan.planning.get("stage_seconds", [])
    for number, stage in enumerate(plan.stages):
        solver = stage.solver
        if "status" in solver:
            numbers = ("objective_seconds", "lower_bound_seconds", "gap", "nodes", "choices")
            objective, bound, gap, nodes, choices = map(solver.get, numbers)
            rows.append(
                Certificate(
                    number,
                    str(solver["status"]),
                    objective,
                    bound,
                    gap,
                    nodes,
                    choices,
                    seconds[number] if number < len(seconds) else None,
                )
            )
    return tuple(rows)


# Communication by kind and link, and the tensors that go between meshes.


@dataclass
class Flow:
    """A tensor on a mesh, as the walk through the mesh's program finds it."""

    name: str
    kind: str
    tensor: TensorSpec
    mesh: int
    stages: set[int] = field(default_factory=set[int])
    phases: set[str] = field(default_factory=set[str])
    leaves: bool = False


def collect_tensors(plan: Plan, axes: Sequence[AxisNames]) -> Tensors:
    """Every argument, result, and value that a stage keeps or hands on, of one micro-batch."""
    forms: dict[TensorSpec, dict[int, int]] = {}
    table: list[tuple[tuple[int, ...], str, tuple[tuple[str, ...], ...], float, float]] = []
    names: list[str] = []
    kinds: list[str] = []
    form: list[int] = []
    mesh: list[int] = []
    stages: list[tuple[int, ...]] = []
    for program in plan.programs:
        for flow in _flows(plan, program):
            known = forms.setdefault(flow.tensor, {})
            if flow.mesh not in known:
                known[flow.mesh] = len(table)
                t = flow.tensor
                held = device_bytes(t, plan.meshes[flow.mesh])
                spec = tuple(map(axes[flow.mesh].dimension, t.spec))
                table.append((t.shape, t.dtype, spec, tensor_bytes(t), held))
            names.append(flow.name)
            kinds.append(_flow_kind(flow))
            form.append(known[flow.mesh])
            mesh.append(flow.mesh)
            stages.append(tuple(sorted(flow.stages)))
    return Tensors(
        tuple(table), tuple(names), tuple(kinds), tuple(form), tuple(mesh), tuple(stages)
    )


def _flow_kind(flow: Flow) -> str:
    if flow.kind == "state":
        # Micro-batches read what `prepare` makes of a weight once a step, such as its bfloat16.
        return "weight" if flow.phases & {"prepare", "forward", "backward"} else "state"
    return flow.kind


def _phase(function: str) -> str:
    return function.partition("_")[0]


def _flows(plan: Plan, program: ProgramInfo) -> Iterator[Flow]:
    """In the order of the program; values of the first micro-batch stand for all."""
    at: dict[int, Flow] = {}  # By slot.
    inputs: dict[int, Flow] = {}
    made: dict[tuple[int, str, int], Flow] = {}
    results: dict[int, Flow] = {}
    mesh = program.mesh
    for op in program.instructions:
        match op:
            case InputOp():
                info = plan.inputs[op.arg]
                if op.arg not in inputs:
                    kind = info.kind if info.is_given else "batch"
                    inputs[op.arg] = Flow(info.name, kind, op.tensor, mesh)
                at[op.slot] = inputs[op.arg]
            case RunOp():
                _run(plan, op, mesh, at, made)
            case RecvOp():
                at[op.slot] = Flow(f"received from mesh {op.source}", "activation", op.tensor, mesh)
            case ReshardOp():
                before = at.get(op.operand)
                name = before.name if before else "value"
                at[op.slot] = Flow(name, "activation", op.tensor, mesh)
            case ZeroOp():
                at[op.slot] = Flow("zeros", "gradient", op.tensor, mesh)
            case AccumulateOp():
                for slot, left in zip(op.slots, op.lefts, strict=True):
                    if left in at:
                        at[slot] = at[left]
            case AllReduceOp():
                if op.operand in at:
                    at[op.slot] = at[op.operand]
            case SendOp():
                if op.slot in at:
                    at[op.slot].leaves = True
            case OutputOp():
                found = at.get(op.slot)
                if found is not None and op.result not in results:
                    results[op.result] = found
            case FreeOp():
                for slot in op.slots:
                    at.pop(slot, None)
    yield from inputs.values()
    carried = {info.carried_by for info in plan.inputs}
    returned = {id(flow) for flow in results.values()}
    for flow in made.values():
        if (flow.phases or flow.leaves) and not (flow.kind == "update" and id(flow) in returned):
            yield flow
    for number, flow in results.items():
        if number not in carried:
            yield Flow(plan.outputs[number].name, "result", flow.tensor, mesh, flow.stages)


def _run(
    plan: Plan, op: RunOp, mesh: int, at: dict[int, Flow], made: dict[tuple[int, str, int], Flow]
) -> None:
    for slot in op.inputs:
        if slot in at:
            at[slot].stages.add(op.stage)
            at[slot].phases.add(_phase(op.function))
    kinds = {"prepare": "prepared", "forward": "activation", "backward": "gradient"}
    kind = kinds.get(_phase(op.function), "update")
    outputs = plan.stages[op.stage].functions[op.function].outputs
    for number, (slot, tensor) in enumerate(zip(op.outputs, outputs, strict=True)):
        key = (op.stage, op.function, number)
        if key not in made:
            name = f"stage {op.stage} {op.function.replace('_', ' ')}: result {number}"
            made[key] = Flow(name, kind, tensor, mesh, {op.stage})
        at[slot] = made[key]


def axis_links(mesh: MeshInfo, host_of: Sequence[int]) -> tuple[str | None, ...]:
    """What joins the devices of each axis: links within hosts, or those between hosts.

    Example:
        >>> axis_links(MeshInfo((2, 2), ("x", "y"), (0, 1, 2, 3)), [0, 0, 1, 1])
        ('network', 'host')
    """
    links: list[str | None] = []
    stride = len(mesh.devices)
    for size in mesh.shape:
        stride //= size
        if size == 1 or any(device >= len(host_of) for device in mesh.devices):
            links.append(None)
            continue
        hosts = [host_of[device] for device in mesh.devices]
        spans = any(
            hosts[i] != hosts[i + stride]
            for i in range(len(hosts))
            if (i // stride) % size != size - 1
        )
        links.append("network" if spans else "host")
    return tuple(links)


def collect_collectives(
    plan: Plan,
    explanations: Sequence[Mapping[str, Any] | None],
    host_of: Sequence[int],
    axes: Sequence[AxisNames],
) -> tuple[Collective, ...]:
    """What the stages' own collectives take in a step, the dearest first."""
    rows: list[Collective] = []
    for number, explanation in enumerate(explanations):
        mesh = plan.meshes[plan.stages[number].mesh]
        links = axis_links(mesh, host_of)
        for row in (explanation or {}).get("communication", ()):
            number_of_axis: int = row.get("axis", len(mesh.axes))
            axis = slice(number_of_axis, number_of_axis + 1)
            rows.append(
                Collective(
                    number,
                    row["collective"],
                    next(iter(axes[plan.stages[number].mesh].names[axis]), None),
                    next(iter(mesh.shape[axis]), None),
                    next(iter(links[axis]), None),
                    row["count"],
                    row["bytes"],
                    row["seconds"],
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def crossings(plan: Plan) -> tuple[Crossing, ...]:
    """What goes from mesh to mesh in a step, by the programs' sends."""
    sent = Counter(
        op.by
        for program in plan.programs
        for op in program.instructions
        if isinstance(op, SendOp) and op.by < len(plan.reshards)
    )
    found: dict[tuple[int, int], list[tuple[str, int, float, float]]] = {}
    for number, count in sent.items():
        reshard = plan.reshards[number]
        size = tensor_bytes(reshard.source)
        found.setdefault((reshard.source_mesh, reshard.target_mesh), []).append(
            (reshard.strategy, count, count * size, count * reshard.seconds)
        )
    return tuple(
        Crossing(
            source,
            target,
            tuple(sorted({row[0] for row in rows})),
            sum(row[1] for row in rows),
            sum(row[2] for row in rows),
            sum(row[3] for row in rows),
        )
        for (source, target), rows in sorted(found.items())
    )


def link_kinds(timeline: Timeline) -> tuple[LinkKind, ...]:
    """The links that transfers between meshes use, by kind and direction."""
    groups: dict[tuple[str, float], list[Any]] = {}
    for link in timeline.links:
        groups.setdefault((alike(link.link), link.bandwidth), []).append(link)
    kinds: list[LinkKind] = []
    for (kind, bandwidth), links in groups.items():
        busiest = max(links, key=lambda link: link.bytes)
        total = sum(link.bytes for link in links)
        most = (busiest.link, busiest.bytes, busiest.utilization)
        kinds.append(LinkKind(kind, bandwidth, len(links), total, *most))
    return tuple(sorted(kinds, key=lambda kind: -kind.utilization))


# Collects what a report shows from a plan, its simulation and what was recorded.

#: Plans to stand beside this one, by name, or in order.
Others = Mapping[str, Plan | str] | Sequence[Plan]


def collect(
    plan: Plan,
    *,
    timeline: Timeline | None = None,
    record: RecordLike | None = None,
    compare: Others = (),
    price: float | None = None,
) -> ReportData:
    """Everything that a report of a plan shows.

    Args:
        timeline: a simulation of this plan; by default it is simulated on its own cluster.
        record: what was recorded of its steps: a `Recording`, its trace, or the trace's file.
        compare: plans to stand beside it, or text that says why there is none.
        price: of a device for an hour.

    Raises:
        PlanFormatError: an explanation of the plan is malformed, or `record` holds no steps.

    Example:
        >>> collect(Plan.load("my_plan")).header.stages      # doctest: +SKIP
        4
    """
    missing: dict[str, tuple[str, ...]] = {}
    reason = ""
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
    strategy = strategy_of(plan, explanations)
    axes = strategy.axes
    of_stages = [axes[stage.mesh] for stage in plan.stages]
    with _readable("stage_*.explain.json", "plan the step again, or remove these files"):
        layers, unsaid = collect_layers(plan, explanations, axes)
        decisions, all_decisions = collect_decisions(explanations, of_stages)
        ops, all_ops = dear_ops(explanations, of_stages)
        collectives = collect_collectives(plan, explanations, host_of, axes)
        time = time_uses(plan, explanations, timeline)
        roofs = roofline(plan, explanations)
    if unsaid:
        missing["sharding"] = unsaid
    silent = [str(number) for number, found in enumerate(explanations) if not found]
    if silent:
        text = f"The plan does not say what takes the time of stage {', '.join(silent)}."
        missing["communication"] = (text,)
    if not plan.tried:
        missing["alternatives"] = ("The plan does not say which other candidates were tried.",)
    certificates = collect_certificates(plan)
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
    if timeline is None:
        merge_programs(plan)  # The simulator has done so.
    with _readable("record", "give what `step.record` or its file holds"):
        real = None if record is None else real_activity(record)
    tensors = collect_tensors(plan, axes)
    figures = figures_of(plan, timeline=timeline or reason, price=price, explanations=explanations)
    others = compare if isinstance(compare, Mapping) else _named(compare)
    return ReportData(
        _header(plan, cluster, hosts, timeline, real, tensors, certificates, strategy, figures),
        _figures(figures, cluster),
        PARTS,
        time,
        roofs,
        _micro_batches(plan.exactness),
        hosts,
        tuple(_mesh(mesh, host_of, axes[i]) for i, mesh in enumerate(plan.meshes)),
        _stages(plan),
        tensors,
        layers,
        None if timeline is None else simulated_activity(timeline),
        real,
        () if timeline is None else tuple(map(memory_curve, timeline.memory)),
        collectives,
        crossings(plan),
        () if timeline is None else link_kinds(timeline),
        ops,
        decisions,
        candidates(plan),
        compared(plan, others),
        certificates,
        tuple(
            (name, value)
            for name, value in sorted(plan.planning.items())
            if isinstance(value, int | float)
        ),
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


def _mesh(mesh: MeshInfo, host_of: Sequence[int], names: AxisNames) -> Mesh:
    runs: list[list[int]] = []
    for device in mesh.devices:
        if runs and device == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([device, 1])
    links = axis_links(mesh, host_of)
    devices = tuple((first, count) for first, count in runs)
    return Mesh(mesh.shape, names.names, names.kinds, devices, links)


def _stages(plan: Plan) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            stage.mesh,
            stage.layers,
            modules,
            stage.predicted.get("forward_seconds"),
            stage.predicted.get("backward_seconds"),
            stage.predicted.get("update_seconds"),
            stage.predicted.get("peak_bytes"),
            stage.predicted.get("state_bytes"),
            int(stage.predicted.get("rematerialized_layers", 0)),
            len(stage.weights),
        )
        for stage, modules in zip(plan.stages, stage_modules(plan), strict=True)
    )


def _header(
    plan: Plan,
    cluster: Mapping[str, Any],
    hosts: Sequence[HostGroup],
    timeline: Timeline | None,
    real: Activity | None,
    tensors: Tensors,
    certificates: Sequence[Certificate],
    strategy: Strategy,
    figures: Figures,
) -> Header:
    kinds = Counter[str]()
    for group in hosts:
        kinds[group.device_type] += group.count * group.devices
    used = sum(len(mesh.devices) for mesh in plan.meshes)
    state = [info for info in plan.inputs if info.kind == "state" and info.is_given]
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
        schedule=plan.pipeline_schedule,
        strategy=strategy.text,
        predicted_seconds=plan.predicted.get("step_seconds"),
        simulated_seconds=None if timeline is None else timeline.step_seconds,
        real_seconds=() if real is None else tuple(end - start for start, end in real.steps),
        bubble_fraction=None if timeline is None else timeline.bubble_fraction,
        notes=tuple(filter(None, (idle_text(plan), padded_text(plan)))),
        weights=_weights(tensors),
        state_bytes=sum(prod(info.shape) * item_bytes(info.dtype) for info in state),
        solver=_worst(statuses) if len(statuses) == len(plan.stages) else None,
        gap=max(gaps, default=None),
        search_seconds=plan.planning.get("search_seconds"),
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


def _weights(tensors: Tensors) -> int:
    """Numbers in the model's weights; one that several meshes read counts once."""
    rows = zip(tensors.names, tensors.kinds, tensors.form, strict=True)
    shapes = {name: tensors.forms[form][0] for name, kind, form in rows if kind == "weight"}
    return sum(map(prod, shapes.values()))


def _worst(statuses: Sequence[str]) -> str | None:
    others = [status for status in statuses if status != "optimal"]
    return others[0] if others else (statuses[0] if statuses else None)


def _figures(found: Figures, cluster: Mapping[str, Any]) -> PlanFigures:
    fullest, peak = found.fullest, found.peak_flops
    has_tokens = found.tokens is not None
    types: Mapping[str, Any] = cluster.get("device_types", {})
    widths = [kind.get("memory_bandwidth") for kind in types.values()]
    return PlanFigures(
        found.step_seconds,
        found.tokens_per_second if has_tokens else found.examples_per_second,
        "tokens" if has_tokens else "rows",
        found.examples,
        found.tokens,
        found.mfu,
        found.hfu,
        found.model_flops,
        found.hardware_flops,
        found.dtype,
        None if peak is None else peak / found.num_devices / 1e12,
        float(widths[0]) if len(widths) == 1 and widths[0] else None,
        None if fullest is None else fullest.needed_bytes,
        None if fullest is None else fullest.foreseen_bytes,
        fullest is not None and fullest.compiled_bytes is not None,
        None if fullest is None else fullest.capacity_bytes,
        found.gap,
        found.is_optimal,
        None if found.published is None else found.published.error,
        0 if found.published is None else found.published.runs,
        found.unit_price,
        "1B tokens" if has_tokens else "1M rows",
    )
