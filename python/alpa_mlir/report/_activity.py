"""What meshes do when, simulated or recorded, and the memory that this takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from alpa_mlir.errors import PlanFormatError
from alpa_mlir.report._model import Activity, Memory

if TYPE_CHECKING:
    from alpa_mlir.simulator import MemoryUse, Timeline

KINDS = (
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


def _kind(name: str) -> int:
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
            table.append((_kind(s.what), s.start, s.end, batch, stage, 0))
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
            span = (_kind(name), start, end, batch, stage, given.get("step", 0))
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
            text: Any = json.loads(Path(record).read_text(encoding="utf-8"))
            return list(text["traceEvents"]), where
        except (OSError, ValueError, TypeError, KeyError) as error:
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
