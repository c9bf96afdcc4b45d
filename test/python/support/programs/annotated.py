"""A training step with decisions drawn at random, for tests of what comes after the search.

The stage of an op follows from the named scopes of the layers, its sharding is any that
divides: slicing, scheduling, export and the runtime must give the single-device numbers for
all of them. The step has a weight that two stages use, running statistics of sums over the
micro-batches, gradients clipped by their global norm, an integer metric, and state that never
changes. Its program is that of one micro-batch, whose sums the update completes.
"""

from __future__ import annotations

import functools
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alpa_runtime.plan import Plan
from jax.interpreters import mlir
from source_paths import BUILD

ROWS, WIDTH, LAYERS = 4, 8, 4
REDUCTIONS = {"loss": "sum", "norm": None, "out": "concat", "positive": "sum"}
OPT = BUILD / "bin" / "alpa-opt"


def init_state(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def draw(*shape, scale):
        return rng.standard_normal(shape).astype(np.float32) * np.float32(scale)

    params = {
        f"l{i}": {"w": draw(WIDTH, WIDTH, scale=0.4), "b": draw(WIDTH, scale=0.1)}
        for i in range(LAYERS)
    }
    params["l0"]["tied"] = draw(WIDTH, WIDTH, scale=0.3)
    return {
        "params": params,
        "mu": jax.tree.map(np.zeros_like, params),
        "nu": jax.tree.map(np.zeros_like, params),
        "stats": np.zeros(WIDTH, np.float32),
        "count": np.int32(0),
        "key": np.array([1, 2], np.uint32),
        "frozen": draw(WIDTH, scale=1.0),
    }


def forward(params, stats, frozen, x, y, rows):
    """Sums over the examples at hand, of `rows` in all."""
    h = x
    with jax.named_scope("l0"):
        h = h @ params["l0"]["tied"]
    for i in range(LAYERS):
        with jax.named_scope(f"l{i}"):
            h = jnp.tanh(h @ params[f"l{i}"]["w"] + params[f"l{i}"]["b"] * frozen)
            if i == 2:
                average = jax.lax.stop_gradient(h).sum(0) / rows
                h = h - stats
    with jax.named_scope(f"l{LAYERS - 1}"):
        out = h @ params["l0"]["tied"].T
        loss = jnp.sum((out - y) ** 2) / (rows * WIDTH)
    return loss, (average, out, jnp.sum(out > 0, dtype=jnp.int32))


value_and_grad = jax.value_and_grad(forward, has_aux=True)


def update(state, grads):
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    scale = 1.0 / (1.0 + norm)
    count = state["count"] + 1
    bias = 1 - 0.9 ** count.astype(jnp.float32)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * (g * scale), state["mu"], grads)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * (g * scale) ** 2, state["nu"], grads)
    params = jax.tree.map(
        lambda p, m, n: p - 0.01 * (m / bias / (jnp.sqrt(n) + 1e-3) + 0.01 * p),
        state["params"],
        mu,
        nu,
    )
    return dict(state, params=params, mu=mu, nu=nu, count=count), norm


def train_step(rows, state, x, y):
    (loss, (average, out, positive)), grads = value_and_grad(
        state["params"], state["stats"], state["frozen"], x, y, rows
    )
    new, norm = update(state, grads)
    new["stats"] = 0.9 * state["stats"] + 0.1 * average
    return new, {"loss": loss, "norm": norm, "out": out, "positive": positive}


class Specs:
    """Any sharding that divides; one for each value and stage."""

    def __init__(self, meshes: Sequence[Sequence[int]], seed: int) -> None:
        self.rng = random.Random(seed)
        self.meshes = meshes
        self.held: dict[tuple[Any, int], Any] = {}

    def at(self, value: Any, stage: int) -> Any:
        if (value, stage) not in self.held:
            shape = mlir.ir.RankedTensorType(value.type).shape
            self.held[value, stage] = mlir.ir.Attribute.parse(self.draw(shape, self.meshes[stage]))
        return self.held[value, stage]

    def draw(self, shape: Sequence[int], mesh: Sequence[int]) -> str:
        axes = [i for i, n in enumerate(mesh) if n > 1]
        self.rng.shuffle(axes)
        digits, sizes = [""] * len(shape), list(shape)
        for axis in axes:
            dim = self.rng.randrange(len(shape) + 1)
            if dim < len(shape) and sizes[dim] % mesh[axis] == 0:
                digits[dim] += str(axis)
                sizes[dim] //= mesh[axis]
        return f"#alpa.sharding<[{', '.join(f'S{d}' if d else 'R' for d in digits)}]>"


def annotate(
    meshes: Sequence[Sequence[int]], stage_of_layer: Sequence[int], micro_batches: int, seed: int
) -> str:
    """The module that alpa-search-stages could hand over, as text."""
    ir: Any = mlir.ir
    state = init_state()
    example = jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)
    step = functools.partial(train_step, ROWS * micro_batches)
    module = jax.jit(step, keep_unused=True).lower(state, example, example).compiler_ir()
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
    with module.context as context:
        context.allow_unregistered_dialects = True
        main = next(op for op in module.body if op.operation.name == "func.func").operation
        block = main.regions[0].blocks[0]
        specs = Specs(meshes, seed)
        stages = place_ops(block, paths, stage_of_layer, specs)
        annotate_signature(main, block, paths, stages, specs)
        rows, device = [], 0
        for stage, mesh in enumerate(meshes):
            devices = list(range(device, device + int(np.prod(mesh))))
            layers = [i for i, s in enumerate(stage_of_layer) if s == stage]
            rows.append(
                f"#alpa.stage<mesh = <shape = {list(mesh)}, devices = {devices}>, "
                f"layers = [{layers[0]}, {layers[-1] + 1}]>"
            )
            device += len(devices)
        attributes = module.operation.attributes
        attributes["alpa.stages"] = ir.Attribute.parse(f"[{', '.join(rows)}]")
        attributes["alpa.num_micro_batches"] = ir.Attribute.parse(f"{micro_batches} : i64")
        return module.operation.get_asm(print_generic_op_form=True)


def place_ops(block: Any, paths: list[str], stage_of_layer: Sequence[int], specs: Specs) -> Any:
    """Gives every op its phase, stage and shardings; returns the stage of each value."""
    ir: Any = mlir.ir
    stages: dict[Any, int] = {}
    phases: dict[Any, str] = {}
    for arg, path in zip(block.arguments, [*paths, "x", "y"], strict=True):
        layer = re.search(r"'l(\d+)'", path)
        stages[arg] = stage_of_layer[int(layer[1])] if layer else -1
    for view in block.operations:
        op = view.operation
        if op.name == "func.return":
            break
        where = str(op.location)
        phase = "backward" if "transpose(" in where else "forward" if "jvp(" in where else "update"
        layer = re.search(r"\bl(\d+)\b", where)
        inputs = [stages.get(v, -1) for v in op.operands]
        flow = [stages[v] for v in op.operands if phases.get(v) == phase]
        if phase == "update":
            stage = max(inputs, default=0)
        elif layer:
            stage = stage_of_layer[int(layer[1])]
        else:
            stage = max(inputs, default=0) if phase == "forward" else max(stage_of_layer)
        if phase == "forward":
            stage = max([stage, *flow])
        if phase == "backward":
            stage = min([stage, *flow])
        stage = max(stage, 0)
        op.attributes["alpa.phase"] = ir.StringAttr.get(phase)
        op.attributes["alpa.stage"] = ir.Attribute.parse(f"{stage} : i64")
        op.attributes["alpa.shardings"] = ir.ArrayAttr.get([specs.at(r, stage) for r in op.results])
        if len(op.operands):
            op.attributes["alpa.operand_shardings"] = ir.ArrayAttr.get(
                [specs.at(v, stage) for v in op.operands]
            )
        for result in op.results:
            stages[result], phases[result] = stage, phase
    return stages


def annotate_signature(main: Any, block: Any, paths: list[str], stages: Any, specs: Specs) -> None:
    ir: Any = mlir.ir
    results = list(block.operations)[-1].operation.operands
    arguments = []
    for i, arg in enumerate(block.arguments):
        state = i < len(paths)
        entry = {"alpa.kind": ir.StringAttr.get("state" if state else "batch")}
        if state:
            owner = stages.get(results[i], -1)
            if results[i] == arg:
                users = [use.owner.operation.attributes for use in arg.uses]
                owner = min((a["alpa.stage"].value for a in users if "alpa.stage" in a), default=0)
            entry["alpa.name"] = ir.StringAttr.get(paths[i])
            entry["alpa.carried_by"] = ir.Attribute.parse(f"{i} : i64")
            entry["alpa.sharding"] = specs.at(arg, owner)
        arguments.append(ir.DictAttr.get(entry))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
    outputs = [
        {
            "alpa.name": ir.StringAttr.get(n),
            **({"alpa.reduction": ir.StringAttr.get(r)} if r else {}),
        }
        for n, r in sorted(REDUCTIONS.items())
    ]
    entries = [*({} for _ in paths), *outputs]
    main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(e) for e in entries])


def compile_plan(text: str, folder: Path, schedule: str) -> Plan:
    """The plan of an annotated module, made by alpa-opt."""
    source = folder / "annotated.mlir"
    source.write_text(text)
    done = subprocess.run(
        [
            str(OPT),
            str(source),
            "--allow-unregistered-dialect",
            "--alpa-gather-sums",
            "--alpa-slice-stages",
            f"--alpa-build-schedule=schedule={schedule}",
            "--alpa-plan-transfers=cluster=cpu-test",
            "--alpa-verify-program",
            "--alpa-export-shardy",
            f"--alpa-write-plan=directory={folder / 'plan'}",
            "-o",
            str(folder / "sliced.mlir"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:3000]
    return Plan.load(folder / "plan")
