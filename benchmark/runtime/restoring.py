"""Restoring a checkpoint: seconds, and the host memory that it takes besides the state.

Each way in a process of its own: into arrays of NumPy, onto devices of this process (`one`, `many`
with every array split in four), and into two worker processes. `extra` is the most that was
resident meanwhile, less what was before, less the state; on the CPU the state is host memory too.

Run: python benchmark/runtime/restoring.py [--json] [--mib N] [--arrays N] [--ways NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WAYS = ("numpy", "one", "many", "workers")


def resident(field: str, pids: Sequence[int]) -> int:
    """`VmRSS` or `VmHWM` of processes, in bytes."""
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/status").read_text()
        total += int(text.split(f"{field}:")[1].split()[0]) << 10
    return total


def measured(restore: Callable[[], Any], state_bytes: int, pids: Sequence[int]) -> dict[str, float]:
    """What a restore takes, of processes that hold the state afterwards."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # The peak begins here.
    before, start = resident("VmRSS", pids), time.perf_counter()
    state = restore()
    seconds = time.perf_counter() - start
    extra = resident("VmHWM", pids) - before - state_bytes
    del state
    return {"seconds": seconds, "extra_mib": extra / 2**20}


def restore_once(way: str, folder: Path, mib: int, arrays: int) -> dict[str, float]:
    """In this process: save a state, or restore it in one way."""
    import alpa_mlir
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    jax_: Any = jax
    alpa_mlir.use_virtual_devices(4)
    columns = mib * 2**20 // arrays // 4 // 1024 // 4 * 4
    shape, size = (1024, columns), arrays * 1024 * columns * 4
    saved = folder / "checkpoints"
    if way == "save":
        rng = np.random.default_rng(0)
        weights = [rng.standard_normal(shape, np.float32) for _ in range(arrays)]
        alpa_mlir.save_checkpoint(saved, weights, step=1).wait()
        return {}
    if way == "workers":
        step = in_workers([jax_.ShapeDtypeStruct(shape, np.float32)] * arrays)
        pids = step.loaded.group.pids
        row = measured(lambda: alpa_mlir.restore_checkpoint(saved, step), size, pids)
        step.close()
        return row
    # What is imported and made once is not counted.
    alpa_mlir.save_checkpoint(folder / way, [1.0], step=1).wait()
    alpa_mlir.restore_checkpoint(folder / way)
    sharding = None
    if way != "numpy":
        devices: Any = np.array(jax_.devices()[: 1 if way == "one" else 4])
        mesh: Any = jax_.sharding.Mesh(devices, ("x",))
        sharding = NamedSharding(mesh, PartitionSpec(None, "x"))
    like = [jax_.ShapeDtypeStruct(shape, np.float32, sharding=sharding)] * arrays

    def restore() -> Any:
        return jax_.block_until_ready(alpa_mlir.restore_checkpoint(saved, like))

    return measured(restore, size, [os.getpid()])


def in_workers(like: Sequence[Any]) -> Any:
    """A step with such a state, in two worker processes of two devices each."""
    import alpa_mlir
    import jax
    import numpy as np

    jax_: Any = jax

    def train(weights: Any, batch: Any) -> Any:
        def loss(w: Any) -> Any:
            x = batch
            for one in w:
                x = jax_.numpy.tanh(x @ one)[:, :1024]
            return jax_.numpy.mean(x**2)

        value, gradient = jax_.value_and_grad(loss)(weights)
        return [w - g for w, g in zip(weights, gradient, strict=True)], value

    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 2), (1, 2)])
    function: Any = alpa_mlir.parallelize(train, cluster="cpu-test", method=method)
    plan = function.plan(list(like), np.zeros((4, 1024), np.float32)).plan
    placement = alpa_mlir.Placement(tuple(mesh.devices for mesh in plan.meshes))
    workers = alpa_mlir.ProcessWorkers(placement, platform="cpu")
    return alpa_mlir.load(plan, workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--mib", type=int, default=1024, help="of the state (default: 1024)")
    parser.add_argument("--arrays", type=int, default=8, help="of the state (default: 8)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task is not None:
        way, folder = options.task[0], Path(options.task[1])
        print(json.dumps(restore_once(way, folder, options.mib, options.arrays)))
        return
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("save", *options.ways):
            print(f"{way} ..", file=sys.stderr)
            command = [sys.executable, __file__, "--task", way, folder]
            command += ["--mib", str(options.mib), "--arrays", str(options.arrays)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows[way] = json.loads(done.stdout.strip().splitlines()[-1])
        del rows["save"]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"a state of {options.mib} MiB in {options.arrays} arrays")
    for way, row in rows.items():
        print(f"{way:8} {row['seconds']:6.2f} s  {row['extra_mib']:7.0f} MiB besides the state")


if __name__ == "__main__":
    main()
