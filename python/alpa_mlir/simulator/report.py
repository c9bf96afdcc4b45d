"""A simulated step as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_runtime.plan.text import bytes_text, ranges_text, seconds_text, table

if TYPE_CHECKING:
    from alpa_mlir.simulator.timeline import Span, Timeline

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
    lines = [
        f"simulated step of {plan.name}: {seconds_text(timeline.step_seconds)} on {devices} "
        f"devices of {timeline.cluster.name}, {plan.num_micro_batches} micro-batches, schedule "
        f"{plan.schedule}"
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
    "forward": "F",
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
    scale = f"a character is {seconds_text(step / width)}"
    lines = [f"F forward, B backward{weight}, U update, . waiting; {scale}"]
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
