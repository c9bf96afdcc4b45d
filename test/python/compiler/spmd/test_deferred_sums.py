"""Gradients whose terms are added up over micro-batches before they are summed over devices."""

from __future__ import annotations

import math
import re
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_runtime.backends.xla import compile_text
from alpa_runtime.devices import make_meshes
from alpa_runtime.execution.compilation import split_functions
from alpa_runtime.plan import Plan
from alpa_runtime.plan.program import AccumulateOp, RunOp
from alpa_runtime.plan.tensor import TensorSpec
from clusters import slow_links

COLLECTIVE = re.compile(r"\b(all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)\(")


def _plan_and_check(model: zoo.Model, method: Any, devices: int) -> Plan:
    """Checks the step against plain JAX; returns its plan."""
    state, batch = model.init()
    expected = jax.jit(model.step)(state, batch)
    step = alpa_mlir.parallelize(
        model.step, cluster=slow_links(devices), method=method, donate_state=False
    )
    found = step(state, batch)
    for (path, want), got in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
            continue
        want, got = np.asarray(want), np.asarray(got)
        # Adam turns gradients that are zero but for rounding into steps of 1e-3.
        noise = 1e-7 if re.search("[.](mu|nu)", jax.tree_util.keystr(path)) else 2e-5
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=noise + 2e-5 * np.abs(want).max())
    return step.plan(state, batch).plan


def _added_up(plan: Plan) -> list[TensorSpec]:
    """The tensors in which micro-batches are added up."""
    found: list[TensorSpec] = []
    for program in plan.programs:
        tensors: dict[int, TensorSpec] = {}
        for instruction in program.instructions:
            if isinstance(instruction, RunOp):
                function = plan.stages[instruction.stage].functions[instruction.function]
                tensors.update(zip(instruction.outputs, function.outputs, strict=True))
            elif isinstance(instruction, AccumulateOp):
                left = [tensors[slot] for slot in instruction.lefts]
                tensors.update(zip(instruction.slots, left, strict=True))
                found += left
    return found


def _shapes(model: zoo.Model) -> set[tuple[int, ...]]:
    return {np.shape(leaf) for leaf in jax.tree.leaves(model.init()[0])}


def _with_terms(plan: Plan, model: zoo.Model) -> list[TensorSpec]:
    """Of the added-up tensors those with a dimension of terms before a parameter's."""
    shapes = _shapes(model)
    return [t for t in _added_up(plan) if t.shape not in shapes and t.shape[1:] in shapes]


def _collectives(plan: Plan, function: str) -> list[str]:
    """The kinds of collectives in the compiled function of stage 0."""
    stage = plan.stages[0]
    mesh = make_meshes(plan)[stage.mesh]
    text = split_functions(plan.modules[stage.module], {}, stage.module)[function].text
    handle = compile_text(text, mesh, per_device=stage.export == "collectives")
    return COLLECTIVE.findall(handle.hlo_modules()[0].to_string())


def _perceptron(optimizer: optax.GradientTransformation) -> zoo.Model:
    """Biases, an embedding and large batches."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x = params["embed"][batch["tokens"]]
        for layer in params["layers"]:
            x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
        logits = x @ params["head"]
        labels = jax.nn.one_hot(batch["tokens"], logits.shape[-1])
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * labels, -1))

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {"loss": value}

    def init(batch_size: int = 64) -> Any:
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        params = {
            "embed": jax.random.normal(keys[0], (32, 16)),
            "head": jax.random.normal(keys[4], (16, 32)),
            "layers": [
                {"kernel": 0.3 * jax.random.normal(k, (16, 16)), "bias": jnp.zeros(16)}
                for k in keys[1:3]
            ],
        }
        tokens = jax.random.randint(keys[3], (batch_size, 8), 0, 32)
        return (params, optimizer.init(params)), {"tokens": tokens}

    return zoo.Model("perceptron", loss, step, init)


@pytest.mark.parametrize(
    ("name", "mesh_shape", "count", "export"),
    [
        ("gpt", (2, 2), 2, "shardy"),
        ("gpt", (1, 4), 4, "collectives"),
        ("moe", (2, 2), 4, "shardy"),
        ("vit", (1, 4), 2, "collectives"),
        pytest.param("gpt", (2, 2), 2, "collectives", marks=pytest.mark.slow),
        pytest.param("gpt", (1, 4), 4, "shardy", marks=pytest.mark.slow),
        pytest.param("moe", (2, 2), 4, "collectives", marks=pytest.mark.slow),
        pytest.param("vit", (1, 4), 2, "shardy", marks=pytest.mark.slow),
    ],
)
def test_numbers(name: str, mesh_shape: tuple[int, ...], count: int, export: str) -> None:
    model = zoo.get(name)
    method = ShardParallel(mesh_shape=mesh_shape, num_micro_batches=count, export=export)
    plan = _plan_and_check(model, method, math.prod(mesh_shape))
    assert _with_terms(plan, model)


@pytest.mark.parametrize("export", ["collectives", "shardy"])
@pytest.mark.parametrize("method", ["data-parallel", "zero-2"])
def test_sums_wait(method: str, export: str) -> None:
    """Of biases, kernels and embeddings; clipping needs them all before the first update."""
    model = _perceptron(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)))
    way = ShardParallel(mesh_shape=(1, 4), num_micro_batches=4, method=method, export=export)
    plan = _plan_and_check(model, way, 4)
    added = _added_up(plan)
    assert {t.shape for t in added} >= {(4, 16), (4, 16, 16), (4, 32, 16), (4, 16, 32)}
    terms = _with_terms(plan, model)
    assert len(terms) == len([t for t in added if t.shape])  # All but the loss.
    assert {t.spec[0] for t in terms} == {("y",)}
    assert _collectives(plan, "backward") == []
    assert _collectives(plan, "update_0") != []


def test_one_micro_batch_has_nothing_to_wait_for() -> None:
    model = _perceptron(optax.sgd(0.1))
    way = ShardParallel(mesh_shape=(1, 4), num_micro_batches=1, method="data-parallel")
    plan = _plan_and_check(model, way, 4)
    shapes = _shapes(model)
    assert all(t.shape in shapes for t in plan.stages[0].functions["backward"].outputs)


@pytest.mark.parametrize("export", ["collectives", pytest.param("shardy", marks=pytest.mark.slow)])
def test_pipeline(export: str) -> None:
    """The tied embedding's gradients come from both stages."""
    model = zoo.get("gpt")
    method = PipeshardParallel(
        submeshes=[(1, 4), (1, 4)],
        mesh_shapes=[(2, 2), (1, 4)],
        num_micro_batches=4,
        export=export,
    )
    plan = _plan_and_check(model, method, 8)
    assert _with_terms(plan, model)


@pytest.mark.slow
def test_scanned_layers_in_stages() -> None:
    """A stage's gradients are pieces of those of the stacked weights."""
    model = zoo.make_gpt(zoo.GPTConfig(layers=6, scan=True, optimizer="sgd", learning_rate=0.1))
    method = PipeshardParallel(
        submeshes=[(1, 4), (1, 4)],
        mesh_shapes=[(1, 4), (1, 4)],
        num_micro_batches=2,
        method="data-parallel",
        export="collectives",
    )
    plan = _plan_and_check(model, method, 8)
    pieces = {(4, *shape[1:]) for shape in _shapes(model) if len(shape) > 2}
    assert pieces & {t.shape for t in _added_up(plan)}
    assert _collectives(plan, "backward") == []
