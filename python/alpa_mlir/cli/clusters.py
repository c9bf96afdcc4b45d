"""`alpa-mlir clusters`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from alpa_mlir.cli._command import Answer

DESCRIPTION = (
    "Lists the built-in clusters with their devices, memory and links; prints one as a YAML file "
    "to start from; checks a file of your own (docs/cluster.md)."
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

        return Answer(cluster_text(options.name).rstrip("\n"), fields)
    return Answer(f"{options.name} is right\n{_table({options.name: fields})}", fields)


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
            rows.append(
                [
                    name,
                    f"{group['count']} x {group['devices']}",
                    group["device_type"],
                    bytes_text(kind["memory_bytes"]),
                    _link(links["intra_host"]),
                    _link(links["inter_host"]),
                ]
            )
            name = ""
    header = ("cluster", "hosts x devices", "device", "memory", "within a host", "between hosts")
    return table(header, rows)


def _link(link: dict[str, float]) -> str:
    return f"{link['bandwidth'] / 1e9:.4g} GB/s, {link['latency'] * 1e6:.3g} us"
