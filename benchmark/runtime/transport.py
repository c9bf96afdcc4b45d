"""Transports between two processes of this machine: seconds one way, and bytes a second.

Each way of moving arrays goes to and fro between two processes, as between workers: the receiver
makes a jax.Array of what it got, and sends back what it holds. A row is half of a round trip, the
median over rounds and the best; the ways take turns, so that what else the machine does meets all.

- `shared_memory`, `tcp`, `tls`: alpa_runtime.transport; `tls` is TCP that is encrypted.
- `unix_socket`, `tcp_socket`: a plain socket, one message at a time, received into new memory.
- `ray`: an actor's method that is given an array from the object store and returns it.
- `ucx_shared_memory`, `ucx_tcp`: what `ucx_perftest` of ucx-utils reports for tagged messages with
  sleeping instead of polling; without Python and jax, and only if it is installed.

`--host-only` leaves the jax.Array out: the transport alone.
`--busy` runs a thread of pure Python in both processes, which wants the interpreter lock all the
time, and `--switch-seconds` sets for how long it may keep it (`sys.setswitchinterval`).

Run: python benchmark/runtime/transport.py [--json] [--ways NAME ...] [--sizes BYTES ...]
     [--host-only] [--busy] [--switch-seconds S] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
DTYPE = np.dtype("float32")
TARGETS = {4 << 10: "40 us", 64 << 20: "3 GiB/s"}  # On one host.
ROUNDS = 5

Data = NDArray[Any]


class Link(Protocol):
    """One end of a way to move arrays of float32."""

    def send(self, data: Data) -> None:
        """Sends an array."""
        ...

    def receive(self, length: int) -> Data:
        """Waits for an array."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class OwnLink:
    """alpa_runtime.transport."""

    def __init__(self, rank: int, pipe: Connection, kind: str, encrypt: bool = False) -> None:
        from alpa_runtime.transport import make_transport

        self.end = make_transport(rank, ip="127.0.0.1", kinds=[kind], encrypt=encrypt)
        pipe.send(self.end.address())
        other = pipe.recv()
        own = self.end.address()
        self.end.connect([own, other] if rank == 0 else [other, own])
        self.peer = 1 - rank

    def send(self, data: Data) -> None:
        self.end.send(self.peer, 0, data)

    def receive(self, length: int) -> Data:
        return self.end.receive(self.peer, 0, (length,), DTYPE)

    def close(self) -> None:
        self.end.close()


class PlainLink:
    """A socket."""

    def __init__(self, rank: int, pipe: Connection, family: int) -> None:
        if rank == 0:
            with socket.socket(family) as listener:
                name = f"\0alpa-mlir-benchmark-{os.getpid()}"
                listener.bind(name if family == socket.AF_UNIX else ("127.0.0.1", 0))
                listener.listen()
                pipe.send(listener.getsockname())
                self.stream, _ = listener.accept()
        else:
            self.stream = socket.socket(family)
            self.stream.connect(pipe.recv())
        if family == socket.AF_INET:
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: Data) -> None:
        self.stream.sendall(_memory(data))

    def receive(self, length: int) -> Data:
        data = np.empty(length, DTYPE)
        rest = _memory(data)
        while rest:
            rest = rest[self.stream.recv_into(rest, 0, socket.MSG_WAITALL) :]
        return data

    def close(self) -> None:
        self.stream.close()


def _memory(data: Data) -> memoryview:
    view: Any = data.view(np.uint8)
    return memoryview(view)


WAYS: dict[str, Callable[[int, Connection], Link]] = {
    "shared_memory": lambda rank, pipe: OwnLink(rank, pipe, "shared_memory"),
    "tcp": lambda rank, pipe: OwnLink(rank, pipe, "tcp"),
    "tls": lambda rank, pipe: OwnLink(rank, pipe, "tcp", encrypt=True),
    "unix_socket": lambda rank, pipe: PlainLink(rank, pipe, socket.AF_UNIX),
    "tcp_socket": lambda rank, pipe: PlainLink(rank, pipe, socket.AF_INET),
}
UCX = {"ucx_shared_memory": "posix,cma,self", "ucx_tcp": "tcp,self"}
ALL_WAYS = (*WAYS, "ray", *UCX)


def to_device(length: int, host_only: bool) -> Callable[[Data], Any]:
    """What makes a jax.Array of a received array, as a worker does."""
    if host_only:
        return lambda data: data
    import jax
    from alpa_runtime.backends.xla import put_on

    devices: Any = jax
    return put_on((length,), DTYPE.name, devices.devices()[0])


@dataclass(frozen=True)
class Setting:
    """What is asked of both processes."""

    host_only: bool
    busy: bool
    switch_seconds: float


def set_up(setting: Setting) -> None:
    """What --busy and --switch-seconds ask of a process."""
    if setting.switch_seconds:
        sys.setswitchinterval(setting.switch_seconds)
    if setting.busy:
        threading.Thread(target=_count, daemon=True).start()


def _count() -> None:
    number = 0
    while True:
        number += 1


def echo(pipe: Connection, way: str, setting: Setting) -> None:
    """The other process: sends back as many arrays of a length as it is told."""
    set_up(setting)
    link = WAYS[way](1, pipe)
    with suppress(EOFError):
        while True:
            length, count = pipe.recv()
            put = to_device(length, setting.host_only)
            for _ in range(count):
                link.send(np.asarray(put(link.receive(length))))
    link.close()


Measure = Callable[[int, int], list[float]]  # Elements, round trips -> seconds one way of each.


@contextmanager
def linked(way: str, setting: Setting) -> Generator[Measure]:
    """Two processes, connected in one way."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=echo, args=(theirs, way, setting), daemon=True)
    process.start()
    theirs.close()
    link = WAYS[way](0, pipe)

    def measure(length: int, count: int) -> list[float]:
        put = to_device(length, setting.host_only)
        data = put(np.zeros(length, DTYPE))
        pipe.send((length, count))
        seconds: list[float] = []
        for _ in range(count):
            begin = time.perf_counter()
            link.send(np.asarray(data))
            data = put(link.receive(length))
            seconds.append((time.perf_counter() - begin) / 2)
        return seconds

    try:
        yield measure
    finally:
        pipe.close()
        process.join(10)
        link.close()


@contextmanager
def ray_linked(setting: Setting) -> Generator[Measure]:
    """This process and an actor."""
    import ray as ray_module

    ray: Any = ray_module
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=1 << 30,
    )

    class Echo:
        def __init__(self) -> None:
            set_up(setting)

        def back(self, data: Data) -> Data:
            return np.asarray(to_device(data.size, setting.host_only)(data))

    actor: Any = ray.remote(Echo).remote()

    def measure(length: int, count: int) -> list[float]:
        put = to_device(length, setting.host_only)
        data = put(np.zeros(length, DTYPE))
        seconds: list[float] = []
        for _ in range(count):
            begin = time.perf_counter()
            stored = ray.put(np.asarray(data))
            data = put(ray.get(actor.back.remote(stored)))
            seconds.append((time.perf_counter() - begin) / 2)
        return seconds

    try:
        yield measure
    finally:
        ray.shutdown()


@contextmanager
def ucx_linked(way: str) -> Generator[Measure]:
    """Two processes of ucx_perftest for each measurement."""

    def measure(length: int, count: int) -> list[float]:
        port = str(20_000 + os.getpid() % 10_000)
        command = ["ucx_perftest", "-p", port, "-E", "sleep"]
        environment = os.environ | {"UCX_TLS": UCX[way]}
        quiet = subprocess.DEVNULL
        server = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)
        time.sleep(0.3)
        size = str(length * DTYPE.itemsize)
        command += ["127.0.0.1", "-t", "tag_lat", "-s", size, "-n", str(count), "-w", "3"]
        try:
            told = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60
            )
        finally:
            server.kill()
            server.wait()
        line = next(line for line in told.stdout.splitlines() if line.startswith("Final:"))
        return [float(line.split()[4]) * 1e-6]  # The mean.

    yield measure


def links(options: argparse.Namespace, setting: Setting) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways to measure, and what sets each of them up."""
    for way in options.ways:
        if way in WAYS:
            yield way, lambda way=way: linked(way, setting)
        elif way == "ray":
            yield way, lambda: ray_linked(setting)
        elif shutil.which("ucx_perftest"):
            yield way, lambda way=way: ucx_linked(way)
        else:
            _progress(f"{way}: left out, ucx_perftest is not installed")


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way and size."""
    setting = Setting(options.host_only, options.busy, options.switch_seconds)
    set_up(setting)
    found: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        measures = {way: stack.enter_context(make()) for way, make in links(options, setting)}
        for size in options.sizes:
            length = size // DTYPE.itemsize
            for way, measure in measures.items():
                first = measure(length, 3)[-1]  # New memory, first calls.
                count = max(3, min(2000, int(options.seconds / ROUNDS / (2 * first))))
                found[way, size] = []
                _progress(f"{size:>9} bytes by {way}: {ROUNDS} rounds of {count}")
                found[way, size].append(count)
            for _ in range(ROUNDS):
                for way, measure in measures.items():
                    found[way, size] += measure(length, int(found[way, size][0]))
    return [_row(way, size, seconds[1:]) for (way, size), seconds in found.items()]


def _row(way: str, size: int, seconds: list[float]) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "way": way,
        "bytes": size,
        "median_seconds": median,
        "best_seconds": min(seconds),
        "mean_seconds": statistics.fmean(seconds),
        "gib_per_second": size / median / (1 << 30),
        "count": len(seconds),
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a table."""
    print(f"{'bytes':>9}  {'way':<18} {'median':>12} {'best':>12} {'mean':>12} {'GiB/s':>7}")
    for row in rows:
        times = "".join(f" {row[f'{name}_seconds'] * 1e6:9.1f} us" for name in ("median", "best"))
        times += f" {row['mean_seconds'] * 1e6:9.1f} us"
        target = TARGETS.get(row["bytes"], "") if row["way"] == "shared_memory" else ""
        note = f"  target {target}" if target else ""
        print(f"{row['bytes']:>9}  {row['way']:<18}{times} {row['gib_per_second']:7.2f}{note}")


def main() -> None:
    """Print the table, or with `--json` one JSON object."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", nargs="+", choices=ALL_WAYS, default=list(ALL_WAYS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), metavar="BYTES")
    parser.add_argument("--host-only", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--switch-seconds", type=float, default=0.0, metavar="S")
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="for each way and size"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure_all(options)
    if options.json:
        load = os.getloadavg()[0]
        print(
            json.dumps(
                {"host_only": options.host_only, "busy": options.busy, "load": load, "rows": rows},
                indent=1,
            )
        )
    else:
        show(rows)


if __name__ == "__main__":
    main()
