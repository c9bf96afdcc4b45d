"""Rows on methods: how a step is parallelized."""

from __future__ import annotations

import re

import alpa_mlir
import jax
import pytest
from alpa_mlir import MethodError, PipeshardParallel, ShardParallel
from jax.sharding import PartitionSpec as P

from alpa_rows import (
    CLUSTER,
    DEVICES,
    PIPELINE,
    check_same,
    create_state,
    example,
    expected,
    follow,
    loss_of,
    make_batch,
    pipeline,
    row,
    sharded,
    specs_of,
    train_step,
    trained,
)


@row("ShardParallel")
def _():
    step = trained(ShardParallel(mesh_shape=(DEVICES,))).get_executable(*example())
    assert [mesh.shape for mesh in step.plan.meshes] == [(DEVICES,)]


# Whether the weights, the optimizer state and the batch are split.


@row("DataParallel")
def _():
    step = trained(alpa_mlir.DataParallel()).get_executable(*example())
    assert specs_of(step) == [False, False, True]


@row("Zero2Parallel")
def _():
    assert specs_of(sharded()) == [False, True, True]
    # Of one device's programs, which say what is sent.
    sent = {}
    for kind in (alpa_mlir.DataParallel, alpa_mlir.Zero2Parallel):
        method = kind(export="collectives")
        step = alpa_mlir.parallelize(train_step, cluster=CLUSTER, method=method)
        (text,) = step.plan(*example()).plan.modules.values()
        sent[kind] = set(re.findall(r"stablehlo\.(all_reduce|reduce_scatter|all_gather)", text))
    assert sent[alpa_mlir.DataParallel] == {"all_reduce"}
    assert sent[alpa_mlir.Zero2Parallel] >= {"reduce_scatter", "all_gather"}


@row("Zero3Parallel")
def _():
    step = trained(alpa_mlir.Zero3Parallel()).get_executable(*example())
    assert specs_of(step) == [True, True, True]


@row("PipeshardParallel")
def _():
    plan = pipeline().plan
    assert [stage.layers for stage in plan.stages] == [(0, 1), (1, 2)]
    assert [mesh.devices for mesh in plan.meshes] == [(0,), (1,)]
    assert PipeshardParallel(pipeline_schedule="gpipe").schedule == "gpipe"
    assert PipeshardParallel(pipeline_schedule="inference").schedule == "1f1b"


@row("CreateStateParallel")
def _():
    for step in (trained(PIPELINE), trained(alpa_mlir.Zero2Parallel())):
        shapes = jax.eval_shape(make_batch)
        for others in ((shapes,), shapes):
            method = alpa_mlir.CreateStateParallel(step, others)
            create = alpa_mlir.parallelize(create_state, method=method)
            state = create(jax.random.key(0))
        check_same(state, example()[0], rtol=0)
        loaded = create.get_last_executable().loaded
        for index, x in enumerate(jax.tree.leaves(state)):
            assert x.sharding is loaded.sharding_of_input(index)
        check_same(step(state, make_batch()), expected())
    with pytest.raises(MethodError, match="a cluster or workers for a function that makes"):
        alpa_mlir.parallelize(create_state, cluster=CLUSTER, method=method)


@row("FollowParallel")
@row("FollowLayerOption")
def _():
    with pytest.raises(MethodError, match="the function to follow has not been compiled"):
        follow(alpa_mlir.parallelize(train_step))(*example())
    batch = make_batch()
    for step in (trained(PIPELINE), trained(alpa_mlir.Zero3Parallel())):
        # Stages, meshes and devices other than a search for this function would take.
        state, _loss = step(*example())
        evaluate = follow(step)
        loss = evaluate(state["params"], batch)
        check_same(loss, jax.jit(loss_of)(expected()[0]["params"], batch))
        found = evaluate.get_last_executable()
        source = step.get_last_executable()
        assert len(found.plan.stages) == len(source.plan.stages)
        for index, x in enumerate(jax.tree.leaves(state["params"])):
            # So it is not copied.
            assert found.loaded.sharding_of_input(index).is_equivalent_to(x.sharding, x.ndim)
    with pytest.raises(MethodError, match="argument 0 is neither the state of train_step, nor its"):
        evaluate(state["opt"], batch)


@row("PipeshardParallel(stage_input_shardings)")
def _():
    cluster = alpa_mlir.Cluster.nominal("four", "cpu", (4,), 1 << 30)
    pins = {"params": {"w0": P(None, "x"), "w1": P("x")}, "opt": None}
    method = PipeshardParallel(
        submeshes=[(1, 2), (1, 2)],
        mesh_shapes=[(2, 1), (2, 1)],
        method="manual",
        in_shardings=(pins, None),
    )
    plan = alpa_mlir.parallelize(train_step, cluster=cluster, method=method).plan(*example()).plan
    specs = {w.name: w.spec for stage in plan.stages for w in stage.weights}
    assert specs["state['params']['w0']"] == ((), ("x",))
    assert specs["state['params']['w1']"] == (("x",), ())


@row("LocalPipelineParallel")
def _():
    method = alpa_mlir.Zero2Parallel()
    step = alpa_mlir.parallelize(
        train_step, cluster=CLUSTER, method=method, workers=alpa_mlir.ThreadWorkers()
    )
    state, _loss = step(*example())
    evaluate = follow(step)
    check_same(
        evaluate(state["params"], make_batch()),
        jax.jit(loss_of)(expected()[0]["params"], make_batch()),
    )
    for function in (step, evaluate):
        function.get_last_executable().close()


@row("get_3d_parallel_method")
def _():
    cluster = alpa_mlir.Cluster.load("cpu-test")  # Two hosts with four devices each.
    method = alpa_mlir.get_3d_parallel_method(4, -1, 2, 2, cluster=cluster)
    assert method.settled(cluster, lambda: 0) == PipeshardParallel(
        num_micro_batches=4,
        method="megatron",
        layers=2,
        submeshes=((1, 4), (1, 4)),
        mesh_shapes=((2, 2), (2, 2)),
        layer_ranges=((0, 1), (1, 2)),
    )
    alpa_mlir.init(CLUSTER)
    method = alpa_mlir.get_3d_parallel_method(2, -1, 1, 1)
    assert method == ShardParallel(mesh_shape=(2, 1), method="zero-2", num_micro_batches=2)
    with pytest.raises(MethodError, match="1 x 2 x 2 devices of a cluster with 2"):
        alpa_mlir.get_3d_parallel_method(2, 1, 2, 2)


@row("plan_to_method")
def _():
    plan = pipeline().plan
    method = alpa_mlir.plan_to_method(plan)
    assert isinstance(method, PipeshardParallel)
    again = alpa_mlir.parallelize(train_step, cluster=CLUSTER, method=method).plan(*example())
    assert not plan.diff(again.plan).as_text().count("stages")
    assert alpa_mlir.plan_to_method(sharded().plan).mesh_shape == sharded().plan.meshes[0].shape
