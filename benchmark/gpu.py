"""What can only be tried on a GPU, in one command, on a machine with one NVIDIA GPU or more.

    python benchmark/gpu.py --minutes 20 -o gpu.json
    python benchmark/gpu.py --parts stages pipeline       # some of it
    python benchmark/gpu.py --platform cpu --minutes 5    # the same on this processor, tiny
    python benchmark/gpu.py --show gpu.json               # the table of docs/truth.md

It says first what is missing, with the command that fetches it for a machine without a network.
Then each part runs in a process of its own, and what one has found when its time is over counts:

- `stages`: steps that were planned for one device, with one micro-batch and with several, beside
  `jax.jit`: how far their updates differ, and how fast they are (at least 0.99 of `jax.jit`).
- `pipeline`: two stages in two worker processes that share the first GPU, by every transport that
  one GPU allows, beside `jax.jit`; a checkpoint of it, restored part by part.
- `shipped`: a plan that carries its compiled programs, loaded without a compiler.
- `device`: products, memory, attention and launches beside what the preset foresees.
- `plans`: six plans, their predicted seconds and bytes beside the measured ones.
- `collectives`: those among this machine's GPUs beside the preset's links, where there are two.

A row that is judged and fails makes the exit code 1. `-o` writes all rows as JSON.
"""

# pyright: basic

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform as machine
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

_NEEDED = ("alpa_mlir", "jax", "flax", "optax", "tensorstore")
# Parts of presets that no run judges may be further off than these.
_SECONDS_OFF, _BYTES_OFF = 0.15, 0.10
_LEAST_SPEED = 0.99


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        part, case, figure: what was measured.
        measured: in `unit`.
        expected: what it should be, or what was predicted; None where there is no such.
        ok: None where nothing is judged.
    """

    part: str
    case: str
    figure: str
    unit: str
    measured: float
    expected: float | None = None
    ok: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.measured / self.expected if self.expected else None


def off_by(measured: float, expected: float, most: float) -> bool:
    """Whether a prediction holds."""
    return abs(expected / measured - 1) <= most


class Site:
    """The devices of this process, and how plans for them are made."""

    def __init__(self, platform: str) -> None:
        import jax
        from alpa_runtime.backends.gpus import GPUS
        from xla_gpu import PRESETS

        self.jax: Any = jax
        self.platform: Any = platform
        self.is_gpu = platform == "gpu"
        self.devices = jax.devices()
        self.kind = str(self.devices[0].device_kind)
        names = [name for name, gpu in GPUS.items() if gpu.description == self.kind]
        self.target = "cpu" if not self.is_gpu else names[0] if names else None
        self.preset = PRESETS.get(self.target or "")

    def cluster(self, hosts: int = 1, devices: int = 1, part: float = 1.0) -> Any:
        """So many devices of this kind; each may take that part of its memory."""
        from alpa_mlir import Cluster
        from alpa_mlir.cluster import device_memory_bytes

        if self.preset is None:
            memory = int(device_memory_bytes() * part)
            return Cluster.nominal("here", self.platform, (devices,) * hosts, memory)
        fields = json.loads(Cluster.load(self.preset).text)
        name = fields["hosts"][0]["device_type"]
        fields["hosts"] = [fields["hosts"][0] | {"count": hosts, "devices": devices}]
        kind = fields["device_types"][name]
        kind["memory_bytes"] = int(min(kind["memory_bytes"], device_memory_bytes()) * part)
        return Cluster.from_dict(fields)

    def judged(self, ok: bool) -> bool | None:
        """Predictions are judged where a preset made them."""
        return ok if self.preset else None


@dataclass(frozen=True)
class Case:
    """A model at a size for this device.

    Attributes:
        tolerance: how far an update may be off. Steps in half precision have SGD: Adam's first
            update is a whole step of either sign where a gradient is nearly nothing.
        counts: numbers of micro-batches.
    """

    name: str
    make: Callable[[], Any]
    tolerance: float = 1e-3
    counts: tuple[int, ...] = (1, 4)


def cases(site: Site) -> list[Case]:
    """The models, the cheapest ones first."""
    import models
    import zoo

    def of_zoo(name: str, batch_size: int) -> Callable[[], Any]:
        def make() -> Any:
            model = zoo.get(name)
            return model.step, site.jax.jit(lambda: model.init(batch_size))()

        return make

    def of_models(made: Callable[..., Any], **sizes: Any) -> Callable[[], Any]:
        def make() -> Any:
            model = made(**sizes)
            return model.step, site.jax.jit(model.init)()

        return make

    small = {"hidden": 64, "heads": 4, "vocab": 128, "seq": 32, "batch_size": 8}
    large = {"hidden": 1024, "heads": 16, "vocab": 32768, "seq": 1024, "batch_size": 16}
    gpt = large if site.is_gpu else small
    llama = {"hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5504, "vocab": 32000, "seq": 2048}
    if not site.is_gpu:
        llama = {"hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 128, "seq": 32}
    layers = 4 if site.is_gpu else 2
    rows = 128 if site.is_gpu else 8
    half, off = {"dtype": "bfloat16", "optimizer": "sgd"}, 2e-2
    loop = {"scan": True, "remat": True}
    return [
        Case("gpt-bfloat16", of_models(models.gpt, layers=layers, **gpt, **half), off),
        Case("gpt-float32", of_models(models.gpt, layers=layers // 2, **gpt)),
        Case(
            "llama-bfloat16",
            of_models(models.llama, layers=layers // 2, batch_size=8, optimizer="sgd", **llama),
            off,
        ),
        Case("gpt-loop-bfloat16", of_models(models.gpt, layers=layers, **gpt, **half, **loop), off),
        Case("moe", of_zoo("moe", rows)),
        # Its batch norms couple examples.
        Case("wide-resnet", of_zoo("wide_resnet", rows), counts=(1,)),
    ]


def difference(before: Any, expected: Any, found: Any) -> float:
    """How far an update is off: the norm of the difference beside that of the update."""
    import jax
    import numpy as np

    leaves: Any = [jax.tree.leaves(tree) for tree in (before, expected, found)]
    off = update = 0.0
    for old, new, other in zip(*leaves, strict=True):
        old, new, other = (np.asarray(x) for x in (old, new, other))
        if not np.issubdtype(new.dtype, np.inexact) and str(new.dtype) != "bfloat16":
            off += float((new != other).sum())
            continue
        old, new, other = (x.astype(np.float64) for x in (old, new, other))
        off += float(((new - other) ** 2).sum())
        update += float(((new - old) ** 2).sum())
    return (off / update) ** 0.5 if update else float(off > 0)


def _tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    import jax

    return jax.tree.map(function, tree)


def copied(tree: Any) -> Any:
    import jax.numpy as jnp

    return _tree_map(lambda x: jnp.array(x, copy=True), tree)


def seconds_of(site: Site, step: Any, state: Any, batch: Any, steps: int) -> tuple[float, Any]:
    """Seconds of a step, of some that follow each other, and the state behind them."""
    begin = time.perf_counter()
    for _ in range(steps):
        state, metrics = step(state, batch)
    site.jax.block_until_ready((state, metrics))
    return (time.perf_counter() - begin) / steps, state


def plan_one(site: Site, step: Any, state: Any, batch: Any, **options: Any) -> Any:
    """Planned for one device."""
    import alpa_mlir

    method = alpa_mlir.AutoParallel(**options)
    parallel = alpa_mlir.parallelize(step, cluster=site.cluster(), method=method, cache=False)
    return parallel.plan(state, batch)


def stages(site: Site) -> Iterator[Row]:
    """Planned steps of one device beside `jax.jit`."""
    import jax

    rounds, steps = (7, 5) if site.is_gpu else (2, 1)
    for case in cases(site):
        precision = "highest" if "bfloat16" not in case.name else None
        with jax.default_matmul_precision(precision):
            function, (state, batch) = case.make()
            plain: Any = jax.jit(function, donate_argnums=0)
            expected, _ = plain(copied(state), batch)
            for count in case.counts:
                planned = plan_one(site, function, state, batch, num_micro_batches=count)
                step = planned.load(cache=False)
                found, _ = step(copied(state), batch)
                off = difference(state, expected, found)
                name = f"{case.name}, {count} micro-batches" if count > 1 else case.name
                row = ("stages", name, "difference of the update", "")
                most = case.tolerance
                yield Row(*row, off, most, off <= most, "expected: at most")
                if count == 1:
                    yield speed(site, name, plain, step, state, batch, rounds, steps)
                step.close()
            del state, batch, expected, found


def speed(
    site: Site, name: str, plain: Any, step: Any, state: Any, batch: Any, rounds: int, steps: int
) -> Row:
    """Both in turns, so that what else happens meets both."""
    mine, other = copied(state), copied(state)
    ratios, taken = [], []
    for _ in range(rounds + 1):  # The first round warms up.
        theirs, other = seconds_of(site, plain, other, batch, steps)
        ours, mine = seconds_of(site, step, mine, batch, steps)
        ratios.append(theirs / ours)
        taken.append(ours)
    ratio = statistics.median(ratios[1:])
    ok = ratio >= _LEAST_SPEED if site.is_gpu else None
    note = f"{statistics.median(taken[1:]) * 1e3:.3f} ms a step"
    return Row("stages", name, "speed beside jax.jit", "", ratio, 1.0, ok, note)


def pipeline(site: Site) -> Iterator[Row]:
    """Two stages in two processes that share a GPU, and a checkpoint of them."""
    import alpa_mlir
    import jax

    case = next(case for case in cases(site) if case.name == "gpt-float32")
    with jax.default_matmul_precision("highest"):
        function, (state, batch) = case.make()
        state, batch = jax.device_get((state, batch))
        expected = jax.device_get(jax.jit(function)(state, batch)[0])
        method = alpa_mlir.PipeshardParallel(
            submeshes=[(1, 1), (1, 1)], num_micro_batches=4, schedule="1f1b"
        )
        cluster = site.cluster(hosts=2, part=0.35)
        parallel = alpa_mlir.parallelize(function, cluster=cluster, method=method, cache=False)
        planned = parallel.plan(state, batch)
    transports = ["host"]
    if site.is_gpu and importlib.util.find_spec("nixl"):
        transports.append("nixl")
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
    if site.is_gpu:  # Workers take GPUs in order: both the first one.
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,0"
    for transport in transports:
        workers = alpa_mlir.ProcessWorkers(
            platform=site.platform, device_transport=transport, environment=environment
        )
        step = planned.load(workers=workers, cache=False)
        after, _ = step(state, batch)
        off = difference(state, expected, jax.device_get(after))
        row = (
            "pipeline",
            f"2 stages, 4 micro-batches, {transport}",
            "difference of the update",
            "",
        )
        yield Row(*row, off, case.tolerance, off <= case.tolerance, "expected: at most")
        taken, after = seconds_of(site, step, after, batch, 4 if site.is_gpu else 1)
        yield Row("pipeline", row[1], "step", "s", taken, planned.predicted_seconds, None)
        if transport == "host":
            yield from restored(step, after, batch)
        step.close()
        workers.close()


def restored(step: Any, state: Any, batch: Any) -> Iterator[Row]:
    """Every worker reads its parts of a checkpoint: the state is the same to the bit. Steps behind
    it need not be, for a GPU adds up what it scatters in any order."""
    import alpa_mlir
    import jax

    with tempfile.TemporaryDirectory() as folder:
        alpa_mlir.save_checkpoint(folder, state, step=1).wait()
        begin = time.perf_counter()
        again = alpa_mlir.restore_checkpoint(folder, step)
        taken = time.perf_counter() - begin
    kept, found = jax.device_get((state, again))
    pairs = zip(*map(jax.tree.leaves, (kept, found)), strict=True)
    other = sum(a.tobytes() != b.tobytes() for a, b in pairs)
    row = ("pipeline", "restored checkpoint")
    yield Row(*row, "arrays that differ", "", other, 0, other == 0)
    yield Row(*row, "restore", "s", taken)
    after = [jax.device_get(step(given, batch)[0]) for given in (state, again)]
    off = difference(kept, *after)
    yield Row(*row, "difference of the next update", "", off, 1e-6, off <= 1e-6)


def shipped(site: Site) -> Iterator[Row]:
    """A plan with its programs."""
    import alpa_mlir
    import jax

    case = cases(site)[0]
    function, (state, batch) = case.make()
    planned = plan_one(site, function, state, batch, num_micro_batches=2)
    with tempfile.TemporaryDirectory() as folder:
        planned.save(folder)
        begin = time.perf_counter()
        step = alpa_mlir.load(folder, cache=False, arguments=(state, batch))
        compiling = time.perf_counter() - begin
        kept = jax.device_get(state)
        expected = jax.device_get(step(copied(state), batch)[0])
        step.close()
        if site.target is None:
            yield Row("shipped", site.kind, "described for compiling ahead", "", 0, 1, False)
            return
        alpa_mlir.compile_ahead(folder, site.target)
        begin = time.perf_counter()
        step = alpa_mlir.load(folder, cache=False, arguments=(state, batch))
        taken = time.perf_counter() - begin
        off = difference(kept, expected, jax.device_get(step(copied(state), batch)[0]))
        row = ("shipped", f"{case.name}, 2 micro-batches")
        most = case.tolerance if site.is_gpu else 1e-6  # Its kernels were not tried on the device.
        yield Row(*row, "difference of the update", "", off, most, off <= most)
        ok = taken < compiling / 2 if site.is_gpu else None
        yield Row(*row, "load", "s", taken, compiling, ok, "expected: when it is compiled")
        step.close()


def device(site: Site) -> Iterator[Row]:
    """Single operations beside the preset, by plans of steps that do nothing else."""
    import jax
    import jax.numpy as jnp

    big = site.is_gpu

    def product(n: int, dtype: Any, count: int = 1) -> tuple[Any, Any, Any]:
        """Of random numbers: of equal ones it takes less power, and less time."""

        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            x = batch
            for _ in range(count):
                x = x @ state
            return state, x

        keys = jax.random.split(jax.random.key(0))
        state, batch = (jax.random.normal(key, (n, n)).astype(dtype) for key in keys)
        return step, state / n**0.5, batch

    def memory(n: int) -> tuple[Any, Any, Any]:
        return lambda s, b: (s, b * s + 1), jnp.float32(2), jnp.ones((n,), jnp.float32)

    def launches(count: int) -> tuple[Any, Any, Any]:
        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            x = batch
            for _ in range(count):
                x = x @ state
            return state, x

        return step, jnp.eye(64), jnp.ones((64, 64))

    def attention(rows: int, tokens: int) -> tuple[Any, Any, Any]:
        keys = jax.random.split(jax.random.key(0), 3)
        shape = (rows, tokens, 16, 128)
        q, k, v = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys)

        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            def loss(q: Any) -> Any:
                out = jax.nn.dot_product_attention(
                    q, batch["k"], batch["v"], is_causal=True, implementation="cudnn"
                )
                return out.astype(jnp.float32).sum()

            return state, jax.grad(loss)(batch["q"])

        return step, jnp.float32(1), {"q": q, "k": k, "v": v}

    named: dict[str, Callable[[], tuple[Any, Any, Any]]] = {}
    for n, count in ((1024, 100), (4096, 4), (8192, 1)) if big else ((128, 2),):
        words = "product" if count == 1 else f"{count} products"
        named[f"{words} of {n}, bfloat16"] = lambda n=n, count=count: product(
            n, jnp.bfloat16, count
        )
    named[f"4 products of {4096 if big else 128}, float32"] = lambda: product(
        4096 if big else 128, jnp.float32, 4
    )
    named["memory, 1 GiB read and written" if big else "memory"] = lambda: memory(
        1 << (27 if big else 16)
    )
    named["200 small products"] = lambda: launches(200)
    if big:
        for tokens in (2048, 8192):
            named[f"attention, forward and backward, {tokens} tokens"] = lambda t=tokens: attention(
                16384 // t, t
            )
    steps = 20 if big else 2
    for name, make in named.items():
        function, state, batch = make()
        planned = plan_one(site, function, state, batch, num_micro_batches=1)
        step = planned.load(cache=False)
        seconds_of(site, step, state, batch, 2)
        taken = min(timed_alone(site, step, state, batch, steps) for _ in range(5))
        foreseen = planned.predicted_seconds
        ok = site.judged(off_by(taken, foreseen, _SECONDS_OFF))
        yield Row("device", name, "seconds", "s", taken, foreseen, ok)
        step.close()


def timed_alone(site: Site, step: Any, state: Any, batch: Any, steps: int) -> float:
    """Seconds of a step whose state stays what it was."""
    begin = time.perf_counter()
    for _ in range(steps):
        state, out = step(state, batch)
    site.jax.block_until_ready(out)
    return (time.perf_counter() - begin) / steps


def plans(site: Site) -> Iterator[Row]:
    """Predicted and measured seconds and bytes."""
    chosen = {case.name: case for case in cases(site)}
    six = [
        ("gpt-bfloat16", 1, "none"),
        ("gpt-bfloat16", 4, "none"),
        ("gpt-bfloat16", 4, "all"),
        ("llama-bfloat16", 1, "none"),
        ("llama-bfloat16", 2, "all"),
        ("gpt-float32", 2, "none"),
    ]
    for name, count, remat in six:
        function, (state, batch) = chosen[name].make()
        options = {"num_micro_batches": count, "remat": remat}
        planned = plan_one(site, function, state, batch, **options)
        step = planned.load(cache=False)
        words = f"{name}, {count} micro-batches, remat {remat}"
        peak = bytes_in_use(site, "peak_bytes_in_use")
        state, _ = step(state, batch)
        taken = []
        for _ in range(5 if site.is_gpu else 1):
            seconds, state = seconds_of(site, step, state, batch, 4 if site.is_gpu else 1)
            taken.append(seconds)
        seconds, foreseen = statistics.median(taken), planned.predicted_seconds
        ok = site.judged(off_by(seconds, foreseen, _SECONDS_OFF))
        yield Row("plans", words, "seconds", "s", seconds, foreseen, ok)
        after = bytes_in_use(site, "peak_bytes_in_use")
        if after > peak:  # Else an earlier plan needed more.
            most = max(float(s.predicted["peak_bytes"]) for s in planned.plan.stages)
            ok = site.judged(off_by(after, most, _BYTES_OFF))
            yield Row("plans", words, "peak", "GiB", after / 2**30, most / 2**30, ok)
        step.close()
        del state, batch, step


def bytes_in_use(site: Site, which: str) -> int:
    stats = site.devices[0].memory_stats() or {}
    return int(stats.get(which, 0))


def collectives(site: Site) -> Iterator[Row]:
    """Collectives within this host."""
    from alpa_mlir.cluster import profiling

    if len(site.devices) < 2:
        return
    profile = profiling.measure(dtypes=(), longest_seconds=0.02 if site.is_gpu else 0.002)
    links = json.loads(site.cluster().text)["links"]["intra_host"]
    for group in profile.collectives:
        size, taken = group.table.sizes[-1], group.table.seconds[-1]
        n = group.devices
        # Bytes that each device sends in a ring.
        sent = {"all_reduce": 2 * (n - 1) / n, "collective_permute": 1.0}
        wire = sent.get(group.collective, (n - 1) / n) * size / taken
        expected = float(links["bandwidth"]) * float(links.get("efficiency", 1.0))
        ok = site.judged(off_by(wire, expected, 0.25)) if n > 1 else None
        name = f"{group.collective} of {size / 2**20:.3g} MiB on {n}"
        yield Row("collectives", name, "each device sends", "GB/s", wire / 1e9, expected / 1e9, ok)


PARTS: dict[str, Callable[[Site], Iterator[Row]]] = {
    "stages": stages,
    "pipeline": pipeline,
    "shipped": shipped,
    "device": device,
    "plans": plans,
    "collectives": collectives,
}


def missing(platform: str) -> list[str]:
    """What keeps the parts from running, each with what to do about it."""
    found = []
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    extra = "[cuda12]" if platform == "gpu" else ""
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    if absent:
        found.append(
            f"not installed: {', '.join(absent)}. Where there is a network, fetch the wheels:\n"
            f"    pip download -d wheels --python-version {python} --only-binary :all: "
            f"'alpa_mlir-VERSION-*.whl{extra}' flax optax\n"
            "  (`make wheel` makes the first one) and here:\n"
            f"    pip install --no-index --find-links wheels 'alpa-mlir{extra}' flax optax"
        )
    if platform == "gpu" and not found:
        seen = "import jax; print(jax.devices('gpu')[0].device_kind)"
        probe = subprocess.run(
            [sys.executable, "-c", seen], capture_output=True, text=True, timeout=180
        )
        if probe.returncode != 0:
            reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
            found.append(
                f"JAX sees no GPU: {reason}\n  Bring JAX's CUDA wheels (`alpa-mlir{extra}`) and a "
                "driver (`nvidia-smi` shows it), or take --platform cpu."
            )
    return found


def run_part(name: str, platform: str, limit: float, kernels: str) -> tuple[list[Row], str]:
    """The rows of a part, and why there are no more of them; `kernels` is a folder for what XLA
    finds out about kernels."""
    environment = dict(os.environ)
    if platform == "cpu":
        count = "--xla_force_host_platform_device_count=2"
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": count}
    else:
        environment["JAX_PLATFORMS"] = "cuda,cpu"
        # XLA tries kernels for most of the time that it compiles: each once for all parts.
        tried = f"--xla_gpu_per_fusion_autotune_cache_dir={kernels}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {tried}".strip()
        if name in ("pipeline", "plans"):  # Workers need room; peaks are counted from nothing.
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    command = [sys.executable, __file__, "--run-part", name, "--platform", platform]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        is_over = threading.Event()
        timer = threading.Timer(limit, lambda: _end(process, is_over))
        timer.start()
        rows = []
        for line in process.stdout or ():
            if line.startswith("{"):
                rows.append(Row(**json.loads(line)))
                print(as_line(rows[-1]), flush=True)
        code = process.wait()
        timer.cancel()
        errors.seek(0)
        lines = [line for line in errors.read().splitlines() if line.strip()]
    if code == 0:
        return rows, ""
    if is_over.is_set():
        return rows, f"over after {limit:.0f} s"
    return rows, "\n".join(lines[-3:]) or f"ended with {code}"


def _end(process: subprocess.Popen[str], is_over: threading.Event) -> None:
    """With the workers that it started."""
    if process.poll() is None:
        is_over.set()
        os.killpg(process.pid, signal.SIGKILL)


def as_line(row: Row) -> str:
    """One line of the table."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g} {row.unit}".strip()

    verdict = {None: "", True: "ok", False: "FAILS"}[row.ok]
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    note = f"  ({row.note})" if row.note else ""
    return (
        f"{row.part:11} {row.case:42} {row.figure:29} {number(row.measured):>12} "
        f"{number(row.expected):>12} {ratio:>7} {verdict}{note}"
    ).rstrip()


def as_markdown(document: dict[str, Any]) -> str:
    """What `-o` wrote, as a table for the documentation."""
    words = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    lines = [words, "", "| part | case | figure | measured | expected | ratio |", "|---" * 6 + "|"]
    for row in (Row(**fields) for fields in document["rows"]):
        expected = "" if row.expected is None else f"{row.expected:.4g} {row.unit}".strip()
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cells = [row.part, row.case, row.figure, f"{row.measured:.4g} {row.unit}".strip()]
        lines.append("| " + " | ".join([*cells, expected, ratio]) + " |")
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Of what takes part."""
    found = {"python": machine.python_version()}
    for name in ("alpa-mlir", "jax", "jaxlib", "flax", "optax"):
        try:
            found[name] = version(name)
        except ModuleNotFoundError:
            found[name] = "from a checkout"
    nvidia = shutil.which("nvidia-smi")
    if nvidia:
        query = [nvidia, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        found["gpus"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20, help="for all parts (default: 20)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="all rows as JSON")
    parser.add_argument("--show", type=Path, metavar="FILE", help="what -o wrote, as Markdown")
    parser.add_argument(
        "--kernels",
        type=Path,
        metavar="FOLDER",
        help="keep there what XLA finds out about kernels, for the next time",
    )
    parser.add_argument("--run-part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error("--minutes: more than 0, please")
    if options.run_part:
        for row in PARTS[options.run_part](Site(options.platform)):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    if options.show:
        try:
            print(as_markdown(json.loads(options.show.read_text())))
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"--show {options.show}: {error}; give a file that -o wrote")
        return 0
    for text in (found := missing(options.platform)):
        print(text, file=sys.stderr)
    if found:
        return 2
    print(json.dumps(versions(), indent=1))
    header = ("part", "case", "figure", "measured", "expected", "ratio")
    print("{:11} {:42} {:29} {:>12} {:>12} {:>7}".format(*header))
    end = time.monotonic() + 60 * options.minutes
    rows: list[Row] = []
    stopped: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as kernels:
        for index, name in enumerate(options.parts):
            left = end - time.monotonic()
            share = 2 * left / (len(options.parts) - index)  # What a quick part leaves others take.
            limit = max(1.0, min(left, share))
            more, why = run_part(name, options.platform, limit, options.kernels or kernels)
            rows += more
            if why:
                stopped[name] = why
                print(f"{name:11} stopped: {why}", flush=True)
    if options.output:
        document = {
            "versions": versions(),
            "rows": [asdict(row) for row in rows],
            "stopped": stopped,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    failed = [row for row in rows if row.ok is False]
    print(f"{len(rows)} figures, {len(failed)} fail, {len(stopped)} parts stopped")
    return 1 if failed or stopped else 0


if __name__ == "__main__":
    sys.exit(main())
