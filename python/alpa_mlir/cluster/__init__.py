"""Descriptions of clusters; the fields are those of docs/cluster.md, read by the compiler."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from alpa_runtime.backends.gpus import machine_memory_bytes
from alpa_runtime.errors import PATH, Kind, check_type

from alpa_mlir import compiler

_jax: Any = jax


@dataclass(frozen=True)
class Cluster:
    """A checked cluster description.

    Make one with `Cluster.load`, `Cluster.from_dict` or `Cluster.live`.

    Attributes:
        text: the whole description in canonical form (JSON, which is YAML).
    """

    text: str

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> Cluster:
        """A preset (`compiler.cluster_presets()` lists them) or a YAML file.

        Raises:
            ClusterFileError: unknown preset, unreadable file, missing or bad field.
        """
        check_type("Cluster.load", "name_or_path", name_or_path, PATH)
        return cls(compiler.check_cluster(os.fspath(name_or_path)))

    @classmethod
    def from_yaml(cls, text: str, where: str = "<cluster>") -> Cluster:
        """A description given as text; `where` stands for the file in messages."""
        return cls(compiler.check_cluster(where, text or "\n"))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Cluster:
        """A description given as nested dictionaries.

        Example:
            >>> cluster = Cluster.from_dict({
            ...     "name": "small",
            ...     "device_types": {"gpu": {"memory_bytes": "16GiB", "memory_bandwidth": 9e11,
            ...                              "peak_flops": {"float32": 1.5e13}}},
            ...     "hosts": {"count": 2, "devices": 4, "device_type": "gpu"},
            ...     "links": {"intra_host": {"bandwidth": 1.5e11, "latency": 3e-6},
            ...               "inter_host": {"bandwidth": 3e9, "latency": 2e-5}}})
        """
        return cls.from_yaml(json.dumps(dict(fields), indent=1), "<cluster>")

    @classmethod
    def live(cls) -> Cluster:
        """The devices of this process as one host.

        Memory is asked of the devices; rates are nominal, since no device tells them. For good
        plans describe the cluster instead, or measure it with `alpa-mlir profile`.
        """
        devices = _jax.devices()
        platform = str(devices[0].platform)
        return cls.nominal(f"live-{platform}", platform, (len(devices),), device_memory_bytes())

    @classmethod
    def nominal(
        cls, name: str, platform: str, devices_per_host: Sequence[int], memory_bytes: int
    ) -> Cluster:
        """Hosts of which no more is known than their devices; rates are nominal.

        Args:
            platform: `"cpu"`, or anything else for GPUs.
            devices_per_host: of each host.
            memory_bytes: of each device.

        Example:
            >>> Cluster.nominal("two", "cpu", (4, 4), 1 << 30).num_devices
            8
        """
        is_cpu = platform == "cpu"
        flops = 2e10 if is_cpu else 5e13
        counts = Counter(devices_per_host)
        return cls.from_dict(
            {
                "name": name,
                "device_types": {
                    "device": {
                        "memory_bytes": memory_bytes,
                        "memory_bandwidth": 1e10 if is_cpu else 1e12,
                        "peak_flops": dict.fromkeys(
                            ("float64", "float32", "float16", "bfloat16"), flops
                        ),
                    }
                },
                "hosts": [
                    {"count": count, "devices": devices, "device_type": "device"}
                    for devices, count in counts.items()
                ],
                "links": {
                    "intra_host": {"bandwidth": 4e9 if is_cpu else 1e11, "latency": 2e-5},
                    "inter_host": {"bandwidth": 1e9, "latency": 1e-4},
                },
            }
        )

    @property
    def name(self) -> str:
        return str(self._fields.get("name", "unnamed"))

    @property
    def devices_per_host(self) -> tuple[int, ...]:
        """Number of devices of each host."""
        counts: list[int] = []
        for group in self._fields["hosts"]:
            counts += [int(group["devices"])] * int(group["count"])
        return tuple(counts)

    @property
    def reads_rows_slowly(self) -> bool:
        """Whether products of some device are slower with rows of no multiple of 16 bytes."""
        types = self._fields["device_types"].values()
        return any(kind.get("efficiency", {}).get("unaligned", 1) < 1 for kind in types)

    @property
    def host_device_types(self) -> tuple[str, ...]:
        """Name of the device type of each host."""
        return tuple(name for count, name in self.host_groups for _ in range(count))

    @property
    def num_devices(self) -> int:
        return sum(self.devices_per_host)

    @property
    def device_memory_bytes(self) -> tuple[int, ...]:
        """Memory of each device."""
        types, sizes = self._fields["device_types"], list[int]()
        for group in self._fields["hosts"]:
            memory = int(types[group["device_type"]]["memory_bytes"])
            sizes += [memory] * (int(group["devices"]) * int(group["count"]))
        return tuple(sizes)

    @property
    def least_memory_bytes(self) -> int:
        """Memory of the device that has the least."""
        used = {group["device_type"] for group in self._fields["hosts"]}
        types: dict[str, Any] = self._fields["device_types"]
        return min(int(types[name]["memory_bytes"]) for name in used)

    @property
    def memory_bytes(self) -> int:
        """Memory of all devices together."""
        types: dict[str, Any] = self._fields["device_types"]
        return sum(
            int(g["count"]) * int(g["devices"]) * int(types[g["device_type"]]["memory_bytes"])
            for g in self._fields["hosts"]
        )

    @property
    def host_groups(self) -> tuple[tuple[int, str], ...]:
        """How many hosts there are of each kind, and their devices."""
        return tuple((int(g["count"]), str(g["device_type"])) for g in self._fields["hosts"])

    @property
    def host_copy_seconds_per_byte(self) -> float | None:
        """Seconds in which each device copies a byte from its host's memory, on the hosts where
        that is slowest; None if some hosts do not say what memory they have.

        Example:
            >>> 1 / Cluster.load("dgx-h100").host_copy_seconds_per_byte
            31000000000.0
        """
        memories = [group.get("host_memory") for group in self._fields["hosts"]]
        if None in memories:
            return None
        return max(1 / (m["bandwidth"] * m.get("efficiency", 1.0)) for m in memories)

    @property
    def cuts_products(self) -> bool:
        """Whether a type of device says `collective_matmul`."""
        types = self._fields["device_types"]
        return any(types[name].get("collective_matmul", False) for _, name in self.host_groups)

    @property
    def compute_capability(self) -> str | None:
        """The least version of its CUDA devices, such as `"9.0"`; None if any is none or unsaid.

        Steps for such a cluster are lowered for CUDA, also where no GPU is.

        Example:
            >>> Cluster.load("dgx-h100:2").compute_capability
            '9.0'
        """
        types: dict[str, Any] = self._fields["device_types"]
        found = [types[name].get("compute_capability") for _, name in self.host_groups]
        return None if None in found else f"{min(map(float, found)):.1f}"

    def with_hosts(self, group: int, count: int) -> Cluster:
        """The cluster with another number of hosts of one kind.

        Example:
            >>> Cluster.load("cpu-test").with_hosts(0, 3).num_devices
            12
        """
        fields = self._fields
        fields["hosts"][group]["count"] = count
        return Cluster.from_dict(fields)

    def with_memory(self, least_bytes: int) -> Cluster:
        """The cluster with other memory of its devices: so much of those that have the least, and
        as many times more or less of all others.

        Example:
            >>> Cluster.load("dgx-h100").with_memory(2**36).device_memory_bytes[0] == 2**36
            True
        """
        fields, least = self._fields, self.least_memory_bytes
        for kind in fields["device_types"].values():
            kind["memory_bytes"] = max(1, int(kind["memory_bytes"]) * least_bytes // least)
        return Cluster.from_dict(fields)

    def parts(self) -> tuple[Cluster, ...]:
        """The first devices of the first host, 1, 2, 4, .., the first hosts, 1, 2, 4, .., and the
        first racks; the whole cluster comes last. A part of a host has its part of the host's
        adapters and memory.

        Example:
            >>> [part.num_devices for part in Cluster.load("dgx-h100:3").parts()]
            [1, 2, 4, 8, 16, 24]
        """
        hosts = len(self.devices_per_host)
        rack = min(hosts, int(self._fields.get("racks", {}).get("hosts", hosts)))
        counts = [*_doubled(1, rack), *_doubled(rack, hosts)]
        return (
            *map(self._of_one_host, _doubled(1, self.devices_per_host[0])),
            *map(self._of_hosts, counts),
            self,
        )

    def _of_hosts(self, count: int) -> Cluster:
        fields = self._fields
        left, groups = count, list[dict[str, Any]]()
        for group in fields["hosts"]:
            if left > 0:
                groups.append({**group, "count": min(left, int(group["count"]))})
                left -= groups[-1]["count"]
        fields["hosts"] = groups
        return Cluster.from_dict(fields)

    def _of_one_host(self, devices: int) -> Cluster:
        fields = self._fields
        group: dict[str, Any] = {**fields["hosts"][0], "count": 1, "devices": devices}
        part = devices / int(fields["hosts"][0]["devices"])
        group["nics"] = max(1, int(int(group.get("nics", 1)) * part))
        if "host_memory" in group:
            memory: dict[str, Any] = group["host_memory"]
            group["host_memory"] = {**memory, "bytes": max(1, int(memory["bytes"] * part))}
        fields["hosts"] = [group]
        return Cluster.from_dict(fields)

    @property
    def _fields(self) -> dict[str, Any]:
        return json.loads(self.text)

    def as_text(self) -> str:
        """The description as YAML that `load` reads."""
        return self.text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the description to a file."""
        Path(path).write_text(self.text)


def _doubled(first: int, end: int) -> list[int]:
    """`first`, twice that, .., below `end`."""
    counts: list[int] = []
    while first < end:
        counts.append(first)
        first *= 2
    return counts


def device_memory_bytes() -> int:
    """Bytes that one device of this process has; virtual ones share the machine's."""
    devices = _jax.local_devices()
    stats: dict[str, int] = devices[0].memory_stats() or {}
    return int(stats.get("bytes_limit") or machine_memory_bytes() // len(devices))


ClusterLike = Cluster | str | os.PathLike[str] | Mapping[str, Any] | None
CLUSTER = Kind(
    "a Cluster, the name of a preset, a file or a dictionary",
    lambda value: value is None or isinstance(value, Cluster | str | os.PathLike | Mapping),
)


def as_cluster(cluster: ClusterLike) -> Cluster:
    """A cluster from whatever the API takes: preset, path, dictionary, or None for `live`."""
    if isinstance(cluster, Cluster):
        return cluster
    if cluster is None:
        return Cluster.live()
    if isinstance(cluster, Mapping):
        return Cluster.from_dict(cluster)
    return Cluster.load(cluster)
