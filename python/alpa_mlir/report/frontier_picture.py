"""A frontier as a picture: SVG that needs no library to make, and follows the reader's colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10
from xml.sax.saxutils import escape

from alpa_runtime.plan.text import bytes_text, seconds_text

from alpa_mlir.search.frontier import Frontier, FrontierPoint, money_text

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 380, 280, 76, 44, 46
_STYLE = """
text { font: 12px sans-serif; fill: #222 } .title { font-weight: bold } .note { fill: #666 }
.axis { stroke: #888 } .line { fill: none; stroke: #0072b2; stroke-width: 2 }
.point { fill: #0072b2 } .own { fill: #d55e00 } .beaten { fill: none; stroke: #888 }
@media (prefers-color-scheme: dark) {
 svg { background: #181818 } text { fill: #ddd } .note { fill: #aaa } .line { stroke: #56b4e9 }
 .point { fill: #56b4e9 } .own { fill: #e69f00 }
}
"""


@dataclass(frozen=True)
class _Mark:
    x: float
    y: float
    kind: str
    label: str


@dataclass(frozen=True)
class _Panel:
    """One graph; both axes are logarithmic.

    Attributes:
        steps: whether a plan holds for all x from its own to the next one's.
    """

    title: str
    marks: Sequence[_Mark]
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    steps: bool = False


def frontier_svg(frontier: Frontier) -> str:
    """Seconds of a step against memory of a device, against number of devices, and with a price
    the cost against seconds; what was not asked for is left out.

    Example:
        >>> Path("frontier.svg").write_text(frontier_svg(found))       # doctest: +SKIP
    """

    def mark(x: float, y: float, point: FrontierPoint) -> _Mark:
        is_own = point is frontier.own or point.num_devices == frontier.num_devices
        kind = "beaten" if point.is_dominated else "own" if is_own else "point"
        label = f"{point.num_devices} devices of {bytes_text(point.memory_bytes)}, a step in "
        return _Mark(x, y, kind, f"{label}{seconds_text(point.step_seconds)}: {point.plan_text}")

    panels: list[_Panel] = []
    if frontier.memory:
        marks = [
            _Mark(found.x, found.y, "own" if point is frontier.own else "point", found.label)
            for point in frontier.memory
            for found in [mark(point.memory_bytes, point.step_seconds, point)]
        ]
        title = f"a step on {frontier.num_devices} devices, by memory of each"
        panels.append(_Panel(title, marks, bytes_text, seconds_text, steps=True))
    if frontier.devices:
        marks = [mark(p.num_devices, p.step_seconds, p) for p in frontier.devices]
        panels.append(_Panel("a step, by number of devices", marks, _count_text, seconds_text))
    priced = [p for p in frontier.devices if p.unit_cost]
    if priced:
        marks = [mark(p.step_seconds, p.unit_cost or 0.0, p) for p in priced]
        title = f"cost of {frontier.unit}, by seconds of a step"
        panels.append(_Panel(title, marks, seconds_text, money_text))
    width = _WIDTH * len(panels)
    body = "".join(_drawn(panel, _WIDTH * index) for index, panel in enumerate(panels))
    name = escape(f"{frontier.name} on {frontier.cluster}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'width="{width}" height="{_HEIGHT}"><title>{name}</title><style>{_STYLE}</style>'
        f"{body}</svg>\n"
    )


def _count_text(count: float) -> str:
    return f"{count:g}"


def _drawn(panel: _Panel, offset: int) -> str:
    right, bottom = offset + _WIDTH - 24, _HEIGHT - _BOTTOM
    left = offset + _LEFT
    x_at = _scale([m.x for m in panel.marks], left, right)
    y_at = _scale([m.y for m in panel.marks], bottom, _TOP)
    parts = [
        f'<text class="title" x="{offset + 12}" y="22">{escape(panel.title)}</text>',
        f'<path class="axis" fill="none" d="M{left} {_TOP}V{bottom}H{right}"/>',
    ]
    for value in _ticks([m.x for m in panel.marks], 4):
        x = x_at(value)
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v5"/>')
        parts.append(_text(x, bottom + 20, panel.x_text(value), "middle"))
    for value in _ticks([m.y for m in panel.marks], 8):
        y = y_at(value)
        parts.append(f'<path class="axis" d="M{left} {y:.1f}h-5"/>')
        parts.append(_text(left - 9, y + 4, panel.y_text(value), "end"))
    line = [m for m in panel.marks if m.kind != "beaten"]
    path = f"M{x_at(line[0].x):.1f} {y_at(line[0].y):.1f}" if line else ""
    for after in line[1:]:
        x, y = f"{x_at(after.x):.1f}", f"{y_at(after.y):.1f}"
        path += f"H{x}V{y}" if panel.steps else f"L{x} {y}"
    if panel.steps:
        path += f"H{right}"
    parts.append(f'<path class="line" d="{path}"/>')
    for m in panel.marks:
        parts.append(
            f'<circle class="{m.kind}" cx="{x_at(m.x):.1f}" cy="{y_at(m.y):.1f}" r="4.5">'
            f"<title>{escape(m.label)}</title></circle>"
        )
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    shown = f'<text class="note" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
    return f"{shown}{escape(text)}</text>"


def _scale(values: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    """Places of values on an axis with some room at its ends."""
    low, high = log10(min(values)), log10(max(values))
    room = 0.06 * (high - low) or 0.1
    low, high = low - room, high + room
    return lambda value: first + (last - first) * (log10(value) - low) / (high - low)


def _ticks(values: Sequence[float], most: int) -> list[float]:
    """Some of the values, the outer ones among them, none close to another."""
    low, high = min(values), max(values)
    least = max(1e-9, (log10(high) - log10(low)) / most)
    kept: list[float] = []
    for value in [low, high, *sorted(values)]:
        if all(abs(log10(value) - log10(other)) >= least for other in kept):
            kept.append(value)
    return sorted(kept)
