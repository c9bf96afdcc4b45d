"""`alpa-mlir clusters`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from alpa_mlir.cli._command import Answer

DESCRIPTION = (
    "Lists the built-in clusters with their devices, memory and links; prints one as a YAML file "
    "to start from, and how far published training runs are from what is predicted with it; checks "
    "a file of your own (docs/cluster.md)."
)
EXAMPLES = """\
  alpa-mlir clusters
  alpa-mlir clusters show dgx-a100:4
  alpa-mlir clusters check cluster.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "show", "check"),
        default="list",
        help="list the presets, show one (or a file) in full, or check a file (default: list)",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a preset or a file")


def run(options: argparse.Namespace) -> Answer:
    from alpa_mlir.compiler import cluster_presets

    is_list = options.action == "list"
    if is_list != (options.name is None):
        options.error(
            f"{options.action} takes no NAME" if is_list else f"{options.action} needs a NAME"
        )
    if is_list:
        described = {name: _fields(name) for name in cluster_presets()}
        return Answer(_table(described), {"clusters": described})
    fields = _fields(options.name)
    if options.action == "show":
        from alpa_mlir.cli._source import cluster_text

        text = cluster_text(options.name).rstrip("\n")
        return Answer("\n".join([*_judgement(options.name), text]), fields)
    return Answer(f"{options.name} is right\n{_table({options.name: fields})}", fields)


def _judgement(name: str) -> list[str]:
    """What published runs say of a preset, as comments of a YAML file; nothing of files."""
    from alpa_mlir.compiler import cluster_presets

    preset = name.partition(":")[0]
    if preset not in cluster_presets():
        return []
    from alpa_mlir.simulator.figures import published_errors

    judged = published_errors()
    if preset not in judged:
        return [f"# No published run says how true predictions for {preset} are."]
    lines = [f"# Predictions for {preset} beside published training runs (docs/truth.md):"]
    for row in judged[preset]:
        runs = "1 run" if row["predicted"] == 1 else f"{row['predicted']} runs"
        own = f"; its own {', '.join(row['own_parts'])}" if row["own_parts"] else ""
        lines.append(
            f"# - {row['source']}, {row['hardware']}: {runs}, median error "
            f"{row['median_error']:.1%}, bias {row['bias']:.2f}, {row['said_not_to_fit']} said not "
            f"to fit{own}"
        )
    return lines


def _fields(name: str) -> dict[str, Any]:
    from alpa_mlir.cli._source import cluster_text

    return json.loads(cluster_text(name))


def _table(described: dict[str, dict[str, Any]]) -> str:
    from alpa_runtime.plan.text import bytes_text, table

    rows: list[list[str]] = []
    for name, fields in described.items():
        for group in fields["hosts"]:
            kind: Any = fields["device_types"][group["device_type"]]
            links: Any = fields["links"] | group.get("links", {})
            racks: Any = fields.get("racks")
            rows.append(
                [
                    name,
                    f"{group['count']} x {group['devices']}"
                    + (f", {racks['hosts']} in a rack" if racks else ""),
                    group["device_type"],
                    bytes_text(kind["memory_bytes"]),
                    _link(links["intra_host"]),
                    _link(links["inter_host"]),
                    _link(links["inter_rack"]) if racks else "",
                ]
            )
            name = ""
    header = ("cluster", "hosts x devices", "device", "memory", "within a host", "between hosts")
    if any(row[-1] for row in rows):
        header = (*header, "between racks")
    else:
        rows = [row[:-1] for row in rows]
    return table(header, rows)


def _link(link: dict[str, float]) -> str:
    return f"{link['bandwidth'] / 1e9:.4g} GB/s, {link['latency'] * 1e6:.3g} us"
