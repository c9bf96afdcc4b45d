"""From a device of one process to a device of another: by a device backend, and through the host.

Two processes send an array to and fro as workers do (alpa_runtime/execution/transfers.py). A
row is half of a round trip, the median over rounds and the best; both ways take turns.

- `nccl`: needs two GPUs on this machine, and `pip install 'alpa-mlir[nccl]'`.
- `nixl`: needs `pip install 'alpa-mlir[nixl]'`; on GPUs, or with `--platform cpu` on memory of the
  host, where it shows what agreeing on a message takes, and no more.

Run: python benchmark/runtime/device_transport.py {nccl,nixl} [--platform {gpu,cpu}] [--json]
     [--sizes BYTES ...] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
DTYPE = np.dtype("float32")
ROUNDS = 5
HOST = "host"


class Ends:
    """One process's ends of both ways; the device of rank r has number r in the plan."""

    def __init__(self, rank: int, pipe: Connection, kind: str, platform: str) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ["JAX_PLATFORMS"] = "cpu" if platform == "cpu" else "cuda"
        if platform == "gpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        import jax
        from alpa_runtime.execution import transfers
        from alpa_runtime.transport import make_transport
        from alpa_runtime.transport.device import connect_devices, make_device_backend

        transfers.LEAST_DEVICE_BYTES = 1
        self.rank = rank
        self.jax: Any = jax
        self.device = self.jax.devices()[0]
        self.host = make_transport(rank, ip="127.0.0.1")
        own = self.host.address()
        pipe.send(own)
        other = pipe.recv()
        self.host.connect([own, other] if rank == 0 else [other, own])
        ordinals = {rank: int(self.device.local_hardware_id)}
        by_device = connect_devices(
            self.host, 2, [kind], lambda kind: make_device_backend(kind, platform, ordinals)
        )
        self.wires = {
            HOST: transfers.PointToPoint(self.host, _raise),
            kind: transfers.PointToPoint(self.host, _raise, by_device),
        }
        self.copies = 0

    def bind(self, way: str, length: int) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
        """What sends an array of a length, and what receives one on this device."""
        from alpa_runtime.backends.xla import put_on
        from alpa_runtime.execution.reshard_steps import Incoming, Outgoing

        rank, peer, wire = self.rank, 1 - self.rank, self.wires[way]
        # Copies of both directions and ways have tags of their own.
        message = 2 * list(self.wires).index(way)
        out = Outgoing(0, peer, message + rank, 1, (rank, peer))
        into = Incoming(0, peer, message + peer, 1, (peer, rank))
        send = wire.sender(0, out, (length,), DTYPE)
        receive, _ = wire.receiver(0, into, (length,), DTYPE, self.device)
        wire.open({rank: self.device})
        put = put_on((length,), DTYPE.name, self.device)

        def put_received() -> Any:
            return put(receive(self.copies))

        return lambda value: send(value, self.copies), put_received

    def run(self, way: str, length: int, count: int) -> list[float]:
        """Seconds one way of each round trip; rank 1 sends back what it gets."""
        send, receive = self.bind(way, length)
        value = self.jax.device_put(np.zeros(length, DTYPE), self.device)
        seconds: list[float] = []
        for _ in range(count):
            begin = time.perf_counter()
            if self.rank == 0:
                ticket = send(value)
                value = receive().block_until_ready()
            else:
                value = receive().block_until_ready()
                ticket = send(value)
            ticket.wait()
            seconds.append((time.perf_counter() - begin) / 2)
            self.copies += 1
        return seconds

    def close(self) -> None:
        self.host.close()
        for wire in self.wires.values():
            wire.close()


def _raise(error: BaseException) -> None:
    print(error, file=sys.stderr, flush=True)


def echo(pipe: Connection, kind: str, platform: str) -> None:
    """The other process."""
    ends = Ends(1, pipe, kind, platform)
    with suppress(EOFError):
        while True:
            ends.run(*pipe.recv())
    ends.close()
    leave()


def leave() -> None:
    """Ends this process as workers end: NIXL 1.5 crashes in a usual end (in libnl, unloaded)."""
    sys.stdout.flush()
    os._exit(0)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each size and way."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    arguments = theirs, options.kind, options.platform
    process = context.Process(target=echo, args=arguments, daemon=True)
    process.start()
    theirs.close()
    ends = Ends(0, pipe, options.kind, options.platform)

    def run(way: str, size: int, count: int) -> list[float]:
        pipe.send((way, size // DTYPE.itemsize, count))
        return ends.run(way, size // DTYPE.itemsize, count)

    found: dict[tuple[int, str], list[float]] = {}
    for size in options.sizes:
        counts: dict[str, int] = {}
        for way in (options.kind, HOST):
            first = run(way, size, 3)[-1]  # New memory, first calls.
            counts[way] = max(3, min(1000, int(options.seconds / ROUNDS / (2 * first))))
            found[size, way] = []
            text = f"{size:>9} bytes by {way}: {ROUNDS} rounds of {counts[way]}"
            print(text, file=sys.stderr, flush=True)
        for _ in range(ROUNDS):
            for way, count in counts.items():
                found[size, way] += run(way, size, count)
    pipe.close()
    process.join(20)
    ends.close()
    return [_row(size, way, seconds) for (size, way), seconds in found.items()]


def _row(size: int, way: str, seconds: list[float]) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "bytes": size,
        "way": way,
        "median_seconds": median,
        "best_seconds": min(seconds),
        "gib_per_second": size / median / (1 << 30),
        "count": len(seconds),
    }


def main() -> None:
    """Print the table, or with `--json` one JSON object."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("nccl", "nixl"))
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), metavar="BYTES")
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="for each way and size"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options)
    if options.json:
        load = os.getloadavg()[0]
        print(json.dumps({"platform": options.platform, "load": load, "rows": rows}, indent=1))
        leave()
    print(f"{'bytes':>9}  {'way':<6} {'median':>13} {'best':>13} {'GiB/s':>7}")
    for row in rows:
        times = "".join(f" {row[f'{name}_seconds'] * 1e6:10.1f} us" for name in ("median", "best"))
        print(f"{row['bytes']:>9}  {row['way']:<6}{times} {row['gib_per_second']:7.2f}")
    leave()


if __name__ == "__main__":
    main()
