"""Communication by kind and link: within stages, between meshes, and what links carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import SendOp
from alpa_runtime.plan.stage import MeshInfo

from alpa_mlir.report.model import Collective, Crossing, LinkKind
from alpa_mlir.report.specs import alike
from alpa_mlir.simulator.costs import tensor_bytes

if TYPE_CHECKING:
    from alpa_mlir.simulator import Timeline


def axis_links(mesh: MeshInfo, host_of: Sequence[int]) -> tuple[str | None, ...]:
    """What joins the devices of each axis: links within hosts, or those between hosts.

    Example:
        >>> axis_links(MeshInfo((2, 2), ("x", "y"), (0, 1, 2, 3)), [0, 0, 1, 1])
        ('network', 'host')
    """
    links: list[str | None] = []
    stride = len(mesh.devices)
    for size in mesh.shape:
        stride //= size
        if size == 1 or any(device >= len(host_of) for device in mesh.devices):
            links.append(None)
            continue
        hosts = [host_of[device] for device in mesh.devices]
        spans = any(
            hosts[i] != hosts[i + stride]
            for i in range(len(hosts))
            if (i // stride) % size != size - 1
        )
        links.append("network" if spans else "host")
    return tuple(links)


def collectives(
    plan: Plan, explanations: Sequence[Mapping[str, Any] | None], host_of: Sequence[int]
) -> tuple[Collective, ...]:
    """What the stages' own collectives take in a step, the dearest first."""
    rows: list[Collective] = []
    for number, explanation in enumerate(explanations):
        mesh = plan.meshes[plan.stages[number].mesh]
        links = axis_links(mesh, host_of)
        for row in (explanation or {}).get("communication", ()):
            number_of_axis: int = row.get("axis", len(mesh.axes))
            axis = slice(number_of_axis, number_of_axis + 1)
            rows.append(
                Collective(
                    number,
                    row["collective"],
                    next(iter(mesh.axes[axis]), None),
                    next(iter(mesh.shape[axis]), None),
                    next(iter(links[axis]), None),
                    row["count"],
                    row["bytes"],
                    row["seconds"],
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def crossings(plan: Plan) -> tuple[Crossing, ...]:
    """What goes from mesh to mesh in a step, by the programs' sends."""
    sent = Counter(
        op.by
        for program in plan.programs
        for op in program.instructions
        if isinstance(op, SendOp) and op.by < len(plan.reshards)
    )
    found: dict[tuple[int, int], list[tuple[str, int, float, float]]] = {}
    for number, count in sent.items():
        reshard = plan.reshards[number]
        size = tensor_bytes(reshard.source)
        found.setdefault((reshard.source_mesh, reshard.target_mesh), []).append(
            (reshard.strategy, count, count * size, count * reshard.seconds)
        )
    return tuple(
        Crossing(
            source,
            target,
            tuple(sorted({row[0] for row in rows})),
            sum(row[1] for row in rows),
            sum(row[2] for row in rows),
            sum(row[3] for row in rows),
        )
        for (source, target), rows in sorted(found.items())
    )


def link_kinds(timeline: Timeline) -> tuple[LinkKind, ...]:
    """The links that transfers between meshes use, by kind and direction."""
    groups: dict[tuple[str, float], list[Any]] = {}
    for link in timeline.links:
        groups.setdefault((alike(link.link), link.bandwidth), []).append(link)
    kinds: list[LinkKind] = []
    for (kind, bandwidth), links in groups.items():
        busiest = max(links, key=lambda link: link.bytes)
        total = sum(link.bytes for link in links)
        most = (busiest.link, busiest.bytes, busiest.utilization)
        kinds.append(LinkKind(kind, bandwidth, len(links), total, *most))
    return tuple(sorted(kinds, key=lambda kind: -kind.utilization))
