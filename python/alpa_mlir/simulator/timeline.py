"""What a simulation found, memory over time too, and what that means: as values, text, trace and
picture.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pathlib import Path as FilePath
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from alpa_runtime.chrome_trace import TransferRow, complete, counter, title, transfer_events
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import (
    AccumulateOp,
    AllReduceOp,
    FreeOp,
    InputOp,
    Instruction,
    OutputOp,
    ProgramInfo,
    RecvOp,
    ReshardOp,
    RunOp,
    SendOp,
    ZeroOp,
)
from alpa_runtime.plan.stage import MeshInfo, StageInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.text import bytes_text, ranges_text, seconds_text, table
from numpy.typing import NDArray

from alpa_mlir.cluster import Cluster
from alpa_mlir.simulator.costs import BACKWARD_PARTS, device_bytes, hardware_flops
from alpa_mlir.simulator.engine import RUN, Record, Step, Steps, Work, execute

# State that the step is given counts from the beginning, other buffers from the instruction that
# makes them until the one that frees them, or until the receivers have taken what was sent of them.
# A function's results have their buffers while it runs. A result takes the buffer of an argument of
# the same form that is freed next, as the runtime gives it away, and a sum that of its left operand
# where it has its slot. A term that the runtime lets the function add to its sum takes none. What
# the search foresaw that a function holds besides its arguments and results is there while it runs.


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on each device of a mesh; between `times[i]` and `times[i + 1]` it is `bytes[i]`.

    Attributes:
        peak_bytes: the most at any time.
        predicted_bytes: the peak that the search foresaw, or None if the plan does not say.
        capacity_bytes: what a device has, or None if the cluster does not say.
    """

    times: NDArray[np.float64]
    bytes: NDArray[np.float64]
    peak_bytes: float
    predicted_bytes: float | None
    capacity_bytes: float | None

    def at(self, seconds: float) -> float:
        """Bytes at a time of the step.

        Example:
            >>> use = MemoryUse(np.array([0.0, 1.0]), np.array([4.0, 0.0]), 4.0, None, None)
            >>> use.at(0.5)
            4.0
        """
        index = int(np.searchsorted(self.times, seconds, side="right")) - 1
        return float(self.bytes[index]) if index >= 0 else 0.0


@dataclass(frozen=True)
class _Sharing:
    """Which buffers the runs of a program share.

    Attributes:
        terms: where runs make terms that they add to sums, as (position, slot).
        given: for each (stage, function) the inputs whose buffers outputs take.
    """

    terms: Set[tuple[int, int]]
    given: Mapping[tuple[int, str], Sequence[int]]


def _sharing_of(plan: Plan, instructions: Sequence[Instruction]) -> _Sharing:
    """As the runtime has it: `executor.donations`, `program_merge.fold_sums`.

    A function adds a term that is read for its sum alone, if the sum is there before. An output
    takes the buffer of an input of its form that each run is the last to read, other than arrays
    that the caller keeps and, since receivers may be slow, what was sent; an output to which a run
    adds takes its sum's.
    """
    made: dict[int, int] = {}  # Positions by slot.
    kept: set[int] = set()  # Slots of what was lent by the caller or sent.
    reads: Counter[tuple[int, int]] = Counter()
    added: list[tuple[int, int]] = []
    dying: dict[tuple[int, str], set[int]] = {}
    for position, op in enumerate(instructions):
        match op:
            case RunOp():
                following = instructions[position + 1] if position + 1 < len(instructions) else None
                freed = set(following.slots) if isinstance(following, FreeOp) else set[int]()
                count = Counter(op.inputs)
                now = {
                    i
                    for i, slot in enumerate(op.inputs)
                    if slot in freed and slot not in kept and count[slot] == 1
                }
                key = op.stage, op.function
                dying[key] = dying[key] & now if key in dying else now
            case AccumulateOp():
                added += [
                    (made[right], right)
                    for left, right in zip(op.lefts, op.rights, strict=True)
                    if made[left] < made[right]
                ]
            case SendOp():
                kept.add(op.slot)
            case AllReduceOp():
                kept.add(op.operand)
            case _:
                pass
        reads.update((made[slot], slot) for slot in _read_slots(op))
        for slot in _made_slots(op):
            made[slot] = position
            kept.discard(slot)
        if isinstance(op, InputOp) and plan.inputs[op.arg].carried_by is None:
            kept.add(op.slot)
        if isinstance(op, AllReduceOp) and not op.by:
            kept.add(op.slot)
    terms: set[tuple[int, int]] = set()
    summed: dict[tuple[int, str], set[int]] = {}
    for position, slot in added:
        run = instructions[position]
        if not isinstance(run, RunOp) or reads[position, slot] > 1:
            continue
        output = run.outputs.index(slot)
        if plan.stages[run.stage].functions[run.function].outputs[output].dtype != "bool":
            terms.add((position, slot))
            summed.setdefault((run.stage, run.function), set()).add(output)
    given: dict[tuple[int, str], list[int]] = {}
    for (stage, name), inputs in dying.items():
        function = plan.stages[stage].functions[name]
        sums = summed.get((stage, name), ())
        wanted = Counter(t for j, t in enumerate(function.outputs) if j not in sums)
        taken = given[stage, name] = list[int]()
        for i in sorted(inputs):
            if wanted[function.inputs[i]] > 0:
                wanted[function.inputs[i]] -= 1
                taken.append(i)
    return _Sharing(terms, given)


def _read_slots(op: Instruction) -> Sequence[int]:
    match op:
        case RunOp():
            return op.inputs
        case AccumulateOp():
            return (*op.lefts, *op.rights)
        case ReshardOp() | AllReduceOp():
            return (op.operand,)
        case SendOp() | OutputOp():
            return (op.slot,)
        case _:
            return ()


def _made_slots(op: Instruction) -> Sequence[int]:
    match op:
        case RunOp():
            return op.outputs
        case AccumulateOp():
            return op.slots
        case InputOp() | RecvOp() | ReshardOp() | ZeroOp() | AllReduceOp():
            return (op.slot,)
        case _:
            return ()


class _MeshMemory:
    """Walks one program; changes are (time, bytes) in program order."""

    def __init__(self, plan: Plan, mesh: int, record: Record, steps: Sequence[Step]) -> None:
        self.plan = plan
        self.mesh: MeshInfo = plan.meshes[mesh]
        self.record = record
        self.clocks = iter(record.clocks[mesh])
        self.runs = iter(record.runs[mesh])
        self.now = 0.0
        self.held: dict[int, float] = {}  # Bytes by slot.
        self.forms: dict[int, TensorSpec] = {}
        self.keys = iter([what for kind, what, _ in steps if kind != RUN])
        self.busy_until: dict[int, float] = {}  # Slots that receivers still have to take.
        self.times: list[float] = []
        self.changes: list[float] = []
        self.sizes: dict[int, float] = {}

    def walk(self, program: ProgramInfo) -> None:
        instructions = program.instructions
        sharing = _sharing_of(self.plan, instructions)
        for position, op in enumerate(instructions):
            match op:
                case RunOp():
                    self.run(op, position, sharing)
                case SendOp():
                    self.send(op.slot)
                case RecvOp():
                    self.receive()
                    self.make(self.now, op.slot, op.tensor)
                case ReshardOp() | ZeroOp():
                    self.make(self.now, op.slot, op.tensor)
                case AllReduceOp():
                    self.all_reduce(op)
                case InputOp():
                    is_state = self.plan.inputs[op.arg].kind == "state"
                    self.make(0.0 if is_state else self.now, op.slot, op.tensor)
                case AccumulateOp():
                    self.accumulate(op)
                case FreeOp():
                    for slot in op.slots:
                        self.free(slot)
                case _:
                    pass

    def send(self, slot: int) -> None:
        self.now = next(self.clocks)
        taken = self.record.taken[next(self.keys)]
        self.busy_until[slot] = max(taken, self.busy_until.get(slot, 0.0))

    def receive(self) -> None:
        self.now = next(self.clocks)
        next(self.keys)

    def all_reduce(self, op: AllReduceOp) -> None:
        """The first mesh keeps one more part while it adds it to the sum."""
        tensor = self.forms[op.operand]
        others = op.members[1:]
        if op.by:
            self.send(op.operand)
            self.receive()
            self.make(self.now, op.slot, tensor)
            return
        for _ in others:
            self.receive()
        self.make(self.now, op.slot, tensor)
        self.change(self.now, self.size_of(tensor))
        self.change(self.now, -self.size_of(tensor))
        for _ in others:
            self.send(op.slot)

    def size_of(self, tensor: TensorSpec) -> float:
        key = id(tensor)
        if key not in self.sizes:
            self.sizes[key] = 0.0 if tensor.on_host else device_bytes(tensor, self.mesh)
        return self.sizes[key]

    def change(self, time: float, count: float) -> None:
        if count:
            self.times.append(time)
            self.changes.append(count)

    def make(self, time: float, slot: int, tensor: TensorSpec) -> None:
        if slot in self.held:
            self.free(slot)
        size = self.held[slot] = self.size_of(tensor)
        self.forms[slot] = tensor
        self.change(time, size)

    def free(self, slot: int) -> None:
        until = max(self.now, self.busy_until.pop(slot, 0.0))
        self.change(until, -self.held.pop(slot, 0.0))

    def run(self, op: RunOp, position: int, sharing: _Sharing) -> None:
        start, end = next(self.runs)
        self.now = next(self.clocks)
        stage = self.plan.stages[op.stage]
        outputs = stage.functions[op.function].outputs
        taken = [op.inputs[i] for i in sharing.given[op.stage, op.function]]
        made = 0.0
        for slot, tensor in zip(op.outputs, outputs, strict=True):
            is_added = (position, slot) in sharing.terms
            self.held[slot] = 0.0 if is_added else self.size_of(tensor)
            self.forms[slot] = tensor
            made += self.held[slot]
        for slot in taken:
            made -= self.held[slot]
            self.held[slot] = 0.0
        scratch = _scratch_bytes(stage, op.function)
        self.change(start, made + scratch)
        self.change(end, -scratch)

    def accumulate(self, op: AccumulateOp) -> None:
        forms = [self.forms[left] for left in op.lefts]
        for slot, left, tensor in zip(op.slots, op.lefts, forms, strict=True):
            if slot != left:
                self.make(self.now, slot, tensor)


def _scratch_bytes(stage: StageInfo, function: str) -> float:
    """What a call holds besides its arguments and results; each part of a backward as the whole
    one, if the plan does not say."""
    phase = "update" if function.startswith("update") else function
    whole = "backward" if phase in BACKWARD_PARTS else phase
    otherwise = stage.predicted.get(f"{whole}_scratch_bytes", 0.0)
    return stage.predicted.get(f"{phase}_scratch_bytes", otherwise)


def memory_use(
    plan: Plan, record: Record, steps: Steps, capacities: Sequence[float | None]
) -> tuple[MemoryUse, ...]:
    """The memory of each mesh's devices.

    Args:
        steps: of each mesh, in order.
        capacities: bytes of a device of each mesh.
    """
    uses: list[MemoryUse] = []
    programs = {program.mesh: program for program in plan.programs}
    for mesh, capacity in enumerate(capacities):
        walker = _MeshMemory(plan, mesh, record, steps[mesh])
        walker.walk(programs[mesh])
        times = np.array([0.0, *walker.times])
        changes = np.array([0.0, *walker.changes])
        order = np.argsort(times, kind="stable")
        times, held = times[order], np.cumsum(changes[order])
        last = np.append(np.diff(times) > 0, True)  # What holds after all changes of a moment.
        predicted = [s.predicted.get("peak_bytes") for s in plan.stages if s.mesh == mesh]
        known = [p for p in predicted if p is not None]
        uses.append(
            MemoryUse(
                times[last],
                held[last],
                float(held.max()),
                sum(known) if known and len(known) == len(predicted) else None,
                capacity,
            )
        )
    return tuple(uses)


# What a simulation found, and what that means: as values, text, trace and picture.


@dataclass(frozen=True, slots=True)
class Span:
    """A mesh is busy with `what` (`"forward"`, `"update_0"`), or waits (`"wait"`), in seconds."""

    start: float
    end: float
    what: str
    micro_batch: int | None = None
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor on its way from mesh to mesh.

    Attributes:
        bytes: of the whole tensor.
        alone_seconds: what it takes without other transfers.
        reshard: by which it goes.
    """

    tag: int
    source: int
    target: int
    bytes: float
    start: float
    end: float
    alone_seconds: float
    reshard: int


@dataclass(frozen=True)
class MeshUse:
    """How a mesh spends a step, in seconds: computing, waiting for values, idle at the end."""

    busy_seconds: float
    waiting_seconds: float
    idle_seconds: float


@dataclass(frozen=True)
class LinkTraffic:
    """Bytes over one direction of a link in a step; `utilization` is their part of what fits."""

    link: str
    bandwidth: float
    bytes: float
    utilization: float


@dataclass(frozen=True)
class Timeline:
    """A step of a plan on a cluster, simulated.

    Attributes:
        plan, cluster: what was simulated.
        share_links: whether transfers between different meshes share links.
        step_seconds: until the last mesh and the last transfer are done.
    """

    plan: Plan
    cluster: Cluster
    share_links: bool
    work: Work = field(repr=False)
    record: Record = field(repr=False)

    @property
    def step_seconds(self) -> float:
        return self.record.seconds

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """Runs and waits of each mesh, in order of time."""
        programs = {program.mesh: program for program in self.plan.programs}
        result: list[tuple[Span, ...]] = []
        for mesh, steps in enumerate(self.work.steps):
            instructions = programs[mesh].instructions
            spans = [Span(a, b, "wait") for a, b, _ in self.record.waits[mesh]]
            times = iter(self.record.runs[mesh])
            for kind, _, position in steps:
                if kind == RUN:
                    op = instructions[position]
                    assert isinstance(op, RunOp)
                    start, end = next(times)
                    spans.append(Span(start, end, op.function, op.micro_batch, op.stage))
            result.append(tuple(sorted(spans, key=lambda s: (s.start, s.end))))
        return tuple(result)

    def name_of(self, span: Span) -> str:
        """For people; with the stage, if the mesh has several.

        Example:
            >>> timeline.name_of(timeline.spans[0][0])       # doctest: +SKIP
            'forward 0'
        """
        name = span.what if span.micro_batch is None else f"{span.what} {span.micro_batch}"
        stages = self.plan.stages
        if span.stage is None or self._shared[stages[span.stage].mesh] == 1:
            return name
        return f"{name} of stage {span.stage}"

    @cached_property
    def _shared(self) -> Counter[int]:
        """Stages of each mesh."""
        return Counter(stage.mesh for stage in self.plan.stages)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers in the order in which they start."""
        work, record = self.work, self.record
        found = [
            Transfer(
                sent.tag,
                sent.source,
                sent.target,
                sent.bytes,
                record.started[key],
                record.ended[key],
                work.routes[sent.route].seconds,
                sent.route,
            )
            for key, sent in work.transfers.items()
        ]
        return tuple(sorted(found, key=lambda t: (t.start, t.tag)))

    @cached_property
    def meshes(self) -> tuple[MeshUse, ...]:
        """How each mesh spends the step."""
        uses: list[MeshUse] = []
        for mesh, runs in enumerate(self.record.runs):
            busy = sum(end - start for start, end in runs)
            waiting = sum(end - start for start, end, _ in self.record.waits[mesh])
            uses.append(MeshUse(busy, waiting, max(0.0, self.step_seconds - busy - waiting)))
        return tuple(uses)

    @property
    def bubble_fraction(self) -> float:
        """The part of all devices' time in which they compute nothing."""
        sizes = [len(mesh.devices) for mesh in self.plan.meshes]
        total = self.step_seconds * sum(sizes)
        busy = sum(n * use.busy_seconds for n, use in zip(sizes, self.meshes, strict=True))
        return 1 - busy / total if total else 0.0

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        """Memory over time of a device of each mesh."""
        sizes = self.cluster.device_memory_bytes
        capacities = [
            min((sizes[d] for d in mesh.devices if d < len(sizes)), default=None)
            for mesh in self.plan.meshes
        ]
        return memory_use(self.plan, self.record, self.work.steps, capacities)

    @property
    def tflops_per_device(self) -> float | None:
        """10^12 FLOP/s of each device on average; None if the plan does not say the FLOPs."""
        flops = hardware_flops(self.plan)
        if flops is None or not self.step_seconds:
            return None
        devices = sum(len(mesh.devices) for mesh in self.plan.meshes)
        return flops / self.step_seconds / devices / 1e12

    @cached_property
    def links(self) -> tuple[LinkTraffic, ...]:
        """Traffic on every link that the step uses, the busiest first."""
        moved: dict[tuple[str, float], float] = {}
        for sent in self.work.transfers.values():
            for use in self.work.routes[sent.route].links:
                key = (use.link, use.bandwidth)
                moved[key] = moved.get(key, 0.0) + use.bytes
        traffic = [
            LinkTraffic(link, bandwidth, size, size / (bandwidth * self.step_seconds))
            for (link, bandwidth), size in moved.items()
            if self.step_seconds
        ]
        return tuple(sorted(traffic, key=lambda t: (-t.utilization, t.link)))

    @cached_property
    def differences(self) -> Mapping[str, float]:
        """Seconds by which the simulated step differs from the predicted one, by cause.

        They add up to the whole difference; empty if the plan predicts no seconds. `docs/
        simulator.md` says what each cause holds.
        """

        return explain_differences(self)

    def as_text(self, width: int = 100) -> str:
        """A report for people, with a timeline of `width` characters."""

        return timeline_text(self, width)

    def to_chrome_trace(self, path: str | FilePath) -> FilePath:
        """Write a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing."""

        return write_trace(self, FilePath(path))

    def chrome_events(self) -> list[dict[str, Any]]:
        """The events of that trace, to stand beside real ones (`ParallelStep.record`)."""

        return trace_events(self)

    def to_svg(self, path: str | FilePath, width: int = 1200) -> FilePath:
        """Write a picture of the runs and waits for browsers, `width` pixels for the step."""

        return write_svg(self, FilePath(path), width)


SHARING = "links shared by transfers"
UPDATES = "updates beside other stages' work"
TRANSFERS = "transfers not hidden by compute"
SCHEDULE = "warm-up and round trips of the schedule"
NAMES = (SHARING, UPDATES, TRANSFERS, SCHEDULE)


def explain_differences(timeline: Timeline) -> Mapping[str, float]:
    """Seconds by cause, found by simulating again with one cause after the other taken away."""
    predicted = timeline.plan.predicted
    if "step_seconds" not in predicted:
        return {}
    work = timeline.work
    total = timeline.step_seconds
    alone = execute(work, share_links=False).seconds if timeline.share_links else total
    still = {k: 0.0 if k[1].startswith("update") else s for k, s in work.seconds.items()}
    without_update = execute(replace(work, seconds=still), share_links=False).seconds
    instant = tuple(replace(r, latency_seconds=0.0, flow_seconds=0.0) for r in work.routes)
    computing = execute(replace(work, seconds=still, routes=instant), share_links=False).seconds
    update = predicted.get("update_seconds", 0.0)
    transfer = predicted.get("transfer_seconds", 0.0)
    return {
        SHARING: total - alone,
        UPDATES: alone - without_update - update,
        TRANSFERS: without_update - computing - transfer,
        SCHEDULE: computing - (predicted["step_seconds"] - update - transfer),
    }


TOLERANCE = 0.03  # A simulated step that is closer to the predicted one needs no explanation.


def timeline_text(timeline: Timeline, width: int) -> str:
    """Summary, stages, timeline, links, and why the prediction differs where it does."""
    parts = [_summary(timeline), _meshes(timeline), _chart(timeline, width)]
    links = _links(timeline)
    if links:
        parts.append(links)
    difference = _difference(timeline)
    if difference:
        parts.append(difference)
    return "\n\n".join(parts)


def _summary(timeline: Timeline) -> str:
    plan = timeline.plan
    devices = sum(len(mesh.devices) for mesh in plan.meshes)
    count = plan.num_micro_batches
    lines = [
        f"simulated step of {plan.name}: {seconds_text(timeline.step_seconds)} on {devices} "
        f"device{'s' * (devices > 1)} of {timeline.cluster.name}, {count} "
        f"micro-batch{'es' * (count > 1)}"
        + (f", schedule {plan.pipeline_schedule}" if plan.pipeline_schedule else "")
    ]
    facts = [f"{timeline.bubble_fraction:.1%} of all devices' time is spent on no function"]
    tflops = timeline.tflops_per_device
    if tflops is not None:
        facts.append(f"{tflops:.4g} TFLOP/s on each device")
    if not timeline.share_links:
        facts.append("links are not shared")
    lines.append("; ".join(facts))
    return "\n".join(lines)


def _meshes(timeline: Timeline) -> str:
    header = ("mesh", "devices", "busy", "waits", "idle", "peak memory", "foreseen", "device has")
    rows: list[list[str]] = []
    step = timeline.step_seconds or 1.0
    for index, (use, memory) in enumerate(zip(timeline.meshes, timeline.memory, strict=True)):
        rows.append(
            [
                str(index),
                ranges_text(timeline.plan.meshes[index].devices),
                f"{seconds_text(use.busy_seconds)} ({use.busy_seconds / step:.0%})",
                seconds_text(use.waiting_seconds),
                seconds_text(use.idle_seconds),
                bytes_text(memory.peak_bytes),
                _bytes(memory.predicted_bytes),
                _bytes(memory.capacity_bytes),
            ]
        )
    return table(header, rows)


def _bytes(count: float | None) -> str:
    return "?" if count is None else bytes_text(count)


LETTERS = {
    "prepare": "P",
    "forward": "F",
    "barrier": "=",
    "backward": "B",
    "backward_input": "B",
    "backward_weight": "W",
    "update": "U",
    "wait": ".",
}


def _chart(timeline: Timeline, width: int) -> str:
    """A row of characters a mesh; where one stands for several runs, their letters mix."""
    width = max(width, 20)
    step = timeline.step_seconds
    cut = any("backward_weight" in stage.functions for stage in timeline.plan.stages)
    weight = ", W its part for the weights" if cut else ""
    meets = any("barrier" in stage.functions for stage in timeline.plan.stages)
    barrier = ", = barrier" if meets else ""
    prepares = any("prepare" in stage.functions for stage in timeline.plan.stages)
    weights = "P weights for all micro-batches, " if prepares else ""
    scale = f"a character is {seconds_text(step / width)}"
    lines = [f"{weights}F forward{barrier}, B backward{weight}, U update, . waiting; {scale}"]
    for mesh, spans in enumerate(timeline.spans):
        lines.append(f"mesh {mesh:>3} |{_row(spans, step, width)}|")
    return "\n".join(lines)


def _row(spans: tuple[Span, ...], step: float, width: int) -> str:
    if not step:
        return " " * width
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    for span in spans:
        letter = LETTERS["update" if span.what.startswith("update") else span.what]
        first = min(int(span.start / step * width), width - 1)
        last = min(int(span.end / step * width), width - 1)
        for cell in range(first, last + 1):
            begin, end = cell * step / width, (cell + 1) * step / width
            part = min(span.end, end) - max(span.start, begin)
            if part > 0:
                shares[cell][letter] = shares[cell].get(letter, 0.0) + part
    return _dither(shares, step / width)


def _dither(shares: list[dict[str, float]], cell_seconds: float) -> str:
    """One letter a cell; what does not get the letter is carried over to the next cells."""
    row = ""
    credit: dict[str, float] = {}
    for share in shares:
        idle = cell_seconds - sum(share.values())
        for letter, seconds in (*share.items(), (" ", idle)):
            credit[letter] = credit.get(letter, 0.0) + seconds
        present = [letter for letter in share if share[letter] > 0]
        if idle > 1e-9 * cell_seconds or not present:
            present.append(" ")
        best = max(present, key=lambda letter: credit[letter])
        credit[best] -= cell_seconds
        row += best
    return row


def _links(timeline: Timeline, most: int = 8) -> str:
    traffic = timeline.links
    if not traffic:
        return ""
    rows = [
        [t.link, f"{bytes_text(t.bandwidth)}/s", bytes_text(t.bytes), f"{t.utilization:.1%}"]
        for t in traffic[:most]
    ]
    text = table(("link", "bandwidth", "bytes a step", "used"), rows)
    hidden = len(traffic) - len(rows)
    return text + (f"\nand {hidden} links with less traffic" if hidden > 0 else "")


def _difference(timeline: Timeline) -> str:
    predicted = timeline.plan.predicted.get("step_seconds")
    if not predicted:
        return ""
    delta = timeline.step_seconds - predicted
    head = (
        f"the search foresaw {seconds_text(predicted)}; the simulated step takes "
        f"{abs(delta) / predicted:.1%} {'more' if delta >= 0 else 'less'}"
    )
    if abs(delta) <= TOLERANCE * predicted:
        return head
    causes = sorted(timeline.differences.items(), key=lambda item: -abs(item[1]))
    lines = [
        f"  {'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))} {cause}"
        for cause, seconds in causes
        if abs(seconds) > 0.001 * predicted
    ]
    return "\n".join([head + ":", *lines])


_MESHES, _TRANSFERS = 0, 1  # Process numbers: a row a mesh, a row (or more) a pair of meshes.


def write_trace(timeline: Timeline, path: Path) -> Path:
    """Write runs, waits, transfers and memory as JSON."""
    path.write_text(json.dumps({"traceEvents": trace_events(timeline), "displayTimeUnit": "ms"}))
    return path


def trace_events(timeline: Timeline) -> list[dict[str, Any]]:
    """The events; times are in microseconds."""
    events = [title("process_name", _MESHES, 0, f"meshes of {timeline.plan.name}")]
    for mesh, spans in enumerate(timeline.spans):
        text = timeline.plan.meshes[mesh].as_text()
        events.append(title("thread_name", _MESHES, mesh, f"mesh {mesh}: {text}"))
        for span in spans:
            arguments = {"stage": span.stage, "micro_batch": span.micro_batch}
            name = timeline.name_of(span)
            events.append(complete(name, _MESHES, mesh, span.start, span.end, arguments))
        memory = timeline.memory[mesh]
        for time, count in zip(memory.times.tolist(), memory.bytes.tolist(), strict=True):
            values = {"bytes a device": count}
            events.append(counter(f"memory of mesh {mesh}", _MESHES, time, values))
    transfers = [
        TransferRow(
            f"tag {transfer.tag}",
            transfer.source,
            transfer.target,
            transfer.start,
            transfer.end,
            {"bytes": transfer.bytes, "alone_us": transfer.alone_seconds * 1e6},
        )
        for transfer in timeline.transfers
    ]
    return events + transfer_events(_TRANSFERS, "transfers", transfers)


COLORS = {
    "prepare": "#eeca3b",
    "forward": "#4c78a8",
    "barrier": "#b279a2",
    "backward": "#72b7b2",
    "backward_input": "#72b7b2",
    "backward_weight": "#54a24b",
    "update": "#e45756",
    "wait": "#e8e8e8",
}
_ROW, _BAR, _LEFT, _TOP = 22, 16, 250, 46
_SMALLEST = 0.5  # Pixels: shorter runs of one kind that follow each other become one box.


def write_svg(timeline: Timeline, path: Path, width: int) -> Path:
    """Write the picture; boxes say what they are when pointed at."""
    path.write_text("\n".join(_lines(timeline, max(width, 200))) + "\n")
    return path


def _lines(timeline: Timeline, width: int) -> Iterator[str]:
    step = timeline.step_seconds or 1.0
    height = _TOP + _ROW * len(timeline.spans) + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + width + 10}" '
        f'height="{height}" font-family="sans-serif" font-size="12">'
    )
    title = f"{timeline.plan.name}: {seconds_text(timeline.step_seconds)} a step"
    yield f'<text x="4" y="16" font-weight="bold">{escape(title)}</text>'
    present = {_kind(span) for spans in timeline.spans for span in spans}
    for i, kind in enumerate(kind for kind in COLORS if kind in present):
        x = _LEFT + 130 * i
        yield f'<rect x="{x}" y="6" width="12" height="12" fill="{COLORS[kind]}"/>'
        yield f'<text x="{x + 16}" y="16">{kind}</text>'
    for i in range(5):
        x = _LEFT + width * i / 4
        anchor = "middle" if i < 4 else "end"
        yield f'<text x="{x:.1f}" y="38" text-anchor="{anchor}">{seconds_text(step * i / 4)}</text>'
    for mesh, (spans, memory) in enumerate(zip(timeline.spans, timeline.memory, strict=True)):
        y = _TOP + _ROW * mesh
        label = f"mesh {mesh}, peak {bytes_text(memory.peak_bytes)} a device"
        yield f'<text x="4" y="{y + 12}">{label}</text>'
        yield from _boxes(timeline, spans, y, width / step)
    yield "</svg>"


def _boxes(timeline: Timeline, spans: Sequence[Span], y: int, scale: float) -> Iterator[str]:
    first = 0
    for i, span in enumerate(spans):
        kind = _kind(span)
        following = spans[i + 1] if i + 1 < len(spans) else None
        start, end = spans[first].start, span.end
        if (
            (end - start) * scale < _SMALLEST
            and following is not None
            and _kind(following) == kind
            and (following.start - end) * scale < _SMALLEST
        ):
            continue
        what = timeline.name_of(span) if first == i else f"{i - first + 1} times {span.what}"
        yield (
            f'<rect x="{_LEFT + start * scale:.2f}" y="{y}" width="{(end - start) * scale:.2f}" '
            f'height="{_BAR}" fill="{COLORS[kind]}" stroke="white" stroke-width="0.3">'
            f"<title>{escape(what)}: {seconds_text(start)} to {seconds_text(end)}</title></rect>"
        )
        first = i + 1


def _kind(span: Span) -> str:
    return "update" if span.what.startswith("update") else span.what
