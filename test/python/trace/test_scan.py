"""Scans over layers are cut into stages, and their stacked state into its layers."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_runtime.arrays import StackedArray
from alpa_runtime.plan.interface import InputInfo
from test_equality import CLUSTER, relative_difference, run

TWO = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2)
FOUR = PipeshardParallel(submeshes=[(1, 1)] * 4, num_micro_batches=4)


def compare(model, method, tolerance=1e-4, floor=1e-6):
    """Steps of the plan against those of `jax.jit`; returns the compiled step."""
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    expected = run(jax.jit(model.step), state, batch)
    losses, params = run(step, state, batch)
    assert relative_difference(losses, expected[0]) < tolerance
    assert relative_difference(params, expected[1], floor) < tolerance
    return step


def pieces_by_mesh(plan):
    """For each mesh the rows of each stack that its program takes as its own."""
    return [
        {(plan.inputs[op.arg].piece.of, plan.inputs[op.arg].piece.offset)
         for op in program.instructions
         if op.op == "input" and plan.inputs[op.arg].piece is not None}
        for program in plan.programs
    ]  # fmt: skip


@pytest.mark.parametrize("remat", [False, True])
def test_gpt_is_cut_inside_its_scan(remat):
    config = zoo.GPTConfig(layers=4, scan=True, remat=remat, optimizer="sgd", learning_rate=0.1)
    plan = compare(zoo.make_gpt(config), TWO).plan
    first, second = pieces_by_mesh(plan)
    assert first
    assert second
    assert not first & second


def test_four_stages_with_clipping_and_adam():
    """The global norm needs all layers; Adam's moments live with their weights."""
    model = zoo.make_gpt(zoo.GPTConfig(layers=4, hidden=16, seq=8, scan=True))
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=FOUR)
    assert all(pieces_by_mesh(step.plan))
    losses, params = run(step, state, batch)
    expected_losses, expected = run(jax.jit(model.step), state, batch)
    assert relative_difference(losses, expected_losses) < 1e-4
    # Adam makes full steps of gradients that are rounding noise only.
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2 * 1e-3 * 3)
        assert np.mean(np.abs(np.asarray(a) - np.asarray(b)) > 1e-5) < 0.02


@pytest.mark.parametrize(("name", "count"), [("moe_scan", 2), ("layer_stack", 1)])
def test_other_scans(name, count):
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=count)
    step = compare(zoo.get(name), method, 2e-3, 1e-3)
    assert all(pieces_by_mesh(step.plan))


def test_a_recurrence_stays_a_loop():
    model = zoo.get("lstm")
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=TWO)
    assert not any(info.piece for info in step.plan.inputs)
    assert any("stablehlo.while" in text for text in step.plan.modules.values())


def test_one_mesh_keeps_the_arrays_of_a_scan():
    model = zoo.get("layer_stack")
    state, batch = model.init()
    method = ShardParallel(mesh_shape=(1, 2))
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(step(state, batch)))


@pytest.mark.parametrize("num_micro_batches", [1, 4])
@pytest.mark.parametrize("method", ["auto", "data-parallel", "zero-2", "zero-3"])
def test_a_scan_is_planned_as_layers_written_out(method, num_micro_batches):
    """On one mesh, where stacks stay whole."""
    seconds = {}
    for scan in (True, False):
        sizes = zoo.GPTConfig(
            layers=4, hidden=512, heads=8, vocab=4096, seq=256, dtype="bfloat16", scan=scan
        )
        model = zoo.make_gpt(sizes)
        way = ShardParallel(method=method, num_micro_batches=num_micro_batches)
        shapes = jax.eval_shape(functools.partial(model.init, 64))
        planned = alpa_mlir.parallelize(model.step, cluster="dgx-a100", method=way).plan(*shapes)
        seconds[scan] = planned.predicted_seconds
    assert seconds[True] < 1.03 * seconds[False]


def test_pieces_are_seen_as_one_array():
    model = zoo.get("layer_stack")
    state, batch = model.init()
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)])
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    expected, _ = jax.jit(model.step)(state, batch)
    state, _ = step(state, batch)
    assert not any(info.piece for info in step.plan.arguments + step.plan.results)
    found, want = state["params"]["layers"]["bias"], expected["params"]["layers"]["bias"]
    assert isinstance(found, StackedArray)
    assert (found.shape, found.dtype, len(found)) == (want.shape, want.dtype, 5)
    for read in (np.asarray, jnp.asarray, jax.device_get, lambda x: 2 * x / 2, lambda x: x[:]):
        np.testing.assert_allclose(read(found), want, rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(found.sum(), want.sum(), atol=1e-4)
    devices = {next(iter(piece.devices())) for piece in found.pieces}
    assert len(devices) == 2

    # A state that was read and put together again is taken as well.
    read = jax.tree.map(np.asarray, state)
    again, metrics = step(read, batch)
    # The next step takes the pieces themselves: afterwards they are given away.
    other, same = step(state, batch)
    assert found.is_deleted()
    assert metrics["loss"] == same["loss"]
    assert relative_difference(again, other) == 0
    with pytest.raises(alpa_mlir.ArgumentMismatchError, match="earlier step"):
        step(state, batch)
    with pytest.raises(alpa_mlir.ArgumentMismatchError, match="shape"):
        step.loaded([np.asarray(x)[:2] if x.ndim else x for x in jax.tree.leaves(other)] + [0] * 2)


def test_a_saved_plan_takes_whole_stacks(tmp_path):
    model = zoo.get("layer_stack")
    state, batch = model.init()
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)])
    planned = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method).plan(state, batch)
    signature = planned.traced.signature
    assert planned.plan.arguments == tuple(
        InputInfo(x.name, x.shape, x.dtype, x.kind, x.carried_by) for x in signature.inputs
    )
    assert [x.shape for x in planned.plan.results] == [x.shape for x in signature.outputs]
    step = alpa_mlir.load(planned.save(tmp_path))
    new, metrics = step(state, batch)
    new, _ = step(new, batch)
    expected, want = jax.jit(model.step)(state, batch)
    expected, _ = jax.jit(model.step)(expected, batch)
    assert relative_difference(metrics, want, 1e-3) < 1e-2
    assert relative_difference(new, expected, 1e-2) < 1e-2
