"""A simulated step in the Trace Event Format that Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpa_runtime.chrome_trace import TransferRow, complete, counter, title, transfer_events

if TYPE_CHECKING:
    from alpa_mlir.simulator.timeline import Timeline

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
