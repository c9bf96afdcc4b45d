"""One planning job: a model of the paper, a cluster, a method; run here or in a fresh process.

Run: python benchmark/planning_job.py JSON    (the fields of `Job`; prints what `measure` returns)
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "ALPA_MLIR_CACHE"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to plan.

    Unlike `AutoParallel()` it takes what the paper's evaluation takes: a few counts of
    micro-batches, so many layers, and rematerialization as the models say; `automatic` leaves
    these to `AutoParallel`. All else (schedules, memory, time limits, mesh views) is as a user of
    `AutoParallel` gets it, and so are gradients, which are averaged.

    Attributes:
        case: a name of `paper.models.CASES`, such as `gpt-39b`.
        gpus: devices; 0 for as many as the paper's.
        micro_batches: counts to try; empty for the model's.
        scan: stack the weights of layers and scan over them.
        depth: layers of the model; 0 for as many as the paper's.
        layers: layers that stages are made from; 0 for the model's.
        pipeline, method: as in docs/methods.md.
        options: more fields of `AutoParallel`; the models recompute layers themselves, so that
            `remat` is `"none"` by default.
        automatic: search what is not given: all counts that divide the batch, layers by the
            model's blocks, `remat="auto"`.
        predict: only search, each count in full; there are no programs and there is no Plan.
    """

    case: str
    gpus: int = 0
    micro_batches: tuple[int, ...] = ()
    scan: bool = False
    depth: int = 0
    layers: int = 0
    pipeline: str = "auto"
    method: str = "auto"
    options: Mapping[str, Any] | None = None
    automatic: bool = False
    predict: bool = False

    def __post_init__(self) -> None:
        if self.automatic and self.predict:
            raise ValueError("an automatic search takes numbers from plans, it cannot only predict")


class Stopwatch:
    """Seconds of the parts of planning, taken where the driver calls the compiler."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


# Passes by part of the breakdown; the others are export.
_PARTS = {"alpa-import": "import", "alpa-cluster-layers": "import", "alpa-search-stages": "search"}


def split_passes(pipeline: str) -> list[str]:
    """The passes of a flat pipeline, with their options.

    Example:
        >>> split_passes("alpa-import,alpa-search-stages{submeshes=1x2,1x2}")
        ['alpa-import', 'alpa-search-stages{submeshes=1x2,1x2}']
    """
    passes: list[str] = []
    depth, start = 0, 0
    for i, letter in enumerate(pipeline + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            passes.append(pipeline[start:i])
            start = i + 1
    return passes


@contextmanager
def timed(watch: Stopwatch) -> Generator[None]:
    """Measure every call of the tracer and the compiler inside of the block."""
    from alpa_mlir import compiler
    from alpa_mlir.trace import tracing

    module: Any = compiler.Module
    saved = tracing.trace, module.__init__, module.run, module.export_plan

    def traced(*args: Any, **kwargs: Any) -> Any:
        with watch.part("trace"):
            return saved[0](*args, **kwargs)

    def parse(self: Any, *args: Any, **kwargs: Any) -> None:
        with watch.part("import"):
            saved[1](self, *args, **kwargs)

    def run(self: Any, pipeline: str) -> Any:
        for step in split_passes(pipeline):
            with watch.part(_PARTS.get(step.partition("{")[0], "export")):
                saved[2](self, step)
        return self

    def export(self: Any) -> Any:
        with watch.part("export"):
            return saved[3](self)

    tracing.trace, module.__init__, module.run, module.export_plan = traced, parse, run, export
    try:
        yield
    finally:
        tracing.trace, module.__init__, module.run, module.export_plan = saved


def cluster_of(preset: str, gpus: int) -> Any:
    """So many devices of a preset's hosts; fewer than a host's are one smaller host."""
    from alpa_mlir.cluster import Cluster

    fields: dict[str, Any] = json.loads(Cluster.load(preset.partition(":")[0]).text)
    (host,) = fields["hosts"]
    devices = min(gpus, int(host["devices"]))
    if gpus % devices:
        raise SystemExit(f"{gpus} devices are not whole hosts of {devices}")
    fields["hosts"] = {**host, "count": gpus // devices, "devices": devices}
    return Cluster.from_dict(fields)


def measure(job: Job) -> dict[str, Any]:
    """Plan, and say what was found and how long it took; `oom` is why nothing fits."""
    from alpa_mlir import AutoParallel
    from alpa_mlir.errors import InfeasiblePlanError
    from paper.models import make_case

    model = make_case(job.case, scan=job.scan, layers=job.depth)
    gpus = job.gpus or model.gpus
    counts = job.micro_batches or (None if job.automatic else model.micro_batches)
    defaults = {} if job.automatic else {"layers": model.layers, "remat": "none"}
    given = {"layers": job.layers} if job.layers else {}
    options: dict[str, Any] = {**defaults, **given, **(job.options or {})}
    method = AutoParallel(
        num_micro_batches=counts,
        pipeline=job.pipeline,
        method=job.method,
        micro_batch_semantics="independent",  # As in the paper; batch norm couples examples.
        widen_sums=False,  # Gradients are added in float16, as in the paper's artifact.
        **options,
    )
    cluster = cluster_of(model.cluster, gpus)
    watch = Stopwatch()
    start, busy = time.perf_counter(), time.process_time()
    try:
        with timed(watch):
            found = (_search if job.predict else _plan)(model, cluster, method, counts)
        found["tflops_per_device"] = model.flops / found["step_seconds"] / gpus / 1e12
    except InfeasiblePlanError as error:
        found = {"oom": str(error)}
    return {
        "case": job.case,
        "parameters": model.parameters,
        "gpus": gpus,
        "pipeline": job.pipeline,
        "method": job.method,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - busy,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "breakdown": watch.seconds,
        "micro_batches_tried": list(counts or ()),
        "remat": method.remat,  # Beside what the model itself computes again.
        **found,
    }


def _plan(model: Any, cluster: Any, method: Any, counts: Any) -> dict[str, Any]:
    """The Plan in numbers."""
    from alpa_mlir import parallelize

    function = parallelize(model.step, cluster=cluster, method=method)
    planned = function.plan(model.state, model.batch)
    plan = planned.plan
    return {
        "micro_batches_tried": sorted({tried.num_micro_batches for tried in planned.tried}),
        "step_seconds": plan.predicted["step_seconds"],
        "num_micro_batches": plan.num_micro_batches,
        "schedule": plan.schedule,
        "stages": [
            {
                "layers": list(stage.layers),
                "mesh": list(plan.meshes[stage.mesh].shape),
                "devices": len(plan.meshes[stage.mesh].devices),
                "memory_bytes": int(stage.predicted["peak_bytes"]),
            }
            for stage in plan.stages
        ],
    }


_STAGE = re.compile(
    r"#alpa\.stage<mesh = <shape = \[([\d, ]*)\], devices = \[([\d, ]*)\]>, "
    r"layers = \[(\d+), (\d+)\].*?peak_bytes = (\d+) :"
)


def _search(model: Any, cluster: Any, method: Any, counts: Any) -> dict[str, Any]:
    """What the search finds for the best count, read from the searched module."""
    from alpa_mlir.compiler import Module
    from alpa_mlir.errors import InfeasiblePlanError
    from alpa_mlir.trace import tracing

    best: dict[str, Any] = {}
    infeasible: InfeasiblePlanError | None = None
    traced = tracing.trace(model.step, model.state, model.batch)
    for count in counts:
        module = Module(traced.text, model.name).annotate(traced.signature.to_json())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cluster.yaml"
            cluster.save(path)
            passes = split_passes(method.passes(cluster, str(path), count))
            last = next(i for i, name in enumerate(passes) if "search-stages" in name)
            try:
                module.run(",".join(passes[: last + 1]))
            except InfeasiblePlanError as error:
                infeasible = error
                continue
        text = module.as_text().partition("func.func")[0]
        predicted = re.search(r"alpa\.predicted = \{.*?step_seconds = ([-+.\deE]+) :", text)
        schedule = re.search(r'alpa\.schedule = "([^"]*)"', text)
        assert predicted is not None
        assert schedule is not None
        if best and float(predicted[1]) >= best["step_seconds"]:
            continue
        best = {
            "step_seconds": float(predicted[1]),
            "num_micro_batches": count,
            "schedule": schedule[1],
            "stages": [
                {
                    "layers": [int(found[3]), int(found[4])],
                    "mesh": [int(size) for size in found[1].split(",")],
                    "devices": len(found[2].split(",")),
                    "memory_bytes": int(found[5]),
                }
                for found in _STAGE.finditer(text)
            ],
        }
    if not best:
        assert infeasible is not None
        raise infeasible
    return best


def run_fresh(job: Job, cache: Path, timeout_seconds: float = 3600) -> dict[str, Any]:
    """`measure` in a process of its own; `failed` says why there is no answer."""
    environment = {**os.environ, CACHE_VARIABLE: str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, json.dumps(asdict(job))]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired:
        return {**asdict(job), "failed": f"no plan after {timeout_seconds:.0f} s"}
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return {**asdict(job), "failed": reason}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Plan the job given as JSON."""
    fields = json.loads(sys.argv[1])
    fields["micro_batches"] = tuple(fields.get("micro_batches", ()))
    print(json.dumps(measure(Job(**fields))))


if __name__ == "__main__":
    main()
