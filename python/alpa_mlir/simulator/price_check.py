"""Do the predicted seconds of a plan's stages hold on another cluster?

They were priced for the devices of each stage's mesh and for the links of its collectives. How
much memory the devices have, and what lies between meshes, is no part of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import links_of

from alpa_mlir.cluster.description import Cluster
from alpa_mlir.errors import ClusterFileError, PlanMismatchError


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
