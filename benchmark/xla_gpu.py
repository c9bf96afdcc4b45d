"""What XLA makes of stages for a GPU, beside what the cost model assumes.

XLA's GPU compiler runs without a GPU, for a described one (`pip install jax[cuda12]`). Each case
is planned for one device, its forward, backward and update functions are compiled, and of the
optimized modules kernels are counted, with the bytes that they read and write (XLA's own count).
Beside them stand the memory traffic and the kernels that the plan was priced with.

    python benchmark/xla_gpu.py
    python benchmark/xla_gpu.py gpt-1.3b llama-8b --gpu a100-80gb
    python benchmark/xla_gpu.py gpt-1.3b --kernels backward      # XLA's kernels, the largest first
    python benchmark/xla_gpu.py gpt-1.3b --overlap               # what XLA runs beside collectives
    python benchmark/xla_gpu.py --depth 1 6 24                   # seconds of XLA by layers
    python benchmark/xla_gpu.py --depth 1 24 --method zero-3 --remat
    python benchmark/xla_gpu.py --opt                            # those of a stage of OPT-175B
    python benchmark/xla_gpu.py --memory                         # peaks, predicted and compiled
    python benchmark/xla_gpu.py --memory --gpu cpu               # those on this host's processor

With `--overlap` a case is planned with ZeRO-3 on the GPUs of one host, and each collective of the
schedule is said to be hidden if a kernel runs between its beginning and its end. With `--depth` a
GPT of the width of GPT-1.3B whose layers are scanned is planned for the GPUs of one host with so
many layers, as loops and written out, and XLA's processor-seconds and the lines of the stages'
modules are printed. With `--opt` these are those of the middle stage of examples/plan_opt_175b.py,
on 1,024 A100. With `--memory` a case is planned for one device, for a mesh of 2 x 2 and for two
stages with four micro-batches; beside the predicted peak of each mesh stands the one that follows
from XLA's memory analysis of each function and from what the step holds while it runs.
"""

# pyright: basic
# jaxlib leaves most of its types open.

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import models
import zoo  # `models` says where it is.
from alpa_runtime.aot import compile_ahead
from alpa_runtime.backends import xla
from alpa_runtime.backends.gpus import GPUS
from alpa_runtime.execution.compilation import stage_jobs
from alpa_runtime.execution.executor import donations
from alpa_runtime.execution.program_merge import merge_step, sums_of

_xla_client: Any = importlib.import_module("jaxlib.xla_client")
_EXAMPLES = Path(__file__).parent.parent / "examples"
PRESETS = {"v100": "p3.16xlarge", "a100-40gb": "p4d.24xlarge", "a100-80gb": "dgx-a100",
            "h100": "dgx-h100", "h200": "dgx-h200"}  # fmt: skip


def _of_zoo(name: str, batch_size: int) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        model = zoo.get(name)
        return model.step, jax.eval_shape(lambda: model.init(batch_size))

    return make


def _of_models(make: Callable[..., Any], **sizes: Any) -> Callable[[], tuple[Any, Any]]:
    def made() -> tuple[Any, Any]:
        model = make(**sizes)
        return model.step, (model.state, model.batch)

    return made


# A layer or two of large models, whose other layers are the same, and small whole ones.
CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "gpt-1.3b": _of_models(
        models.gpt, layers=2, hidden=2048, heads=16, vocab=51200, seq=1024, batch_size=8,
        dtype="bfloat16",
    ),
    "gpt-39b": _of_models(
        models.gpt, layers=1, hidden=8192, heads=64, vocab=51200, seq=1024, batch_size=4,
        dtype="bfloat16", remat=True,
    ),
    "llama-8b": _of_models(
        models.llama, layers=1, hidden=4096, heads=32, kv_heads=8, ffn=14336,
        vocab=128256, seq=4096, batch_size=1,
    ),
    **{
        name: _of_zoo(name, 64)
        for name in ("gpt", "moe", "wide_resnet", "vit", "unet", "lstm", "mlp")
    },
}  # fmt: skip

# Batches with which a device has some tens of MB: of arrays of some KB, alignment and what a
# library call asks for are a good part of the peak.
_BATCHES = {"gpt": 512, "moe": 1024, "wide_resnet": 1024, "vit": 1024, "unet": 1024,
            "lstm": 4096, "mlp": 65536}  # fmt: skip
MEMORY_CASES = CASES | {name: _of_zoo(name, batch) for name, batch in _BATCHES.items()}


@dataclass(frozen=True)
class Row:
    """One function of a case; bytes are those of one run."""

    case: str
    function: str
    xla_bytes: float
    predicted_bytes: float
    xla_kernels: int
    predicted_kernels: int


_KERNELS = ("fusion", "custom-call", "copy", "reduce", "dot", "convolution", "transpose", "sort",
            "scatter", "gather", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad",
            "slice", "convert", "broadcast", "iota", "reduce-window", "rng-bit-generator",
            "select-and-scatter", "fft", "cholesky", "triangular-solve")  # fmt: skip
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(\S+) = .*? ([a-z][a-z-]*)\(", re.MULTILINE)


def _modules(plan: Any, devices: Any, stage: int | None = None) -> Iterator[tuple[Any, Any]]:
    """The optimized module of each function of a plan, or of one of its stages."""
    merged = merge_step(plan)
    for key, job in stage_jobs(plan, donations(plan, merged, True), sums_of(merged)).items():
        if stage is not None and key[0] != stage:
            continue
        compiled = xla.compile_described(
            job.text, devices, per_device=job.per_device, where=job.label
        )
        (module,) = compiled.hlo_modules()
        yield key, module


def kernels_of(text: str) -> list[str]:
    """Names of the kernels that an optimized module launches, those of loops once."""
    entry = text[text.index("\nENTRY ") :]
    return [name for name, op in _INSTRUCTION.findall(entry) if op in _KERNELS]


_COLLECTIVE = re.compile(
    r"^\s+(?:ROOT )?%(\S+) = .*? ((?:all-gather|all-reduce|reduce-scatter|all-to-all|"
    r"collective-permute|async)(?:-start|-done)?)\(([^)]*)\)(.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Overlap:
    """Collectives of one function: how many there are, and beside how many kernels run."""

    case: str
    function: str
    collectives: int
    hidden: int


def hidden_collectives(text: str) -> tuple[int, int]:
    """Collectives of a scheduled module, and those beside which a kernel runs.

    Example:
        >>> hidden_collectives("\\nENTRY {\\n  %a = f32[] all-reduce(%x)\\n}")
        (1, 0)
    """
    entry = text[text.index("\nENTRY ") :]
    begun: dict[str, int] = {}
    collectives = hidden = kernels = 0
    for line in entry.splitlines():
        match = _COLLECTIVE.match(line)
        if match is None:
            found = _INSTRUCTION.match(line)
            kernels += found is not None and found.group(2) in _KERNELS
            continue
        name, op, operands, rest = match.groups()
        if op.endswith("-done"):
            start = re.search(r"%([^\s,]+)", operands)
            hidden += start is not None and begun.get(start.group(1), kernels) < kernels
        else:
            collectives += 1
            if op.endswith("-start") and '"is_sync":true' not in rest:
                begun[name] = kernels
    return collectives, hidden


def overlap_of(case: str, gpu: str) -> Iterator[Overlap]:
    """What XLA runs beside the collectives of each function, under ZeRO-3."""
    step, shapes = CASES[case]()
    parallel = alpa_mlir.parallelize(
        step,
        cluster=PRESETS[gpu],
        method=alpa_mlir.ShardParallel(method="zero-3"),
        cache=False,
    )
    plan = parallel.plan(*shapes).plan
    (mesh,) = plan.meshes
    devices = xla.described_devices(GPUS[gpu], 1, len(mesh.devices))
    for (_, function), module in _modules(plan, devices):
        yield Overlap(case, function, *hidden_collectives(module.to_string()))


@dataclass(frozen=True)
class Depth:
    """What a stage of so many layers takes to compile."""

    layers: int
    loops: bool
    lines: int
    xla_seconds: float


# Methods of `--depth`, for eight devices.
_DEPTH_METHODS: dict[str, Callable[..., Any]] = {
    "auto": alpa_mlir.ShardParallel,
    "2x4": partial(alpa_mlir.ShardParallel, mesh_shape=(2, 4)),
    **{
        name: partial(alpa_mlir.ShardParallel, method=name)
        for name in ("data-parallel", "zero-2", "zero-3", "megatron")
    },
    "two-stages": partial(alpa_mlir.PipeshardParallel, submeshes=[(1, 4), (1, 4)]),
    "zero-bubble": partial(
        alpa_mlir.PipeshardParallel, submeshes=[(1, 4), (1, 4)], schedule="zb-h1"
    ),
}


def depth_of(
    layers: int, loops: bool, gpu: str, method: str = "auto", remat: bool = False
) -> Depth:
    """Processor-seconds in which XLA compiles all functions of the stages."""
    sizes = zoo.GPTConfig(
        layers=layers, hidden=2048, heads=16, vocab=51200, seq=1024, dtype="bfloat16", scan=True,
        remat=remat,
    )  # fmt: skip
    model = zoo.make_gpt(sizes)
    chosen = _DEPTH_METHODS[method](num_micro_batches=4, layer_loops=loops)
    parallel = alpa_mlir.parallelize(model.step, cluster=PRESETS[gpu], method=chosen, cache=False)
    plan = parallel.plan(*jax.eval_shape(lambda: model.init(64))).plan
    return Depth(layers, loops, *_compiled(plan, range(len(plan.stages)), gpu))


def _compiled(plan: Any, stages: Sequence[int], gpu: str) -> tuple[int, float]:
    """Lines of stages' modules, and processor-seconds in which XLA compiles them."""
    lines, seconds = 0, 0.0
    for index in stages:
        stage = plan.stages[index]
        devices = xla.described_devices(GPUS[gpu], *plan.meshes[stage.mesh].shape)
        before = time.process_time()
        count = sum(1 for _ in _modules(plan, devices, index))
        assert count >= 3  # Forward, backward, update.
        seconds += time.process_time() - before
        lines += len(plan.modules[stage.module].splitlines())
    return lines, seconds


def opt_stage(loops: bool, gpu: str) -> Depth:
    """The middle stage of OPT-175B for 1,024 GPUs."""
    sys.path.insert(0, str(_EXAMPLES))
    step, shapes = importlib.import_module("plan_opt_175b").entry()
    method = alpa_mlir.AutoParallel(num_micro_batches=[64], layers=48, layer_loops=loops)
    parallel = alpa_mlir.parallelize(
        step, cluster=f"{PRESETS[gpu]}:128", method=method, cache=False
    )
    plan = parallel.plan(*shapes).plan
    middle = len(plan.stages) // 2
    return Depth(96 // len(plan.stages), loops, *_compiled(plan, [middle], gpu))


_SHAPE = re.compile(r"([a-z]+\d+[a-z\d]*|pred)\[([\d,]*)\]")
_CALL = re.compile(r"^\s+(?:ROOT )?%\S+ = (.*?) custom-call\(([^)]*)\)", re.MULTILINE)


def _bytes_of(shapes: str) -> int:
    """Bytes of all arrays of a type as modules print it."""
    total = 0
    for kind, dims in _SHAPE.findall(shapes):
        bits = 8 if kind == "pred" else int(re.findall(r"\d+", kind)[0])
        total += math.prod(int(dim) for dim in dims.split(",") if dim) * bits // 8
    return total


def library_bytes(text: str) -> int:
    """Bytes that library calls of a module's entry read and write, which XLA does not count.

    Example:
        >>> library_bytes("\\nENTRY {\\n  %a = f32[4]{0} add(%x)\\n  %b = f32[2] custom-call(%a)")
        24
    """
    entry = text[text.index("\nENTRY ") :]
    types = dict(re.findall(r"^\s+(?:ROOT )?%(\S+) = (.*?) [a-z][a-z-]*\(", entry, re.MULTILINE))
    return sum(
        _bytes_of(result)
        + sum(_bytes_of(types.get(name, "")) for name in re.findall(r"%([^\s,]+)", operands))
        for result, operands in _CALL.findall(entry)
    )


def rows_of(case: str, gpu: str) -> Iterator[tuple[Row, str]]:
    """Each function's row, and its optimized module as text."""
    step, shapes = CASES[case]()
    parallel = alpa_mlir.parallelize(
        step,
        cluster=_one_host(PRESETS[gpu], 1),
        method=alpa_mlir.ShardParallel(export="collectives"),
        cache=False,
    )
    plan = parallel.plan(*shapes).plan
    devices = xla.described_devices(GPUS[gpu], 1, 1)
    ops = (plan.explanation(0) or {})["ops"]
    for (_, function), module in _modules(plan, devices):
        cpu = jax.devices("cpu")[0].client
        moved = _xla_client._xla.hlo_module_cost_analysis(cpu, module)["bytes accessed"]
        phase = "update" if function.startswith("update") else function
        mine = [op for op in ops if op["phase"] == phase]
        predicted = sum(op["memory_traffic_bytes"] for op in mine)
        text = module.to_string()
        moved += library_bytes(text)
        launched = (len(kernels_of(text)), sum(op["kernels"] for op in mine))
        yield Row(case, function, moved, predicted, *launched), text


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a mesh's devices, as predicted and as compiled."""

    case: str
    method: str
    mesh: int
    predicted_bytes: int
    compiled_bytes: int
    held_bytes: int
    label: str

    @property
    def ratio(self) -> float:
        return self.predicted_bytes / self.compiled_bytes


def _peak_methods() -> Iterator[tuple[str, int, Any]]:
    """Methods of `--memory`: name, devices, method."""
    yield "1", 1, alpa_mlir.ShardParallel()
    yield "2x2", 4, alpa_mlir.ShardParallel(mesh_shape=(2, 2))
    stages = [(1, 1), (1, 1)]
    yield "2 stages", 2, alpa_mlir.PipeshardParallel(submeshes=stages, num_micro_batches=4)


def peaks_of(case: str, target: str) -> Iterator[Peak]:
    """The peaks of a case; plans for a processor are those for H100, whose memory suffices."""
    step, shapes = MEMORY_CASES[case]()
    for method_name, count, method in _peak_methods():
        cluster = _one_host(PRESETS.get(target, "dgx-h100"), count)
        parallel = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
        try:
            plan = parallel.plan(*shapes).plan
        except alpa_mlir.AlpaError as error:  # Such as a batch norm in micro-batches.
            print(f"{case}, {method_name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        predicted: dict[int, int] = {}
        for stage in plan.stages:
            peak = int(stage.predicted["peak_bytes"])
            predicted[stage.mesh] = max(peak, predicted.get(stage.mesh, 0))
        with tempfile.TemporaryDirectory() as folder:
            plan.save(folder)
            compiled = compile_ahead(folder, target)
        for peak in compiled.peaks:
            mesh = peak.mesh
            where = (case, method_name, mesh)
            yield Peak(*where, predicted[mesh], peak.bytes, peak.held_bytes, peak.label)


def _one_host(preset: str, count: int) -> Any:
    """So many devices of a preset."""
    fields = json.loads(alpa_mlir.Cluster.load(preset).text)
    kind = fields["hosts"][0]["device_type"]
    fields["hosts"] = [{"count": 1, "devices": count, "device_type": kind}]
    return alpa_mlir.Cluster.from_dict(fields)


def as_peak_table(rows: Sequence[Peak]) -> str:
    """The peaks, how far they are off in the median, and the least and the greatest ratio."""
    lines = [f"{'case':12} {'method':9} {'mesh':4} {'predicted':>13} {'compiled':>13} {'ratio':>6}"]
    for row in rows:
        lines.append(
            f"{row.case:12} {row.method:9} {row.mesh:4} {row.predicted_bytes / 1e6:10,.1f} MB "
            f"{row.compiled_bytes / 1e6:10,.1f} MB {row.ratio:6.2f}  {row.label}"
        )
    ratios = [row.ratio for row in rows]
    off = statistics.median(abs(ratio - 1) for ratio in ratios)
    lines.append(
        f"median difference of peaks: {off:.1%}, ratios {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return "\n".join(lines)


def as_table(rows: Sequence[Row]) -> str:
    """The rows, and how far traffic and kernels are off in the median."""
    head = f"{'case':12} {'function':10} {'XLA':>10} {'predicted':>10} {'ratio':>6} {'kernels':>13}"
    lines = [head]
    for row in rows:
        lines.append(
            f"{row.case:12} {row.function:10} {row.xla_bytes / 1e6:7,.0f} MB "
            f"{row.predicted_bytes / 1e6:7,.0f} MB {row.predicted_bytes / row.xla_bytes:6.2f} "
            f"{row.xla_kernels:5} {row.predicted_kernels:5}"
        )
    off = [abs(row.predicted_bytes / row.xla_bytes - 1) for row in rows]
    lines.append(f"median difference of traffic: {statistics.median(off):.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}")
    targets = [*sorted(PRESETS), "cpu"]
    add("--gpu", choices=targets, default="h100", help="for which (%(default)s); cpu for --memory")
    add("--kernels", metavar="FUNCTION", help="print the entry of this function's module")
    add("--overlap", action="store_true", help="count collectives that XLA runs beside kernels")
    add("--depth", type=int, nargs="+", metavar="LAYERS", help="seconds of XLA by layers")
    add("--method", choices=_DEPTH_METHODS, default="auto", help="of --depth (%(default)s)")
    add("--remat", action="store_true", help="layers of --depth are computed again")
    add("--opt", action="store_true", help="seconds of XLA of OPT-175B's middle stage")
    add("--memory", action="store_true", help="peaks of memory, predicted and compiled")
    add("--json", action="store_true", help="one JSON document on the output")
    options = parser.parse_args()
    known = MEMORY_CASES if options.memory else CASES
    unknown = set(options.cases) - set(known)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.gpu == "cpu" and not options.memory:
        parser.error("--gpu cpu needs --memory")
    rows: list[Row] = []
    if options.memory:
        alpa_mlir.use_virtual_devices(4)
        peaks = [
            peak for case in options.cases or MEMORY_CASES for peak in peaks_of(case, options.gpu)
        ]
        print(
            json.dumps([asdict(peak) for peak in peaks]) if options.json else as_peak_table(peaks)
        )
        return
    if options.depth or options.opt:
        both = (True, False)
        if options.opt:
            depths = [opt_stage(loops, options.gpu) for loops in both]
        else:
            how = (options.gpu, options.method, options.remat)
            depths = [depth_of(n, loops, *how) for loops in both for n in options.depth]
        for row in depths if not options.json else ():
            kind = "loops" if row.loops else "written out"
            print(f"{row.layers:4} layers {kind:12} {row.lines:7} lines {row.xla_seconds:7.1f} s")
        if options.json:
            print(json.dumps([asdict(row) for row in depths]))
        return
    if options.overlap:
        found = [row for case in options.cases or CASES for row in overlap_of(case, options.gpu)]
        for row in found if not options.json else ():
            print(f"{row.case:12} {row.function:10} {row.hidden:4} of {row.collectives:4} hidden")
        if options.json:
            print(json.dumps([asdict(row) for row in found]))
        return
    try:
        for case in options.cases or CASES:
            for row, text in rows_of(case, options.gpu):
                rows.append(row)
                if options.kernels == row.function:
                    print(text[text.index("\nENTRY ") :])
    except alpa_mlir.AlpaError as error:
        sys.exit(f"error: {error}")
    print(json.dumps([asdict(row) for row in rows]) if options.json else as_table(rows))


if __name__ == "__main__":
    main()
