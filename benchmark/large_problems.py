"""Write large intra-operator problems with binding memory, for `alpa-solve` and `iopddl.py`.

Training steps as the compiler states their problem, on a cube of 64 A100 with memory halfway
between the least that may do and what the fastest plan takes: `gnn` (message passing over a fixed
graph, unrolled), `diffusion` (a U-Net with attention that predicts noise), `gemma` (27 billion
parameters, 46 layers). And an instance of the IOPDDL contest several times, up to 70,000 nodes
and 530,000 choices: `A`, `M`, `S` with a mode and a number of copies, as in `M-after-2` (one copy
after the other, as the parts of a longer program) or `M-beside-2` (all at once, under the sum of
their limits). Copies have other costs than the original and share some edges. What is written
depends on nothing but the name and the options.

Run: python benchmark/large_problems.py FOLDER [NAME ...] [--share F] [--contest FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace
from models import BenchmarkModel, llama, training_model

_jax: Any = jax
_jnp: Any = jnp
_nn: Any = importlib.import_module("flax.linen")
_optax: Any = importlib.import_module("optax")
Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
TOOL = Path(os.environ.get("ALPA_BUILD", ROOT / "build"), "bin")
CONTEST = ROOT.parent / "shared" / "reference" / "iopddl"
FORBIDDEN, NO_LIMIT = 10**18, 1 << 60


class _Mlp(_nn.Module):
    """Two dense layers and a norm."""

    width: int

    @_nn.compact
    def __call__(self, x: Any) -> Any:
        x = _nn.Dense(self.width)(_nn.relu(_nn.Dense(self.width)(x)))
        return _nn.LayerNorm()(x)


class _Gnn(_nn.Module):
    """Message passing (Pfaff et al. 2021): edges look at both their ends, nodes at their sum."""

    rounds: int
    width: int

    @_nn.compact
    def __call__(self, nodes: Any, edges: Any, ends: Any) -> Any:
        h, e = _Mlp(self.width)(nodes), _Mlp(self.width)(edges)
        for _ in range(self.rounds):
            seen = _jnp.concatenate([e, h[ends[0]], h[ends[1]]], -1)
            e = e + _Mlp(self.width)(seen)
            total = _jax.ops.segment_sum(e, ends[1], num_segments=h.shape[0])
            h = h + _Mlp(self.width)(_jnp.concatenate([h, total], -1))
        return _nn.Dense(nodes.shape[-1])(h)


class _Denoiser(_nn.Module):
    """Images [batch, h, w, 4] at a moment [batch] to noise: a U-Net with attention (Ho et al.)."""

    channels: int
    levels: int
    blocks: int

    @_nn.compact
    def __call__(self, x: Any, moment: Any) -> Any:
        rates = _jnp.exp(-_jnp.arange(self.channels // 2) / self.channels * 18.4)
        angle = moment[:, None] * rates
        t = _jnp.concatenate([_jnp.sin(angle), _jnp.cos(angle)], -1)
        t = _nn.Dense(4 * self.channels)(_nn.swish(_nn.Dense(4 * self.channels)(t)))

        def block(x: Any, width: int, attends: bool) -> Any:
            y = _nn.Conv(width, (3, 3))(_nn.swish(_nn.GroupNorm(32)(x)))
            y = y + _nn.Dense(width)(_nn.swish(t))[:, None, None]
            y = _nn.Conv(width, (3, 3))(_nn.swish(_nn.GroupNorm(32)(y)))
            x = (x if x.shape[-1] == width else _nn.Conv(width, (1, 1))(x)) + y
            if not attends:
                return x
            flat = _nn.LayerNorm()(x.reshape(x.shape[0], -1, width))
            flat = _nn.MultiHeadDotProductAttention(8)(flat, flat)
            return x + flat.reshape(x.shape)

        x = _nn.Conv(self.channels, (3, 3))(x)
        skips = [x]
        for level in range(self.levels):
            for _ in range(self.blocks):
                x = block(x, self.channels * 2**level, level > 0)
                skips.append(x)
            if level + 1 < self.levels:
                x = _nn.Conv(x.shape[-1], (3, 3), (2, 2))(x)
                skips.append(x)
        x = block(x, x.shape[-1], True)
        for level in reversed(range(self.levels)):
            for _ in range(self.blocks + 1):
                x = _jnp.concatenate([x, skips.pop()], -1)
                x = block(x, self.channels * 2**level, level > 0)
            if level:
                x = _nn.ConvTranspose(x.shape[-1], (2, 2), (2, 2))(x)
        return _nn.Conv(4, (3, 3))(_nn.swish(_nn.GroupNorm(32)(x)))


def _adam_step(
    name: str,
    net: Any,
    inputs: Callable[[Any, int], dict[str, Any]],
    call: Callable[[Any, Any], Any],
    target: str,
    size: int,
) -> BenchmarkModel:
    """A step of Adam on the mean square of what `call` lacks of one of the inputs."""

    def init_params(key: Any) -> Any:
        return net.init(key, *(value for name, value in inputs(key, 1).items() if name != target))

    def loss(params: Any, batch: Any) -> Any:
        return _jnp.mean((call(params, batch) - batch[target]) ** 2)

    model = training_model(name, init_params, inputs, loss, _optax.adam(1e-4))

    def init() -> tuple[Any, Any]:
        return model.init(size)

    state, batch = _jax.eval_shape(init)
    parameters = sum(leaf.size for leaf in _jax.tree.leaves(state["params"]))
    return BenchmarkModel(name, model.step, state, batch, parameters, init)


def gnn(rounds: int = 48, width: int = 1024, nodes: int = 1 << 18, edges: int = 1 << 20) -> Any:
    """A mesh with as many nodes and edges, learnt for one moment of a simulation."""

    def inputs(key: Any, _: int) -> dict[str, Any]:
        return {
            "nodes": _jax.random.normal(key, (nodes, 16)),
            "edges": _jax.random.normal(key, (edges, 8)),
            "ends": _jax.random.randint(key, (2, edges), 0, nodes),
            "target": _jax.random.normal(key, (nodes, 16)),
        }

    net: Any = _Gnn(rounds, width)

    def call(params: Any, batch: Any) -> Any:
        return net.apply(params, batch["nodes"], batch["edges"], batch["ends"])

    return _adam_step("gnn", net, inputs, call, "target", 1)


def diffusion(channels: int = 512, levels: int = 4, blocks: int = 4, batch_size: int = 256) -> Any:
    """Latent images of 64x64."""

    def inputs(key: Any, size: int) -> dict[str, Any]:
        return {
            "image": _jax.random.normal(key, (size, 64, 64, 4)),
            "moment": _jax.random.uniform(key, (size,)),
            "noise": _jax.random.normal(key, (size, 64, 64, 4)),
        }

    net: Any = _Denoiser(channels, levels, blocks)

    def call(params: Any, batch: Any) -> Any:
        return net.apply(params, batch["image"], batch["moment"])

    return _adam_step("diffusion", net, inputs, call, "noise", batch_size)


STEPS: dict[str, Callable[[], BenchmarkModel]] = {
    "gnn": gnn,
    "diffusion": diffusion,
    "gemma": partial(
        llama,
        layers=46,
        hidden=4608,
        heads=32,
        kv_heads=16,
        ffn=36864,
        vocab=256128,
        seq=8192,
        batch_size=64,
        remat=True,
    ),
}
COPIES = ("A-after-2", "M-after-2", "M-beside-2", "S-after-2", "S-beside-2")


def of_step(name: str, share: float) -> Json:
    """The problem of a step; its limit is between the least that may do and what binds no more."""
    model = STEPS[name]()
    traced = trace(model.step, model.state, model.batch)
    module = Module(traced.text, name).annotate(traced.signature.to_json()).run("alpa-import")
    with tempfile.TemporaryDirectory() as folder:
        step, path = Path(folder, "step.mlir"), Path(folder, "problem.json")
        step.write_text(module.as_text())
        options = f"cluster=dgx-a100:8 mesh-shape=4,4,4 memory-limit={NO_LIMIT} output={path}"
        command = [TOOL / "alpa-opt", step, f"-alpa-build-sharding-problem={options}"]
        subprocess.run([*command, "-o", os.devnull], check=True)
        problem: Json = json.loads(path.read_text())["problem"]
        nodes = problem["nodes"]
        least = [min(bytes_, default=0) for bytes_ in nodes["usages"]]
        solved = subprocess.run(
            [TOOL / "alpa-solve", path, "--json"], check=True, capture_output=True, text=True
        )
        low, high = peak(nodes["intervals"], least), json.loads(solved.stdout)["peak_usage"]
        problem["usage_limit"] = int(low + share * (high - low))
    return problem


def spans(intervals: Any) -> list[list[int]]:
    """One interval, or a list of them, as a list."""
    return intervals if intervals and isinstance(intervals[0], list) else [intervals]


def peak(intervals: list[Any], usages: list[int]) -> int:
    """Most bytes at one moment."""
    change: dict[int, int] = {}
    for lives, used in zip(intervals, usages, strict=True):
        for life in spans(lives):
            if life and life[0] < life[1]:
                change[life[0]] = change.get(life[0], 0) + used
                change[life[1]] = change.get(life[1], 0) - used
    most = now = 0
    for moment in sorted(change):
        now += change[moment]
        most = max(most, now)
    return most


def copied(name: str, contest: Path) -> Json:
    """Copies of an instance, one after the other or beside each other."""
    letter, mode, count = name.split("-")
    with gzip.open(contest / f"asplos-2025-iopddl-{letter}.json.gz", "rt") as file:
        problem: Json = json.load(file)["problem"]
    draw = random.Random(name)
    nodes, edges = problem["nodes"], problem["edges"]
    size = len(nodes["costs"])
    length = max(life[1] for lives in nodes["intervals"] for life in spans(lives) if life)
    shared = [at for at, costs in enumerate(edges["costs"]) if max(costs) < FORBIDDEN]
    result: Json = {"nodes": {key: [] for key in nodes}, "edges": {"nodes": [], "costs": []}}

    def scaled(costs: list[int]) -> list[int]:
        factor = draw.randrange(75, 125)
        return [cost if cost >= FORBIDDEN else cost * factor // 100 for cost in costs]

    def add(at: int, first: int, second: int) -> None:
        a, b = edges["nodes"][at]
        result["edges"]["nodes"].append([a + first * size, b + second * size])
        result["edges"]["costs"].append(scaled(edges["costs"][at]))

    for copy in range(int(count)):
        later = copy * length if mode == "after" else 0
        for lives in nodes["intervals"]:
            moved = [[moment + later for moment in life] for life in spans(lives)]
            result["nodes"]["intervals"].append(moved if len(moved) != 1 else moved[0])
        result["nodes"]["costs"] += map(scaled, nodes["costs"])
        result["nodes"]["usages"] += nodes["usages"]
        for at in range(len(edges["nodes"])):
            add(at, copy, copy)
        if copy:
            for at in draw.sample(shared, len(shared) // 200):
                add(at, copy - 1, copy)
    beside = int(count) if mode == "beside" else 1
    return {"name": name, **result, "usage_limit": beside * problem["usage_limit"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the wanted problems and say how large they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*STEPS, *COPIES]
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("names", nargs="*", default=names, help=f"default: {', '.join(names)}")
    parser.add_argument(
        "--share", type=float, default=0.5, help="limit of steps: 0 the least, 1 does not bind"
    )
    parser.add_argument("--contest", type=Path, default=CONTEST, help="where its instances are")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in STEPS and not re.fullmatch(r"[A-Z]-(after|beside)-[1-9]\d*", name):
            parser.error(f"no problem {name!r}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        problem = of_step(name, options.share) if name in STEPS else copied(name, options.contest)
        with gzip.open(options.folder / f"{name}.json.gz", "wt", compresslevel=3) as file:
            json.dump({"problem": problem}, file, separators=(",", ":"))
        costs = problem["nodes"]["costs"]
        print(f"{name}: {len(costs):,} nodes, {sum(map(len, costs)):,} choices", flush=True)


if __name__ == "__main__":
    main()
