"""Events of the Trace Event Format that Perfetto and chrome://tracing read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MICROSECONDS = 1e6


@dataclass(frozen=True)
class TransferRow:
    """A tensor on its way from mesh to mesh; times in seconds."""

    name: str
    source: int
    target: int
    start: float
    end: float
    arguments: Mapping[str, Any]


def complete(
    name: str, process: int, row: int, start: float, end: float, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Something that takes from `start` to `end`, in seconds."""
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": row,
        "ts": start * _MICROSECONDS,
        "dur": (end - start) * _MICROSECONDS,
        "args": {key: value for key, value in arguments.items() if value is not None},
    }


def counter(name: str, process: int, time: float, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values from `time` on, in seconds."""
    ts = time * _MICROSECONDS
    return {"ph": "C", "name": name, "pid": process, "ts": ts, "args": dict(values)}


def title(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    """The name of a process (`kind` is `process_name`) or of a row (`thread_name`)."""
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": {"name": name}}


def transfer_events(
    process: int, name: str, transfers: Sequence[TransferRow]
) -> list[dict[str, Any]]:
    """A row a pair of meshes; transfers of a pair that overlap go into rows below each other.

    Args:
        process: its number, and `name` its title.
        transfers: in the order in which they start.
    """
    events = [title("process_name", process, 0, name)]
    rows: dict[tuple[int, int, int], int] = {}
    free_from: dict[tuple[int, int], list[float]] = {}
    for transfer in transfers:
        pair = (transfer.source, transfer.target)
        ends = free_from.setdefault(pair, [])
        lane = next((i for i, end in enumerate(ends) if end <= transfer.start), len(ends))
        if lane == len(ends):
            ends.append(0.0)
            rows[*pair, lane] = len(rows)
            label = f"mesh {pair[0]} to mesh {pair[1]}"
            events.append(title("thread_name", process, rows[*pair, lane], label))
        ends[lane] = transfer.end
        row, span = rows[*pair, lane], (transfer.start, transfer.end)
        events.append(complete(transfer.name, process, row, *span, transfer.arguments))
    return events
