"""Every row of docs/coming-from-alpa.md does what it says."""

from __future__ import annotations

import re
import types
from pathlib import Path

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import (
    AlpaError,
    AutoLayerOption,
    AutoShardingOption,
    AutoStageOption,
    CheckpointError,
    ClusterFileError,
    ManualLayerOption,
    ManualShardingOption,
    ManualStageOption,
    MethodError,
    PipeshardParallel,
    ShardParallel,
    UniformStageOption,
)
from alpa_mlir.alpa_names import INSTEAD
from alpa_rows import (
    CLUSTER,
    DEVICES,
    PIPELINE,
    ROWS,
    check_same,
    create_state,
    example,
    expected,
    loss_of,
    make_batch,
    model,
    pipeline,
    row,
    sharded,
    specs_of,
    train_step,
    trained,
)
from jax.sharding import PartitionSpec as P

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-alpa.md"
TABLE = {
    name: (here.strip(), difference.strip())
    for name, here, difference in re.findall(
        r"^\| `([^`]+)` \|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE
    )
}
# What `from alpa import *` of its last version, 1.0.0.dev0, gives besides modules.
EXPORTS = [
    "init",
    "shutdown",
    "parallelize",
    "grad",
    "value_and_grad",
    "clear_executable_cache",
    "DataLoader",
    "MeshDriverDataLoader",
    "DeviceCluster",
    "PhysicalDeviceMesh",
    "LocalPhysicalDeviceMesh",
    "DistributedPhysicalDeviceMesh",
    "DistributedArray",
    "prefetch",
    "get_global_cluster",
    "get_global_physical_mesh",
    "get_global_virtual_physical_mesh",
    "set_global_virtual_physical_mesh",
    "set_seed",
    "get_global_num_devices",
    "global_config",
    "ProfilingResultDatabase",
    "ShardParallel",
    "DataParallel",
    "Zero2Parallel",
    "Zero3Parallel",
    "PipeshardParallel",
    "CreateStateParallel",
    "FollowParallel",
    "get_3d_parallel_method",
    "plan_to_method",
    "mark_pipeline_boundary",
    "manual_remat",
    "automatic_remat",
    "ManualLayerOption",
    "AutoLayerOption",
    "ManualStageOption",
    "AutoStageOption",
    "UniformStageOption",
    "AutoShardingOption",
    "ManualShardingOption",
    "save_checkpoint",
    "restore_checkpoint",
    "timers",
    "__version__",
]


def test_the_table_has_every_name():
    assert set(EXPORTS) <= set(TABLE)
    same = {name for name, (here, _) in TABLE.items() if here == "="}
    assert {name for name in same if "." not in name} <= {*alpa_mlir.__all__, "__version__"}
    assert set(INSTEAD) == {n for n in (*EXPORTS, "collective") if not hasattr(alpa_mlir, n)}


def test_no_test_is_without_a_row():
    assert set(ROWS) <= set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_row(name):
    here, _ = TABLE[name]
    if name in INSTEAD:
        with pytest.raises(AttributeError, match="; use "):
            getattr(alpa_mlir, name)
    assert here
    ROWS[name]()


@pytest.fixture(autouse=True)
def _no_session():
    yield
    if alpa_mlir.session.current_session() is not None:
        alpa_mlir.shutdown()


@row("init")
def _():
    alpa_mlir.init("local")
    alpa_mlir.init("local")
    assert alpa_mlir.get_global_cluster() == alpa_mlir.Cluster.live()
    with pytest.raises(AlpaError, match=r"it is 'live-cpu' already; fix: call shutdown\(\)"):
        alpa_mlir.init(CLUSTER)
    with pytest.raises(ClusterFileError, match="not Ray's"):
        alpa_mlir.init("local", devices_per_node=2)


@row("shutdown")
def _():
    closed = []
    workers = types.SimpleNamespace(close=lambda: closed.append(True))
    alpa_mlir.init(CLUSTER, workers=workers)
    step = alpa_mlir.parallelize(train_step)
    assert step.trace(*example()).cluster == CLUSTER
    alpa_mlir.shutdown()
    assert closed
    assert step.trace(*example()).cluster is None
    with pytest.raises(AlpaError, match=r"nothing was initialized; fix: call init\(\)"):
        alpa_mlir.shutdown()


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
    with pytest.raises(MethodError, match="donate_argnums 1; arguments 0 are state"):
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


@row("clear_executable_cache")
def _():
    step = trained(alpa_mlir.Zero2Parallel())
    first = step.get_executable(*example())
    assert step.get_executable(*example()) is first
    alpa_mlir.clear_executable_cache()
    assert step.get_last_executable() is None
    assert step.get_executable(*example()) is not first


@row("DataLoader")
def _():
    step = pipeline()
    with alpa_mlir.DataLoader([make_batch()] * 2, step) as loader:
        state = step.place(*example())[0]
        for batch in loader:
            state, loss = step(state, batch)
    assert float(loss) < float(expected()[1])


@row("MeshDriverDataLoader")
def _():
    data = make_batch()

    def read(start, end, size):
        for first in range(start, end, size):
            yield {name: x[first : first + size] for name, x in data.items()}

    asked = []

    def noted(*numbers):
        asked.append(numbers)
        return read(*numbers)

    with alpa_mlir.MeshDriverDataLoader(8, 15, noted, sharded()) as loader:
        assert len(loader) == 1
        (batch,) = loader
    assert asked == [(0, 8, 8)]
    check_same(np.asarray(batch["x"]), data["x"])


@row("DeviceCluster")
def _():
    assert alpa_mlir.Cluster.load("cpu-test").num_devices == 8


@row("PhysicalDeviceMesh")
def _():
    assert ShardParallel(mesh_shape=(2, 2)).stage_options(alpa_mlir.Cluster.load("cpu-test")) == {
        "submeshes": "1x4",
        "mesh-shapes": "2x2",
    }


@row("LocalPhysicalDeviceMesh")
def _():
    assert alpa_mlir.Cluster.live().num_devices == len(jax.devices())


@row("DistributedPhysicalDeviceMesh")
def _():
    workers = alpa_mlir.ThreadWorkers()  # As RayWorkers, but in this process.
    step = alpa_mlir.parallelize(
        train_step, cluster=CLUSTER, method=alpa_mlir.Zero2Parallel(), workers=workers
    )
    check_same(step(*example()), expected())
    step.get_last_executable().close()


@row("DistributedArray")
def _():
    state, _loss = trained(alpa_mlir.Zero2Parallel())(*example())
    assert isinstance(state["params"]["w0"], jax.Array)
    assert alpa_mlir.runtime.array.DistributedArray.__module__ == "alpa_mlir.runtime.array"


@row("prefetch")
def _():
    asked = []
    array = types.SimpleNamespace(copy_to_host_async=lambda: asked.append(1))
    alpa_mlir.prefetch({"a": [array, 3, "x"], "b": jnp.ones(2), "c": array})
    assert asked == [1, 1]


@row("get_global_cluster")
def _():
    with pytest.raises(AlpaError, match="nothing was initialized"):
        alpa_mlir.get_global_cluster()
    alpa_mlir.init("cpu-test")
    assert alpa_mlir.get_global_cluster().name == "cpu-test"


@row("get_global_physical_mesh")
@row("get_global_virtual_physical_mesh")
@row("set_global_virtual_physical_mesh")
@row("get_global_num_devices")
def _():
    alpa_mlir.init(CLUSTER)
    assert alpa_mlir.get_global_cluster().devices_per_host == (DEVICES,)
    assert alpa_mlir.get_global_num_devices() == DEVICES


@row("set_seed")
def _():
    @alpa_mlir.parallelize(cluster=CLUSTER, method=ShardParallel())
    def step(key, x):
        key, used = jax.random.split(key)
        return key, x + jax.random.normal(used, x.shape)

    x = make_batch()["x"]
    check_same(step(jax.random.PRNGKey(3), x), jax.jit(step.fn)(jax.random.PRNGKey(3), x))


@row("global_config")
def _():
    assert ShardParallel(memory_fraction=0.5).memory_fraction == 0.5


@row("ProfilingResultDatabase")
def _():
    from alpa_mlir.cli import main

    with pytest.raises(SystemExit) as done:
        main(["profile", "--help"])
    assert done.value.code == 0


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


def follow(step, **options):
    method = alpa_mlir.FollowParallel(step, **options)
    return alpa_mlir.parallelize(loss_of, method=method)


def test_followers_with_specs_and_marks_of_their_own():
    step = trained(PIPELINE)
    state, _loss = step(*example())
    source = step.get_last_executable()
    params = source.get_input_placement_specs()[0]["params"]
    evaluate = follow(
        step,
        get_input_placement_specs=lambda: (params, None),
        layer_option="manual",
        num_micro_batches=2,
    )
    check_same(
        evaluate(state["params"], make_batch()),
        jax.jit(loss_of)(expected()[0]["params"], make_batch()),
    )
    assert evaluate.get_last_executable().plan.num_micro_batches == 2

    def first(params, batch):  # Of one mesh's weights only.
        return jnp.tanh(batch["x"] @ params["w1"])

    method = alpa_mlir.FollowParallel(step)
    half = alpa_mlir.parallelize(first, method=method)
    check_same(half(state["params"], make_batch()), first(expected()[0]["params"], make_batch()))
    (_mesh,) = half.get_last_executable().plan.meshes
    assert half.get_last_executable().loaded.devices_of(0) == source.loaded.devices_of(1)
    with pytest.raises(MethodError, match="layer_option 'auto'"):
        alpa_mlir.FollowParallel(step, layer_option="auto")
    with pytest.raises(MethodError, match="a cluster for a function that follows"):
        alpa_mlir.parallelize(loss_of, cluster=CLUSTER, method=method)
    with pytest.raises(MethodError, match="placement specs of argument 0: "):
        follow(step, get_input_placement_specs=lambda: ({"w0": None}, None))(
            state["params"], make_batch()
        )


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


def _saved(folder):
    state, _loss = trained(alpa_mlir.Zero2Parallel())(*example())
    alpa_mlir.save_checkpoint(folder, state, step=7, keep=2).wait()
    return state


@row("save_checkpoint")
@row("restore_checkpoint")
def _():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        state = _saved(folder)
        found = alpa_mlir.restore_checkpoint(folder, pipeline(), step=7)
        check_same(found, state, rtol=0)
        with pytest.raises(CheckpointError):
            alpa_mlir.restore_checkpoint(folder, pipeline(), step=8)


@row("timers")
@row("MeshDriverExecutable.get_execution_time_costs")
def _():
    step = pipeline()
    with step.record() as recording:
        jax.block_until_ready(step(*example()))
    (seconds,) = recording.trace.step_seconds
    assert seconds > 0


@row("__version__")
def _():
    assert alpa_mlir.__version__ == alpa_mlir.version.VERSION


@row("collective")
def _():
    assert pipeline().plan.reshards


@row("alpa.model")
@row("llm_serving")
def _():
    # Run by test_examples.py and its like.
    root = PAGE.parents[1] / "examples"
    for name in ("train_gpt", "train_moe", "train_images", "lora_gpt", "serve_gpt"):
        assert "def entry(" in (root / f"{name}.py").read_text()


@row("alpa.torch")
def _():
    import tempfile

    params, batch = example()[0]["params"], make_batch()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.mlir"
        file.write_text(jax.jit(model).lower(params, batch["x"]).as_text())
        step = alpa_mlir.stablehlo_file.read_stablehlo(file, method=alpa_mlir.Zero3Parallel())
    planned = step.plan(CLUSTER)
    (found,) = planned.load()(*jax.tree.leaves(params), batch["x"])
    check_same(found, jax.jit(model)(params, batch["x"]))


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


def test_follows_a_function_without_gradients():
    def apply(state, x):
        x = x + state["count"]
        for w in state["weights"]:
            x = jnp.tanh(x @ w)
        return {**state, "count": state["count"] + (x[0, 0] > 0)}, x

    weights = [0.3 * jax.random.normal(jax.random.key(i), (16, 16)) for i in range(4)]
    state, x = {"weights": weights, "count": jnp.int32(2)}, np.ones((8, 16), np.float32)
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)])
    step = alpa_mlir.parallelize(apply, cluster="cpu-test", method=method)
    check_same(step(state, x), apply(state, x))

    def summed(state, x):
        return apply(state, x)[1].sum(-1)

    follower = alpa_mlir.parallelize(summed, method=alpa_mlir.FollowParallel(step))
    check_same(follower(state, x), summed(state, x))
    mine, theirs = (f.get_last_executable() for f in (follower, step))
    specs = [found.get_input_placement_specs()[0] for found in (mine, theirs)]
    assert specs[1]["count"].mesh_ids == (1,)  # Which does not cut the function where it is read.
    assert specs[0]["weights"] == specs[1]["weights"]
    assert mine.plan.predicted["step_seconds"] < float("inf")
