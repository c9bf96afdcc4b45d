"""Draws the pictures of the documentation: `python docs/site/pictures.py` writes docs/pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
# Colours that differ in lightness too, for readers who do not tell hues apart (after Okabe, Ito).
BLUE, ORANGE, GREEN, PINK = "#9ecae9", "#f6c667", "#8fd0a8", "#e3b1cf"
PARTS = (BLUE, ORANGE, GREEN, PINK)
GREY, LINE, INK = "#eef0f3", "#5b6470", "#1f2630"


class Picture:
    """A drawing in pixels; later things lie on earlier ones."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, fill: str = "white", text: str = "", **more
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if more.get("dashed") else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{more.get("round", 4)}" '
            f'fill="{fill}" stroke="{more.get("stroke", LINE)}"{dash}/>'
        )
        lines = text.split("\n") if text else []
        size = more.get("size", 13)
        for i, line in enumerate(lines):
            at = y + h / 2 + (i - (len(lines) - 1) / 2) * (size + 3)
            self.text(x + w / 2, at, line, size=size, bold=more.get("bold", False) and i == 0)

    def text(
        self, x: float, y: float, text: str, *, size=13, anchor="middle", bold=False, mono=False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="ui-monospace, monospace"' if mono else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}{family} '
            f'dominant-baseline="central">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[float, float], head: bool = True, dashed: bool = False) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5"{dash}{end}/>'
        )

    def caption(self, y: float, *lines: str) -> None:
        for i, line in enumerate(lines):
            self.text(self.width / 2, y + 18 * i, line, size=12)

    def as_svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" fill="{INK}" '
            'font-family="system-ui, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker>'
            "</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="6" fill="white"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def overview() -> Picture:
    """What goes in and what comes out, for a model of 7B on 64 devices."""
    p = Picture(760, 310, "A training step and a cluster become a plan, which is read, then run")
    p.box(16, 26, 214, 112, BLUE)
    p.text(123, 44, "step for one device", bold=True)
    code = "def train_step(state, batch):", "loss, grads = value_and_grad(..)", "return new, loss"
    for i, line in enumerate(code):
        p.text(24 + 12 * (i > 0), 72 + 20 * i, line, size=10, anchor="start", mono=True)
    p.box(16, 172, 214, 112, BLUE)
    p.text(123, 190, "cluster, described", bold=True)
    described = "8 hosts of 8 H100", "memory, FLOP/s by dtype", "links in and between hosts"
    for i, line in enumerate(described):
        p.text(123, 214 + 18 * i, line, size=12)
    p.box(276, 86, 148, 138, GREY)
    p.text(350, 104, "alpa_mlir searches", bold=True)
    found = "stages, meshes", "tensors' shardings", "micro-batches", "schedule", "recomputation"
    for i, line in enumerate(found):
        p.text(350, 128 + 18 * i, line, size=12)
    p.arrow((230, 82), (253, 82), (253, 140), (276, 140))
    p.arrow((230, 228), (253, 228), (253, 170), (276, 170))
    p.arrow((424, 155), (466, 155))
    p.box(466, 26, 150, 258, "white")
    p.text(541, 44, "plan", bold=True)
    for host in range(8):
        for device in range(8):
            fill = BLUE if host < 4 else ORANGE
            p.box(478 + device * 16, 92 + host * 16, 13, 13, fill, round=2)
    p.text(541, 66, "stage 0: layers 0-15,", size=11)
    p.text(541, 81, "FSDP over 32 GPUs", size=11)
    p.text(541, 232, "stage 1: layers 16-31,", size=11)
    p.text(541, 247, "FSDP over 32 GPUs", size=11)
    p.text(541, 270, "32 micro-batches", size=11)
    ends = ("look", "seconds, memory,\nwithout a GPU"), ("run", "with the results\nof jax.jit")
    for i, (name, words) in enumerate(ends):
        y = 60 + i * 118
        p.box(646, y, 104, 72, GREEN, f"{name}\n{words}", bold=True, size=11)
        p.arrow((616, y + 36), (646, y + 36))
    return p


def way() -> Picture:
    """From a step to a run."""
    p = Picture(760, 330, "From a step and a cluster to a plan and a run")
    p.box(20, 30, 150, 54, BLUE, "training step\nplain JAX", bold=True)
    p.box(20, 130, 150, 54, BLUE, "cluster\npreset or YAML file", bold=True)
    p.box(220, 30, 150, 54, "white", "trace, import\nphases, equations", bold=True)
    p.box(420, 30, 150, 54, "white", "layers\nequations in runs", bold=True)
    p.box(220, 120, 350, 96, GREY)
    p.text(395, 136, "search", bold=True)
    p.box(232, 150, 156, 54, "white", "stages, submeshes\ndynamic program")
    p.box(402, 150, 156, 54, "white", "shardings of a stage\ninteger program")
    p.arrow((388, 168), (402, 168))
    p.arrow((402, 187), (388, 187))
    p.box(220, 250, 150, 54, "white", "programs\nschedule, transfers", bold=True)
    p.box(420, 250, 150, 54, ORANGE, "plan\na folder", bold=True)
    p.box(605, 130, 140, 54, GREEN, "simulate, explain\nno devices", bold=True)
    p.box(605, 250, 140, 54, GREEN, "run\ndevices, workers", bold=True)
    p.arrow((170, 57), (220, 57))
    p.arrow((370, 57), (420, 57))
    p.arrow((495, 84), (495, 120))
    p.arrow((170, 157), (220, 157))
    p.arrow((295, 216), (295, 250))
    p.arrow((370, 277), (420, 277))
    p.arrow((570, 277), (605, 277))
    p.arrow((530, 250), (530, 232), (675, 232), (675, 184))
    return p


def mesh() -> Picture:
    """Devices of a cluster, submeshes, and a submesh seen as a mesh."""
    p = Picture(760, 250, "A cluster, two submeshes of it, and one of them seen as a mesh")
    p.text(210, 24, "cluster: 2 hosts of 4 devices", bold=True)
    for host in range(2):
        x = 30 + host * 190
        p.box(x, 44, 170, 110, GREY)
        p.text(x + 85, 140, f"host {host}", size=12)
        for i in range(4):
            color = BLUE if host == 0 else ORANGE
            p.box(x + 12 + i * 38, 70, 32, 40, color, str(4 * host + i))
        p.arrow((x + 12, 122), (x + 158, 122), head=False)
    p.arrow((200, 99), (220, 99), head=False, dashed=True)
    p.text(210, 190, "links inside of a host are fast, those between hosts slow", size=12)
    p.text(210, 212, "submesh 0: devices 0-3      submesh 1: devices 4-7", size=12)
    p.arrow((418, 99), (475, 99))
    p.text(610, 24, "submesh 1 as a mesh of 2 x 2", bold=True)
    for row in range(2):
        for column in range(2):
            p.box(540 + column * 80, 64 + row * 66, 54, 44, ORANGE, str(4 + 2 * row + column))
    p.arrow((540, 190), (674, 190))
    p.text(607, 206, "axis y", size=12)
    p.arrow((515, 64), (515, 174))
    p.text(490, 119, "axis x", size=12)
    p.text(610, 230, "row-major; each axis has a link of its own", size=12)
    return p


def _grid(p: Picture, x: float, y: float, size: float, parts: Sequence[Sequence[str]]) -> None:
    rows, columns = len(parts), len(parts[0])
    for i, row in enumerate(parts):
        for j, device in enumerate(row):
            shared = len(device) > 1
            fill = GREY if shared else PARTS[int(device)]
            label = "all" if len(device) == 4 else ", ".join(device)
            h, w = size / rows, size / columns
            p.box(x + j * w, y + i * h, w, h, fill, label, round=0)


def sharding() -> Picture:
    """Specs of a matrix on a mesh of 2 x 2."""
    p = Picture(760, 240, "Shardings of a matrix on a mesh of two by two devices")
    for i in range(4):
        row, column = divmod(i, 2)
        p.box(24 + column * 46, 70 + row * 46, 40, 40, PARTS[i], str(i))
    p.text(67, 30, "mesh", bold=True)
    p.text(67, 180, "x down, y across", size=12)
    specs = (
        ("[R, R]", [["0123"]], "whole everywhere"),
        ("[x, R]", [["01"], ["23"]], "rows over x"),
        ("[x, y]", [["0", "1"], ["2", "3"]], "rows x, columns y"),
        ("[R, xy]", [["0", "1", "2", "3"]], "columns over both"),
        ("[R, y]", [["02", "13"]], "columns over y"),
    )
    for i, (spec, parts, words) in enumerate(specs):
        x = 150 + i * 122
        p.text(x + 52, 30, spec, bold=True, mono=True)
        _grid(p, x, 56, 104, parts)
        p.text(x + 52, 180, words, size=12)
    p.text(452, 214, "the number in a part says which devices hold it", size=12)
    return p


def strategies() -> Picture:
    """Three ways to split a matrix product over two devices."""
    p = Picture(760, 250, "Three strategies of a matrix product on two devices")
    cases = (
        ("rows", [["0"], ["1"]], [["0123"]], [["0"], ["1"]], "no communication"),
        ("columns", [["0123"]], [["0", "1"]], [["0", "1"]], "no communication"),
        ("sum", [["0", "1"]], [["0"], ["1"]], [["0123"]], "all-reduce of the sums"),
    )
    for i, (name, a, b, c, words) in enumerate(cases):
        x = 20 + i * 246
        p.text(x + 115, 26, f"split the {name}", bold=True)
        for k, (title, parts) in enumerate((("A", a), ("B", b), ("A B", c))):
            at = x + k * 82
            p.text(at + 32, 60, title, size=12)
            _grid(p, at, 74, 64, [["both" if d == "0123" else d for d in row] for row in parts])
            if k < 2:
                p.text(at + 73, 106, "x" if k == 0 else "=", size=15)
        p.text(x + 115, 162, words, size=12)
    p.caption(
        200,
        "Each costs its computation and its communication, and a move of A, B or A B",
        "where the neighbouring ops hold these values otherwise.",
    )
    return p


def problem() -> Picture:
    """The intra-operator problem."""
    p = Picture(
        760,
        270,
        "The intra-operator problem: choices with costs at nodes, pairs of choices at edges",
    )
    nodes = (
        ("matmul 1", ["rows 18", "columns 10", "sum 14"], 30),
        ("tanh", ["[x, R] 2", "[R, x] 2", "[R, R] 4"], 300),
        ("matmul 2", ["rows 18", "columns 10", "sum 14"], 570),
    )
    chosen = (1, 1, 2)
    for (name, choices, x), pick in zip(nodes, chosen, strict=True):
        p.box(x, 46, 160, 126, GREY)
        p.text(x + 80, 30, name, bold=True)
        for i, choice in enumerate(choices):
            fill = ORANGE if i == pick else "white"
            p.box(x + 12, 58 + i * 36, 136, 28, fill, choice, size=12)
    for x, cells in ((200, "066606000"), (470, "066660000")):
        p.text(x + 45, 30, "edge", bold=True)
        for i, cell in enumerate(cells):
            row, column = divmod(i, 3)
            p.box(x + 12 + column * 22, 76 + row * 22, 22, 22, "white", cell, size=11, round=0)
    p.caption(
        200,
        "One strategy of each node, such that the costs of nodes and of chosen pairs are least",
        "(here 10 + 0 + 2 + 0 + 14) and what lives at a moment fits into a device.",
        "Edge costs are the seconds from how a value is made to how it is used, here 0 or 6.",
    )
    return p


def stages() -> Picture:
    """Layers cut into stages, stages on submeshes."""
    p = Picture(760, 250, "Layers cut into stages, and a submesh for each stage")
    p.text(20, 40, "layers", anchor="start", bold=True)
    runs = ((0, 3, BLUE), (3, 5, ORANGE), (5, 8, GREEN))
    for number, (first, end, color) in enumerate(runs):
        for layer in range(first, end):
            p.box(110 + layer * 78, 24, 66, 32, color, str(layer))
        middle = 110 + (first + end) * 39 - 6
        p.text(middle, 76, f"stage {number}: layers {first}-{end - 1}", size=12)
    p.text(20, 150, "cluster", anchor="start", bold=True)
    hosts = ((110, "host 0", (BLUE,) * 4), (330, "host 1", (ORANGE, ORANGE, GREEN, GREEN)))
    for x, name, held in hosts:
        p.box(x, 116, 190, 74, GREY)
        p.text(x + 95, 178, name, size=12)
        for i, color in enumerate(held):
            p.box(x + 12 + i * 43, 126, 36, 36, color)
    p.arrow((220, 88), (205, 116))
    p.arrow((415, 88), (385, 116))
    p.arrow((610, 88), (470, 116))
    p.text(545, 136, "1 x 4, 1 x 2 and 1 x 2 devices;", size=12, anchor="start")
    p.text(545, 154, "the seconds of a stage are those", size=12, anchor="start")
    p.text(545, 172, "of its best shardings there", size=12, anchor="start")
    p.caption(
        222,
        "The dynamic program tries runs of layers on submeshes of all shapes, within memory.",
    )
    return p


def schedules() -> Picture:
    """GPipe and 1F1B, as the compiler's own timer draws them."""
    from alpa_mlir.compiler import schedule_kept
    from alpa_mlir.methods.schedule import ScheduleProblem, generate_steps

    meshes, count, unit = 3, 5, 21
    p = Picture(760, 340, "Micro-batches in the schedules gpipe and 1f1b, and what a mesh keeps")
    for k, name in enumerate(("gpipe", "1f1b")):
        top = 40 + k * 140
        p.text(20, top - 16, name, anchor="start", bold=True, mono=True)
        made_for = ScheduleProblem.in_rounds(meshes, 1, count)
        steps = generate_steps(name, made_for)
        kept = schedule_kept(name, made_for.fields())
        p.text(748, top - 16, "micro-batches kept", anchor="end", size=12)
        for mesh_, runs in enumerate(_timed(steps)):
            y = top + mesh_ * 32
            p.text(20, y + 13, f"mesh {mesh_}", anchor="start", size=12)
            p.text(735, y + 13, str(kept[mesh_]), size=12)
            for kind, number, begin, seconds in runs:
                fill = BLUE if kind == "F" else ORANGE
                p.box(80 + begin * unit, y, seconds * unit, 26, fill, str(number), size=11, round=2)
    p.box(80, 316, 14, 14, BLUE, round=2)
    p.text(100, 324, "forward", anchor="start", size=12)
    p.box(170, 316, 14, 14, ORANGE, round=2)
    p.text(
        190, 324, "backward, twice as long; the number is the micro-batch", anchor="start", size=12
    )
    return p


def _timed(
    steps: Sequence[Sequence[tuple[str, int, int]]],
) -> list[list[tuple[str, int, float, float]]]:
    """Begin and seconds of each run: when its mesh is free and what it needs is there."""
    last = max(stage for runs in steps for _, stage, _ in runs)
    done: dict[tuple[str, int, int], float] = {}
    result: list[list[tuple[str, int, float, float]]] = [[] for _ in steps]
    at = [0] * len(steps)
    while any(i < len(runs) for i, runs in zip(at, steps, strict=True)):
        for mesh_, runs in enumerate(steps):
            while at[mesh_] < len(runs):
                kind, stage, number = runs[at[mesh_]]
                needed = ("F", stage - 1, number) if kind == "F" else ("B", stage + 1, number)
                if kind == "B" and stage == last:
                    needed = ("F", stage, number)
                if not (kind == "F" and stage == 0) and needed not in done:
                    break
                free = result[mesh_][-1][2] + result[mesh_][-1][3] if result[mesh_] else 0.0
                begin = max(free, done.get(needed, 0.0))
                seconds = 1.4 if kind == "F" else 2.8
                done[kind, stage, number] = begin + seconds
                result[mesh_].append((kind, number, begin, seconds))
                at[mesh_] += 1
    return result


def resharding() -> Picture:
    """A tensor on its way from one mesh to another."""
    p = Picture(
        760, 260, "A tensor goes from a mesh that splits rows to a mesh that splits columns"
    )
    p.text(120, 26, "mesh 0: [x, R]", bold=True, mono=True)
    p.text(620, 26, "mesh 1: [R, x]", bold=True, mono=True)
    for i, y in enumerate((56, 150)):
        p.box(60, y, 120, 60, PARTS[i], f"device {i}: rows {i}", size=12)
        p.box(560 + i * 65, 56, 60, 154, PARTS[2 + i], f"device\n{4 + i}:\ncolumns\n{i}", size=12)
        p.arrow((120, y), (120, y + 60), head=False, dashed=True)
    for i, y in enumerate((56, 150)):
        for j in range(2):
            p.box(330 + j * 56, y + 8, 46, 44, PARTS[i], f"{i},{j}", size=12)
        p.arrow((180, y + 30), (326, y + 30))
        p.arrow((438, y + 30), (556, y + 30))
    p.text(381, 40, "tiles", bold=True)
    p.text(250, 198, "cut", size=12)
    p.text(498, 198, "send", size=12)
    p.text(
        380,
        236,
        "Who holds a tile that it wants keeps it; tiles cross the slow links between hosts once.",
        size=12,
    )
    return p


PICTURES: tuple[Callable[[], Picture], ...] = (
    overview,
    way,
    mesh,
    sharding,
    strategies,
    problem,
    stages,
    schedules,
    resharding,
)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for draw in PICTURES:
        (FOLDER / f"{draw.__name__}.svg").write_text(draw().as_svg())


if __name__ == "__main__":
    main()
