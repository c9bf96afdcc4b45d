"""What a simulation found: when every mesh did what, and what that means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import RunOp

from alpa_mlir.cluster.description import Cluster
from alpa_mlir.simulator.engine import Record, Work
from alpa_mlir.simulator.memory import MemoryUse, memory_use
from alpa_mlir.simulator.steps import RUN


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
    def model_flops(self) -> float | None:
        """FLOPs of the step on all devices together; None if the plan does not say.

        What rematerialization computes again counts again.
        """
        total = 0.0
        for stage in self.plan.stages:
            if "forward_flops" not in stage.predicted:
                return None
            once = stage.predicted["forward_flops"] + stage.predicted.get("backward_flops", 0.0)
            total += once * self.plan.num_micro_batches + stage.predicted.get("update_flops", 0.0)
        return total

    @property
    def tflops_per_device(self) -> float | None:
        """10^12 FLOP/s of each device on average; None if the plan does not say the FLOPs."""
        flops = self.model_flops
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
        from alpa_mlir.simulator.differences import explain_differences

        return explain_differences(self)

    def as_text(self, width: int = 100) -> str:
        """A report for people, with a timeline of `width` characters."""
        from alpa_mlir.simulator.report import timeline_text

        return timeline_text(self, width)

    def to_chrome_trace(self, path: str | FilePath) -> FilePath:
        """Write a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing."""
        from alpa_mlir.simulator.chrome_trace import write_trace

        return write_trace(self, FilePath(path))

    def chrome_events(self) -> list[dict[str, Any]]:
        """The events of that trace, to stand beside real ones (`ParallelStep.record`)."""
        from alpa_mlir.simulator.chrome_trace import trace_events

        return trace_events(self)

    def to_svg(self, path: str | FilePath, width: int = 1200) -> FilePath:
        """Write a picture of the runs and waits for browsers, `width` pixels for the step."""
        from alpa_mlir.simulator.svg import write_svg

        return write_svg(self, FilePath(path), width)
