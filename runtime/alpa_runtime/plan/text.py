"""A plan as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alpa_runtime.plan import Plan
    from alpa_runtime.plan.reshard import ReshardInfo
    from alpa_runtime.plan.stage import StageInfo


def spec_text(spec: Sequence[Sequence[str]]) -> str:
    """Short form of a spec: `[x, R]`, `R` for a dimension that is not split."""
    return "[" + ", ".join("".join(axes) if axes else "R" for axes in spec) + "]"


def ranges_text(numbers: tuple[int, ...]) -> str:
    """`0-3`, or `0, 2, 5` when the numbers are not one run."""
    if len(numbers) > 1 and numbers == tuple(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def seconds_text(seconds: float) -> str:
    """`1.25 ms`: three figures and the unit that suits them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def bytes_text(count: float) -> str:
    """`1.5 MiB`: three figures and the unit that suits them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def stage_rows(plan: Plan, weights: int) -> list[list[str]]:
    """One row a stage: stage, layers, mesh, weights and shardings, seconds, memory."""
    rows: list[list[str]] = []
    for index, stage in enumerate(plan.stages):
        largest = sorted(stage.weights, key=lambda w: -prod(w.shape))[:weights]
        lines = [
            f"{w.name} {'x'.join(map(str, w.shape)) or 'scalar'} {spec_text(w.spec)}"
            for w in largest
        ]
        if len(stage.weights) > len(largest):
            lines.append(f"and {len(stage.weights) - len(largest)} more")
        rows.append(
            [
                str(index),
                _stage_layers(stage),
                plan.meshes[stage.mesh].as_text(),
                "\n".join(lines),
                _stage_seconds(stage),
                bytes_text(stage.predicted["peak_bytes"])
                if "peak_bytes" in stage.predicted
                else "",
            ]
        )
    return rows


HEADER = ("stage", "layers", "mesh", "weights [sharding]", "predicted time", "memory/device")


def _stage_layers(stage: StageInfo) -> str:
    first, end = stage.layers
    again = rematerialized_text(stage)
    return f"{first}-{end - 1}" + (f"\n{again} rematerialized" if again else "")


def rematerialized_text(stage: StageInfo) -> str:
    """`all`, or how many of the stage's layers are computed again; nothing for none."""
    again = int(stage.predicted.get("rematerialized_layers", 0))
    return "all" if again == stage.layers[1] - stage.layers[0] else str(again or "")


def _stage_seconds(stage: StageInfo) -> str:
    names = [("forward", "fwd"), ("backward", "bwd"), ("update", "upd")]
    if "backward_weight" in stage.functions:
        names[1:2] = [("backward_input", "bwd in"), ("backward_weight", "bwd wt")]
    return "\n".join(
        f"{short} {seconds_text(stage.predicted[f'{name}_seconds'])}"
        for name, short in names
        if f"{name}_seconds" in stage.predicted
    )


def plan_summary(plan: Plan) -> str:
    """One line: stages, devices, micro-batches, schedule, predicted seconds of a step."""
    devices = sum(len(mesh.devices) for mesh in plan.meshes)
    text = (
        f"plan of {plan.name}: {_count(len(plan.stages), 'stage')} on {_count(devices, 'device')}, "
        f"{_count(plan.num_micro_batches, 'micro-batch', 'micro-batches')}, "
        f"schedule {plan.schedule}"
    )
    if "step_seconds" in plan.predicted:
        text += f", predicted step {seconds_text(plan.predicted['step_seconds'])}"
    return text


def inexact_text(plan: Plan) -> str:
    """One line on values that are not those of the whole batch; nothing if there are none."""
    if plan.exactness.exact:
        return ""
    places = _places(plan.exactness.estimates)
    named = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    return (
        "results differ from jax.jit: as micro_batch_semantics asks, each micro-batch takes "
        f"values of its own examples at {named}"
    )


# Of `Exactness`, what each list of source lines is about.
_MEANS = {
    "sums": "sums over examples: each micro-batch adds a term, the update reads the sum",
    "scales": "scales that wait: factors known behind the micro-batches, which the update applies",
    "joins": "joins: values of single examples, of which the update reads those of the whole batch",
    "repeats": "repeats: values of the whole batch that each micro-batch computes from the batch's "
    "arguments",
    "estimates": "estimates, as micro_batch_semantics asks: values that couple examples, which "
    "each micro-batch takes of its own",
}


def micro_batches_text(plan: Plan) -> str:
    """What the plan's micro-batches compute, in words and with source lines."""
    text = _count(plan.num_micro_batches, "micro-batch", "micro-batches")
    if plan.num_micro_batches == 1:
        return f"{text}: the step runs on the whole batch, as with jax.jit"
    if plan.exactness.exact:
        lines = [f"{text}: results are those of jax.jit on the whole batch"]
    else:
        lines = [f"{text}: results differ from those of jax.jit on the whole batch"]
    for name, means in _MEANS.items():
        places = _places(getattr(plan.exactness, name))
        if places:
            lines += [means, *(f"  {place}" for place in places)]
    return "\n".join(lines)


def _places(places: Sequence[str]) -> list[str]:
    """Source lines; a module need not say any."""
    return list(dict.fromkeys(place or "a line that the module does not name" for place in places))


def plan_table(plan: Plan, weights: int) -> str:
    """Summary line, a table of the stages in plain characters, and what goes between meshes."""
    lines = [plan_summary(plan), table(HEADER, stage_rows(plan, weights))]
    inexact = inexact_text(plan)
    if inexact:
        lines.insert(1, inexact)
    for (source, target), text in transfers_text(plan).items():
        lines.append(f"mesh {source} to mesh {target}: {text}")
    return "\n".join(lines)


def transfers_text(plan: Plan, seconds: bool = True) -> dict[tuple[int, int], str]:
    """For two meshes: how many kinds of tensors go from one to the other, how, and how long."""
    found: dict[tuple[int, int], list[ReshardInfo]] = {}
    for reshard in plan.reshards:
        found.setdefault((reshard.source_mesh, reshard.target_mesh), []).append(reshard)
    texts: dict[tuple[int, int], str] = {}
    for pair, reshards in sorted(found.items()):
        strategies = ", ".join(sorted({reshard.strategy for reshard in reshards}))
        texts[pair] = f"{_count(len(reshards), 'kind')} of tensors by {strategies}"
        if seconds:
            most = "" if len(reshards) == 1 else "at most "
            texts[pair] += f", {most}{seconds_text(max(r.seconds for r in reshards))} each"
    return texts


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells in columns, rows apart by rules; a cell may have several lines."""
    cells = [[cell.split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[c]) for c in range(len(header))]
    rule = "-+-".join("-" * width for width in widths)
    lines: list[str] = []
    for row in cells:
        for i in range(max(map(len, row))):
            parts = [col[i] if i < len(col) else "" for col in row]
            line = " | ".join(p.ljust(w) for p, w in zip(parts, widths, strict=True))
            lines.append(line.rstrip())
        lines.append(rule)
    return "\n".join(lines)
