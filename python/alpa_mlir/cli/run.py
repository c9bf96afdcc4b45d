"""`alpa-mlir run`."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpa_mlir.cli._command import (
    Answer,
    add_force,
    count,
    count_from_0,
    ended_by_signals,
    file_in_folder,
    refuse_existing,
)
from alpa_mlir.cli._source import SOURCE, Source, add_source, plan_source, shown
from alpa_mlir.errors import DevicesError, EntryPointError

if TYPE_CHECKING:
    from alpa_runtime.parallel_step import ParallelStep
    from alpa_runtime.worker_group import Hosts

    from alpa_mlir.training import StatefulStep


_SHOWN = 10
_SECONDS = "seconds of the step"  # No name of a result.


@dataclass
class StepReport:
    """Seconds and results of the steps, with a bar."""

    first: int
    steps: int
    quiet: bool
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __post_init__(self) -> None:
        from alpa_runtime.parallel_step import on_terminal

        self.bar: Any = None
        if not self.quiet and on_terminal():
            from tqdm import tqdm

            self.bar = tqdm(total=self.steps, initial=self.first, desc="running", unit="step")

    def add(self, number: int, results: dict[str, Any]) -> None:
        """A timed step, whose results are on the host."""
        found = _scalars({name: value for name, value in results.items() if name != _SECONDS})
        seconds = float(results[_SECONDS])
        self.rows.append({"step": number, "seconds": seconds, "results": found})
        if self.bar is not None:
            self.bar.set_postfix_str(_results_text(found), refresh=False)
            self.bar.update(number + 1 - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    @property
    def step_seconds(self) -> float | None:
        """Of a step; the first one does what is done once."""
        later = [row["seconds"] for row in self.rows[1:]]
        return statistics.median(later) if later else None

    def as_text(self) -> str:
        from alpa_runtime.plan.text import seconds_text

        size = len(self.rows)
        chosen = sorted({round(i * (size - 1) / max(1, _SHOWN - 1)) for i in range(_SHOWN)})
        lines = [
            f"step {row['step']}: {_results_text(row['results'])}, {seconds_text(row['seconds'])}"
            for row in (self.rows[i] for i in chosen if i < size)
        ]
        if size > len(lines):
            lines.append(f"({len(lines)} of {size} steps; --json has all)")
        if self.step_seconds is not None:
            lines.append(f"a step takes {seconds_text(self.step_seconds)} (median)")
        return "\n".join(lines)


def _scalars(results: dict[str, Any]) -> dict[str, float]:
    """The results that are one real number, by what tells them apart."""
    import numpy as np

    found = {
        name: float(value)
        for name, value in results.items()
        if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiub"
    }
    short = {name: _short(name) for name in found}
    is_clear = len(set(short.values())) == len(short)
    return {short[name] if is_clear else name: value for name, value in found.items()}


def _short(name: str) -> str:
    """`loss` of `result[1]['loss']`, if the name ends so."""
    last = name.rpartition("[")[2].strip("]'\"")
    return last if last.isidentifier() else name.rpartition(".")[2]


def _results_text(results: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in results.items()) or "done"


DESCRIPTION = (
    "Runs a step: an entry point with its own state and batches, after planning it, or a saved "
    "plan with random ones. In this process, or with --workers in a process for each host of the "
    "plan. Shows the losses and the seconds of each step."
)
EXAMPLES = """\
  alpa-mlir run train.py:entry --cluster cluster.yaml --virtual-devices 8 --steps 20
  alpa-mlir run my_plan --virtual-devices 8 --trace step.json
  alpa-mlir run train.py:entry --cluster cluster.yaml --workers processes
  alpa-mlir run train.py:entry --cluster dgx-a100 --steps 1000 --checkpoint run --save-every 100
"""
#: Steps that a trace has at most: the last ones.
TRACED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, SOURCE)
    parser.add_argument(
        "--steps", type=count, default=10, metavar="N", help="how many to do (default: 10)"
    )
    parser.add_argument(
        "--workers",
        choices=("launched", "processes", "ray", "threads"),
        help="run in workers, one for each host of the plan; launched: on the hosts of an "
        "`alpa-mlir launch` (default: in this process)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="of a Ray cluster (default: RAY_ADDRESS, else Ray is started here)",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "xla", "iree"),
        default="auto",
        help="who compiles the stages (default: auto)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="save the state there, and go on from the last one; a run that lost a worker goes on "
        "by itself",
    )
    parser.add_argument(
        "--save-every",
        type=count,
        default=100,
        metavar="N",
        help="steps from one checkpoint to the next (default: 100)",
    )
    parser.add_argument(
        "--trace",
        type=file_in_folder,
        metavar="FILE",
        help=f"write a Perfetto trace of the last steps, at most {TRACED}, and the simulated one",
    )
    add_force(parser)
    parser.add_argument(
        "--seed",
        type=count_from_0,
        default=0,
        metavar="N",
        help="of random state and batches (default: 0)",
    )


def run(options: argparse.Namespace) -> Answer:
    if options.trace is not None and options.checkpoint is not None:
        options.error("--trace and --checkpoint do not go together")
    if options.ray_address is not None and options.workers != "ray":
        options.error("--ray-address is for --workers ray")
    refuse_existing(options, "trace")
    if options.checkpoint is not None:
        from alpa_runtime.checkpoint.folders import check_no_run

        check_no_run(Path(options.checkpoint))  # Before planning, which may take long.
    with ended_by_signals():
        source = plan_source(options)
        with _workers(options) as hosts:
            return _run(options, source, hosts)


def _run(options: argparse.Namespace, source: Source, hosts: Hosts | None) -> Answer:
    from alpa_mlir.cli._random_inputs import needs_wide_dtypes

    if source.entry is None and needs_wide_dtypes(source.plan):
        import jax

        jax_: Any = jax
        jax_.config.update("jax_enable_x64", True)

    compiled: list[tuple[int, str]] = []

    def load() -> StatefulStep:
        found = _load(options, source, hosts)
        compiled[:] = [(found.step.peak_bytes(), found.step.memory_text())]
        return found

    go = _plainly if options.checkpoint is None else _with_checkpoints
    report = go(options, source, load)
    if not report.rows:
        text = f"{options.checkpoint} has step {report.first} already; nothing was left to do"
    else:
        first = report.rows[0]["step"]  # An earlier one than the last where that is damaged.
        resumed = f"went on from the checkpoint of step {first} in {options.checkpoint}"
        text = f"{resumed}\n{report.as_text()}" if first else report.as_text()
        text += f"\nmemory: {compiled[0][1]}"
    fields = {
        "name": source.plan.name,
        "num_devices": sum(len(mesh.devices) for mesh in source.plan.meshes),
        "predicted_seconds": source.plan.predicted.get("step_seconds"),
        "step_seconds": report.step_seconds,
        "foreseen_bytes": source.plan.peak_bytes,
        "compiled_bytes": compiled[0][0] if compiled else None,
        "steps": report.rows,
        "trace": None if options.trace is None else str(options.trace),
        "checkpoint": options.checkpoint,
    }
    if options.trace is not None:
        text += f"\nwrote {options.trace}, for https://ui.perfetto.dev"
    if options.checkpoint is not None and report.rows:
        text += f"\nthe state of step {options.steps} is in {options.checkpoint}"
    return Answer(text, fields)


def _load(options: argparse.Namespace, source: Source, hosts: Hosts | None) -> StatefulStep:
    from alpa_runtime import parallel_step

    from alpa_mlir.cli._random_inputs import callable_plan
    from alpa_mlir.training import StatefulStep

    own = None if source.entry is None else source.entry.function.options.workers
    if hosts is None and own is None:
        _check_devices(source)
    given: Any = {"workers": hosts, "progress": shown(options), "backend": options.backend}
    static: dict[int, Any] = {}
    if source.planned is None or source.entry is None:
        cache = not options.no_cache
        loaded = parallel_step.load(callable_plan(source.plan), cache=cache, **given)
    else:
        loaded = source.planned.load(**given)
        arguments = source.entry.arguments
        static = {item.position: arguments[item.position] for item in loaded.form.static}
    return StatefulStep(loaded, static)


def _check_devices(source: Source) -> None:
    import jax

    jax_: Any = jax
    wanted, present = source.plan.num_devices, len(jax_.devices())
    if present < wanted:
        raise DevicesError(
            f"the plan needs {wanted} devices, JAX has {present}",
            where=source.name,
            fix=f"add --virtual-devices {wanted}, or --workers processes, or plan for a smaller "
            "cluster",
        )


def _timed(step: StatefulStep) -> StatefulStep:
    """The step, waiting for its results, beside which are the seconds that it took."""
    import jax

    from alpa_mlir.training import StatefulStep

    jax_: Any = jax

    class Timed(StatefulStep):
        def __call__(self, state: Any, *batch: Any) -> tuple[Any, dict[str, Any]]:
            begin = time.perf_counter()
            state, results = super().__call__(state, *batch)
            results = jax_.device_get(results)
            jax_.block_until_ready(state)
            return state, results | {_SECONDS: time.perf_counter() - begin}

    return Timed(step.step, step.static)


def _plainly(
    options: argparse.Namespace, source: Source, load: Callable[[], StatefulStep]
) -> StepReport:
    simulated = None if options.trace is None else _simulated(source)
    step = load()
    try:
        state, batches = _first(options, source, step)
        steps: int = options.steps
        report = StepReport(0, steps, options.quiet)
        timed = _timed(step)
        with contextlib.closing(report), contextlib.ExitStack() as recording:
            for number in range(steps):
                if options.trace is not None and number == max(0, steps - TRACED):
                    recording.enter_context(step.step.record(options.trace, simulated))
                state, results = timed(state, *next(batches))
                report.add(number, results)
    finally:
        step.close()
    return report


def _with_checkpoints(
    options: argparse.Namespace, source: Source, load: Callable[[], StatefulStep]
) -> StepReport:
    from alpa_runtime.checkpoint import latest_checkpoint

    from alpa_mlir import training

    first = latest_checkpoint(options.checkpoint) or 0
    report = StepReport(first, options.steps, options.quiet)
    steps: list[StatefulStep] = []

    def loaded() -> StatefulStep:
        steps[:] = [_timed(load())]
        return steps[0]

    class Batches:
        """From the first step's on, each time."""

        def __iter__(self) -> Iterator[Any]:
            return (batch for batch in _first(options, source, steps[0])[1])

    try:
        with contextlib.closing(report):
            training.run(
                loaded,
                lambda: _first(options, source, steps[0])[0],
                Batches(),
                options.steps,
                training.Resume(options.checkpoint, every=options.save_every),
                on_result=report.add,
            )
    finally:
        for step in steps:
            step.close()
    return report


def _first(
    options: argparse.Namespace, source: Source, step: StatefulStep
) -> tuple[Any, Iterator[tuple[Any, ...]]]:
    """The first state, and the batches; random ones where nobody gave any."""
    import itertools

    from alpa_mlir.cli._random_inputs import random_batch, random_state

    several = step.num_batches != 1

    def as_tuple(batch: Any) -> tuple[Any, ...]:
        return batch if several else (batch,)

    inner: ParallelStep = step.step
    if source.entry is None:
        batch = as_tuple(random_batch(inner, options.seed))
        return random_state(inner, options.seed), itertools.repeat(batch)
    static = {item.position for item in inner.form.static}
    arguments = [a for i, a in enumerate(source.entry.arguments) if i not in static]
    state, example = step.split(arguments)
    if _has_shapes(state):
        state = random_state(inner, options.seed)
        if not options.quiet:
            print("the entry point gives shapes: the state is random", file=sys.stderr)
    if source.entry.batches is not None:
        return state, map(as_tuple, _repeated(source, quiet=options.quiet))
    if _has_shapes(example):
        example = as_tuple(random_batch(inner, options.seed))
        if not options.quiet:
            print("the entry point gives no batches: they are random", file=sys.stderr)
    return state, itertools.repeat(example)


def _has_shapes(tree: Any) -> bool:
    import jax
    from alpa_runtime import trees

    jax_: Any = jax
    return any(isinstance(leaf, jax_.ShapeDtypeStruct) for leaf in trees.leaves(tree))


def _repeated(source: Source, *, quiet: bool) -> Generator[Any, None, None]:
    """The batches of the entry point, from the beginning again where they end, which is said."""
    entry = source.entry
    assert entry is not None
    said = quiet
    while True:
        count = 0
        for batch in entry.fresh_batches():
            count += 1
            yield batch
        if count == 0:
            raise EntryPointError(
                "its batches are empty", where=entry.name, fix="give at least one, or none at all"
            )
        if not said:
            text = f"the entry point's batches end after {count} steps: they begin again"
            print(text, file=sys.stderr)
            said = True


def _simulated(source: Source) -> Any:
    """The predicted step, where the compiler, which knows clusters, is installed."""
    from alpa_mlir.errors import PassError
    from alpa_mlir.simulator import simulate

    try:
        return simulate(source.plan)
    except PassError:
        return None


@contextlib.contextmanager
def _workers(options: argparse.Namespace) -> Generator[Hosts | None, None, None]:
    """Where to start workers, if they are wanted; nothing of it stays behind."""
    if options.workers is None:
        yield None
    elif options.workers == "threads":
        from alpa_runtime.hosts.threads import ThreadWorkers

        yield ThreadWorkers()
    elif options.workers == "processes":
        from alpa_runtime.hosts.subprocesses import ProcessWorkers

        with ProcessWorkers() as processes:
            yield processes
    elif options.workers == "launched":
        from alpa_runtime.hosts.launched import LaunchedWorkers

        yield LaunchedWorkers()
    else:
        from alpa_runtime.hosts.ray_hosts import RayWorkers

        ray = RayWorkers(options.ray_address)
        try:
            yield ray
        finally:
            ray.close()
