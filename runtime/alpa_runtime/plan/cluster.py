"""Is a plan for this step, this cluster and this compiler? If not, the first difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alpa_runtime.plan.units import bytes_text

if TYPE_CHECKING:
    pass


def cluster_difference(planned: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The first way in which two cluster descriptions differ; names do not count."""
    if _hosts(planned) != _hosts(given):
        return f"the cluster has {_hosts(given)}, the plan was made for {_hosts(planned)}"
    used = sorted({host["device_type"] for host in host_groups(given)})
    for name in used:
        old, new = (c.get("device_types", {}).get(name, {}) for c in (planned, given))
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return (
                    f"{key} of {name} is {_quantity(key, new.get(key))} in the cluster, "
                    f"{_quantity(key, old.get(key))} where the plan was made"
                )
    for link in ("intra_host", "inter_host"):
        for before, after in zip(_links(planned, link), _links(given, link), strict=True):
            for key in ("bandwidth", "latency"):
                if before.get(key) != after.get(key):
                    return (
                        f"{key} of {link} links is {after.get(key)} in the cluster, "
                        f"{before.get(key)} where the plan was made"
                    )
    if planned.get("profile") != given.get("profile"):
        return "the measured costs of the cluster are others than those the plan was made with"
    return None


def host_groups(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a description's `hosts`, which may be one or a list."""
    hosts: Any = cluster.get("hosts", [])
    return [hosts] if isinstance(hosts, Mapping) else list(hosts)


def device_types(cluster: Mapping[str, Any]) -> list[str]:
    """The name of the type of each device of a description, in the order of their numbers."""
    names: list[str] = []
    for group in host_groups(cluster):
        names += [str(group["device_type"])] * (int(group["devices"]) * int(group.get("count", 1)))
    return names


def links_of(
    hosts: Sequence[Mapping[str, Any]], cluster: Mapping[str, Any], link: str
) -> list[Mapping[str, Any]]:
    """Of each host, or group of hosts, its own links or else the cluster's."""
    default = cluster.get("links", {}).get(link, {})
    return [host.get("links", {}).get(link, default) for host in hosts]


def _links(cluster: Mapping[str, Any], link: str) -> list[Mapping[str, Any]]:
    return links_of(host_groups(cluster), cluster, link)


def _hosts(cluster: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for host in host_groups(cluster):
        count = host.get("count", 1)
        text = f"{count} host{'' if count == 1 else 's'} of {host['devices']} {host['device_type']}"
        nics = host.get("nics", 1)
        parts.append(text if nics == 1 else f"{text} with {nics} network adapters")
    return " and ".join(parts) or "no hosts"


def _quantity(key: str, value: Any) -> str:
    if key == "memory_bytes" and isinstance(value, int | float):
        return bytes_text(value)
    return "not given" if value is None else str(value)
