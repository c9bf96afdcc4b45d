"""Rows on steps and what has been compiled of them."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import MethodError, ShardParallel
from jax.sharding import PartitionSpec as P

from alpa_rows import (
    CLUSTER,
    check_same,
    example,
    expected,
    loss_of,
    make_batch,
    pipeline,
    row,
    sharded,
    train_step,
    trained,
)


@row("parallelize")
def _():
    @alpa_mlir.parallelize(
        cluster=CLUSTER, method=ShardParallel(), static_argnums="auto", batch_argnums=1
    )
    def step(w, x, name, scale):
        assert name == "sum"
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2) * scale)(w)
        return w - gradient, loss

    w, x = np.full((8, 4), 0.1, np.float32), make_batch()["x"]
    found = step(w, x, "sum", 2.0)
    check_same(found, jax.jit(step.fn, static_argnums=(2, 3))(w, x, "sum", 2.0))


@row("parallelize(donate_argnums)")
def _():
    def traced(argnums):
        return alpa_mlir.parallelize(train_step, donate_argnums=argnums).trace(*example())

    assert traced("auto").options.donate_state
    assert traced(0).options.donate_state
    assert not traced(()).options.donate_state
    with pytest.raises(MethodError, match="donate batch, but the step returns state anew"):
        traced(1)


@row("grad")
def _():
    state, batch = example()

    def step(params, batch):
        gradients = alpa_mlir.grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    parallel = alpa_mlir.parallelize(
        step, cluster=CLUSTER, method=ShardParallel(num_micro_batches=2)
    )
    check_same(parallel(state["params"], batch), jax.jit(step)(state["params"], batch))


@row("value_and_grad")
def _():
    state, batch = example()
    found = alpa_mlir.value_and_grad(loss_of)(state["params"], batch)
    check_same(found, jax.value_and_grad(loss_of)(state["params"], batch))
    assert pipeline().plan.num_micro_batches == 2  # Its step takes gradients so.


@row("ParallelizedFunc")
def _():
    assert isinstance(alpa_mlir.parallelize(train_step), alpa_mlir.ParallelFunction)


@row("ParallelizedFunc.get_executable")
@row("ParallelizedFunc.get_last_executable")
def _():
    step = trained(alpa_mlir.Zero2Parallel())
    found = step.get_executable(*jax.eval_shape(lambda: example()))
    assert isinstance(found, alpa_mlir.ParallelStep)
    assert found is step.get_last_executable()
    assert alpa_mlir.parallelize(train_step).get_last_executable() is None


@row("ParallelizedFunc.preshard_dynamic_args")
def _():
    for step in (trained(alpa_mlir.Zero2Parallel()), pipeline()):
        place = getattr(step, "preshard_dynamic_args", None) or step.place
        state, batch = place(*example())
        check_same(state, example()[0], rtol=0)
        check_same(step(state, batch), expected())
        assert state["params"]["w0"].is_deleted()  # It was the step's to use up.
        check_same(step(*place(*example())), expected())


@row("MeshDriverExecutable.launch_on_driver")
def _():
    check_same(pipeline()(*example()), expected())


@row("MeshDriverExecutable.get_input_placement_specs")
@row("PlacementSpec")
def _():
    state, batch = pipeline().get_input_placement_specs()
    assert [state["params"][f"w{i}"].mesh_ids for i in range(2)] == [(0,), (1,)]
    assert (batch["x"].mesh_ids, batch["y"].mesh_ids) == ((0,), (1,))
    assert isinstance(batch["x"], alpa_mlir.PlacementSpec)
    assert (batch["x"].shape, batch["x"].dtype) == ((4, 8), "float32")


@row("MeshDriverExecutable.get_output_placement_specs")
def _():
    for step in (pipeline(), sharded()):
        state, loss = step.get_output_placement_specs()
        # State comes back where it is taken from.
        assert state == step.get_input_placement_specs()[0]
        assert loss.sharding_specs == (P(),)
        found, _ = step(*example())
        for spec, x in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
            assert spec.shape == x.shape


@row("MeshDriverExecutable.get_parallel_plan")
@row("MeshDriverExecutable.get_hlo_text")
def _():
    plan = pipeline().plan
    assert len(plan.modules) == len(plan.stages) == 2
    assert all("stablehlo.dot_general" in text for text in plan.modules.values())


@row("MeshDriverExecutable.get_total_allocation_size")
def _():
    found = pipeline().loaded.memory_bytes()
    assert found
    assert all(isinstance(size, int) and size > 0 for size in found.values())


@row("MeshDriverExecutable.profile_with_dummy_inputs")
def _():
    assert ShardParallel(finalists=2).finalists == 2


@row("MeshDriverExecutable.dump_debug_info")
def _():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pipeline().plan.save(folder)
        assert alpa_mlir.Plan.load(folder) == pipeline().plan


@row("MeshDriverExecutable.sync")
def _():
    state, loss = jax.block_until_ready(sharded()(*example()))
    assert loss.is_ready()
    del state
