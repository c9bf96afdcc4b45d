"""A simulated step as a picture that browsers show: a row a mesh, a box a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from alpa_runtime.plan.text import bytes_text, seconds_text

if TYPE_CHECKING:
    from alpa_mlir.simulator.timeline import Span, Timeline

COLORS = {
    "forward": "#4c78a8",
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
