"""Measuring devices and links: what `alpa-mlir profile` writes and the cost model reads.

A number is the time of one operation inside a compiled loop: the loop is run with two trip
counts, and the difference is divided by the extra trips, so that starting a program and waiting
for it do not count. Sizes rise by factors of four until one operation takes long enough.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import DevicesError

_jax: Any = jax
_jnp: Any = jax.numpy
Progress = Callable[[int, int, str], None]
_LOOP_SECONDS = 0.02  # Shorter loops drown in the clock's noise.


@dataclass(frozen=True)
class Table:
    """Seconds of an operation by size (FLOPs or bytes); sizes rise."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def rate(self) -> float:
        """The best size per second: FLOP/s or bytes/s."""
        return max(size / took for size, took in zip(self.sizes, self.seconds, strict=True))


@dataclass(frozen=True)
class GroupTable:
    """Seconds of a collective among a group of devices, by bytes of the full buffer.

    Attributes:
        collective: a name of `COLLECTIVES`.
        devices: size of the group.
        devices_per_host: how many of them share a host; equal to `devices` within one host.
    """

    collective: str
    devices: int
    devices_per_host: int
    table: Table


@dataclass(frozen=True)
class Profile:
    """What was measured; `as_text` gives the YAML that a cluster's `profile` names.

    Attributes:
        device_type: name of the device type in the cluster's description.
        matmul: by dtype, seconds over FLOPs of dots.
        memory: seconds over the bytes that an elementwise op reads and writes.
        collectives: one table for each collective and group.
    """

    device_type: str
    matmul: Mapping[str, Table]
    memory: Table
    collectives: tuple[GroupTable, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The fields of docs/cluster.md, "Measured costs"."""
        groups: list[dict[str, Any]] = []
        for group in self.collectives:
            inside = group.devices == group.devices_per_host
            entry: dict[str, Any] = {
                "collective": group.collective,
                "link": "intra_host" if inside else "inter_host",
                "devices": group.devices,
            }
            if not inside:
                entry["devices_per_host"] = group.devices_per_host
            groups.append(entry | _fields("bytes", group.table))
        matmul = {dtype: _fields("flops", table) for dtype, table in self.matmul.items()}
        tables = {"matmul": matmul, "memory": _fields("bytes", self.memory)}
        return {"device_types": {self.device_type: tables}, "collectives": groups}

    def as_text(self) -> str:
        """YAML, one table a line."""
        fields = self.to_dict()
        tables = fields["device_types"][self.device_type]
        lines = ["device_types:", f"  {json.dumps(self.device_type)}:", "    matmul:"]
        lines += [f"      {dtype}: {_flow(table)}" for dtype, table in tables["matmul"].items()]
        lines += [f"    memory: {_flow(tables['memory'])}"]
        if fields["collectives"]:
            lines += ["collectives:", *(f"  - {_flow(group)}" for group in fields["collectives"])]
        return "\n".join(lines) + "\n"

    def link(self, between_hosts: bool) -> dict[str, float] | None:
        """Bandwidth (bytes/s) and latency (s) that fit the measured permutes best, if any."""
        groups = [
            group
            for group in self.collectives
            if group.collective == "collective_permute"
            and (group.devices != group.devices_per_host) == between_hosts
        ]
        if not groups:
            return None
        fewest = min(groups, key=lambda group: (group.devices_per_host, group.devices)).table
        latency = min(fewest.seconds)
        rates = [
            size / (took - latency)
            for size, took in zip(fewest.sizes, fewest.seconds, strict=True)
            if took > 2 * latency
        ]
        return {"bandwidth": max(rates) if rates else fewest.rate(), "latency": latency}

    def to_cluster(self, hosts: int, devices: int, memory_bytes: int, name: str) -> Cluster:
        """A description of so many equal hosts whose rates are those that were measured.

        Args:
            hosts, devices: number of hosts, and of devices on each.
            memory_bytes: of one device.

        Returns:
            A cluster that holds this profile; links that nothing was measured on (a single
            device, a single host) have the memory's bandwidth and no latency.
        """
        peaks = {dtype: table.rate() for dtype, table in self.matmul.items()}
        peaks.setdefault("float32", max(peaks.values()))
        bandwidth = self.memory.sizes[-1] / self.memory.seconds[-1]  # Small ones fit in caches.
        free = {"bandwidth": bandwidth, "latency": 0.0}
        inside = self.link(between_hosts=False) or free
        return Cluster.from_dict(
            {
                "name": name,
                "device_types": {
                    self.device_type: {
                        "memory_bytes": memory_bytes,
                        "memory_bandwidth": bandwidth,
                        "peak_flops": peaks,
                    }
                },
                "hosts": {"count": hosts, "devices": devices, "device_type": self.device_type},
                "links": {
                    "intra_host": inside,
                    "inter_host": self.link(between_hosts=True) or inside,
                },
                "profile": self.to_dict(),
            }
        )


def _fields(size_name: str, table: Table) -> dict[str, Any]:
    return {size_name: list(table.sizes), "seconds": list(table.seconds)}


def _flow(fields: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(f"{item:.6g}" for item in cast("list[float]", value)) + "]"
        return str(value)

    return "{" + ", ".join(f"{key}: {text(value)}" for key, value in fields.items()) + "}"


def measure(
    *,
    devices: Sequence[Any] | None = None,
    device_type: str | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    longest_seconds: float = 0.05,
    progress: Progress | None = None,
) -> Profile:
    """Measure dots, memory traffic and collectives on real devices.

    With several processes (`jax.distributed.initialize` was called) all of them must call this
    together, one process a host; groups that span hosts are then measured too.

    Args:
        devices: of this process; by default all of them. They must be alike.
        device_type: name in the cluster's description; by default the devices' own.
        dtypes: for dots; those that the devices cannot compute with are left out.
        longest_seconds: sizes rise until one operation takes that long.
        progress: called with (done, total, label) after each table.

    Raises:
        DevicesError: the devices are of several kinds.

    Example:
        >>> profile = measure(longest_seconds=0.01)        # doctest: +SKIP
        >>> Path("measured.yaml").write_text(profile.as_text())  # doctest: +SKIP
    """
    local: list[Any] = list(_jax.local_devices() if devices is None else devices)
    kinds = sorted({str(device.device_kind) for device in local})
    if len(kinds) != 1:
        raise DevicesError(
            f"devices of several kinds: {', '.join(kinds)}",
            where="measure",
            fix="measure each kind by itself, and join the files",
        )
    groups = list(_groups(local))
    total = len(dtypes) + 1 + len(groups) * len(COLLECTIVES)
    done = 0

    def step(label: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, label)

    matmul: dict[str, Table] = {}
    for dtype in dtypes:
        table = _measure_matmul(local[0], dtype, longest_seconds)
        if table is not None:
            matmul[dtype] = table
        step(f"dots of {dtype}")
    memory = _measure_memory(local[0], longest_seconds)
    step("memory")
    collectives: list[GroupTable] = []
    for members, per_host in groups:
        for name in COLLECTIVES:
            table = _measure_collective(name, members, longest_seconds)
            collectives.append(GroupTable(name, len(members), per_host, table))
            step(f"{name} on {len(members)} devices")
    name = device_type or kinds[0].lower().replace(" ", "-")
    return Profile(name, matmul, memory, tuple(collectives))


def _groups(local: Sequence[Any]) -> Iterator[tuple[list[Any], int]]:
    """Groups to measure and how many of each share a host: within this host, then across."""
    sizes = _sizes_to(len(local))
    for size in sizes:
        if size > 1:
            yield list(local[:size]), size
    by_host: dict[int, list[Any]] = {}
    for device in _jax.devices():
        by_host.setdefault(device.process_index, []).append(device)
    if len(by_host) < 2:
        return
    for size in _sizes_to(min(map(len, by_host.values()))):
        yield [device for host in by_host.values() for device in host[:size]], size


def _sizes_to(count: int) -> list[int]:
    """Powers of two up to `count`, and `count`."""
    powers = [1 << k for k in range(count.bit_length()) if 1 << k < count]
    return [*powers, count]


def _loop_seconds(body: Callable[[Any], Any], x: Any) -> float:
    """Seconds of one `body(x)` inside a compiled loop; every trip waits for the one before."""

    def run(x: Any, trips: Any) -> Any:
        def trip(_: Any, carry: Any) -> Any:
            x, y = _jax.lax.optimization_barrier(carry)
            del y
            return x, body(x)

        return _jax.lax.fori_loop(0, trips, trip, (x, body(x)))[1]

    compiled = _jax.jit(run)

    def took(trips: int) -> float:
        start = time.perf_counter()
        _jax.block_until_ready(compiled(x, trips))
        return time.perf_counter() - start

    took(1)  # Compiles.
    trips = 1
    # All processes of a group must take the same number of trips: time decides only alone.
    if _jax.process_count() > 1:
        trips = 16
    else:
        while took(trips) < _LOOP_SECONDS and trips < 1 << 20:
            trips *= 4
    pairs = [(took(trips), took(2 * trips)) for _ in range(3)]
    shorter, longer = min(a for a, _ in pairs), min(b for _, b in pairs)
    # On a noisy machine the difference may vanish; the whole is then the better guess.
    return (longer - shorter if longer > shorter else longer / 2) / trips


def _sweep(run: Callable[[int], tuple[float, float]], longest: float, most: int) -> Table:
    """Tables of (size, seconds) of `run(k)` for k = 0, 1, ... until one takes `longest`."""
    sizes: list[float] = []
    seconds: list[float] = []
    for k in range(most):
        size, took = run(k)
        sizes.append(size)
        seconds.append(took)
        if _agreed(took >= longest):
            break
    # Noise only adds: what a larger size took, a smaller one does not exceed.
    for k in reversed(range(len(seconds) - 1)):
        seconds[k] = min(seconds[k], seconds[k + 1])
    return Table(tuple(sizes), tuple(seconds))


def _agreed(value: bool) -> bool:
    """What the first process says, so that all stop at the same size."""
    if _jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    tools: Any = multihost_utils
    return bool(tools.broadcast_one_to_all(np.int32(value)))


def _measure_matmul(device: Any, dtype: str, longest: float) -> Table | None:
    def run(k: int) -> tuple[float, float]:
        n = 64 << k
        x = _jax.device_put(_jnp.full((n, n), 1.0 / n, dtype), device)
        return 2.0 * n**3, _loop_seconds(partial(_square, dtype), x)

    return _sweep(run, longest, most=9) if _has_dots(device, dtype) else None


def _has_dots(device: Any, dtype: str) -> bool:
    """Whether JAX knows the dtype, and the device's compiler its dots."""
    try:
        x = _jax.device_put(_jnp.zeros((8, 8), dtype), device)
        _jax.jit(partial(_square, dtype)).lower(x).compile()
    except (TypeError, NotImplementedError, _jax.errors.JaxRuntimeError):
        return False
    return True


def _square(dtype: str, x: Any) -> Any:
    return _jax.lax.dot(x, x, preferred_element_type=_jnp.dtype(dtype))


def _measure_memory(device: Any, longest: float) -> Table:
    def run(k: int) -> tuple[float, float]:
        count = 1024 << (2 * k)
        x = _jax.device_put(_jnp.ones((count,), "float32"), device)
        return 8.0 * count, _loop_seconds(lambda x: x * 0.5 + 1.0, x)

    return _sweep(run, longest, most=10)


def _all_reduce(x: Any, count: int) -> Any:
    return _jax.lax.psum(x, "d")


def _all_gather(x: Any, count: int) -> Any:
    return _jax.lax.all_gather(x[: x.shape[0] // count], "d", tiled=True)


def _reduce_scatter(x: Any, count: int) -> Any:
    return _jax.lax.psum_scatter(x, "d", tiled=True)


def _all_to_all(x: Any, count: int) -> Any:
    return _jax.lax.all_to_all(x, "d", 0, 0, tiled=True)


def _permute(x: Any, count: int) -> Any:
    return _jax.lax.ppermute(x, "d", [(i, (i + 1) % count) for i in range(count)])


#: Collectives by the names of docs/cluster.md; all take and count the full buffer of one device.
COLLECTIVES: Mapping[str, Callable[[Any, int], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
}


def _measure_collective(name: str, members: Sequence[Any], longest: float) -> Table:
    count = len(members)
    mesh = Mesh(np.array(members), ("d",))
    spec = PartitionSpec("d")

    def operation(part: Any) -> Any:
        return COLLECTIVES[name](part, count)

    def run(k: int) -> tuple[float, float]:
        rows = count * (256 << (2 * k))  # Of one device, divisible by the group.
        sharding = NamedSharding(mesh, spec)

        def part(index: Any) -> Any:
            return np.ones((rows,), "float32")

        x = _jax.make_array_from_callback((rows * count,), sharding, part)
        body = _jax.shard_map(
            operation,
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
        return 4.0 * rows, _loop_seconds(body, x)

    return _sweep(run, longest, most=9)
