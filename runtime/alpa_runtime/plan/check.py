"""Is a plan for this step, this cluster and this compiler? If not, the first difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from alpa_runtime.plan.json_nodes import Node
from alpa_runtime.plan.text import bytes_text

if TYPE_CHECKING:
    from alpa_runtime.plan import Plan


def check_references(plan: Plan, root: Node) -> None:
    """Whether everything that one table names by number stands in the other; instructions are
    looked at when the plan is loaded.

    Args:
        root: plan.json, for the names of fields.

    Raises:
        PlanFormatError: names the first field that refers to nothing.
    """

    def check(number: int, count: int, what: str, node: Node) -> None:
        if number >= count:
            raise node.error_text(f"{what} {number}, but the plan has {count}")

    for table, items in (("stages", plan.stages), ("programs", plan.programs)):
        for i, item in enumerate(items):
            check(item.mesh, len(plan.meshes), "mesh", root.get(table).item(i).get("mesh"))
    for i, reshard in enumerate(plan.reshards):
        for name in ("source_mesh", "target_mesh"):
            field = root.get("reshards").item(i).get(name)
            check(getattr(reshard, name), len(plan.meshes), "mesh", field)
    for i, info in enumerate(plan.inputs):
        if info.carried_by is not None:
            field = root.get("inputs").item(i).get("carried_by")
            check(info.carried_by, len(plan.outputs), "output", field)


def signature_difference(plan: Plan, signature: Any) -> str | None:
    """The first way in which a traced step's `Signature` differs from the plan's tables."""
    if plan.name != signature.name:
        return f"the plan is for {plan.name}, the step is {signature.name}"

    def whole(info: Any, is_part: bool) -> Any:
        if not is_part:
            return info
        return replace(info, shape=(info.shape[0] * plan.num_micro_batches, *info.shape[1:]))

    arguments = [whole(x, x.kind == "batch") for x in plan.arguments]
    results = [whole(x, x.reduction == "concat") for x in plan.results]
    for what, planned, traced, fields in (
        ("argument", arguments, signature.inputs, ("kind", "carried_by")),
        ("result", results, signature.outputs, ()),
    ):
        found = _leaf_difference(what, planned, traced, fields)
        if found:
            return found
    return None


def _leaf_difference(
    what: str, planned: Sequence[Any], traced: Sequence[Any], fields: tuple[str, ...]
) -> str | None:
    for a, b in zip(planned, traced, strict=False):
        if a.name != b.name:
            return f"the plan has the {what} {a.name} where the step has {b.name}"
        if a.shape != b.shape:
            return f"{a.name} is {_shape(a.shape)} in the plan, {_shape(b.shape)} in the step"
        if a.dtype != b.dtype:
            return f"{a.name} is {a.dtype} in the plan, {b.dtype} in the step"
        for name in fields:
            old, new = getattr(a, name), getattr(b, name)
            if old != new:
                return f"{name} of {a.name} is {old!r} in the plan, {new!r} in the step"
    if len(planned) != len(traced):
        more, fewer, where = (
            (planned, traced, "plan") if len(planned) > len(traced) else (traced, planned, "step")
        )
        return f"only the {where} has the {what} {more[len(fewer)].name}"
    return None


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


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


_LOCATION = re.compile(r' loc\((?:"(?:[^"\\]|\\.)*"|[^()"]|\([^()]*\))*\)')


def without_locations(text: str) -> str:
    """A module's text without where its ops come from: moved lines do not make another step.

    Example:
        >>> without_locations('%0 = "a"() : () -> i1 loc("sum:"(#loc3))\\n#loc3 = loc("f.py":1:2)')
        '%0 = "a"() : () -> i1'
    """
    text = re.sub(r" loc\(#loc\d*\)", "", text)  # Nearly all of them; the rest takes longer.
    return _LOCATION.sub("", re.sub(r"^#loc.*\n?", "", text, flags=re.M)).rstrip()
