"""Rows on where steps run and what they are given: clusters, workers, arrays, checkpoints."""

from __future__ import annotations

import types
from pathlib import Path

import alpa_mlir
import alpa_runtime.arrays
import alpa_runtime.version
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AlpaError, CheckpointError, ClusterFileError, ShardParallel

from alpa_rows import (
    CLUSTER,
    DEVICES,
    check_same,
    example,
    expected,
    make_batch,
    model,
    pipeline,
    row,
    sharded,
    train_step,
    trained,
)


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
    workers = types.SimpleNamespace(start=None, close=lambda: closed.append(True))
    alpa_mlir.init(CLUSTER, workers=workers)
    step = alpa_mlir.parallelize(train_step)
    assert step.trace(*example()).cluster == CLUSTER
    alpa_mlir.shutdown()
    assert closed
    assert step.trace(*example()).cluster is None
    with pytest.raises(AlpaError, match=r"nothing was initialized; fix: call init\(\)"):
        alpa_mlir.shutdown()


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
    assert alpa_runtime.arrays.DistributedArray.__module__ == "alpa_runtime.arrays"


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
    assert alpa_mlir.__version__ == alpa_runtime.version.VERSION


@row("collective")
def _():
    assert pipeline().plan.reshards


@row("alpa.model")
@row("llm_serving")
def _():
    # Run by test_examples.py and its like.
    root = Path(__file__).resolve().parents[4] / "examples"
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
