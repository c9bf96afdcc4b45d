"""Loading a plan: compiling its programs, finding them on disk, or in the plan's folder.

The zoo's GPT in two stages, each load in a process of its own: `cold` compiles, `warm` finds what
`cold` kept, `shipped` takes what `compile_ahead` put into the plan's folder. `first_step_seconds`
is the first step behind it, `step_seconds` the least of some more; `loss` is that of the last.

`--programs MESHES MICRO_BATCHES` looks at instructions alone instead: seconds, of the clock and of
the processor, to read the plan of a 1F1B pipeline of one small function for each phase, and to
check and merge its programs: for the driver of workers, a worker that has one of the meshes, and
one process that has them all. The target for 64 meshes and 256 micro-batches is below 1 s of the
processor for driver and worker each, reading included (`in_time`).

Run: python benchmark/runtime/loading.py [--json] [--backends NAME ...] [--devices N]
     [--programs MESHES MICRO_BATCHES]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 10
WAYS = ("cold", "warm", "shipped")
CLUSTER = "cpu-test"
BUDGET_SECONDS = 1.0  # To read, check and merge the programs of a large plan.


def make_plan(folder: Path, devices: int) -> None:
    """Plan the step on two meshes of so many devices."""
    import alpa_mlir
    import zoo

    alpa_mlir.use_virtual_devices(2 * devices)
    model: Any = zoo.get("gpt")
    state, batch = model.init()
    method = alpa_mlir.PipeshardParallel(
        submeshes=[(1, devices), (1, devices)], num_micro_batches=4
    )
    step = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method, cache=False)
    step.plan(state, batch).save(folder)


def load_once(folder: Path, backend: str) -> dict[str, float]:
    """In this process: load the plan and run some steps."""
    import alpa_mlir
    import jax
    import zoo

    jax_: Any = jax
    alpa_mlir.use_virtual_devices(alpa_mlir.Plan.load(folder).num_devices)
    model: Any = zoo.get("gpt")
    state, batch = model.init()
    start = time.perf_counter()
    step = alpa_mlir.load(folder, arguments=(state, batch), backend=backend)
    loaded = time.perf_counter() - start
    seconds: list[float] = []
    loss = float("nan")
    for _ in range(STEPS):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        jax_.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
        loss = float(metrics["loss"])
    times = {"first_step_seconds": seconds[0], "step_seconds": min(seconds[1:])}
    return {"load_seconds": loaded, **times, "loss": loss}


def compile_once(folder: Path, backend: str) -> None:
    """In this process: put the plan's programs into its folder."""
    import alpa_mlir

    alpa_mlir.use_virtual_devices(alpa_mlir.Plan.load(folder).num_devices)
    alpa_mlir.compile_ahead(folder, "cpu", backend=backend)


def in_process(task: str, folder: Path, backend: str, cache: Path) -> str:
    """Run this file for one task in a process that has nothing yet; what it prints last."""
    command = [sys.executable, __file__, "--task", task, str(folder), backend]
    environment = {**os.environ, "ALPA_MLIR_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip().splitlines()[-1]


def measure(backend: str, devices: int) -> dict[str, Any]:
    """All ways of loading with one compiler."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        plan, cache = Path(folder) / "plan", Path(folder) / "cache"
        print(f"{backend}: planning", file=sys.stderr)
        in_process("plan", plan, str(devices), cache)
        for way in WAYS:
            print(f"{backend}: {way}", file=sys.stderr)
            used = backend
            if way == "shipped":
                in_process("compile", plan, backend, Path(folder) / "unused")
                cache, used = Path(folder) / "empty", "auto"
            rows[way] = json.loads(in_process("load", plan, used, cache))
        files = list(plan.glob("*.bin"))
        rows["programs"] = len(files)
        rows["program_bytes"] = sum(path.stat().st_size for path in files)
    return rows


def save_pipeline(folder: Path, meshes: int, micro_batches: int) -> None:
    """A 1F1B pipeline whose stages are functions without bodies, on as many devices."""
    from alpa_mlir import Cluster
    from alpa_mlir.compiler import Module
    from schedules import sliced_module

    cluster = folder / "cluster.yaml"
    Cluster.nominal("one", "cpu", (meshes,), 1 << 30).save(cluster)
    module = Module(sliced_module(meshes, 1, micro_batches, "1f1b"))
    module.run("alpa-build-schedule{schedule=1f1b}")
    module.run(f"alpa-plan-transfers{{cluster={cluster}}}")
    module.export_plan().save(folder)


def time_programs(meshes: int, micro_batches: int) -> dict[str, Any]:
    """Seconds of loading the programs of such a pipeline, [of the clock, of the processor]."""
    from alpa_runtime.execution.program_merge import merge_programs, merge_step, worker_step
    from alpa_runtime.plan import Plan
    from alpa_runtime.worker_group import Placement, part_of_plan
    from alpa_runtime.workers.driver import inputs_in_workers, outputs_in_workers

    row: dict[str, Any] = {"meshes": meshes, "micro_batches": micro_batches}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        clock, processor = time.perf_counter(), time.process_time()
        made = work()
        row[name] = [time.perf_counter() - clock, time.process_time() - processor]
        return made

    with tempfile.TemporaryDirectory() as folder:
        save_pipeline(Path(folder), meshes, micro_batches)
        plan = timed("read", lambda: Plan.load(folder))
    row["instructions"] = sum(len(program.instructions) for program in plan.programs)
    placement = Placement(tuple((mesh,) for mesh in range(meshes)))
    rank = meshes // 2
    sent = pickle.dumps(part_of_plan(plan, placement.meshes_of(plan, rank)))

    def drive() -> None:
        step = merge_programs(plan)
        inputs_in_workers(plan, placement, step)
        outputs_in_workers(plan, placement, step)

    timed("driver", drive)
    timed("worker", lambda: worker_step(pickle.loads(sent), placement, rank))
    timed("one_process", lambda: merge_step(plan))
    row["in_time"] = max(row["read"][1] + row["driver"][1], row["worker"][1]) < BUDGET_SECONDS
    return row


def print_programs(row: dict[str, Any]) -> None:
    print(
        f"{row['meshes']} meshes, {row['micro_batches']} micro-batches, "
        f"{row['instructions']} instructions"
    )
    for name in ("read", "driver", "worker", "one_process"):
        clock, processor = row[name]
        print(f"  {name:12} {clock:6.2f} s, {processor:6.2f} s of the processor")
    print(f"  {'in' if row['in_time'] else 'not in'} time")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=("xla", "iree"),
        default=["xla", "iree"],
        help="compilers (default: both)",
    )
    parser.add_argument(
        "--devices", type=int, default=1, help="devices of a stage; IREE takes 1 (default: 1)"
    )
    parser.add_argument(
        "--programs",
        type=int,
        nargs=2,
        metavar=("MESHES", "MICRO_BATCHES"),
        help="only read and merge the programs of a plan of this size",
    )
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.programs is not None:
        row = time_programs(*options.programs)
        if options.json:
            print(json.dumps(row, indent=1))
        else:
            print_programs(row)
        return
    if options.task is not None:
        task, folder, argument = options.task[0], Path(options.task[1]), options.task[2]
        match task:
            case "plan":
                make_plan(folder, int(argument))
                print("done")
            case "compile":
                compile_once(folder, argument)
                print("done")
            case _:
                print(json.dumps(load_once(folder, argument)))
        return
    found = {backend: measure(backend, options.devices) for backend in options.backends}
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for backend, rows in found.items():
        print(f"{backend}: {rows['programs']} programs, {rows['program_bytes'] / 1024:.0f} KiB")
        for way in WAYS:
            row = rows[way]
            print(
                f"  {way:8} load {row['load_seconds']:6.2f} s, first step "
                f"{row['first_step_seconds'] * 1e3:6.1f} ms, step "
                f"{row['step_seconds'] * 1e3:6.1f} ms, loss {row['loss']:.6f}"
            )


if __name__ == "__main__":
    sys.path[:0] = [
        str(Path(__file__).resolve().parents[2] / name) for name in ("python", "test", "benchmark")
    ]
    main()
