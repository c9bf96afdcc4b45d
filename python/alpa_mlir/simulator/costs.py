"""Seconds of a plan's functions and bytes of its tensors on a device, and whether they hold on
another cluster.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import hosts_per_rack, links_of
from alpa_runtime.plan.stage import MeshInfo, StageInfo
from alpa_runtime.plan.tensor import TensorSpec

from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import ClusterFileError, PlanFormatError, PlanMismatchError

BACKWARD_PARTS = ("backward_input", "backward_weight")


def item_bytes(dtype: str) -> float:
    """Bytes of an element, by the digits of NumPy's name; narrow types take their part."""
    if dtype == "bool":
        return 1
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 4


def tensor_bytes(tensor: TensorSpec) -> float:
    """Bytes of the whole tensor."""
    return prod(tensor.shape) * item_bytes(tensor.dtype)


def device_bytes(tensor: TensorSpec, mesh: MeshInfo) -> float:
    """Bytes of the part of a tensor that each device of the mesh holds."""
    sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
    parts = [prod(sizes.get(axis, 1) for axis in axes) for axes in tensor.spec]
    dims = [-(-size // part) for size, part in zip(tensor.shape, parts, strict=True)]
    return prod(dims) * item_bytes(tensor.dtype)


def flops_of(plan: Plan, *functions: str) -> float | None:
    """FLOPs of one call of these functions of each stage, on all devices together; None if the plan
    does not say."""
    if any("forward_flops" not in stage.predicted for stage in plan.stages):
        return None
    return sum(s.predicted.get(f"{name}_flops", 0.0) for s in plan.stages for name in functions)


def hardware_flops(plan: Plan) -> float | None:
    """FLOPs of a step on all devices together, with what is computed again; what devices compute
    alike counts once. None if the plan does not say."""
    each = flops_of(plan, "forward", "backward")
    once = flops_of(plan, "prepare", "barrier", "update")
    return None if each is None or once is None else each * plan.num_micro_batches + once


def function_seconds(plan: Plan) -> dict[tuple[int, str], float]:
    """Predicted seconds of one call of each stage's functions, by (stage, function).

    The seconds of a stage's update are shared out to its update functions by the bytes that each
    reads and writes on a device, since updates are bound by memory. Those of a backward that is cut
    in two are shared out by FLOPs, or in halves, if the plan does not say what each part takes.

    Raises:
        PlanFormatError: the plan has no predicted seconds for a function.
    """
    seconds: dict[tuple[int, str], float] = {}
    for index, stage in enumerate(plan.stages):
        updates = _update_shares(stage, plan.meshes[stage.mesh])
        for name in stage.functions:
            kind, share = name, 1.0
            if name in updates:
                kind, share = "update", updates[name]
            elif name in BACKWARD_PARTS and f"{name}_seconds" not in stage.predicted:
                kind, share = "backward", _backward_share(stage, name)
            key = f"{kind}_seconds"
            if key not in stage.predicted:
                raise PlanFormatError(
                    f"no predicted seconds for @{name}",
                    where=f"stages[{index}].predicted.{key}",
                    fix="plan the step with alpa_mlir, which foresees the seconds of every stage",
                )
            seconds[index, name] = stage.predicted[key] * share
    return seconds


def _backward_share(stage: StageInfo, name: str) -> float:
    flops = {part: stage.predicted.get(f"{part}_flops", 0.0) for part in BACKWARD_PARTS}
    total = sum(flops.values())
    return flops[name] / total if total else 1 / len(BACKWARD_PARTS)


def _update_shares(stage: StageInfo, mesh: MeshInfo) -> Mapping[str, float]:
    moved = {
        name: sum(device_bytes(t, mesh) for t in (*function.inputs, *function.outputs))
        for name, function in stage.functions.items()
        if name.startswith("update")
    }
    total = sum(moved.values())
    return {name: count / total if total else 1 / len(moved) for name, count in moved.items()}


# Do the predicted seconds of a plan's stages hold on another cluster?
#
# They were priced for the devices of each stage's mesh and for the links of its collectives. How
# much memory the devices have, and what lies between meshes, is no part of them.


def check_prices(plan: Plan, cluster: Cluster) -> None:
    """Refuse a cluster on which the plan's stages would take other seconds than foreseen.

    Raises:
        PlanMismatchError: names the stage, and what differs of its mesh.
        ClusterFileError: a device of the plan is not in the cluster.
    """
    planned = json.loads(Cluster.from_dict(plan.cluster).text)
    given = json.loads(cluster.text)
    for index, stage in enumerate(plan.stages):
        devices = plan.meshes[stage.mesh].devices
        before, after = _basis(devices, planned), _basis(devices, given)
        for what in {**before, **after}:
            old, new = before.get(what), after.get(what)
            if old == new:
                continue
            raise PlanMismatchError(
                f"the seconds of stage {index} are foreseen for {what} {_text(old)}, "
                f"in cluster {cluster.name!r} they are {_text(new)}",
                where=f"plan of {plan.name}",
                fix="plan the step for that cluster; only memory, the hosts' adapters and links "
                "between meshes may differ",
            )


def _basis(devices: Sequence[int], cluster: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the seconds of a mesh rest on: by name, a value for each of its hosts."""
    hosts = list(_hosts(cluster))
    on_host = Counter(_host_of(device, hosts) for device in devices)
    used = [hosts[host] for host in on_host]
    types: list[Mapping[str, Any]] = [cluster["device_types"][h["device_type"]] for h in used]
    profile: Mapping[str, Any] = cluster.get("profile", {})
    measured = [profile.get("device_types", {}).get(h["device_type"], {}) for h in used]
    basis: dict[str, list[Any]] = {
        "devices on hosts": list(on_host.values()),
        **{
            f"devices' {name}": [t.get(name) for t in types]
            for name in ("memory_bandwidth", "peak_flops", "efficiency")
        },
        "measured operations": measured,
    }
    links = ["intra_host"] * (len(devices) > len(used)) + ["inter_host"] * (len(used) > 1)
    if per_rack := hosts_per_rack(cluster):
        in_rack = Counter(host // per_rack for host in on_host)
        if len(in_rack) > 1:
            links.append("inter_rack")
            basis["hosts in racks"] = list(in_rack.values())
            basis["network adapters of racks"] = [cluster["racks"].get("nics", 1)]
    for link in links:
        basis[f"{link} links"] = links_of(used, cluster, link)
    basis["measured collectives"] = [
        c for c in profile.get("collectives", ()) if c["link"] in links
    ]
    return basis


def _hosts(cluster: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for group in cluster["hosts"]:
        yield from [group] * int(group["count"])


def _host_of(device: int, hosts: Sequence[Mapping[str, Any]]) -> int:
    first = 0
    for index, host in enumerate(hosts):
        first += int(host["devices"])
        if device < first:
            return index
    raise ClusterFileError(f"device {device} is not in a cluster of {first} devices")


def _text(values: list[Any] | None) -> str:
    """A value once where all hosts have the same."""
    if not values or values == [None] * len(values):
        return "not given"
    same = all(value == values[0] for value in values)
    text = json.dumps(values[0] if same else values)
    return text if len(text) < 200 else "others"
