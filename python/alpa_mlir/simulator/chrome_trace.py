"""A simulated step in the Trace Event Format that Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpa_mlir.simulator.timeline import Timeline, Transfer

_MICROSECONDS = 1e6
_MESHES, _TRANSFERS = 0, 1  # Process numbers: a row a mesh, a row (or more) a pair of meshes.


def write_trace(timeline: Timeline, path: Path) -> Path:
    """Write runs, waits, transfers and memory as JSON."""
    path.write_text(json.dumps({"traceEvents": trace_events(timeline), "displayTimeUnit": "ms"}))
    return path


def trace_events(timeline: Timeline) -> list[dict[str, Any]]:
    """The events; times are in microseconds."""
    events = [_name("process_name", _MESHES, 0, f"meshes of {timeline.plan.name}")]
    for mesh, spans in enumerate(timeline.spans):
        text = timeline.plan.meshes[mesh].as_text()
        events.append(_name("thread_name", _MESHES, mesh, f"mesh {mesh}: {text}"))
        for span in spans:
            events.append(
                _complete(
                    timeline.name_of(span),
                    _MESHES,
                    mesh,
                    span.start,
                    span.end,
                    {"stage": span.stage, "micro_batch": span.micro_batch},
                )
            )
        memory = timeline.memory[mesh]
        for time, count in zip(memory.times.tolist(), memory.bytes.tolist(), strict=True):
            events.append(
                {
                    "ph": "C",
                    "name": f"memory of mesh {mesh}",
                    "pid": _MESHES,
                    "ts": time * _MICROSECONDS,
                    "args": {"bytes a device": count},
                }
            )
    return events + _transfer_events(timeline)


def _transfer_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Transfers of a pair that overlap go into rows below each other."""
    events = [_name("process_name", _TRANSFERS, 0, "transfers")]
    rows: dict[tuple[int, int, int], int] = {}
    free_from: dict[tuple[int, int], list[float]] = {}
    for transfer in timeline.transfers:
        pair = (transfer.source, transfer.target)
        ends = free_from.setdefault(pair, [])
        lane = next((i for i, end in enumerate(ends) if end <= transfer.start), len(ends))
        if lane == len(ends):
            ends.append(0.0)
            rows[*pair, lane] = len(rows)
            name = f"mesh {pair[0]} to mesh {pair[1]}"
            events.append(_name("thread_name", _TRANSFERS, rows[*pair, lane], name))
        ends[lane] = transfer.end
        events.append(_transfer_event(transfer, rows[*pair, lane]))
    return events


def _transfer_event(transfer: Transfer, row: int) -> dict[str, Any]:
    arguments = {"bytes": transfer.bytes, "alone_us": transfer.alone_seconds * _MICROSECONDS}
    name = f"tag {transfer.tag}"
    return _complete(name, _TRANSFERS, row, transfer.start, transfer.end, arguments)


def _complete(
    name: str, process: int, row: int, start: float, end: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": row,
        "ts": start * _MICROSECONDS,
        "dur": (end - start) * _MICROSECONDS,
        "args": {key: value for key, value in arguments.items() if value is not None},
    }


def _name(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": {"name": name}}
