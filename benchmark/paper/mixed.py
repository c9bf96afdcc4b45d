"""A cluster of unequal hosts: our plan against plans that take all devices for equal.

2 hosts of 8 A100 and 2 hosts of 4 V100 train a GPT. Homogeneous plans are made for a cluster of as
many hosts and devices that all are V100, or all A100, or for the A100 hosts alone. Their stages and
meshes are kept, their shardings chosen anew for the devices that they get, which can only help
them. All are run in the simulator on the cluster as it is. A part of paper_figures.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from alpa_mlir import AutoParallel, PipeshardParallel, parallelize
from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import AlpaError
from alpa_mlir.methods.method import Method
from alpa_mlir.simulator import simulate
from alpa_runtime.plan import Plan

from paper.models import PaperModel, make_case

HOSTS = (("a100", 8), ("a100", 8), ("v100", 4), ("v100", 4))
PRESETS = {"a100": "p4d.24xlarge", "v100": "p3.16xlarge"}


def cluster_of(hosts: Sequence[tuple[str, int]]) -> Cluster:
    """Hosts of (device type, devices), with the links of a p3.16xlarge and a 100 Gbit/s network."""
    types: dict[str, Any] = {}
    for name in dict.fromkeys(name for name, _ in hosts):
        fields = json.loads(Cluster.load(PRESETS[name]).text)
        (types[name],) = fields["device_types"].values()
    links = json.loads(Cluster.load(PRESETS["v100"]).text)["links"]
    links["inter_host"] = {"bandwidth": 12.5e9, "latency": 2e-5}
    return Cluster.from_dict(
        {
            "name": "mixed",
            "device_types": types,
            "hosts": [{"devices": devices, "device_type": name} for name, devices in hosts],
            "links": links,
        }
    )


def kept_stages(plan: Plan, **options: Any) -> PipeshardParallel:
    """The stages of another plan, on devices of the types that lie there."""
    owners = [(host, name) for host, (name, count) in enumerate(HOSTS) for _ in range(count)]
    submeshes: list[tuple[int, int, str]] = []
    for stage in plan.stages:
        devices = plan.meshes[stage.mesh].devices
        hosts = dict(owners[device] for device in devices)
        (name,) = set(hosts.values())
        submeshes.append((len(hosts), len(devices) // len(hosts), name))
    return PipeshardParallel(
        submeshes=submeshes,
        mesh_shapes=[plan.meshes[stage.mesh].shape for stage in plan.stages],
        layer_ranges=[stage.layers for stage in plan.stages],
        schedule=plan.schedule,
        **options,
    )


def plan_for(model: PaperModel, cluster: Cluster, method: Method) -> Plan:
    """The plan of the model's step."""
    function = parallelize(model.step, cluster=cluster, method=method, cache=False)
    return function.plan(model.state, model.batch).plan


def measure(case: str, micro_batches: int, layers: int) -> list[dict[str, Any]]:
    """A row for our plan and one for each assumption."""
    model = make_case(case)
    truth = cluster_of(HOSTS)
    common: dict[str, Any] = {
        "num_micro_batches": micro_batches,
        "layers": layers,
        "remat": "none",  # The models recompute layers themselves.
    }
    assumed = {
        "all as the weakest": [("v100", count) for _, count in HOSTS],
        "all as the strongest": [("a100", count) for _, count in HOSTS],
        "the strongest alone": [host for host in HOSTS if host[0] == "a100"],
    }
    rows = [_row("as it is", model, plan_for(model, truth, AutoParallel(**common)), truth)]
    for name, hosts in assumed.items():
        try:
            guess = plan_for(model, cluster_of(hosts), AutoParallel(**common))
            kept = plan_for(model, truth, kept_stages(guess, **common))
            rows.append(_row(name, model, kept, truth))
        except AlpaError as error:
            rows.append({"assumed": name, "failed": str(error)})
    return rows


def _row(assumed: str, model: PaperModel, plan: Plan, truth: Cluster) -> dict[str, Any]:
    seconds = simulate(plan, truth).step_seconds
    types = [name for name, count in HOSTS for _ in range(count)]
    return {
        "assumed": assumed,
        "step_seconds": seconds,
        "predicted_seconds": plan.predicted["step_seconds"],
        "pflops": model.flops / seconds / 1e15,
        "stages": [
            {
                "layers": list(stage.layers),
                "mesh": list(plan.meshes[stage.mesh].shape),
                "type": types[plan.meshes[stage.mesh].devices[0]],
            }
            for stage in plan.stages
        ],
    }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """A table in Markdown."""
    print("| devices taken for | simulated s | PFLOPS | stages |\n|---|---|---|---|")
    for row in rows:
        if "failed" in row:
            print(f"| {row['assumed']} | - | - | {row['failed'][:200]} |")
            continue
        stages = ", ".join(
            f"{s['layers'][1] - s['layers'][0]} on {'x'.join(map(str, s['mesh']))} {s['type']}"
            for s in row["stages"]
        )
        print(f"| {row['assumed']} | {row['step_seconds']:.1f} | {row['pflops']:.2f} | {stages} |")
