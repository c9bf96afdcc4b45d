"""What each transfer of a plan takes, and which links: from the steps of its reshard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from alpa_runtime.plan import Plan
from alpa_runtime.plan.reshard import ReshardInfo

from alpa_mlir.cluster.description import Cluster
from alpa_mlir.errors import ClusterFileError
from alpa_mlir.simulator.costs import item_bytes
from alpa_mlir.simulator.engine import LinkUse, Route
from alpa_mlir.simulator.transfer_network import Network


def plan_routes(plan: Plan, cluster: Cluster) -> tuple[Route, ...]:
    """One route for each reshard of the plan.

    On the cluster that the plan was made for a transfer takes the seconds that the plan foresees.
    On another one it takes so many times as long as its steps do there in the simulated network;
    where nothing was foreseen, because the plan knows no cluster, as long as the steps do.

    Raises:
        ClusterFileError: a device of a mesh is not in the cluster.
    """
    given: Mapping[str, Any] = json.loads(cluster.text)
    network = Network(given)
    for mesh in plan.meshes:
        for device in mesh.devices:
            if device >= len(network.places):
                raise ClusterFileError(
                    f"device {device} is not in a cluster of {len(network.places)} devices"
                )
    planned = None
    if plan.cluster:
        planned = json.loads(Cluster.from_dict(plan.cluster).text)
        same = all(planned.get(key) == given.get(key) for key in ("hosts", "links"))
        before = network if same else Network(planned)
    else:
        before = None
    return tuple(_route(info, network, before) for info in plan.reshards)


def _route(info: ReshardInfo, network: Network, before: Network | None) -> Route:
    size = item_bytes(info.source.dtype)
    bandwidths = dict(zip(network.names, network.bandwidths, strict=True))
    links = tuple(
        LinkUse(name, bandwidths[name], count)
        for name, count in network.link_bytes(info.steps, size).items()
    )
    if before is network:
        seconds = info.seconds
    else:
        seconds = network.simulate(info.steps, size).seconds
        if before is not None and (then := before.simulate(info.steps, size).seconds) > 0:
            seconds *= info.seconds / then
    flow = max([use.bytes / use.bandwidth for use in links], default=0.0)
    flow = min(flow, seconds)
    return Route((info.source_mesh, info.target_mesh), seconds - flow, flow, links)
