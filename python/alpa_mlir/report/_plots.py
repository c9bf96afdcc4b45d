"""Pictures of a plan for papers and slides: SVG, PNG, or whatever matplotlib writes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alpa_runtime.plan.text import bytes_text, seconds_text

from alpa_mlir.errors import BackendError, PlanFormatError
from alpa_mlir.report._model import Activity, ReportData

# As in report.css and base.js: Okabe and Ito's colours.
HUES = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#8c8c8c")
KINDS = {
    "prepare": "#f0e442",
    "forward": "#0072b2",
    "barrier": "#56b4e9",
    "backward": "#e69f00",
    "backward_input": "#e69f00",
    "backward_weight": "#d55e00",
    "update": "#009e73",
    "wait": "#e4e4e4",
    "other": "#cc79a7",
}
COLLECTIVES = {
    "all_reduce": "#0072b2",
    "reduce_scatter": "#56b4e9",
    "all_gather": "#e69f00",
    "all_to_all": "#d55e00",
}
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "alpa_mlir",  # The same plan gives the same file.
    "savefig.bbox": "tight",
}


def draw(data: ReportData, folder: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Write each picture for which the data holds anything; see `write_plots`."""
    agg: Any = _library("matplotlib.backends.backend_agg")
    matplotlib: Any = _library("matplotlib")
    figure: Any = _library("matplotlib.figure")
    known = set(agg.FigureCanvasAgg.get_supported_filetypes())
    for name in formats:
        if name not in known:
            raise PlanFormatError(
                f"unknown picture format {name!r}",
                where="formats",
                fix=f"use some of {', '.join(sorted(known))}",
            )
    pictures: dict[str, Callable[[Any, ReportData], Any]] = {"cluster": _cluster}
    if data.simulated is not None:
        pictures["timeline"] = lambda new, data: _timeline(new, data, data.simulated)
        pictures["memory"] = _memory
    if data.real is not None:
        pictures["timeline_real"] = lambda new, data: _timeline(new, data, data.real)
    if data.collectives:
        pictures["communication"] = _communication
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(_STYLE):
        for name, picture in pictures.items():
            made = picture(figure.Figure, data)
            agg.FigureCanvasAgg(made)
            for form in formats:
                path = folder / f"{name}.{form}"
                # Without a date the same plan gives the same file.
                made.savefig(path, dpi=160, metadata={"Date": None} if form == "svg" else None)
                written.append(path)
    return tuple(written)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise BackendError(
            "matplotlib is not installed",
            where="write_plots",
            fix="pip install 'alpa-mlir[plots]', or use write_report, which needs nothing",
        ) from None


def _stage_of(data: ReportData, mesh: int) -> int:
    """The first stage of a mesh, whose colour the mesh has."""
    return next((i for i, stage in enumerate(data.stages) if stage.mesh == mesh), mesh)


def _mesh_name(data: ReportData, mesh: int) -> str:
    stages = [str(i) for i, stage in enumerate(data.stages) if stage.mesh == mesh]
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"


def _colour(number: int) -> str:
    return HUES[number % len(HUES)]


def _legend(made: Any, names: Sequence[tuple[str, str]]) -> None:
    patches: Any = importlib.import_module("matplotlib.patches")
    handles = [patches.Patch(color=colour, label=name) for name, colour in names]
    columns = min(len(names), 8)
    made.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=1)


def _timeline(new: Callable[..., Any], data: ReportData, activity: Activity | None) -> Any:
    assert activity is not None
    rows = len(activity.rows)
    made = new(figsize=(10, 0.9 + 0.26 * rows), layout="constrained")
    axes = made.add_subplot()
    used: set[str] = set()
    scale = activity.seconds / 10 / 160  # Seconds of a pixel.
    for row, (kinds, starts, ends, *_) in enumerate(activity.spans):
        for number, kind in enumerate(activity.kinds):
            runs: list[list[float]] = []
            for i, found in enumerate(kinds):
                if found != number:
                    continue
                # Runs that cannot be told apart are one box.
                if runs and starts[i] - sum(runs[-1]) < scale / 4 and rows > 32:
                    runs[-1][1] = ends[i] - runs[-1][0]
                else:
                    runs.append([starts[i], ends[i] - starts[i]])
            if runs:
                used.add(kind)
                axes.broken_barh(
                    [(start, size) for start, size in runs],
                    (row - 0.4, 0.8),
                    facecolors=KINDS[kind],
                    edgecolors="white" if kind != "wait" else "none",
                    linewidth=0.2,
                )
    names = [
        ", ".join(filter(None, (_mesh_name(data, mesh), label)))
        for mesh, label in zip(activity.meshes, activity.rows, strict=True)
    ]
    axes.set_yticks(range(rows), names)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, activity.seconds or 1)
    axes.set_xlabel("seconds")
    real = activity is data.real
    took = seconds_text(activity.seconds)
    axes.set_title(
        f"{len(activity.steps)} recorded steps, {took}" if real else f"Simulated step, {took}"
    )
    _legend(made, [(kind.replace("_", " "), KINDS[kind]) for kind in KINDS if kind in used])
    return made


def _memory(new: Callable[..., Any], data: ReportData) -> Any:
    assert data.simulated is not None
    made = new(figsize=(10, 3.4), layout="constrained")
    axes = made.add_subplot()
    gib = 2.0**30
    for mesh, memory in enumerate(data.memory):
        axes.step(
            [*memory.times, data.simulated.seconds],
            [size / gib for size in (*memory.bytes, *memory.bytes[-1:])],
            where="post",
            color=_colour(_stage_of(data, mesh)),
            linewidth=1,
            label=f"{_mesh_name(data, mesh)}, peak {bytes_text(memory.peak_bytes)}",
        )
    for capacity in {m.capacity_bytes for m in data.memory if m.capacity_bytes is not None}:
        axes.axhline(capacity / gib, color="#c22d2d", linewidth=1.2)
        axes.annotate(
            f"a device has {bytes_text(capacity)}",
            (0, capacity / gib),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            color="#c22d2d",
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, data.simulated.seconds or 1)
    axes.set_xlabel("seconds")
    axes.set_ylabel("GiB on a device")
    axes.set_title("Memory over the step")
    if len(data.memory) <= 16:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return made


def _communication(new: Callable[..., Any], data: ReportData) -> Any:
    stages = len(data.stages)
    made = new(figsize=(10, 1.0 + 0.24 * stages), layout="constrained")
    axes = made.add_subplot()
    left = [0.0] * stages
    kinds = sorted({row.collective for row in data.collectives})
    for kind in kinds:
        sizes = [0.0] * stages
        for row in data.collectives:
            if row.collective == kind:
                sizes[row.stage] += row.seconds
        colour = COLLECTIVES.get(kind, "#cc79a7")
        axes.barh(range(stages), sizes, left=left, color=colour, height=0.72)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    axes.set_yticks(range(stages), [f"stage {number}" for number in range(stages)])
    axes.set_ylim(stages - 0.4, -0.6)
    axes.set_xlabel("seconds of a step in collectives")
    axes.set_title("Communication within stages")
    _legend(made, [(kind.replace("_", " "), COLLECTIVES.get(kind, "#cc79a7")) for kind in kinds])
    return made


def _cluster(new: Callable[..., Any], data: ReportData) -> Any:
    collections: Any = importlib.import_module("matplotlib.collections")
    patches: Any = importlib.import_module("matplotlib.patches")
    sizes = [group.devices for group in data.hosts for _ in range(group.count)]
    sizes = sizes or [data.header.devices]
    widest = max(sizes)
    room = max(1, min(len(sizes), 60 // (widest + 3)))
    # As many columns as there is room for, or some fewer that divide the hosts evenly.
    even = [c for c in range(room, 0, -1) if len(sizes) % c == 0 and c >= 0.6 * room]
    columns = even[0] if even else room
    lines = -(-len(sizes) // columns)
    colours: dict[int, str] = {}
    for number, mesh in enumerate(data.meshes):
        for first, count in mesh.devices:
            colours |= dict.fromkeys(range(first, first + count), _colour(_stage_of(data, number)))
    made = new(figsize=(10, 0.9 + 0.17 * lines), layout="constrained")
    axes = made.add_subplot()
    boxes: list[Any] = []
    faces: list[str] = []
    device = 0
    for host, count in enumerate(sizes):
        x, y = (host // lines) * (widest + 3), host % lines
        axes.text(
            x - 0.3, y + 0.5, f"h{host}", ha="right", va="center", fontsize=6, color="#5a6270"
        )
        for i in range(count):
            boxes.append(patches.Rectangle((x + i + 0.06, y + 0.1), 0.88, 0.8))
            faces.append(colours.get(device, "#f0f0f0"))
            device += 1
    axes.add_collection(collections.PatchCollection(boxes, facecolors=faces, edgecolors="none"))
    axes.set_xlim(-2, columns * (widest + 3))
    axes.set_ylim(lines + 0.2, -0.2)
    axes.set_axis_off()
    axes.set_title(f"{data.header.used_devices} devices of {data.header.cluster or 'the cluster'}")
    stages = range(min(len(data.stages), 24))
    _legend(made, [(f"stage {number}", _colour(number)) for number in stages])
    return made
