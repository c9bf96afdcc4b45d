"""Rows on the options of methods: layers, stages, shardings."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import (
    AutoLayerOption,
    AutoShardingOption,
    AutoStageOption,
    ManualLayerOption,
    ManualShardingOption,
    ManualStageOption,
    MethodError,
    PipeshardParallel,
    ShardParallel,
    UniformStageOption,
)
from jax.sharding import PartitionSpec as P

from alpa_rows import (
    CLUSTER,
    DEVICES,
    check_same,
    example,
    loss_of,
    pipeline,
    row,
    train_step,
    trained,
)


@row("mark_pipeline_boundary")
def _():
    method = PipeshardParallel(num_micro_batches=2, layer_option="manual")
    traced = alpa_mlir.parallelize(train_step, method=method).trace(*example())
    assert len(traced.plan(CLUSTER).plan.stages) == 2

    def bare(state, batch):
        def loss_of(params):
            h = jnp.tanh(batch["x"] @ params["w0"])
            alpa_mlir.mark_pipeline_boundary()
            return jnp.mean((jnp.tanh(h @ params["w1"]) - batch["y"]) ** 2)

        gradients = jax.grad(loss_of)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients)

    state, batch = example()
    traced = alpa_mlir.parallelize(bare, method=method).trace(state["params"], batch)
    assert len(traced.plan(CLUSTER).plan.stages) == 2


@row("manual_remat")
@row("automatic_remat")
def _():
    state, batch = example()
    for fun in (
        alpa_mlir.manual_remat(loss_of),
        alpa_mlir.automatic_remat(loss_of, layer_num=2),
    ):
        kept = jax.make_jaxpr(fun)(state["params"], batch).jaxpr.eqns
        assert sum(eqn.primitive.name in ("checkpoint", "remat2") for eqn in kept) == 2
        check_same(jax.grad(fun)(state["params"], batch), jax.grad(loss_of)(state["params"], batch))


@row("ManualLayerOption")
def _():
    method = PipeshardParallel(layer_option=ManualLayerOption(remat_layer=True))
    assert (method.layers, method.remat) == (0, "all")
    assert method.settled(CLUSTER, lambda: 2).layer_ranges == ((0, 1), (1, 2))


@row("AutoLayerOption")
def _():
    method = PipeshardParallel(layer_option=AutoLayerOption(layer_num=4))
    assert (method.layers, method.remat) == (4, "none")
    with pytest.raises(MethodError, match="layers are chosen twice"):
        PipeshardParallel(layers=2, layer_option=AutoLayerOption(layer_num=4))


@row("ManualStageOption")
def _():
    option = ManualStageOption([[0], [1]], [(1, 1), (1, 1)], [(1, 1), (1, 1)], [{}, {}])
    method = PipeshardParallel(num_micro_batches=2, stage_option=option)
    assert method.layer_ranges == ((0, 1), (1, 2))
    found = alpa_mlir.parallelize(train_step, cluster=CLUSTER, method=method).plan(*example())
    assert not pipeline().plan.diff(found.plan).as_text().count("stages")
    with pytest.raises(MethodError, match="give the method's `method`"):
        ManualStageOption([[0]], [(1, 1)], None, [{"force_data_parallel": True}])
    with pytest.raises(MethodError, match="every layer once, in order"):
        ManualStageOption([[0], [2]], [(1, 1), (1, 1)])


@row("AutoStageOption")
def _():
    named = PipeshardParallel(stage_option="auto")
    assert named == PipeshardParallel(stage_option=AutoStageOption())
    assert named.stage_options(CLUSTER) == {"pipeline": "auto"}
    with pytest.raises(MethodError, match="unknown pipeline 'equal'"):
        PipeshardParallel(stage_option=AutoStageOption(pipeline="equal"))


@row("UniformStageOption")
def _():
    option = UniformStageOption(num_stages=2)
    cluster = alpa_mlir.Cluster.nominal("four", "cpu", (2, 2), 1 << 30)
    settled = PipeshardParallel(layers=4, stage_option=option).settled(cluster, lambda: 0)
    assert settled.submeshes == ((1, 2), (1, 2))
    assert settled.layer_ranges == ((0, 2), (2, 4))
    assert PipeshardParallel().stage_options(cluster) == {"pipeline": "uniform"}
    with pytest.raises(MethodError, match="2 uniform stages of 3 layers"):
        PipeshardParallel(layers=3, stage_option=option).settled(cluster, lambda: 0)
    with pytest.raises(MethodError, match="3 equal meshes of hosts"):
        PipeshardParallel(layers=3).settled(cluster, lambda: 0)


@row("AutoShardingOption")
def _():
    def named(**options):
        return ShardParallel(auto_sharding_option=AutoShardingOption(**options)).method

    assert named() == "auto"
    assert named(force_data_parallel=True) == "data-parallel"
    assert named(force_data_parallel=True, prefer_reduce_scatter=True) == "zero-2"
    assert named(force_zero_stage_3=True) == "zero-3"
    assert named(enable_auto_sharding=False) == "heuristic"
    assert named(force_batch_dim_to_mesh_dim=0) == "megatron"
    with pytest.raises(MethodError, match="force_batch_dim_to_mesh_dim 1"):
        named(force_batch_dim_to_mesh_dim=1)
    with pytest.raises(MethodError, match="shardings are chosen twice"):
        ShardParallel(method="zero-2", auto_sharding_option=AutoShardingOption())


@row("ManualShardingOption")
def _():
    option = ManualShardingOption(
        mesh_axis_names=("model",),
        in_axis_resources=({"params": P(None, "model"), "opt": P.UNCONSTRAINED}, None),
    )
    step = trained(ShardParallel(mesh_shape=(DEVICES,), manual_sharding_option=option))
    state, batch = step.get_last_executable().get_input_placement_specs()
    assert state["params"]["w0"].sharding_specs == (P(None, "x"),)
    assert batch["x"].sharding_specs == (P(None, None),)
