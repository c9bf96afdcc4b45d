"""The plan: what the compiler decided, as a versioned folder that needs no compiler to run; in it
the candidates that the search tried, and programs that were compiled ahead of time.

A plan is `plan.json` and one StableHLO module per stage; docs/ir.md gives the
form. Reading checks every field by itself (`PlanFormatError` names the field); whether the
parts fit together is checked when the plan is loaded for running (`PlanMismatchError`).

Example:
    >>> plan = Plan.load("my_plan")            # doctest: +SKIP
    >>> print(plan.as_text())                  # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import json
import linecache
import math
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from alpa_runtime.errors import PATH, PlanFormatError, PlanMismatchError, check_type
from alpa_runtime.plan.interface import (
    CallInfo,
    Exactness,
    InputInfo,
    OutputInfo,
    check_pieces,
    join_pieces,
)
from alpa_runtime.plan.modules import stage_modules
from alpa_runtime.plan.program import Order, ProgramInfo, collector_paused, order_lines, read_order
from alpa_runtime.plan.reshard import ReshardInfo
from alpa_runtime.plan.stage import MOST_DEVICES, MeshInfo, StageInfo
from alpa_runtime.plan.strategy import AxisNames, Strategy, strategy_of
from alpa_runtime.plan.tensor import TensorReader
from alpa_runtime.plan.text import (
    Node,
    bytes_text,
    pretty,
    ranges_text,
    read_file,
    read_json,
    seconds_text,
    table,
)


@dataclass(frozen=True)
class Tried:
    """One candidate.

    Attributes:
        num_micro_batches, remat: what was tried; `"auto"` left the choice of each stage to the
            search.
        schedule: the best one of those allowed; of no plan, what was allowed.
        seconds: predicted for one step; None if there is no plan.
        stages, peak_bytes: pipeline stages of that plan, and the most memory that one of its
            devices needs; 0 if there is none.
        rematerialized_stages: of `stages`, those that compute layers again for the gradients.
        exact: whether it was planned in full, rather than estimated by a coarse search.
        reason: why there is no plan, or why it could not be measured.
        measured_seconds: of one step, simulated with the seconds that its stages took on the
            devices of this process; None if it was not measured.
    """

    num_micro_batches: int
    remat: str
    schedule: str
    seconds: float | None
    stages: int = 0
    peak_bytes: float = 0
    exact: bool = False
    reason: str = ""
    measured_seconds: float | None = None
    rematerialized_stages: int = 0

    @classmethod
    def read(cls, node: Node) -> Tried:
        def seconds(name: str) -> float | None:
            value = node.optional(name)
            return None if value.value is None else value.number()

        return cls(
            node.get("num_micro_batches").integer(minimum=1),
            node.get("remat").string(),
            node.get("schedule").string(),
            seconds("seconds"),
            node.get("stages").integer(),
            node.get("peak_bytes").number(),
            node.get("exact").boolean(),
            node.get("reason").string(),
            seconds("measured_seconds"),
            node.get("rematerialized_stages").integer(),
        )

    def as_text(self) -> str:
        """One line.

        Example:
            >>> Tried(4, "none", "1f1b", 0.25, 2).as_text()
            '4 micro-batches: about 250 ms in 2 stages, 1f1b'
            >>> Tried(4, "none", "1f1b", 0.25, 1, exact=True, measured_seconds=0.3).as_text()
            '4 micro-batches: 250 ms in 1 stage; measured 300 ms'
            >>> Tried(4, "auto", "1f1b", 0.25, 4, rematerialized_stages=2).as_text()
            '4 micro-batches: about 250 ms in 4 stages, 2 rematerialized, 1f1b'
        """
        text = candidate_text(self.num_micro_batches, self.remat)
        if self.seconds is None:
            return f"{text}: {self.reason}"
        about = "" if self.exact else "about "
        stages = f"{self.stages} stage{'s' if self.stages > 1 else ''}"
        if self.remat == "auto" and self.rematerialized_stages:
            stages += f", {self.rematerialized_stages} rematerialized"
        order = f", {self.schedule}" if self.stages > 1 else ""
        text += f": {about}{seconds_text(self.seconds)} in {stages}{order}"
        if self.measured_seconds is not None:
            text += f"; measured {seconds_text(self.measured_seconds)}"
        return f"{text}; {self.reason}" if self.reason else text


def tried_text(tried: Sequence[Tried]) -> str:
    """A line for each candidate; nothing if there was no choice."""
    if len(tried) < 2:
        return ""
    rows = sorted(tried, key=lambda t: (t.num_micro_batches, t.remat, t.schedule))
    return "\n".join(["tried:", *(f"  {row.as_text()}" for row in rows)])


def candidate_text(count: int, remat: str) -> str:
    """`4 micro-batches, rematerialized`."""
    named = {"none": "", "auto": "", "all": ", rematerialized"}
    again = named.get(remat, f", layers {remat} rematerialized")
    return f"{count} micro-batch{'es' if count > 1 else ''}{again}"


# Is a plan for this step, this cluster and this compiler? If not, the first difference.


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
    if planned.get("racks") != given.get("racks"):
        return f"the cluster has {_racks(given)}, the plan was made for {_racks(planned)}"
    for link in ("intra_host", "inter_host", "inter_rack"):
        for before, after in zip(_links(planned, link), _links(given, link), strict=True):
            for key in sorted({*before, *after}):
                if before.get(key) != after.get(key):
                    return (
                        f"{key} of {link} links is {after.get(key)} in the cluster, "
                        f"{before.get(key)} where the plan was made"
                    )
    memories = [[host.get("host_memory") for host in host_groups(c)] for c in (planned, given)]
    if memories[0] != memories[1]:
        return "host_memory of the cluster is another one than where the plan was made"
    if planned.get("profile") != given.get("profile"):
        return "the measured costs of the cluster are others than those the plan was made with"
    return None


def read_cluster(node: Node) -> Mapping[str, Any]:
    """The cluster of a plan, as far as the runtime reads it; the compiler reads the rest."""
    node.plain(finite=True)
    _check_present(node)
    if "name" in node.mapping():
        node.get("name").string()
    devices = 0
    hosts = node.optional("hosts")
    for group in [hosts] if isinstance(hosts.value, dict) else hosts.items():
        counts = [
            group.get(name).integer(1, MOST_DEVICES) if name in group.mapping() else 1
            for name in ("count", "nics")
        ]
        devices += counts[0] * group.get("devices").integer(1, MOST_DEVICES)
        if devices > MOST_DEVICES:
            raise hosts.error(f"more than {MOST_DEVICES} devices", "fewer")
        group.get("device_type").string()
        _check_links(group.optional("links"))
    for name in ("hosts", "nics"):
        if name in node.optional("racks").mapping():
            node.get("racks").get(name).integer(1, MOST_DEVICES)
    for _, kind in node.optional("device_types").fields():
        for name in ("peak_flops", "efficiency"):
            kind.optional(name).numbers()
    _check_links(node.optional("links"))
    return MappingProxyType(dict(node.mapping()))


def _check_present(node: Node) -> None:
    """Readers ask whether a field is there, not whether it is null."""
    if node.value is None:
        raise node.error("got null", "a value, or no such field")
    if isinstance(node.value, dict):
        for _, field in node.fields():
            _check_present(field)
    elif isinstance(node.value, list):
        for item in node.items():
            _check_present(item)


def _check_links(node: Node) -> None:
    for _, link in node.fields():
        for name in ("bandwidth", "latency"):
            link.get(name).number()


def host_groups(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a description's `hosts`, which may be one or a list."""
    hosts: Any = cluster.get("hosts", [])
    return [hosts] if isinstance(hosts, Mapping) else list(hosts)


def device_count(cluster: Mapping[str, Any]) -> int:
    """Devices of a description."""
    groups = host_groups(cluster)
    return sum(int(group["devices"]) * int(group.get("count", 1)) for group in groups)


def hosts_per_rack(cluster: Mapping[str, Any]) -> int:
    """Of a description with racks; 0 of one without."""
    return int(cluster.get("racks", {}).get("hosts", 0))


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


def _racks(cluster: Mapping[str, Any]) -> str:
    racks: Mapping[str, Any] | None = cluster.get("racks")
    if racks is None:
        return "no racks"
    nics = racks.get("nics", 1)
    text = f"racks of {racks['hosts']} host{'' if racks['hosts'] == 1 else 's'}"
    return text if nics == 1 else f"{text} with {nics} network adapters"


def _quantity(key: str, value: Any) -> str:
    if key == "memory_bytes" and isinstance(value, int | float):
        return bytes_text(value)
    return "not given" if value is None else str(value)


# Programs that were compiled ahead of time and travel with a plan.

BINARIES = "compiled.json"
_FORMAT, _VERSION = "alpa_mlir.binaries", 1


@dataclass(frozen=True)
class Binary:
    """One compiled program of a plan.

    Attributes:
        label: what it is, as progress shows it (`"stage 0 forward"`).
        compiler: `"xla"` or `"iree"`.
        target: the kind of device (`"h100"`, `"cpu"`).
        key: a hash of all that went into it; a loader takes it where its own is the same.
        memory_bytes: arguments, results and temporaries on a device, as the compiler counts.
        program: the compiler's bytes.
    """

    label: str
    compiler: str
    target: str
    key: str
    memory_bytes: int
    program: bytes = field(repr=False)

    @property
    def file(self) -> str:
        """The name of its file in the plan's folder."""
        return f"{self.label.replace(' ', '_')}.{self.target}.{self.compiler}.{self.key[:8]}.bin"


@dataclass(frozen=True)
class CompiledMemory:
    """The most that a device of a mesh holds in a step, by a compiler's count of its programs.

    Attributes:
        mesh: its number.
        compiler, target: as of `Binary`.
        bytes: of what the step holds then, and of the running program's results and temporaries.
        label: of that program.
    """

    mesh: int
    compiler: str
    target: str
    bytes: int
    label: str

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> CompiledMemory:
        texts = str(row["compiler"]), str(row["target"])
        return cls(int(row["mesh"]), *texts, int(row["bytes"]), str(row["label"]))


def key_of(parts: Mapping[str, str]) -> str:
    """A hash of named parts, whatever their order."""
    digest = hashlib.sha256()
    for name, part in sorted(parts.items()):
        for data in (name.encode(), part.encode()):
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def foreign(found: os.stat_result) -> str | None:
    """Why a file or folder that is trusted may be somebody else's, where users are told apart."""
    if not hasattr(os, "getuid"):
        return None
    if found.st_uid not in (os.getuid(), 0):
        return f"it belongs to user {found.st_uid}"
    for bit, who in ((stat.S_IWOTH, "every user"), (stat.S_IWGRP, f"group {found.st_gid}")):
        if found.st_mode & bit:
            return f"{who} may write to it; if nobody did, take that away (chmod go-w)"
    return None


def write_binaries(
    folder: Path, binaries: Sequence[Binary], memory: Sequence[CompiledMemory]
) -> None:
    """Write programs beside plan.json, and the memory that meshes need with them, in place of all
    that lay there."""
    rows = [
        {
            "label": item.label,
            "compiler": item.compiler,
            "target": item.target,
            "key": item.key,
            "memory_bytes": item.memory_bytes,
            "file": item.file,
            "sha256": hashlib.sha256(item.program).hexdigest(),
        }
        for item in binaries
    ]
    # A reader finds the old table with its files, or the new one.
    for item in binaries:
        _replace(folder / item.file, item.program)
    fields = {
        "format": _FORMAT,
        "version": _VERSION,
        "programs": rows,
        "memory": [asdict(item) for item in memory],
    }
    _replace(folder / BINARIES, (pretty(fields) + "\n").encode())
    for path in {*folder.glob("*.bin")} - {folder / item.file for item in binaries}:
        path.unlink()


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)  # See `foreign`.
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(new, path)


def read_binaries(folder: Path) -> tuple[tuple[Binary, ...], tuple[CompiledMemory, ...]]:
    """The programs beside plan.json, and the memory that meshes need with them. What is damaged,
    or was written by another user, is left out with a warning: stages are compiled where no
    program is."""
    path = folder / BINARIES
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        return (), ()
    except (OSError, UnicodeDecodeError) as error:
        _warn(path, str(error))
        return (), ()
    try:
        table = json.loads(text)
        if table["format"] != _FORMAT or table["version"] != _VERSION:
            raise ValueError(f"format {table['format']} {table['version']}")
        rows = [
            (
                Binary(
                    str(row["label"]),
                    str(row["compiler"]),
                    str(row["target"]),
                    str(row["key"]),
                    int(row["memory_bytes"]),
                    b"",
                ),
                Path(str(row["file"])).name,
                str(row["sha256"]),
            )
            for row in table["programs"]
        ]
        memory = tuple(map(CompiledMemory.read, table.get("memory", ())))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        _warn(path, f"it is malformed ({error})")
        return (), ()
    found: list[Binary] = []
    for item, name, digest in rows:
        try:
            with (folder / name).open("rb") as file:
                reason = foreign(os.fstat(file.fileno()))
                program = b"" if reason else file.read()
        except OSError as error:
            reason, program = error.strerror or str(error), b""
        if reason is None and hashlib.sha256(program).hexdigest() != digest:
            reason = "it is not what was written"
        if reason is None:
            fields = item.label, item.compiler, item.target, item.key, item.memory_bytes
            found.append(Binary(*fields, program))
        else:
            _warn(folder / name, reason)
    return tuple(found), memory


def _warn(path: Path, reason: str) -> None:
    warnings.warn(f"compiled program {path} is not used: {reason}", stacklevel=4)


@dataclass(frozen=True)
class Change:
    """`what` is `before` in the first plan and `after` in the other; None where it has none."""

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PlanDiff:
    """Differences of two plans; false if there are none.

    Attributes:
        decisions: name, cluster, schedule, micro-batches, layers and meshes of stages,
            how tensors go from mesh to mesh.
        shardings: of weights, by name.
        predictions: seconds and bytes that the search foresaw.
        kept: decisions that are the same, by name.
        kept_shardings: how many weights are split in the same way.
    """

    decisions: tuple[Change, ...]
    shardings: tuple[Change, ...]
    predictions: tuple[Change, ...]
    kept: Mapping[str, str] = field(default_factory=dict[str, str])
    kept_shardings: int = 0

    def __bool__(self) -> bool:
        return bool(self.decisions or self.shardings or self.predictions)

    def as_text(self, most: int = 40) -> str:
        """A table; of the shardings at most so many."""
        if not self:
            return "the plans are equal"
        shown = self.shardings[:most]
        changes = (*self.decisions, *shown, *self.predictions)
        rows = [[c.what, c.before or "-", c.after or "-"] for c in changes]
        hidden = len(self.shardings) - len(shown)
        more = f"\nand {hidden} more weights are split otherwise" if hidden else ""
        return table(("", "this plan", "other plan"), rows) + more

    def in_words(self, most: int = 4) -> str:
        """What the second plan keeps of the first one's decisions, and what it changes, in a line
        each; of stages at most so many changes. How tensors go from mesh to mesh is left out."""

        def is_said(what: str) -> bool:
            return " of stage " not in what and " to mesh " not in what and what != "step"

        kept = [f"{what} {value}" for what, value in self.kept.items() if is_said(what)]
        changed = [f"{c.what} {c.before} -> {c.after}" for c in self.decisions if is_said(c.what)]
        for what in ("layers", "mesh"):
            stages = [n.rpartition(" ")[2] for n in self.kept if n.startswith(f"{what} of stage ")]
            if stages:
                several = "s" if len(stages) > 1 else ""
                kept.append(f"{what} of stage{several} {', '.join(stages)}")
            others = [
                c for c in self.decisions if c.what.startswith(f"{what} of stage ") and c.after
            ]
            changed += [f"{c.what} {c.before or 'none'} -> {c.after}" for c in others[:most]]
            if len(others) > most:
                changed.append(f"{what} of {_count(len(others) - most, 'more stage')}")
        for items, count in ((kept, self.kept_shardings), (changed, len(self.shardings))):
            if count:
                items.append(f"how {_count(count, 'weight')} {'is' if count == 1 else 'are'} split")
        changed += [
            f"predicted step {c.before} -> {c.after}"
            for c in self.predictions
            if c.what == "predicted step seconds"
        ]
        lines = (("kept", kept), ("changed", changed))
        return "\n".join(f"{name}: {'; '.join(items) or 'nothing'}" for name, items in lines)


def diff_plans(first: Plan, second: Plan) -> PlanDiff:
    """See `Plan.diff`."""
    one, other = strategy_of(first), strategy_of(second)
    before, after = _decisions(first, one), _decisions(second, other)
    split, split_after = _shardings(first, one), _shardings(second, other)
    return PlanDiff(
        tuple(_changes(before, after)),
        tuple(_changes(split, split_after)),
        tuple(_changes(_predictions(first), _predictions(second))),
        {what: value for what, value in before.items() if after.get(what) == value},
        sum(split_after.get(name) == text for name, text in split.items()),
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for what in (*before, *(name for name in after if name not in before)):
        if before.get(what) != after.get(what):
            yield Change(what, before.get(what), after.get(what))


def _decisions(plan: Plan, strategy: Strategy) -> dict[str, str]:
    found = {
        "step": plan.name,
        "cluster": f"{plan.cluster.get('name', 'unnamed')}, {_hosts(plan.cluster)}",
        **({"schedule": plan.pipeline_schedule} if plan.pipeline_schedule else {}),
        "micro-batches": str(plan.num_micro_batches),
        "stages": str(len(plan.stages)),
    }
    if strategy.text:
        found["strategy"] = strategy.text
    for index, stage in enumerate(plan.stages):
        lo, end = stage.layers
        found[f"layers of stage {index}"] = f"{lo}-{end - 1}"
        found[f"mesh of stage {index}"] = _mesh_text(
            strategy.axes[stage.mesh], plan.meshes[stage.mesh]
        )
        found[f"rematerialized layers of stage {index}"] = rematerialized_text(stage) or "none"
        found[f"export of stage {index}"] = stage.export
    for (source, target), text in transfers_text(plan, seconds=False).items():
        found[f"mesh {source} to mesh {target}"] = text
    return found


def _shardings(plan: Plan, strategy: Strategy) -> dict[str, str]:
    """A weight of several stages has one text for all of them."""
    found: dict[str, str] = {}
    for stage in plan.stages:
        axes = strategy.axes[stage.mesh]
        for weight in stage.weights:
            text = f"{axes.spec(weight.spec)} of {axes.shape_text()}"
            known = found.get(weight.name)
            found[weight.name] = text if known in (None, text) else f"{known}, {text}"
    return found


def _predictions(plan: Plan) -> dict[str, str]:
    found = dict(_quantities("predicted ", plan.predicted))
    for index, stage in enumerate(plan.stages):
        found |= dict(_quantities(f"stage {index}: ", stage.predicted))
    return found


def _quantities(prefix: str, values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    units: dict[str, Callable[[float], str]] = {"_seconds": seconds_text, "_bytes": bytes_text}
    for name, value in values.items():
        for suffix, text in units.items():
            if name.endswith(suffix):
                words = name.removesuffix(suffix).replace("_", " ")
                kind = "seconds" if suffix == "_seconds" else "memory"
                yield f"{prefix}{words} {kind}", text(value)


def stage_rows(plan: Plan, strategy: Strategy, weights: int) -> list[list[str]]:
    """One row a stage: stage, layers, mesh, weights and shardings, seconds, memory."""
    rows: list[list[str]] = []
    modules = stage_modules(plan)
    for index, stage in enumerate(plan.stages):
        names = strategy.axes[stage.mesh]
        largest = sorted(stage.weights, key=lambda w: -math.prod(w.shape))[:weights]
        lines = [
            f"{w.name} {'x'.join(map(str, w.shape)) or 'scalar'} {names.spec(w.spec)}"
            for w in largest
        ]
        if len(stage.weights) > len(largest):
            lines.append(f"and {len(stage.weights) - len(largest)} more")
        rows.append(
            [
                str(index),
                _stage_layers(stage, modules[index]),
                _mesh_text(names, plan.meshes[stage.mesh]),
                "\n".join(lines),
                _stage_seconds(stage),
                _stage_memory(stage),
            ]
        )
    return rows


def _mesh_text(names: AxisNames, mesh: MeshInfo) -> str:
    """A mesh by what its axes do, and its devices."""
    numbers = ranges_text(mesh.devices)
    if len(mesh.devices) == 1:
        return f"device {numbers}"
    return f"{names.shape_text()} on devices {numbers}"


HEADER = ("stage", "layers", "mesh", "weights [sharding]", "predicted time", "memory/device")


def _stage_layers(stage: StageInfo, modules: str) -> str:
    first, end = stage.layers
    again = rematerialized_text(stage)
    lines = [f"{first}-{end - 1}" if end - 1 > first else str(first), *modules.split(", ")]
    return "\n".join([*filter(None, lines), *([f"{again} rematerialized"] if again else [])])


def _stage_memory(stage: StageInfo) -> str:
    found = stage.predicted
    peak = bytes_text(found["peak_bytes"]) if "peak_bytes" in found else ""
    return peak + (f"\n{bytes_text(found['host_bytes'])} on host" if "host_bytes" in found else "")


def rematerialized_text(stage: StageInfo) -> str:
    """`all`, or how many of the stage's layers are computed again; nothing for none."""
    again = int(stage.predicted.get("rematerialized_layers", 0))
    return "all" if again == stage.layers[1] - stage.layers[0] else str(again or "")


def _stage_seconds(stage: StageInfo) -> str:
    names = [("prepare", "prep"), ("forward", "fwd"), ("barrier", "once")]
    names += [("backward", "bwd"), ("update", "upd")]
    if "backward_weight" in stage.functions:
        names[3:4] = [("backward_input", "bwd in"), ("backward_weight", "bwd wt")]
    return "\n".join(
        f"{short} {seconds_text(stage.predicted[f'{name}_seconds'])}"
        for name, short in names
        if f"{name}_seconds" in stage.predicted
    )


def plan_summary(plan: Plan) -> str:
    """One line: stages, devices, micro-batches, schedule of several stages, predicted seconds."""
    devices = sum(len(mesh.devices) for mesh in plan.meshes)
    text = (
        f"plan of {plan.name}: {_count(len(plan.stages), 'stage')} on {_count(devices, 'device')}, "
        f"{_count(plan.num_micro_batches, 'micro-batch', 'micro-batches')}"
    )
    text += f", schedule {plan.pipeline_schedule}" if plan.pipeline_schedule else ""
    if plan.exactness.barriers:
        text += " with a barrier" if plan.pipeline_schedule else ", a barrier"
    if "step_seconds" in plan.predicted:
        text += f", predicted step {seconds_text(plan.predicted['step_seconds'])}"
    return text


def timed_out_text(plan: Plan) -> str:
    """One line on what the clock ended; nothing if it did not."""
    if not plan.timed_out_solves:
        return ""
    solves = _count(plan.timed_out_solves, "solve")
    return f"the time limit ended {solves}: planned again, the step may get another plan"


def idle_text(plan: Plan) -> str:
    """One line on devices of the cluster that no mesh has, why, and what using them would cost."""
    devices = device_count(plan.cluster)
    idle = devices - len(plan.used_devices)
    if idle <= 0:
        return ""
    text = f"{idle} of {_count(devices, 'device')} {'is' if idle == 1 else 'are'} idle"
    if plan.idle_reason:
        text += f": {plan.idle_reason}"
    step, seconds = (
        plan.predicted.get(name) for name in ("step_seconds", "all_devices_step_seconds")
    )
    if step and seconds:
        text += f", {seconds_text(seconds)} a step, {seconds / step - 1:.1%} more"
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
    "barriers": "a barrier: values that backward runs need of all examples at once; all forward "
    "runs come first, then these are computed once",
    "estimates": "estimates, as micro_batch_semantics asks: values that couple examples, which "
    "each micro-batch takes of its own",
}


def micro_batches_text(plan: Plan) -> str:
    """What the plan's micro-batches compute, in words, with source lines and their code."""
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
            lines += [means, *(f"  {_with_code(place)}" for place in places)]
    return "\n".join(lines)


def _places(places: Sequence[str]) -> list[str]:
    """Source lines; a module need not say any."""
    return list(dict.fromkeys(place or "a line that the module does not name" for place in places))


def _with_code(place: str) -> str:
    """A source line and what stands there, if its file is here."""
    path, _, line = place.rpartition(":")
    is_line = line.isdecimal() and len(line) < 10 and "\0" not in path and os.path.isfile(path)
    code = linecache.getline(path, int(line)).strip() if is_line else ""
    return f"{place}  {code}" if code else place


def padded_text(plan: Plan) -> str:
    """One line on dimensions that are longer within the stages than in the program."""
    return f"padded dimensions: {', '.join(plan.padded)}" if plan.padded else ""


def plan_table(
    plan: Plan,
    weights: int,
    figures: Sequence[str],
    explanations: Sequence[Mapping[str, Any] | None] | None,
) -> str:
    """Summary line, strategy, figures, a table of the stages in plain characters, and what goes
    between meshes."""
    strategy = strategy_of(plan, explanations)
    texts = (
        inexact_text(plan),
        timed_out_text(plan),
        strategy.text and f"strategy: {strategy.text}",
        *figures,
        idle_text(plan),
        padded_text(plan),
    )
    notes = [text for text in texts if text]
    lines = [plan_summary(plan), *notes, table(HEADER, stage_rows(plan, strategy, weights))]
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


FORMAT = "alpa_mlir.plan"
VERSION = 5
_EXPLANATION = ".explain.json"
_PLANNING = "planning.json"
#: What `Plan.save` writes into a folder, as patterns of names.
FILES = ("plan.json", "stage_*.mlir", f"stage_*{_EXPLANATION}", _PLANNING, BINARIES, "*.bin")


def _planning(text: str | None) -> Mapping[str, Any]:
    """Seconds and counts, for people: what is damaged is as good as nothing."""
    try:
        root = read_json(text or "{}", _PLANNING)
        for name, field in root.fields():
            for number in field.items() if name == "stage_seconds" else [field]:
                number.number()
    except PlanFormatError:
        return MappingProxyType({})
    return MappingProxyType(dict(root.mapping()))


@dataclass(frozen=True)
class Plan:
    """Everything that running a step needs, apart from devices.

    Attributes:
        name: of the user's function.
        cluster: description of the cluster that the plan was made for.
        modules: file name to StableHLO text, one per stage.
        compiler: version of the compiler that made the plan.
        reshards: how tensors get from mesh to mesh; sends and receives name them by number.
        binaries: programs that were compiled ahead of time.
        explanations: file name to JSON text, for people; see `explanation`.
        fingerprint: of the traced step that the plan was made for; None if it was not traced.
        call: how the step is called; None if nobody has said.
        predicted: seconds and bytes of the whole step, as the search foresaw them.
        tried: the numbers of micro-batches that the search looked at, and other candidates; empty
            if nobody has said.
        exactness: whether results are those of the whole batch, and by what means.
        order: in which all programs can run: from which mesh how many instructions come next.
        timed_out_solves: of the search, those that the clock ended; with any, the same search may
            find another plan another time.
        planning: how the search went, with seconds of the clock (docs/plan.md); of no two searches
            the same, so that it is kept beside plan.json and plans are equal without it.
        idle_reason: why devices of the cluster are in no mesh; empty if all are, or if it is not
            known.
        padded: sizes of dimensions that are longer within stages than in the program, as the
            devices share them evenly then: `"50257 to 50304"`.
    """

    name: str
    cluster: Mapping[str, Any]
    num_micro_batches: int
    schedule: str
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    meshes: tuple[MeshInfo, ...]
    stages: tuple[StageInfo, ...]
    predicted: Mapping[str, float]
    programs: tuple[ProgramInfo, ...]
    modules: Mapping[str, str] = field(repr=False)
    compiler: str = ""
    explanations: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    fingerprint: str | None = None
    call: CallInfo | None = field(default=None, repr=False)
    reshards: tuple[ReshardInfo, ...] = field(default=(), repr=False)
    binaries: tuple[Binary, ...] = field(default=(), repr=False, compare=False)
    tried: tuple[Tried, ...] = field(default=(), repr=False)
    exactness: Exactness = field(default_factory=Exactness, repr=False)
    order: Order = field(default=(), repr=False)
    timed_out_solves: int = 0
    planning: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)
    idle_reason: str = ""
    padded: tuple[str, ...] = ()
    compiled_memory: tuple[CompiledMemory, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    @collector_paused()
    def from_json(
        cls,
        text: str,
        files: Mapping[str, str],
        where: str = "plan.json",
        *,
        check_programs: bool = True,
        check_modules: bool = True,
    ) -> Plan:
        """Read a plan from the text of `plan.json` and the files beside it.

        Args:
            files: name to text: the stage modules, and what explains the stages, if wanted.
            check_programs: read the instructions now, not when they are first asked for.
            check_modules: every stage's module must be there; a worker needs its own only.

        Raises:
            PlanFormatError: a field is missing or malformed, or a module is missing.
        """
        root = read_json(text, where)
        root.get("format").choice(FORMAT)
        version = root.get("version").integer()
        if version != VERSION:
            maker = root.optional("compiler").optional_string()
            age, fix = (
                ("an older", "") if version < VERSION else ("a newer", ", or run it with that one")
            )
            raise PlanFormatError(
                f"version {version}, expected {VERSION}: made by {age} alpa_mlir"
                + (f" ({maker})" if maker else ""),
                where=f"{where}: version",
                fix=f"plan the step again with this version{fix}",
            )
        tensors = TensorReader()
        plan = cls(
            root.get("name").string(),
            read_cluster(root.optional("cluster")),
            root.get("num_micro_batches").integer(minimum=1),
            root.get("schedule").string(),
            tuple(InputInfo.read(item) for item in root.get("inputs").items()),
            tuple(OutputInfo.read(item) for item in root.get("outputs").items()),
            tuple(MeshInfo.read(item) for item in root.get("meshes").items()),
            tuple(StageInfo.read(item, tensors) for item in root.get("stages").items()),
            root.optional("predicted").numbers(),
            tuple(ProgramInfo.read(item, tensors) for item in root.get("programs").items()),
            MappingProxyType({k: v for k, v in files.items() if k.endswith(".mlir")}),
            root.get("compiler").string(),
            MappingProxyType({k: v for k, v in files.items() if k.endswith(_EXPLANATION)}),
            root.optional("fingerprint").optional_string(),
            CallInfo.read(root.get("call")) if root.mapping().get("call") is not None else None,
            tuple(ReshardInfo.read(item, tensors) for item in root.get("reshards").items()),
            tried=tuple(Tried.read(item) for item in root.optional("tried").items()),
            exactness=Exactness.read(root.optional("micro_batches")),
            order=read_order(root.get("order")),
            timed_out_solves=(
                root.get("timed_out_solves").integer()
                if "timed_out_solves" in root.mapping()
                else 0
            ),
            planning=_planning(files.get(_PLANNING)),
            idle_reason=(
                root.get("idle_reason").string() if "idle_reason" in root.mapping() else ""
            ),
            padded=tuple(item.string() for item in root.optional("padded").items()),
        )
        check_references(plan, root)
        if check_programs:
            for program in plan.programs:
                len(tuple(program.instructions))
        for index, stage in enumerate(plan.stages):
            if check_modules and stage.module not in plan.modules:
                raise PlanFormatError(
                    f"module file {stage.module!r} is missing",
                    where=f"{where}: stages[{index}].module",
                    fix="copy the whole plan folder",
                )
        return plan

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the text that is kept on disk."""
        return _from_pickle, (self.to_json(), self._files())

    def _files(self) -> dict[str, str]:
        """The text files beside plan.json, but for compiled programs."""
        planning = {_PLANNING: pretty(dict(self.planning)) + "\n"} if self.planning else {}
        return {**self.modules, **self.explanations, **planning}

    @classmethod
    def load(cls, folder: str | Path) -> Plan:
        """Read the plan that `save` wrote to `folder`.

        Raises:
            PlanFormatError: the folder holds no plan, or a malformed one.
        """
        check_type("Plan.load", "folder", folder, PATH)
        folder = Path(folder)
        path = folder / "plan.json"
        text = _read(path)
        forms = ("*.mlir", f"*{_EXPLANATION}")
        files = {p.name: _read(p) for form in forms for p in sorted(folder.glob(form))}
        with suppress(PlanFormatError):  # It may be missing.
            files[_PLANNING] = _read(folder / _PLANNING)
        plan = cls.from_json(text, files, str(path))
        binaries, memory = read_binaries(folder)
        return replace(plan, binaries=binaries, compiled_memory=memory)

    def save(self, folder: str | Path) -> Path:
        """Write `plan.json` and the stage modules to `folder`, which is made if needed; of another
        plan that lay there nothing stays."""
        check_type("Plan.save", "folder", folder, PATH)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text, files = self.to_json(), self._files()
        known = folder / "plan.json"
        if known.is_file() and known.read_bytes() != text.encode():
            for old in {path for form in FILES for path in folder.glob(form)}:
                if old.name not in files and old != known:
                    old.unlink()
        elif not self.planning:
            (folder / _PLANNING).unlink(missing_ok=True)  # Of an earlier search.
        for name, content in files.items():
            (folder / name).write_text(content)
        known.write_text(text)
        if self.binaries:
            write_binaries(folder, self.binaries, self.compiled_memory)
        return folder

    def to_json(self) -> str:
        """The text of `plan.json`; `from_json` reads it back to an equal plan."""
        fields = {
            "format": FORMAT,
            "version": VERSION,
            "compiler": self.compiler,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "call": None if self.call is None else self.call.to_json(),
            "cluster": dict(self.cluster),
            "num_micro_batches": self.num_micro_batches,
            "micro_batches": asdict(self.exactness),
            "schedule": self.schedule,
            "inputs": [asdict(item) for item in self.inputs],
            "outputs": [asdict(item) for item in self.outputs],
            "meshes": [asdict(mesh) for mesh in self.meshes],
            "stages": [stage.to_json() for stage in self.stages],
            "predicted": dict(self.predicted),
            "timed_out_solves": self.timed_out_solves,
            **({"idle_reason": self.idle_reason} if self.idle_reason else {}),
            **({"padded": list(self.padded)} if self.padded else {}),
            "tried": [asdict(item) for item in self.tried],
            "reshards": [reshard.to_json() for reshard in self.reshards],
            "order": order_lines(self.order),
            "programs": [program.to_json() for program in self.programs],
        }
        return pretty(fields) + "\n"

    def explanation(self, stage: int) -> Mapping[str, Any] | None:
        """Where a stage's time goes and what else was close (docs/explain.md).

        None if the plan does not say, or came without that file.

        Raises:
            PlanFormatError: names the file and its field that is malformed.
        """
        name = self.stages[stage].explanation
        if name is None or name not in self.explanations:
            return None
        return _read_explanation(read_json(self.explanations[name], name))

    def check(
        self, *, traced: Any = None, cluster: Any = None, compiler: str | None = None
    ) -> None:
        """Refuse a plan that was made for something else.

        Args:
            traced: a step, as `alpa_mlir.trace.tracing.trace` gives it.
            cluster: an `alpa_mlir.Cluster`.
            compiler: version of the compiler that should have made the plan.

        Raises:
            PlanMismatchError: names the first difference.
        """
        where = f"plan of {self.name}"
        fix = "plan the step again"
        if compiler is not None and compiler != self.compiler:
            raise PlanMismatchError(
                f"made by compiler {self.compiler}, this is {compiler}", where=where, fix=fix
            )
        if traced is not None:
            found = signature_difference(self, traced.signature)
            if found is None and self.fingerprint not in (None, traced.fingerprint):
                found = (
                    "the step computes something else than the one that was planned, from and to "
                    "arrays of the same names and shapes"
                )
            if found:
                raise PlanMismatchError(found, where=where, fix=fix)
        if cluster is not None:
            found = cluster_difference(self.cluster, json.loads(cluster.text))
            if found:
                raise PlanMismatchError(found, where=where, fix=fix)

    def diff(self, other: Plan) -> PlanDiff:
        """What another plan decides otherwise: stages, meshes, shardings, schedule, costs.

        Example:
            >>> print(plan.diff(Plan.load("older")).as_text())   # doctest: +SKIP
        """
        return diff_plans(self, other)

    @property
    def arguments(self) -> tuple[InputInfo, ...]:
        """The function's arguments, stacks of layers whole; `carried_by` counts `results`."""
        return tuple(info for info in join_pieces(self.inputs, self.outputs) if info.is_given)

    @property
    def added_inputs(self) -> tuple[InputInfo, ...]:
        """The last inputs, which callers do not give: the micro-batches' numbers, and whole
        arguments of which the micro-batches have parts."""
        return tuple(info for info in self.inputs if not info.is_given)

    @property
    def results(self) -> tuple[OutputInfo, ...]:
        """The function's results, stacks of layers whole."""
        return tuple(join_pieces(self.outputs))

    @property
    def num_devices(self) -> int:
        """How many devices a process must have: the highest device number plus one."""
        return 1 + max(device for mesh in self.meshes for device in mesh.devices)

    @property
    def used_devices(self) -> list[int]:
        """The devices of the meshes, in rising order."""
        return sorted({device for mesh in self.meshes for device in mesh.devices})

    @property
    def pipeline_schedule(self) -> str:
        """The order in which stages run; empty of one stage, which has nothing to wait for."""
        return self.schedule if len(self.stages) > 1 else ""

    @property
    def peak_bytes(self) -> float | None:
        """The most memory that a device needs for all stages of its mesh, as it was foreseen; None
        if the plan does not say."""
        held: dict[int, float] = {}
        for stage in self.stages:
            if "peak_bytes" in stage.predicted:
                held[stage.mesh] = held.get(stage.mesh, 0.0) + stage.predicted["peak_bytes"]
        return max(held.values(), default=None)

    def as_text(
        self,
        weights: int = 4,
        figures: Sequence[str] = (),
        explanations: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> str:
        """A table of the stages, with the sharding of each stage's `weights` largest weights.

        Args:
            figures: lines of figures to put before it (`alpa_mlir.simulator.figures`).
            explanations: of each stage, if they have been read.
        """
        return plan_table(self, weights, figures, explanations)


# Of an explanation, the fields of each table and their readers; a question mark: may be missing.
_TOTALS: Mapping[str, Callable[[Node], Any]] = {
    "compute_seconds": Node.number,
    "communication_seconds": Node.number,
    "held_bytes_seconds": Node.number,
    "host_seconds?": Node.number,
    "hidden_host_seconds?": Node.number,
    "hidden_communication_seconds?": Node.number,
    "exposed_communication_seconds?": Node.number,
    "product_seconds?": Node.number,
    "repeated_seconds?": Node.number,
    "weight_move_seconds?": Node.number,
    "new_weight_seconds?": Node.number,
    "weight_bytes?": Node.number,
    "optimizer_bytes?": Node.number,
    "constraints_seconds?": Node.number,
}
_OP: Mapping[str, Callable[[Node], Any]] = {
    "op": Node.string,
    "where": Node.string,
    "phase": Node.string,
    "layer?": Node.integer,
}
_TABLES: Mapping[str, Mapping[str, Callable[[Node], Any]]] = {
    "communication": {
        "collective": Node.string,
        "axis?": Node.integer,
        "count": Node.number,
        "bytes": Node.number,
        "seconds": Node.number,
    },
    "axes?": {
        name: Node.number
        for name in ("data", "sequence", "tensor", "expert", "weight_bytes", "optimizer_bytes")
    },
    "ops": {
        **_OP,
        "specs": Node.string,
        "compute_seconds": Node.number,
        "communication_seconds": Node.number,
        "types?": Node.string,
        "parts?": Node.integer,
    },
    "decisions": {
        **_OP,
        "chosen": Node.string,
        "choices": Node.integer,
        "seconds": Node.signed,
        "types?": Node.string,
        "reads?": lambda node: [item.string() for item in node.items()],
        "runner_up?": Node.string,
        "runner_up_more_seconds?": Node.signed,
    },
    "constraints?": {
        "line": Node.string,
        "wants": Node.string,
        "count": Node.integer,
        "held?": Node.string,
        "dropped?": Node.string,
    },
}


def _read_explanation(root: Node) -> Mapping[str, Any]:
    _check_fields(root, _TOTALS)
    for name, fields in _TABLES.items():
        if name.endswith("?") and name[:-1] not in root.mapping():
            continue  # Of an older compiler.
        for row in root.get(name.removesuffix("?")).items():
            _check_fields(row, fields)
            if "runner_up" in row.mapping():
                row.get("runner_up_more_seconds")
    if "axes" in root.mapping():
        for name in ("product_seconds", "weight_bytes", "optimizer_bytes"):
            root.get(name)
    return root.mapping()


def _check_fields(node: Node, fields: Mapping[str, Callable[[Node], Any]]) -> None:
    for name, read in fields.items():
        if not name.endswith("?") or name[:-1] in node.mapping():
            read(node.get(name.removesuffix("?")))


def _from_pickle(text: str, files: Mapping[str, str]) -> Plan:
    return Plan.from_json(text, files, "pickled plan", check_programs=False, check_modules=False)


def _read(path: Path) -> str:
    try:
        return read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise PlanFormatError(
            f"cannot read the plan: {reason}",
            where=str(path),
            fix="give a folder that Plan.save wrote",
        ) from None


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

    for kind, items in (("meshes", plan.meshes), ("stages", plan.stages)):
        if not items:
            raise root.get(kind).error("none", "at least one")
    for kind, items in (("stages", plan.stages), ("programs", plan.programs)):
        for i, item in enumerate(items):
            check(item.mesh, len(plan.meshes), "mesh", root.get(kind).item(i).get("mesh"))
    devices = device_count(plan.cluster)
    for i, mesh in enumerate(plan.meshes if devices else ()):
        field = root.get("meshes").item(i).get("devices")
        check(max(mesh.devices), devices, "device", field)
    check_pieces(plan.inputs, root.get("inputs"))
    check_pieces(plan.outputs, root.get("outputs"))
    for i, reshard in enumerate(plan.reshards):
        for name in ("source_mesh", "target_mesh"):
            field = root.get("reshards").item(i).get(name)
            check(getattr(reshard, name), len(plan.meshes), "mesh", field)
    for i, info in enumerate(plan.outputs):
        if info.rows is not None and info.reduction is not None:
            field = root.get("outputs").item(i).get("rows")
            raise field.error("rows of what micro-batches give parts of", "a value of the step")
    for i, info in enumerate(plan.inputs):
        if info.rows is not None and info.kind != "state":
            raise root.get("inputs").item(i).get("rows").error(f"rows of a {info.kind}", "state")
        if info.carried_by is not None:
            field = root.get("inputs").item(i).get("carried_by")
            check(info.carried_by, len(plan.outputs), "output", field)
            theirs = plan.outputs[info.carried_by].rows
            found, wanted = (
                None if x is None else (x.shape, len(x.of)) for x in (theirs, info.rows)
            )
            if found != wanted:
                raise field.error("an output of other rows", "the input's next value")


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


class HasPlan(Protocol):
    """A planned step, or a loaded one."""

    @property
    def plan(self) -> Plan: ...


PlanLike = Plan | HasPlan


def as_plan(where: str, value: PlanLike) -> Plan:
    """A plan, or that of a step.

    Args:
        where: the function that was given it.

    Raises:
        ArgumentTypeError: it is neither.
    """
    plan: Any = value if isinstance(value, Plan) else getattr(value, "plan", value)
    check_type(where, "plan", plan, Plan)
    return plan


def read_plan(where: str, value: PlanLike | str | Path, name: str = "plan") -> Plan:
    """A plan, that of a step, or the one in a folder.

    Args:
        where: the function that was given it.
        name: of its argument.

    Raises:
        ArgumentTypeError: it is none of them.
        PlanFormatError: the folder holds no plan.
    """
    found: Any = value if isinstance(value, Plan) else getattr(value, "plan", value)
    check_type(where, name, found, Plan, PATH)
    return found if isinstance(found, Plan) else Plan.load(found)
