"""Predicted seconds of published training runs beside the measured ones, each in its own grid.

Every row of data/published_runs.tsv (runs of Megatron-LM, llm-foundry, torchtitan, PAX, MaxText,
fms-fsdp as their authors published them; `where` says the place) and of
data/a100_within_a_host.csv (GPTs in all grids of tensor, data and pipeline parallelism on 2, 4 and
8 A100; VIA-Research/vTrain, MIT licence) is searched with its tensor, data and pipeline
parallelism, ZeRO stage, recomputation, precision and micro-batches fixed. Nothing is run. What a
row needs and no method can say is listed with the rows that need it.

For each source: the median of |predicted / published - 1|, the median of predicted / published
(bias), and how many runs are said not to fit although they ran. For groups of runs of one model on
as many devices with one batch: Kendall's tau between predicted and measured seconds, and the
regret, by how much the run that is predicted to be the fastest is slower than the one that is.

Predictions are kept in a folder until the compiler, the models or what is asked of them change.
With `--write` the table of docs/truth.md, its plot and what `alpa-mlir clusters show` says of the
presets are made of the result.

With `--search` each model is planned by `AutoParallel()` as well, for the same devices and batch
and with nothing given, beside the published runs of it: what experts chose, what the search does,
and the predicted seconds of both with the same constants.

Run: python benchmark/published_runs.py [--source NAME] [--ids ID ..] [--every N] [--json]
     [--write | --search]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import published_models
from published_models import Remat, Transformer

DATA = Path(__file__).resolve().parent / "data"
ROOT = DATA.parents[1]
# What --write makes.
DOCS, PLOT = ROOT / "docs/truth.md", ROOT / "docs/truth.svg"
JUDGED = ROOT / "python/alpa_mlir/cluster/published_errors.json"
_TABLE_BEGINS, _TABLE_ENDS = "<!-- published_runs.py writes this -->", "<!-- up to here -->"
_GROUPS_BEGIN = "<!-- published_runs.py writes these groups -->"
WITHIN_A_HOST = "A100 within a host"
# In groups of fewer runs the order says little; those of so many have a table of their own.
FEWEST_OF_A_GROUP, LARGE_GROUP = 4, 10
# Seconds from one kernel to the next of hosts that launch each from Python.
_HOST_LAUNCH = {"Megatron-LM": 8e-6, "Megatron-DeepSpeed": 4.8e-5, "PyTorch": 1e-5}
# PyTorch's allocator takes all memory that its context and NCCL's buffers leave.
_PYTORCH_MEMORY = 0.95
# Bytes a second of sends between stages of one host, where they are not those of the link.
_SENDS = {"Megatron-DeepSpeed": 1.8e10}
# What other kernels than XLA's and cuDNN's reach, and devices with less power than the presets',
# by framework and hardware: parts of peaks, and of these what fused attention reaches.
_REACHED: dict[tuple[str, str], dict[str, float]] = {
    # Its dropout, which the models leave out, and kernels between products that XLA would join.
    ("Megatron-LM", "A100"): {"float16": 0.65, "bfloat16": 0.65, "overlap_slowdown": 1},
    # Sums of gradients come behind the backward pass.
    # Kernels between products move more bytes than joined ones, which counts as bandwidth that is
    # not reached; its optimizer as well.
    ("Megatron-DeepSpeed", "A100"): {"float16": 0.9, "memory": 0.64, "overlap_slowdown": 1},
    # Its layers are a loop, and XLA of 2023 gathered no weights for the next round; gradients of
    # models without one were combined up to the last.
    ("JAX (Paxml", ""): {"overlap_slowdown": 1},
    ("PyTorch", "A100-40GB"): {"bfloat16": 0.67, "attention": 0.45},
    ("PyTorch", "A100"): {"attention": 0.43},
    ("PyTorch", "H100-80GB"): {"bfloat16": 0.58, "attention": 0.27},
    # Kernels between products that nothing joins.
    ("torchtitan eager", "H100-96GB"): {"bfloat16": 0.5, "attention": 0.6, "memory": 0.15},
    ("torchtitan", "H100-96GB"): {"bfloat16": 0.5, "attention": 0.6},
}
# Devices of the presets that hosts of published runs are like, and of others their data sheets'.
_PRESETS = {
    "A100-80GB": "dgx-a100",
    "A100-40GB": "p4d.24xlarge",
    "H100-80GB": "dgx-h100",
    "H100-96GB": "dgx-h100",
    "H200": "dgx-h200",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run.

    Attributes:
        name, source: of the row.
        model: what was trained.
        hardware, gpus, nic_gbps: kind of device, their number, and network bandwidth of each in
            Gbit/s; 0 where it is not published.
        batch, micro_batch: sequences of a step, and of one device at a time.
        tensor, pipeline, virtual, data, context: degrees of parallelism; `virtual` stages of a
            pipeline device.
        zero: ZeRO stage, 0 to 3; within hosts only if `is_hybrid`.
        splits_sequence: sequence parallelism beside tensor parallelism.
        needs: what the row has and no method of ours can say.
        seconds: of a step, as published.
        memory_gib: of a device, as published; 0 where it is not.
        host_launch: seconds in which a host launches a kernel, where Python launches each; else 0.
        sends: bytes a second between stages, where they are not the link's; else 0.
        reached: parts of peaks that its framework's kernels reach, where not the preset's.
    """

    name: str
    source: str
    model: Transformer
    hardware: str
    gpus: int
    nic_gbps: float
    batch: int
    micro_batch: int
    tensor: int
    pipeline: int
    virtual: int
    data: int
    zero: int
    is_hybrid: bool = False
    splits_sequence: bool = False
    needs: tuple[str, ...]
    seconds: float
    memory_gib: float = 0.0
    host_launch: float = 0.0
    sends: float = 0.0
    reached: tuple[tuple[str, float], ...] = ()

    @property
    def micro_batches(self) -> int:
        return self.batch // (self.micro_batch * self.data)

    @property
    def waits_for_others(self) -> bool:
        """Whether each kernel begins as its launch does: devices that add up activations with
        each other wait for the last host. Else a host launches ahead of its device."""
        return self.tensor > 1

    @property
    def group(self) -> str:
        """What the runs share of which the order counts."""
        model = self.model
        size = f"{model.layers}x{model.hidden} seq {model.seq}"
        return f"{self.source}: {size}, {self.gpus} devices, batch {self.batch}"


def _remat(source: str, text: str) -> Remat:
    if text in ("none", "full"):
        return text
    if text == "selective":
        return "attention" if source.startswith("Korthikanti") else "alternate"
    if text.endswith("except_mlp"):
        return "mlp"
    return "dots"  # Policies that keep what products of matrices give; or not published.


def _framework(row: Mapping[str, str]) -> str:
    return row["framework"] + " eager" * ("no torch.compile" in row["note"])


def _host_launch(framework: str) -> float:
    return next((s for name, s in _HOST_LAUNCH.items() if framework.startswith(name)), 0.0)


def _reached(framework: str, hardware: str, note: str = "") -> tuple[tuple[str, float], ...]:
    pieces = {"collective_matmul": 1.0} if "async TP" in note else {}
    for (prefix, kind), parts in _REACHED.items():
        if framework.startswith(prefix) and hardware.startswith(kind):
            return tuple((parts | pieces).items())
    return tuple(pieces.items())


def _needs(row: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    if "fp8" in row["precision"]:
        found.append("products in float8")
    if int(row["cp"] or 1) > 1:
        found.append("context parallelism")
    return tuple(found)


def _published_rows() -> Iterable[Run]:
    with (DATA / "published_runs.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            name = row["model"].lower()
            family = next((f for f in ("gpt", "mpt") if f in name), "llama")
            model = Transformer(
                family=family,
                hidden=int(row["hidden"]),
                layers=int(row["layers"]),
                heads=int(row["heads"]),
                kv_heads=int(row["kv_heads"] or row["heads"]),
                ffn=int(row["ffn"]),
                vocab=int(row["vocab"]),
                seq=int(row["seq"]),
                dtype="float16" if row["precision"] == "fp16" else "bfloat16",
                remat=_remat(row["source"], row["recompute"]),
                fused_attention=row["attention"] not in ("unfused", "XLA"),
            )
            yield Run(
                name=row["id"],
                source=row["source"],
                model=model,
                hardware=row["hardware"],
                gpus=int(row["gpus"]),
                nic_gbps=float(row["nic_gbps_per_gpu"] or 0),
                batch=int(row["gbs"]),
                micro_batch=int(row["mbs"]),
                tensor=int(row["tp"] or 1),
                pipeline=int(row["pp"] or 1),
                virtual=int(row["vp"] or 1),
                data=int(row["dp"]),
                zero=int(row["zero"][0]),
                is_hybrid="node" in row["zero"],
                splits_sequence=row["seqpar"] == "1",
                needs=_needs(row),
                seconds=float(row["step_s"]),
                memory_gib=float(row["mem_gib"] or 0),
                host_launch=_host_launch(row["framework"]),
                reached=_reached(_framework(row), row["hardware"], row["note"]),
            )


def _rows_within_a_host() -> Iterable[Run]:
    lines = (DATA / "a100_within_a_host.csv").read_text().splitlines()
    for number, line in enumerate(lines[1:]):
        gpus, batch, micro, hidden, heads, layers, seq, tp, dp, pp = map(int, line.split(",")[:10])
        model = Transformer(
            family="gpt",
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            ffn=4 * hidden,
            vocab=-(-50257 // (128 * tp)) * 128 * tp if tp > 1 else 50257,
            seq=seq,
            dtype="float16",
            remat="full",
        )
        yield Run(
            name=f"host-{number:04}",
            source=WITHIN_A_HOST,
            model=model,
            hardware="A100-80GB SXM",
            gpus=gpus,
            nic_gbps=0,
            batch=batch,
            micro_batch=micro,
            tensor=tp,
            pipeline=pp,
            virtual=1,
            data=dp,
            zero=0,
            needs=(),
            seconds=float(line.split(",")[10]) / 1e3,
            host_launch=_HOST_LAUNCH["Megatron-DeepSpeed"],
            sends=_SENDS["Megatron-DeepSpeed"],
            reached=_reached("Megatron-DeepSpeed", "A100-80GB SXM"),
        )


def runs() -> list[Run]:
    """All published runs."""
    return [*_published_rows(), *_rows_within_a_host()]


# Constants that predictions may be made with others of: `host_launch`, and those of a cluster by
# name in its file (seconds from one kernel to the next, parts of peaks that are reached).
Constants = Mapping[str, float]


def preset_of(run: Run) -> str:
    """The preset whose devices and links the run's are, but for what its row says."""
    return next(preset for kind, preset in _PRESETS.items() if run.hardware.startswith(kind))


def cluster_of(run: Run, constants: Constants, memory_factor: float = 1) -> Any:
    """The devices of a run; those of a part of a host are one smaller host.

    Args:
        constants: others than the preset's, such as `{"launch": 3e-6, "intra_host": 0.8}`.
        memory_factor: times so much memory, for seconds of what is said not to fit.
    """
    from alpa_mlir.cluster import Cluster

    fields: dict[str, Any] = json.loads(Cluster.load(preset_of(run)).text)
    (host,) = fields["hosts"]
    devices = min(run.gpus, int(host["devices"]))
    fields["hosts"] = {**host, "count": run.gpus // devices, "devices": devices}
    if run.nic_gbps:
        between = fields["links"]["inter_host"]
        between["bandwidth"] = run.nic_gbps / 8 * 1e9 * devices
    for device in fields["device_types"].values():
        device["memory_bytes"] = int(float(device["memory_bytes"]) * memory_factor)
    result = with_constants(fields, {**own_constants(run), **constants})
    if run.waits_for_others:
        for device in result["device_types"].values():
            device["launch"] = max(device.get("launch", 0.0), _host_launch_of(run, constants))
    return Cluster.from_dict(result)


def own_constants(run: Run) -> dict[str, float]:
    """Those of its framework, where they are not the preset's."""
    return {**({"host_launch": run.host_launch} if run.host_launch else {}), **dict(run.reached)}


def _host_launch_of(run: Run, constants: Constants) -> float:
    return constants.get("host_launch", run.host_launch)


def with_constants(fields: Mapping[str, Any], constants: Constants) -> dict[str, Any]:
    """A cluster's fields with other constants, of all its device types and links."""
    result: dict[str, Any] = json.loads(json.dumps(fields))
    for name, value in constants.items():
        if name == "host_launch":
            continue  # No cluster's.
        if name in result["links"]:
            result["links"][name]["efficiency"] = value
            continue
        for device in result["device_types"].values():
            if name == "collective_matmul":
                device[name] = bool(value)
            elif name in ("launch", "multiprocessors", "overlap_slowdown"):
                device[name] = value
            else:
                device.setdefault("efficiency", {})[name] = value
    return result


def constants_in(
    fields: Mapping[str, Any], names: Iterable[str], host_launch: float = 0.0
) -> dict[str, float]:
    """What a cluster of one device type and a framework say of them."""
    (device,) = fields["device_types"].values()
    absent = {"launch": 0.0, "multiprocessors": 0.0}
    found: dict[str, float] = {}
    for name in names:
        if name == "host_launch":
            found[name] = host_launch
        elif name in fields["links"]:
            found[name] = float(fields["links"][name].get("efficiency", 1))
        elif name in ("launch", "multiprocessors", "overlap_slowdown"):
            found[name] = float(device.get(name, absent.get(name, 1.0)))
        else:
            found[name] = float(device.get("efficiency", {}).get(name, 1))
    return found


def _method_name(run: Run) -> str:
    if run.tensor > 1:
        if run.zero:
            return "megatron-zero-3" if run.zero == 3 else "megatron-zero-1"
        return "megatron-sequence" if run.splits_sequence else "megatron"
    if run.is_hybrid:
        return "hybrid-zero-3"
    return {0: "data-parallel", 2: "zero-2", 3: "zero-3"}[run.zero]


def method_of(run: Run) -> Any:
    """The run's grid as a method."""
    from alpa_mlir import PipeshardParallel

    stages, per_stage = run.pipeline * run.virtual, run.tensor * run.data
    hosts = max(1, per_stage // 8)
    shape = (run.data, run.tensor)
    if run.is_hybrid:
        shape = (run.data // 8, 8)
    ends = [run.model.layers * i // stages for i in range(stages + 1)]
    return PipeshardParallel(
        submeshes=[(hosts, per_stage // hosts)] * run.pipeline,
        mesh_shapes=[shape] * run.pipeline,
        layer_ranges=list(pairwise(ends)),
        schedule=_schedule_name(run),
        virtual_stages=run.virtual if run.virtual > 1 else 0,
        num_micro_batches=run.micro_batches,
        method=_method_name(run),
        memory_fraction=_PYTORCH_MEMORY if run.host_launch else 0.9,
        widen_sums=run.model.dtype != "float16",
        export="collectives",
    )


# A trace of a large model takes a gigabyte; runs of one model come behind each other.
@lru_cache(maxsize=1)
def _imported(model: Transformer, batch_size: int) -> Any:
    from alpa_mlir.compiler import Module
    from alpa_mlir.trace import tracing

    step, *examples = model.training_step(batch_size)
    # Its calls are those of cuDNN, which stand for kernels of other makers as well.
    traced = tracing.trace(step, *examples, compute_capability="9.0")
    module = Module(traced.text, "step").annotate(traced.signature.to_json())
    return module.run("alpa-import")


def predict(run: Run, constants: Constants) -> dict[str, Any]:
    """Predicted seconds and bytes of the run; `oom` is why it is said not to fit."""
    return _as_launched(run, constants, _planned(run, constants))


def _planned(run: Run, constants: Constants) -> dict[str, Any]:
    """What the search foresees in the run's grid."""
    from alpa_mlir.errors import AlpaError, InfeasiblePlanError

    method = method_of(run)
    found: dict[str, Any] = {}
    for factor in (1, 16):
        cluster = cluster_of(run, constants, factor)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cluster.yaml"
            cluster.save(path)
            module = _imported(run.model, run.batch).clone()
            count = run.micro_batches
            try:
                module.run(method.layer_passes(count))
                module.run(method.search_passes(cluster, str(path), count, why=False))
            except InfeasiblePlanError as error:
                found["oom"] = str(error)
                continue
            except AlpaError as error:
                return {"failed": str(error)}
        predicted = module.predicted()
        return {
            **found,
            "step_seconds": predicted["step_seconds"],
            "peak_bytes": predicted["peak_bytes"],
            "phases": [
                {
                    phase: (stage[f"{phase}_seconds"], stage[f"{phase}_kernels"])
                    for phase in ("forward", "backward")
                }
                for stage in module.predicted_stages()
            ],
        }
    return {"failed": found["oom"]}


def _as_launched(run: Run, constants: Constants, planned: Mapping[str, Any]) -> dict[str, Any]:
    """With what a framework that launches from Python adds to what devices take.

    A host that launches ahead bounds a run of a function by all its launches together.
    """
    if "failed" in planned:
        return dict(planned)
    found = {name: value for name, value in planned.items() if name != "phases"}
    host = 0.0 if run.waits_for_others else _host_launch_of(run, constants)
    before = [(p["forward"][0], p["backward"][0]) for p in planned["phases"]]
    after = [
        tuple(max(seconds, kernels * host) for seconds, kernels in (p["forward"], p["backward"]))
        for p in planned["phases"]
    ]
    sent = 2 * run.micro_batch * run.model.seq * run.model.hidden
    send = sent / run.sends if run.sends else 0.0
    if after != before or send:
        later, earlier = _pipeline_seconds(run, after, send), _pipeline_seconds(run, before)
        found["step_seconds"] += later - earlier
    return found


def _pipeline_seconds(run: Run, stages: Sequence[tuple[float, ...]], send: float = 0.0) -> float:
    """Of a step's forward and backward runs, with so many seconds for each send."""
    from alpa_mlir.methods.schedule import ScheduleProblem, StageSeconds, spans

    seconds = tuple(
        StageSeconds(forward, backward, 0.0, send, send) for forward, backward in stages
    )
    meshes = tuple(index % run.pipeline for index in range(len(stages)))
    problem = ScheduleProblem(meshes, run.micro_batches, seconds=seconds)
    return max(end for _, end in spans(_schedule_name(run), problem))


def _schedule_name(run: Run) -> str:
    return "interleaved-1f1b" if run.virtual > 1 else "1f1b"


def search(run: Run) -> dict[str, Any]:
    """What `AutoParallel()` finds for the run's model, devices and batch: predicted seconds, and
    the plan in words. What the run computes again counts as chosen by its authors.
    """
    from alpa_mlir import AutoParallel, parallelize
    from alpa_mlir.errors import AlpaError

    model = replace(run.model, remat="none")
    step, *examples = model.training_step(run.batch)
    method = AutoParallel(widen_sums=model.dtype != "float16")
    planner = parallelize(step, cluster=cluster_of(run, {}), method=method, cache=False)
    begin = time.process_time()
    try:
        plan = planner.plan(*examples).plan
    except AlpaError as error:
        return {"failed": str(error)}
    shapes = ["x".join(map(str, mesh.shape)) for mesh in plan.meshes]
    parts = [f"{shapes.count(shape)} of {shape}" for shape in dict.fromkeys(shapes)]
    again = sum(stage.predicted["rematerialized_layers"] for stage in plan.stages)
    return {
        "step_seconds": plan.predicted["step_seconds"],
        "text": f"meshes: {', '.join(parts)}; {len(plan.stages)} stages, "
        f"{plan.num_micro_batches} micro-batches, {plan.schedule}; "
        + (f"{again:.0f} layers computed again" if again else "nothing computed again"),
        "processor_seconds": time.process_time() - begin,
    }


def grid_text(run: Run) -> str:
    """What its authors chose."""
    virtual = f" x {run.virtual} virtual" if run.virtual > 1 else ""
    zero = f", ZeRO-{run.zero}{' within hosts' if run.is_hybrid else ''}" if run.zero else ""
    sequence = ", sequence parallelism" if run.splits_sequence else ""
    return (
        f"tensor {run.tensor}, data {run.data}, pipeline {run.pipeline}{virtual}{zero}{sequence}, "
        f"{run.micro_batches} micro-batches, recomputation: {run.model.remat}"
    )


def print_searched(rows: Sequence[Run], found: Mapping[str, Mapping[str, Any]]) -> None:
    """For each model the best published run by prediction, and what the search finds."""
    print("| model | published | predicted | searched | predicted | published / searched |")
    print("|---|---|---|---|---|---|")
    groups = dict.fromkeys(run.group for run in rows)
    for group in groups:
        own = [(run, seconds) for run, seconds in _seconds(rows, found) if run.group == group]
        if not own:
            continue
        run, seconds = min(own, key=lambda pair: pair[1])
        answer = search(run)
        name = f"{run.name}, {run.gpus} {run.hardware.split()[0]}"
        cells = [answer.get("failed", "")[:80], "", ""]
        if "step_seconds" in answer:
            ratio = seconds / answer["step_seconds"]
            cells = [answer["text"], f"{answer['step_seconds']:.4g} s", f"{ratio:.3f}"]
        print(
            "| " + " | ".join([name, grid_text(run), f"{seconds:.4g} s", *cells]) + " |", flush=True
        )


@cache
def _compiler() -> str:
    """Changes with the compiler and the models."""
    import alpa_mlir
    from paper import layers, models

    native = sorted(Path(alpa_mlir.__file__).parent.glob("_native*.so"))
    files = [*native, *(Path(str(m.__file__)) for m in (published_models, layers, models))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _key(run: Run, constants: Constants) -> str:
    """Of all that a prediction depends on."""
    method, count = method_of(run), run.micro_batches
    cluster = cluster_of(run, constants)
    passes = (method.layer_passes(count), method.search_passes(cluster, "", count, why=False))
    text = f"{_compiler()} {run.model} {run.batch} {cluster.text} {passes}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# A run, and constants to predict it with.
Question = tuple[Run, Constants]


def _answer(questions: Sequence[Question], folder: Path) -> list[dict[str, Any]]:
    """One object a question, from the folder if it is there."""
    found: list[dict[str, Any]] = []
    for run, constants in questions:
        path = folder / f"{_key(run, constants)}.json"
        is_kept = path.exists()
        if not is_kept:
            begin = time.process_time()
            row = _planned(run, constants)
            row["processor_seconds"] = time.process_time() - begin
            path.write_text(json.dumps(row))
        row = _as_launched(run, constants, json.loads(path.read_text()))
        found.append({**row, "is_kept": is_kept})
    return found


def predict_all(
    questions: Sequence[Question], folder: Path, processes: int
) -> list[dict[str, Any]]:
    """One object a question, in order; progress on standard error.

    Each is what `predict` gives, with `processor_seconds` that it took and whether it `is_kept`
    of an earlier time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Runs of one model and batch go to one process, which traces them once.
    alike: dict[tuple[Transformer, int], list[int]] = {}
    for index, (run, _) in enumerate(questions):
        alike.setdefault((run.model, run.batch), []).append(index)
    found: list[dict[str, Any]] = [{} for _ in questions]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = {
            pool.submit(_answer, [questions[i] for i in own], folder): own for own in alike.values()
        }
        done = 0
        for job in as_completed(jobs):
            for index, row in zip(jobs[job], job.result(), strict=True):
                run, found[index] = questions[index][0], row
                done += 1
                if row["is_kept"]:
                    continue
                text = (
                    f"{row['step_seconds']:.4g} s predicted, {run.seconds:.4g} s published"
                    if "step_seconds" in row
                    else row["failed"][:150]
                )
                line = f"{done} of {len(questions)}: {run.name}: {text}"
                print(line, file=sys.stderr, flush=True)
    return found


def kendall_tau(left: Sequence[float], right: Sequence[float]) -> float:
    """Kendall's tau-b.

    Example:
        >>> kendall_tau([1, 2, 3], [10, 30, 20])
        0.3333333333333333
    """
    signs = [
        ((a > b) - (a < b), (x > y) - (x < y))
        for i, (a, x) in enumerate(zip(left, right, strict=True))
        for b, y in list(zip(left, right, strict=True))[:i]
    ]
    both = sum(a * b for a, b in signs)
    size = sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs)
    return both / size**0.5 if size else 1.0


def compare(rows: Sequence[Run], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of each source, of its kinds of devices and of each group, and what cannot be said.

    Args:
        found: of the rows that were predicted, by name.
    """
    result: dict[str, Any] = {
        "sources": {},
        "devices": [],
        "groups": {},
        "large_groups": {},
        "unsaid": unsaid(rows),
    }
    for source in dict.fromkeys(run.source for run in rows):
        own = [run for run in rows if run.source == source]
        result["sources"][source] = _errors(own, found)
        for hardware in dict.fromkeys(run.hardware.split()[0] for run in own):
            alike = [run for run in own if run.hardware.split()[0] == hardware]
            result["devices"].append(
                {
                    "source": source,
                    "preset": preset_of(alike[0]),
                    "hardware": hardware.replace("-", " "),
                    "own_parts": sorted({name for run in alike for name in own_constants(run)}),
                    **_errors(alike, found),
                }
            )
    for group in dict.fromkeys(run.group for run in rows):
        alike = [run for run in rows if run.group == group]
        own = _seconds(alike, found)
        if len(own) < FEWEST_OF_A_GROUP:
            continue
        predicted = [seconds for _, seconds in own]
        measured = [run.seconds for run, _ in own]
        chosen = measured[predicted.index(min(predicted))]
        result["groups"][group] = {
            "source": own[0][0].source,
            "tau": kendall_tau(predicted, measured),
            "regret": chosen / min(measured) - 1,
            **_errors(alike, found),
        }
    for source in dict.fromkeys(group["source"] for group in result["groups"].values()):
        large = [
            group
            for group in result["groups"].values()
            if group["source"] == source and group["predicted"] >= LARGE_GROUP
        ]
        if large:
            taus, regrets = [g["tau"] for g in large], [g["regret"] for g in large]
            result["large_groups"][source] = {
                "groups": len(large),
                "runs": sum(group["predicted"] for group in large),
                "median_tau": statistics.median(taus),
                "worst_tau": min(taus),
                "median_regret": statistics.median(regrets),
                "worst_regret": max(regrets),
            }
    return result


def _errors(rows: Sequence[Run], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of seconds, and of memory: of runs that all fitted, and of those that say their bytes."""
    ratios = [predicted / run.seconds for run, predicted in _seconds(rows, found)]
    memory = [
        found[run.name]["peak_bytes"] / 2**30 / run.memory_gib
        for run, _ in _seconds(rows, found)
        if run.memory_gib
    ]
    return {
        "rows": len(rows),
        "predicted": len(ratios),
        "median_error": statistics.median(abs(r - 1) for r in ratios) if ratios else None,
        "bias": statistics.median(ratios) if ratios else None,
        "least": min(ratios, default=None),
        "most": max(ratios, default=None),
        "said_not_to_fit": sum("oom" in found.get(run.name, {}) for run in rows),
        "memory_rows": len(memory),
        "memory_bias": statistics.median(memory) if memory else None,
        "failed": sum("failed" in found.get(run.name, {}) for run in rows),
    }


def _seconds(
    rows: Iterable[Run], found: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Run, float]]:
    """The rows that were predicted, with their seconds."""
    every = ((run, found.get(run.name, {}).get("step_seconds")) for run in rows)
    return [(run, seconds) for run, seconds in every if seconds is not None]


def unsaid(rows: Iterable[Run]) -> dict[str, list[str]]:
    """What no method can say, and the rows that need it."""
    found: dict[str, list[str]] = {}
    for run in rows:
        for need in run.needs:
            found.setdefault(need, []).append(run.name)
    return found


def _table(rows: Iterable[tuple[str, Mapping[str, Any]]], first: str) -> str:
    """Errors in Markdown, a row for each."""
    lines = [
        f"| {first} | predicted | median error | bias | least, most | said not to fit | memory |",
        "|" + "---|" * (first.count("|") + 7),
    ]
    for name, row in rows:
        cells = [name, f"{row['predicted']} of {row['rows']}", *[""] * 5]
        if row["predicted"]:
            memory = f"{row['memory_bias']:.2f}" if row["memory_rows"] else ""
            cells[2:] = [
                f"{row['median_error']:.1%}",
                f"{row['bias']:.3f}",
                f"{row['least']:.2f}, {row['most']:.2f}",
                str(row["said_not_to_fit"]),
                memory,
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _groups_table(result: Mapping[str, Any]) -> str:
    """How true the order is in groups of ten runs and more, in Markdown."""
    lines = [
        "| source | groups | runs | median tau | worst tau | median regret | worst regret |",
        "|---|---|---|---|---|---|---|",
    ]
    for source, row in result["large_groups"].items():
        lines.append(
            f"| {source} | {row['groups']} | {row['runs']} | {row['median_tau']:.2f} | "
            f"{row['worst_tau']:.2f} | {row['median_regret']:.1%} | {row['worst_regret']:.1%} |"
        )
    return "\n".join(lines)


def print_result(result: Mapping[str, Any]) -> None:
    """Tables in Markdown."""
    print(_table(result["sources"].items(), "source"))
    if result["groups"]:
        rows = [
            (f"{name} | {group['tau']:.2f} | {group['regret']:.1%}", group)
            for name, group in result["groups"].items()
        ]
        print("\n" + _table(rows, "group | tau | regret"))
    if result["large_groups"]:
        print("\n" + _groups_table(result))
    for need, names in result["unsaid"].items():
        few = ", ".join(names[:6])
        print(f"\nNo method says {need}: {len(names)} rows ({few}{' ..' * (len(names) > 6)})")


# What the result is written to.


def write_result(
    rows: Sequence[Run], result: Mapping[str, Any], seconds: Mapping[str, float]
) -> None:
    """The tables of docs/truth.md, its plot, and the errors that `alpa-mlir clusters show` tells.

    Args:
        seconds: predicted, by name of a row.
    """
    devices = [row for row in result["devices"] if row["predicted"]]
    own = [(f"{row['source']} | {row['hardware']}", row) for row in devices]
    text = DOCS.read_text()
    for begins, table in (
        (_TABLE_BEGINS, _table(own, "source | hardware")),
        (_GROUPS_BEGIN, _groups_table(result)),
    ):
        before, rest = text.split(begins)
        _, after = rest.split(_TABLE_ENDS, 1)
        text = f"{before}{begins}\n{table}\n{_TABLE_ENDS}{after}"
    DOCS.write_text(text)
    named = ("source", "hardware", "predicted", "median_error", "bias", "said_not_to_fit")
    judged: dict[str, list[Any]] = {}
    for row in devices:
        entry = {
            key: round(row[key], 4) if isinstance(row[key], float) else row[key] for key in named
        }
        judged.setdefault(row["preset"], []).append({**entry, "own_parts": row["own_parts"]})
    JUDGED.write_text(json.dumps(judged, indent=2) + "\n")
    PLOT.write_text(plot(rows, seconds))


_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
_SIDE, _LEFT, _TOP = 520, 60, 10


def plot(rows: Sequence[Run], seconds: Mapping[str, float]) -> str:
    """An SVG: predicted seconds over published ones, both axes logarithmic, a colour a source."""
    dots = [(run.source, run.seconds, seconds[run.name]) for run in rows if run.name in seconds]
    low = math.floor(math.log10(min(min(a, b) for _, a, b in dots)))
    high = math.ceil(math.log10(max(max(a, b) for _, a, b in dots)))

    def place(value: float) -> float:
        return _SIDE * (math.log10(value) - low) / (high - low)

    def point(published: float, predicted: float) -> str:
        return f"{_LEFT + place(published):.1f},{_TOP + _SIDE - place(predicted):.1f}"

    right, bottom, middle = _LEFT + _SIDE, _TOP + _SIDE, _TOP + _SIDE / 2
    box = f'x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}"'
    parts = [f'<rect {box} fill="#fff" stroke="#999"/>']
    for power in range(low, high + 1):
        x, y = _LEFT + place(10.0**power), bottom - place(10.0**power)
        label = f"{10.0**power:g} s</text>"
        parts += [
            f'<path d="M{x:.1f} {_TOP}V{bottom}M{_LEFT} {y:.1f}H{right}" stroke="#eee"/>',
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}',
        ]
    for factor in (1.0, 1.1, 1 / 1.1):  # Predicted as published, and a tenth more or less.
        first = point(10.0**low * max(1, 1 / factor), 10.0**low * max(1, factor))
        last = point(10.0**high * min(1, 1 / factor), 10.0**high * min(1, factor))
        dashes = "" if factor == 1 else ' stroke-dasharray="4"'
        parts.append(f'<path d="M{first}L{last}" stroke="#777" fill="none"{dashes}/>')
    for index, source in enumerate(dict.fromkeys(name for name, _, _ in dots)):
        colour, y = _COLOURS[index % len(_COLOURS)], _TOP + 20 + 18 * index
        for name, published, predicted in dots:
            if name == source:
                x_at, y_at = point(published, predicted).split(",")
                parts.append(f'<circle cx="{x_at}" cy="{y_at}" r="3" fill="{colour}"/>')
        parts += [
            f'<circle cx="{_LEFT + 14}" cy="{y - 4}" r="4" fill="{colour}"/>',
            f'<text x="{_LEFT + 24}" y="{y}">{source}</text>',
        ]
    centred = 'text-anchor="middle"'
    parts += [
        f'<text x="{_LEFT + _SIDE / 2}" y="{bottom + 34}" {centred}>published</text>',
        f'<text transform="translate(12 {middle}) rotate(-90)" {centred}>predicted</text>',
    ]
    size = f"0 0 {right + 20} {bottom + 44}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif"'
    return f'{head} font-size="12">\n' + "\n".join(parts) + "\n</svg>\n"


def _json_object(text: str) -> dict[str, float]:
    wrong = argparse.ArgumentTypeError(f'{text!r} is no JSON object such as {{"launch": 3e-6}}')
    try:
        value: Any = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(value, dict):
        raise wrong
    return cast("dict[str, float]", value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict the wanted runs and print how far off they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", default="", help="only sources whose names begin so")
    parser.add_argument("--ids", nargs="+", default=[], help="only these rows")
    parser.add_argument(
        "--without", nargs="+", default=[], help="rows that are not predicted, for they take hours"
    )
    parser.add_argument(
        "--every", type=int, default=8, help="of rows within a host every N-th group, whole"
    )
    parser.add_argument(
        "--constants", type=_json_object, default={}, help='others, such as {"launch": 3e-6}'
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=Path(".benchmarks/published_runs"), help="for predictions"
    )
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    parser.add_argument(
        "--write", action="store_true", help="docs/truth.md's table and plot, and presets' errors"
    )
    parser.add_argument(
        "--search", action="store_true", help="what AutoParallel() finds beside what experts chose"
    )
    wanted = parser.parse_args(arguments)
    if wanted.every < 1:
        parser.error(f"--every {wanted.every}; give 1 or more")
    known = runs()
    if missing := sorted(set(wanted.ids or ()) - {run.name for run in known}):
        parser.error(f"no run is called {missing[0]!r}")
    every = [run for run in known if run.source.startswith(wanted.source)]
    if not every:
        sources = ", ".join(dict.fromkeys(run.source for run in known))
        parser.error(f"no source begins with {wanted.source!r}; there are {sources}")
    within = dict.fromkeys(run.group for run in every if run.source == WITHIN_A_HOST)
    left_out = {group for index, group in enumerate(within) if index % wanted.every}
    rows = [
        run
        for run in every
        if (not wanted.ids or run.name in wanted.ids) and run.group not in left_out
    ]
    said = [run for run in rows if not run.needs and run.name not in wanted.without]
    questions = [(run, wanted.constants) for run in said]
    predicted = predict_all(questions, wanted.folder.resolve(), wanted.processes)
    found = {run.name: row for run, row in zip(said, predicted, strict=True)}
    if wanted.search:
        print_searched(said, found)
        return
    result = compare(rows, found)
    took = sum(row["processor_seconds"] for row in predicted)
    made = sum(not row["is_kept"] for row in predicted)
    print(
        f"{made} predictions made, {len(said) - made} kept; to make all takes {took:.0f} seconds "
        "of a processor",
        file=sys.stderr,
    )
    if wanted.write:
        seconds = {run.name: second for run, second in _seconds(said, found)}
        write_result(said, result, seconds)
    if wanted.json:
        cells = [{**asdict(run), "group": run.group, **found[run.name]} for run in said]
        print(json.dumps({**result, "runs": cells}))
    else:
        print_result(result)


if __name__ == "__main__":
    main()
