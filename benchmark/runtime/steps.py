"""The runtime: what steps cost beside the stages' compute, and beside PyTorch's pipelining.

- `step`: seconds of a step of two stages that compute nearly nothing, on two workers with four
  micro-batches; `step_seconds` of steps that follow each other, `one_step_seconds` with the loss
  read after each. Target: under 3 ms.
- `run`: what each program of a step takes in this process on one device, from steps of many
  micro-batches less steps of few, whose batches were placed before: processor seconds of the thread
  that starts them, and seconds of the step, bound to one core and on all of them, where XLA's
  thread is woken on another one. `xla_seconds` is the share of XLA's own call, on all cores.
  Target: under 15 us.
- `gpt`: the demo's GPT (examples/train_gpt.py) in two stages on two workers, beside the time that
  its programs would take without any overhead: transfers take their bytes at the rate of one copy
  in memory, and the simulator runs the plan's instruction lists, waits of the pipeline included.
  The programs are timed in this process on one core: `in turn`, as a worker runs them, and `alone`,
  each again and again (baselines/bare_programs.py). `more` is by how much steps that the driver
  waits for, one by one, take longer: the best step than with the least seconds of each function,
  the median one than with the median of rounds, and `side by side` the median of rounds of which
  each has its programs timed right before and behind its steps. Target: at most 10 %. `of_sum` is
  the step beside the sum of all functions and transfers, as one worker would do them: two workers
  without any overhead come to somewhat more than half.
- `torch`: the same GPT on torch.distributed.pipelining (gloo, 1F1B), its steps and ours in turn.
  `--torch-python` names an interpreter with a CPU build of torch; without one the part is left out.

Every worker, ours and PyTorch's, computes with one thread, bound to a core of its own.
With `--realtime` the kernel runs workers before all else, on machines that do other things as well.

Run: python benchmark/runtime/steps.py [--json] [--parts NAME ...] [--hosts ray|processes]
     [--torch-python PYTHON] [--rounds N] [--layers N] [--hidden N] [--length N] [--batch N]
     [--realtime]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TORCH = HERE / "baselines" / "torch_pipelining.py"
PARTS = ("step", "run", "gpt", "torch")
CORES = sorted(os.sched_getaffinity(0))
ONE_THREAD = {"NPROC": "1"}
# Steps until two cores are as fast side by side as one is alone: a machine that is virtual gives
# them back what it took while one was idle only after a second or two.
WARM_UP = 25
HOST = {"memory_bytes": "4GiB", "memory_bandwidth": 1e10, "peak_flops": {"float32": 2e10}}
Step = Callable[[Any, Any], tuple[Any, Any]]


def progress(text: str) -> None:
    """Says on the standard error what is being done."""
    print(text, file=sys.stderr, flush=True)


def cluster(hosts: int, bandwidth: float = 6e9) -> Any:
    """Hosts of one device each."""
    import alpa_mlir

    return alpa_mlir.Cluster.from_dict(
        {
            "name": f"{hosts}-hosts",
            "device_types": {"core": HOST},
            "hosts": {"count": hosts, "devices": 1, "device_type": "core"},
            "links": {
                "intra_host": {"bandwidth": bandwidth, "latency": 0.0},
                "inter_host": {"bandwidth": bandwidth, "latency": 0.0},
            },
        }
    )


def bind(pid: int, cores: Collection[int], realtime: bool) -> None:
    """Bind all threads of a process, and those that they will start, to cores."""
    nice = -20 if realtime else 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)
            if os.getpriority(os.PRIO_PROCESS, int(thread)) != nice:
                os.setpriority(os.PRIO_PROCESS, int(thread), nice)
    with suppress(OSError):  # Its session as a whole, where the kernel shares by sessions.
        group = Path(f"/proc/{pid}/autogroup")
        if realtime or "nice 0" not in group.read_text():
            group.write_text(str(nice))


@contextmanager
def on_workers(planned: Any, options: argparse.Namespace) -> Generator[Any]:
    """A planned step on two workers, each on a core of its own."""
    import alpa_mlir

    if options.hosts == "ray":
        workers: Any = alpa_mlir.RayWorkers(platform="cpu", environment=ONE_THREAD)
    else:
        workers = alpa_mlir.ProcessWorkers(environment=ONE_THREAD)
    step = planned.load(workers=workers)
    for rank, pid in enumerate(step.loaded.group.pids):
        bind(pid, {CORES[rank % len(CORES)]}, options.realtime)
    bind(os.getpid(), CORES, options.realtime)
    try:
        yield step
    finally:
        bind(os.getpid(), CORES, False)
        step.close()


def plan_stages(function: Any, state: Any, batch: Any, stages: int, micro_batches: int) -> Any:
    """A plan of a step with one device for each stage, 1F1B."""
    import alpa_mlir

    if stages == 1:
        method: Any = alpa_mlir.ShardParallel(num_micro_batches=micro_batches)
    else:
        method = alpa_mlir.PipeshardParallel(
            submeshes=[(1, 1)] * stages, num_micro_batches=micro_batches, schedule="1f1b"
        )
    step = alpa_mlir.parallelize(function, cluster=cluster(stages), method=method)
    return step.plan(state, batch)


def small_step(micro_batches: int) -> tuple[Any, Any, Any]:
    """A step that computes nearly nothing, its state and its batch."""
    import jax as jax_module
    import numpy as np

    jax: Any = jax_module
    jnp = jax.numpy

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        def loss(weights: Any) -> Any:
            x = batch
            for weight in weights:
                x = jnp.tanh(x @ weight)
            return jnp.mean(x)

        value, gradient = jax.value_and_grad(loss)(state)
        return [w - 0.1 * g for w, g in zip(state, gradient, strict=True)], value

    state = [np.eye(8, dtype=np.float32) for _ in range(2)]
    return step, state, np.ones((8 * micro_batches, 8), np.float32)


def timed(step: Step, state: Any, batch: Any, count: int) -> tuple[float, Any]:
    """Seconds of each of `count` steps, and the state behind them."""
    begin = time.perf_counter()
    loss: Any = None
    for _ in range(count):
        state, loss = step(state, batch)
    float(loss)
    return (time.perf_counter() - begin) / count, state


def summary(seconds: list[float]) -> dict[str, float]:
    """The median of rounds and the best one."""
    return {"median": statistics.median(seconds), "best": min(seconds)}


def measure_step(options: argparse.Namespace) -> dict[str, Any]:
    """Part `step`."""
    function, state, batch = small_step(4)
    planned = plan_stages(function, state, batch, 2, 4)
    many: list[float] = []
    one: list[float] = []
    with on_workers(planned, options) as step:
        _, state = timed(step, state, batch, 20)
        for i in range(options.rounds):
            progress(f"step: round {i + 1} of {options.rounds}")
            seconds, state = timed(step, state, batch, 100)
            many.append(seconds)
            for _ in range(20):
                seconds, state = timed(step, state, batch, 1)
                one.append(seconds)
    return {
        "hosts": options.hosts,
        "step_seconds": summary(many),
        "one_step_seconds": summary(one),
        "target_seconds": 3e-3,
    }


def measure_run(options: argparse.Namespace) -> dict[str, Any]:
    """Part `run`."""
    steps: list[tuple[Any, Any, Any]] = []
    for count in (8, 64):
        function, state, batch = small_step(count)
        steps.append((plan_stages(function, state, batch, 1, count), state, batch))
    found: dict[str, Any] = {}
    for where, cores in (("one core", CORES[:1]), ("all cores", CORES)):
        bind(os.getpid(), cores, options.realtime)
        try:
            found[where] = program_seconds(steps, options, where)
        finally:
            bind(os.getpid(), CORES, False)
    calls = call_seconds(steps[-1][0].plan, options.rounds)
    return {**found, "xla_seconds": summary(calls), "target_seconds": 15e-6}


def program_seconds(
    steps: list[tuple[Any, Any, Any]], options: argparse.Namespace, where: str
) -> dict[str, Any]:
    """Seconds of each program of a step, on the cores that this process is bound to.

    Args:
        steps: planned steps of few and of many micro-batches, each with its state and its batch.
    """
    from alpa_runtime.execution.program_merge import Accumulate, Run, merge_step

    found: list[tuple[int, list[float], list[float]]] = []
    for planned, state, batch in steps:
        count = planned.plan.num_micro_batches
        actions = merge_step(planned.plan).actions
        programs = sum(isinstance(a, Run | Accumulate) for a in actions)
        step = planned.load()
        index = [info.kind for info in planned.plan.inputs].index("batch")
        placed = step.loaded.put(index, batch)
        _, state = timed(step, state, placed, 20)
        wall: list[float] = []
        thread: list[float] = []
        for i in range(options.rounds):
            progress(f"run: {where}, {count} micro-batches, round {i + 1} of {options.rounds}")
            begin = time.thread_time()
            seconds, state = timed(step, state, placed, 50)
            wall.append(seconds)
            thread.append((time.thread_time() - begin) / 50)
        found.append((programs, wall, thread))
    (few, short_wall, short_thread), (many, long_wall, long_thread) = found

    def slope(short: list[float], long: list[float]) -> dict[str, float]:
        pairs = zip(sorted(short), sorted(long), strict=True)
        return summary([(b - a) / (many - few) for a, b in pairs])

    return {
        "thread_seconds": slope(short_thread, long_thread),
        "seconds": slope(short_wall, long_wall),
    }


def call_seconds(plan: Any, rounds: int) -> list[float]:
    """Processor seconds of XLA's calls of those functions of stage 0 that micro-batches run."""
    import jax as jax_module
    import numpy as np
    from alpa_runtime.execution.compilation import compile_jobs, stage_jobs
    from jax.sharding import Mesh

    jax: Any = jax_module
    names = [name for name in plan.stages[0].functions if not name.startswith("update")]
    jobs = list(stage_jobs(plan, {(0, name): () for name in names}).values())
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(plan.meshes[0].shape), plan.meshes[0].axes)
    programs = compile_jobs(jobs, [mesh], None)
    found: list[float] = []
    for _ in range(rounds):
        total = 0.0
        for job, program in zip(jobs, programs, strict=True):
            zeros = [np.zeros(tensor.shape, tensor.dtype) for tensor in job.inputs]
            arguments = [jax.device_put(x, jax.devices()[0]) for x in zeros]
            begin = time.thread_time()
            for _ in range(200):
                program.call(arguments)
            total += (time.thread_time() - begin) / 200
        found.append(total / len(names))
    return found


def gpt(options: argparse.Namespace, micro_batches: int) -> tuple[Any, Any, Any]:
    """The demo's model in two stages: plan, state, batch."""
    import jax as jax_module

    jax: Any = jax_module
    optimizer: Any = importlib.import_module("optax")
    sys.path.insert(0, str(ROOT / "examples"))
    demo: Any = importlib.import_module("train_gpt")
    text, characters = demo.read_text(ROOT / "examples" / "data" / "harbour.txt")
    net = demo.GPT(characters, options.layers, options.hidden, heads=4)
    batch = next(demo.batches(text, options.batch, options.length, seed=0))
    params = jax.jit(net.init)(jax.random.key(0), batch["tokens"])["params"]
    state = demo.TrainState.create(apply_fn=net.apply, params=params, tx=optimizer.adamw(3e-3))
    progress(f"planning a GPT of {options.layers} layers, {micro_batches} micro-batches")
    return plan_stages(demo.train_step, state, batch, 2, micro_batches), state, batch


def measure_gpt(options: argparse.Namespace) -> dict[str, Any]:
    """Part `gpt`."""
    from baselines import bare_programs

    planned, state, batch = gpt(options, 4)
    plan = planned.plan
    real: list[float] = []
    more: list[float] = []
    functions: dict[str, dict[tuple[int, str], list[float]]] = {"in turn": {}, "alone": {}}
    turns = bare_programs.Turns(plan)

    def bare(how: str, measure: Callable[[], dict[tuple[int, str], float]]) -> float:
        """Seconds of a step of programs measured now, on one core."""
        bind(os.getpid(), CORES[:1], options.realtime)
        try:
            found = measure()
        finally:
            bind(os.getpid(), CORES, options.realtime)
        for key, seconds in found.items():
            functions[how].setdefault(key, []).append(seconds)
        return bare_programs.pipeline_seconds(plan, found)[0]

    turns.seconds(5)
    with on_workers(planned, options) as step:
        _, state = timed(step, state, batch, 5)
        for i in range(options.rounds):
            progress(f"gpt: round {i + 1} of {options.rounds}")
            bare("alone", lambda: bare_programs.alone_seconds(plan))
            before = bare("in turn", lambda: turns.seconds(5))
            steps: list[float] = []
            for _ in range(WARM_UP + 20):
                seconds, state = timed(step, state, batch, 1)
                steps.append(seconds)
            steps = steps[WARM_UP:]
            after = bare("in turn", lambda: turns.seconds(5))
            more.append(statistics.median(steps) / ((before + after) / 2) - 1)
            real += steps
    found = summary(real)
    result: dict[str, Any] = {"hosts": options.hosts, "step_seconds": found, "target_more": 0.1}
    for how, each in functions.items():
        took = {key: summary(seconds) for key, seconds in each.items()}
        by_kind = {
            kind: bare_programs.pipeline_seconds(plan, {key: t[kind] for key, t in took.items()})
            for kind in ("median", "best")
        }
        result[how] = {
            "seconds": {kind: pipeline for kind, (pipeline, _) in by_kind.items()},
            "sum_seconds": {kind: total for kind, (_, total) in by_kind.items()},
            "more": {kind: found[kind] / pipeline - 1 for kind, (pipeline, _) in by_kind.items()},
            "of_sum": {kind: found[kind] / total for kind, (_, total) in by_kind.items()},
            "functions": {f"stage {i} {phase}": t for (i, phase), t in took.items()},
        }
    result["in turn"]["more"]["side by side"] = statistics.median(more)
    return result


@contextmanager
def torch_steps(options: argparse.Namespace, characters: int) -> Generator[Any]:
    """Two processes with torch: a function that runs steps and returns the seconds of each."""
    setting = {
        **{key: getattr(options, key) for key in ("layers", "hidden", "length", "batch")},
        "characters": characters,
        "micro_batches": 8,
        "realtime": options.realtime,
    }
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [
                    *(
                        options.torch_python,
                        str(HERE / "baselines" / "torch_pipelining.py"),
                        str(rank),
                    ),
                    *(f"{folder}/rendezvous", str(CORES[rank % len(CORES)]), json.dumps(setting)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

        def said(process: Any) -> dict[str, Any]:
            line = process.stdout.readline()
            if not line:
                sys.exit("error: a process with torch has ended, see above")
            return json.loads(line)

        def run(count: int) -> float:
            for process in processes:
                assert process.stdin
                process.stdin.write(f"{count}\n")
                process.stdin.flush()
            return max(said(process)["seconds"] for process in processes) / count

        try:
            yield said(processes[0])["torch"], said(processes[1])["torch"], run
        finally:
            for process in processes:
                process.communicate()


def has_torch(python: str) -> bool:
    """Whether an interpreter can do what benchmark/runtime/baselines/torch_pipelining.py needs."""
    try:
        told = subprocess.run([python, "-c", "import torch.distributed.pipelining"], check=False)
    except OSError:
        return False
    return told.returncode == 0


def measure_torch(options: argparse.Namespace) -> dict[str, Any]:
    """Part `torch`."""
    if not options.torch_python or not has_torch(options.torch_python):
        return {"left_out": "no torch: name an interpreter that has it with --torch-python"}
    planned, state, batch = gpt(options, 8)
    characters = int(batch["tokens"].max()) + 1
    ours: list[float] = []
    theirs: list[float] = []
    with on_workers(planned, options) as step, torch_steps(options, characters) as other:
        version, _, run = other
        _, state = timed(step, state, batch, 5)
        run(5)
        for i in range(options.rounds):
            progress(f"torch: round {i + 1} of {options.rounds}")
            seconds, state = timed(step, state, batch, 10)
            ours.append(seconds)
            theirs.append(run(10))
    return {
        "hosts": options.hosts,
        "torch": version,
        "steps_per_second": {k: 1 / v for k, v in summary(ours).items()},
        "torch_steps_per_second": {k: 1 / v for k, v in summary(theirs).items()},
        "times_as_fast": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
    }


def main() -> None:
    """Print what was measured, as text or with `--json` as one JSON object."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--hosts", choices=("ray", "processes"), default="ray")
    add("--torch-python", metavar="PYTHON", help="an interpreter with torch")
    add("--rounds", type=int, default=5)
    add("--layers", type=int, default=4)
    add("--hidden", type=int, default=128)
    add("--length", type=int, default=64)
    add("--batch", type=int, default=32)
    add("--realtime", action="store_true", help="before all else that runs here; needs root")
    add("--json", action="store_true")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    import alpa_mlir

    alpa_mlir.use_virtual_devices(1)
    makers: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "step": measure_step,
        "run": measure_run,
        "gpt": measure_gpt,
        "torch": measure_torch,
    }
    found: dict[str, Any] = {"cores": len(CORES)}
    for name in options.parts:
        found[name] = makers[name](options)
        found[name]["load"] = os.getloadavg()[0]
        if not options.json:
            print(f"{name}: {json.dumps(found[name], indent=1)}", flush=True)
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
