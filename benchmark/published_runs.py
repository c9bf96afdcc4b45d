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

Predictions are kept in a folder until the compiler or the models change.

Run: python benchmark/published_runs.py [--source NAME] [--ids ID ..] [--every N] [--json]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import published_models
from published_models import Remat, Transformer

DATA = Path(__file__).resolve().parent / "data"
WITHIN_A_HOST = "A100 within a host"
# In groups of fewer runs the order says little.
FEWEST_OF_A_GROUP = 4
# Seconds from one kernel to the next of frameworks that launch each from Python.
_LAUNCH = {"Megatron-LM": 8e-6, "Megatron-DeepSpeed": 3.6e-5, "PyTorch": 1e-5}
# Seconds of a step in which such a framework launches nothing: loss scaling, clipping and the
# optimizer go through hundreds of weights in Python.
_STEP = {"Megatron-DeepSpeed": 0.02}
# What other kernels than XLA's and cuDNN's reach, and devices with less power than the presets',
# by framework and hardware: parts of peaks, and of these what fused attention reaches.
_REACHED: dict[tuple[str, str], dict[str, float]] = {
    # Its dropout, which the models leave out, and kernels between products that XLA would join.
    ("Megatron-LM", "A100"): {"float16": 0.65, "bfloat16": 0.65, "overlap_slowdown": 1},
    # Sums of gradients come behind the backward pass.
    ("Megatron-DeepSpeed", "A100"): {"overlap_slowdown": 1},
    ("PyTorch", "A100"): {"attention": 0.43},
    ("PyTorch", "H100-80GB"): {"bfloat16": 0.58, "attention": 0.27},
    ("torchtitan", "H100-96GB"): {"bfloat16": 0.5, "attention": 0.6},
}
# Devices of the presets that hosts of published runs are like, and of others their data sheets'.
_PRESETS = {"A100-80GB": "dgx-a100", "A100-40GB": "p4d.24xlarge", "H100-80GB": "dgx-h100"}


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
        launch: seconds from one kernel to the next where Python launches each; 0 for the preset's.
        overhead: seconds of each step in which Python launches nothing.
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
    launch: float = 0.0
    overhead: float = 0.0
    reached: tuple[tuple[str, float], ...] = ()

    @property
    def micro_batches(self) -> int:
        return self.batch // (self.micro_batch * self.data)

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
    return "dots"  # Policies that keep what products of matrices give; or not published.


def _launch(framework: str) -> float:
    return next((s for name, s in _LAUNCH.items() if framework.startswith(name)), 0.0)


def _reached(framework: str, hardware: str) -> tuple[tuple[str, float], ...]:
    for (prefix, kind), parts in _REACHED.items():
        if framework.startswith(prefix) and hardware.startswith(kind):
            return tuple(parts.items())
    return ()


def _needs(row: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    if "fp8" in row["precision"]:
        found.append("products in float8")
    if int(row["cp"] or 1) > 1:
        found.append("context parallelism")
    if "async" in row["note"]:
        found.append("asynchronous tensor parallelism")
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
                launch=_launch(row["framework"]),
                reached=_reached(row["framework"], row["hardware"]),
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
            vocab=-(-50257 // (128 * tp)) * 128 * tp,  # Padded so by Megatron.
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
            launch=_LAUNCH["Megatron-DeepSpeed"],
            overhead=_STEP["Megatron-DeepSpeed"],
            reached=_reached("Megatron-DeepSpeed", "A100-80GB SXM"),
        )


def runs() -> list[Run]:
    """All published runs."""
    return [*_published_rows(), *_rows_within_a_host()]


# Constants of a cluster that predictions may be made with others of: seconds from one kernel's
# launch to the next, parts of peaks that are reached, by name in cluster files.
Constants = Mapping[str, float]


def cluster_of(run: Run, constants: Constants, memory_factor: float = 1) -> Any:
    """The devices of a run; those of a part of a host are one smaller host.

    Args:
        constants: others than the preset's, such as `{"launch": 3e-6, "intra_host": 0.8}`.
        memory_factor: times so much memory, for seconds of what is said not to fit.
    """
    from alpa_mlir.cluster import Cluster

    preset = next((p for kind, p in _PRESETS.items() if run.hardware.startswith(kind)), "")
    if not preset:
        preset = {"H100-96GB": "dgx-h100", "H200": "dgx-h100"}[run.hardware.split()[0]]
    fields: dict[str, Any] = json.loads(Cluster.load(preset).text)
    (host,) = fields["hosts"]
    devices = min(run.gpus, int(host["devices"]))
    fields["hosts"] = {**host, "count": run.gpus // devices, "devices": devices}
    if run.nic_gbps:
        between = fields["links"]["inter_host"]
        between["bandwidth"] = run.nic_gbps / 8 * 1e9 * devices
    for device in fields["device_types"].values():
        device["memory_bytes"] = int(float(device["memory_bytes"]) * memory_factor)
        if run.launch:
            device["launch"] = run.launch
        for name, value in {**dict(run.reached), **constants}.items():
            if name in ("launch", "multiprocessors", "overlap_slowdown"):
                device[name] = value
            elif name in fields["links"]:
                fields["links"][name]["efficiency"] = value
            else:
                device.setdefault("efficiency", {})[name] = value
    return Cluster.from_dict(fields)


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
        layers=run.model.layers,
        schedule="interleaved-1f1b" if run.virtual > 1 else "1f1b",
        virtual_stages=run.virtual if run.virtual > 1 else 0,
        num_micro_batches=run.micro_batches,
        method=_method_name(run),
        widen_sums=run.model.dtype != "float16",
    )


@cache
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
            "step_seconds": predicted["step_seconds"] + run.overhead,
            "peak_bytes": predicted["peak_bytes"],
        }
    return {"failed": found["oom"]}


def _fingerprint() -> str:
    """Changes with whatever a prediction depends on but the row."""
    import alpa_mlir
    from paper import models as paper_models

    native = sorted(Path(alpa_mlir.__file__).parent.glob("_native*.so"))
    files = [*native, Path(published_models.__file__), Path(paper_models.__file__), Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _predict_kept(
    wanted: Sequence[Run], constants: Constants, folder: Path, fingerprint: str
) -> list[dict[str, Any]]:
    """One object a run, from the folder if it is there."""
    found: list[dict[str, Any]] = []
    for run in wanted:
        text = f"{fingerprint} {run} {sorted(constants.items())}"
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        if not path.exists():
            path.write_text(json.dumps(predict(run, constants)))
        found.append(json.loads(path.read_text()))
    return found


def predict_all(
    wanted: Sequence[Run], folder: Path, processes: int, constants: Constants
) -> list[dict[str, Any]]:
    """One object a run, in order; progress on standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    # Runs of one model and batch go to one process, which traces them once.
    alike: dict[tuple[Transformer, int], list[int]] = {}
    for index, run in enumerate(wanted):
        alike.setdefault((run.model, run.batch), []).append(index)
    found: list[dict[str, Any]] = [{} for _ in wanted]
    fingerprint = _fingerprint()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = {
            pool.submit(
                _predict_kept, [wanted[i] for i in own], constants, folder, fingerprint
            ): own
            for own in alike.values()
        }
        done = 0
        for job in as_completed(jobs):
            for index, row in zip(jobs[job], job.result(), strict=True):
                run, found[index] = wanted[index], row
                done += 1
                text = (
                    f"{row['step_seconds']:.4g} s predicted, {run.seconds:.4g} s published"
                    if "step_seconds" in row
                    else row["failed"][:150]
                )
                line = f"{done} of {len(wanted)}: {run.name}: {text}"
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
    """Errors of each source, order within each group, and what cannot be said.

    Args:
        found: of the rows that were predicted, by name.
    """
    result: dict[str, Any] = {"sources": {}, "groups": {}, "unsaid": unsaid(rows)}
    for source in dict.fromkeys(run.source for run in rows):
        own = [run for run in rows if run.source == source]
        seconds = _seconds(own, found)
        ratios = [predicted / run.seconds for run, predicted in seconds]
        result["sources"][source] = {
            "rows": len(own),
            "predicted": len(ratios),
            "median_error": statistics.median(abs(r - 1) for r in ratios) if ratios else None,
            "bias": statistics.median(ratios) if ratios else None,
            "least": min(ratios, default=None),
            "most": max(ratios, default=None),
            "said_not_to_fit": sum("oom" in found.get(run.name, {}) for run in own),
            "failed": sum("failed" in found.get(run.name, {}) for run in own),
        }
    for group in dict.fromkeys(run.group for run in rows):
        own = _seconds([run for run in rows if run.group == group], found)
        if len(own) < FEWEST_OF_A_GROUP:
            continue
        predicted = [seconds for _, seconds in own]
        measured = [run.seconds for run, _ in own]
        chosen = measured[predicted.index(min(predicted))]
        result["groups"][group] = {
            "source": own[0][0].source,
            "runs": len(own),
            "tau": kendall_tau(predicted, measured),
            "regret": chosen / min(measured) - 1,
        }
    return result


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


def print_result(result: Mapping[str, Any]) -> None:
    """Tables in Markdown."""
    print("| source | runs | predicted | median error | bias | least, most | said not to fit |")
    print("|---|---|---|---|---|---|---|")
    for name, row in result["sources"].items():
        if not row["predicted"]:
            print(f"| {name} | {row['rows']} | 0 | | | | |")
            continue
        print(
            f"| {name} | {row['rows']} | {row['predicted']} | {row['median_error']:.1%} "
            f"| {row['bias']:.3f} | {row['least']:.2f}, {row['most']:.2f} "
            f"| {row['said_not_to_fit']} |"
        )
    for source in dict.fromkeys(group["source"] for group in result["groups"].values()):
        own = [group for group in result["groups"].values() if group["source"] == source]
        taus, regrets = ([group[key] for group in own] for key in ("tau", "regret"))
        print(
            f"\n{source}: {len(own)} groups; tau {statistics.median(taus):.2f} in the median, "
            f"{min(taus):.2f} at least; regret {statistics.median(regrets):.1%} in the median, "
            f"{max(regrets):.1%} at most"
        )
    for need, names in result["unsaid"].items():
        print(f"\nNo method says {need}: {len(names)} rows ({', '.join(names[:6])} ..)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict the wanted runs and print how far off they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", default="", help="only sources whose names begin so")
    parser.add_argument("--ids", nargs="+", default=[], help="only these rows")
    parser.add_argument("--every", type=int, default=1, help="of rows within a host every N-th")
    parser.add_argument(
        "--constants", type=json.loads, default={}, help='others, such as {"launch": 3e-6}'
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=Path(".benchmarks/published_runs"), help="for predictions"
    )
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    wanted = parser.parse_args(arguments)
    rows = [
        run
        for index, run in enumerate(runs())
        if run.source.startswith(wanted.source)
        and (not wanted.ids or run.name in wanted.ids)
        and (run.source != WITHIN_A_HOST or index % wanted.every == 0)
    ]
    said = [run for run in rows if not run.needs]
    predicted = predict_all(said, wanted.folder.resolve(), wanted.processes, wanted.constants)
    found = {run.name: row for run, row in zip(said, predicted, strict=True)}
    result = compare(rows, found)
    if wanted.json:
        cells = [{**asdict(run), "group": run.group, **found[run.name]} for run in said]
        print(json.dumps({**result, "runs": cells}))
    else:
        print_result(result)


if __name__ == "__main__":
    main()
