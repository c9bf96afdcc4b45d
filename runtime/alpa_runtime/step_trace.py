"""Real steps of all workers on one clock, as a Chrome trace beside the simulated one."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from alpa_runtime.chrome_trace import TransferRow, complete, title, transfer_events
from alpa_runtime.errors import ArgumentMismatchError, WorkerError
from alpa_runtime.execution.executor import Event, clock
from alpa_runtime.execution.loaded_plan import LoadedPlan
from alpa_runtime.plan import Plan
from alpa_runtime.workers.driver import DistributedPlan

_MESHES, _TRANSFERS = 2, 3  # Process numbers; the simulated ones are 0 and 1.
_SECONDS = 1e-9
_TRIES = 5  # To compare clocks; the one that took the shortest counts.


class ChromeEvents(Protocol):
    """What can stand beside real steps: an `alpa_mlir.Timeline`."""

    def chrome_events(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class StepTrace:
    """What the workers did, on the clock of the driver.

    Attributes:
        events: of each worker.
    """

    plan: Plan
    events: tuple[tuple[Event, ...], ...] = field(repr=False)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Of each step, from its first action until its last result is there."""
        spans: dict[int, tuple[int, int]] = {}
        for events in self.events:
            for event in events:
                begin, end = spans.get(event.step, (event.begin, event.ready))
                spans[event.step] = min(begin, event.begin), max(end, event.ready, event.end)
        return tuple((end - begin) * _SECONDS for _, (begin, end) in sorted(spans.items()))

    def chrome_events(self) -> list[dict[str, Any]]:
        """The events of the trace; the first action is at time 0."""
        first = min((e.begin for events in self.events for e in events), default=0)
        result = [title("process_name", _MESHES, 0, f"meshes of {self.plan.name}, real")]
        rows: dict[tuple[int, int], int] = {}
        workers_of: dict[int, set[int]] = {}
        for worker, events in enumerate(self.events):
            for event in events:
                workers_of.setdefault(event.mesh, set()).add(worker)
        for mesh, workers in sorted(workers_of.items()):
            for worker in sorted(workers):
                rows[mesh, worker] = len(rows)
                name = f"mesh {mesh}: {self.plan.meshes[mesh].as_text()}"
                name += f", worker {worker}" if len(self.events) > 1 else ""
                result.append(title("thread_name", _MESHES, rows[mesh, worker], name))
        for worker, events in enumerate(self.events):
            busy_until: dict[int, int] = {}
            for event in events:
                if event.transfer is not None:
                    continue
                # A mesh does one thing after the other: what was started before is done before.
                start = max(event.begin, busy_until.get(event.mesh, event.begin))
                end = max(start, event.ready)
                busy_until[event.mesh] = end
                arguments = {
                    "step": event.step,
                    "stage": event.stage,
                    "micro_batch": event.micro_batch,
                    "starting_us": (event.end - event.begin) / 1000,
                    "queued_us": (start - event.begin) / 1000,
                }
                span = (start - first) * _SECONDS, (end - first) * _SECONDS
                row = rows[event.mesh, worker]
                result.append(complete(event.name, _MESHES, row, *span, arguments))
        name = f"transfers of {self.plan.name}, real"
        return result + transfer_events(_TRANSFERS, name, self._transfers(first))

    def _transfers(self, first: int) -> list[TransferRow]:
        """From the first that a sender does until all of it is there."""
        halves: dict[tuple[int, int, int | None, int | None], list[Event]] = {}
        for events in self.events:
            for event in events:
                if event.transfer is not None:
                    ends = event.source_mesh, event.target_mesh
                    halves.setdefault((event.step, event.transfer, *ends), []).append(event)
        rows: list[TransferRow] = []
        for (step, tag, *_), events in halves.items():
            event = events[0]
            assert event.source_mesh is not None
            assert event.target_mesh is not None
            received = [e for e in events if e.kind != "send"] or events
            sent = [e for e in events if e.kind != "receive"] or events
            start = min(e.begin for e in sent)
            end = max(start, *(e.ready for e in received))
            rows.append(
                TransferRow(
                    f"copy {tag}",
                    event.source_mesh,
                    event.target_mesh,
                    (start - first) * _SECONDS,
                    (end - first) * _SECONDS,
                    {"step": step, "bytes": event.bytes},
                )
            )
        return sorted(rows, key=lambda row: row.start)

    def write(self, path: str | Path, simulated: ChromeEvents | None = None) -> Path:
        """Write a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

        Args:
            simulated: what stands beside it in the same file: `alpa_mlir.simulate(plan)`.
        """
        path = Path(path)
        events = self.chrome_events() + ([] if simulated is None else simulated.chrome_events())
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        return path


class Recording:
    """Steps that are called within `with` are recorded; what was recorded is `trace`.

    Raises:
        ArgumentMismatchError: there cannot be a file of that name, or the steps are recorded
            already; found before the first step.
        WorkerError: a worker failed.
    """

    def __init__(
        self,
        loaded: LoadedPlan | DistributedPlan,
        path: str | Path | None = None,
        simulated: ChromeEvents | None = None,
    ) -> None:
        self._loaded = loaded
        self._path = path
        self._simulated = simulated
        self.trace: StepTrace | None = None

    def __enter__(self) -> Recording:
        loaded = self._loaded
        if self._path is not None:  # What cannot be written is better known before the steps.
            _make_room_for(Path(self._path))
        if isinstance(loaded, DistributedPlan):
            for rank in range(loaded.placement.size):
                loaded.ask(rank, "start_trace").result()
        else:
            loaded.start_trace()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            _end(self._loaded)
            return
        self.trace = StepTrace(self._loaded.plan, _stop(self._loaded))
        if self._path is not None:
            self.trace.write(self._path, self._simulated)


def _make_room_for(path: Path) -> None:
    """Raises an ArgumentMismatchError where no file can be."""
    problem = "it is a folder" if path.is_dir() else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror
    if problem is None and not os.access(path.parent, os.W_OK):
        problem = "the folder cannot be written to"
    if problem is not None:
        raise ArgumentMismatchError(
            f"the trace cannot be written: {problem}", where=str(path), fix="give another name"
        )


def _end(loaded: LoadedPlan | DistributedPlan) -> None:
    """Record no more; waits for no worker, since some may be gone."""
    if not isinstance(loaded, DistributedPlan):
        loaded.stop_trace()
        return
    for rank in range(loaded.placement.size):
        with contextlib.suppress(WorkerError):
            loaded.ask(rank, "stop_trace")


def _stop(loaded: LoadedPlan | DistributedPlan) -> tuple[tuple[Event, ...], ...]:
    if not isinstance(loaded, DistributedPlan):
        return (tuple(loaded.stop_trace()),)
    size = loaded.placement.size
    replies = [loaded.ask(rank, "stop_trace") for rank in range(size)]
    found = [reply.result() for reply in replies]
    return tuple(_aligned(events, _ahead(loaded, rank)) for rank, events in enumerate(found))


def _ahead(loaded: DistributedPlan, rank: int) -> int:
    """Nanoseconds by which a worker's clock is ahead of this one's.

    Its answer was given about in the middle of the time that the call took (Cristian, 1989).
    """
    tries: list[tuple[int, int]] = []
    for _ in range(_TRIES):
        asked = clock()
        there: int = loaded.ask(rank, "clock").result()
        took = clock() - asked
        tries.append((took, there - (asked + took // 2)))
    return min(tries)[1]


def _aligned(events: Sequence[Event], ahead: int) -> tuple[Event, ...]:
    return tuple(
        replace(e, begin=e.begin - ahead, end=e.end - ahead, ready=e.ready - ahead) for e in events
    )
