"""A planned step gives the numbers of plain `jax.jit`, for every way of cutting it up."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import numpy as np
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_runtime.execution.loaded_plan import load as load_plan
from conditioned import check_state

STEPS = 3

CLUSTER = {
    "name": "test",
    "device_types": {
        "small": {
            "memory_bytes": "2GiB",
            "memory_bandwidth": 1e10,
            "peak_flops": {"float32": 2e10, "bfloat16": 2e10, "float64": 1e10, "float16": 2e10},
        }
    },
    "hosts": {"count": 2, "devices": 4, "device_type": "small"},
    "links": {
        "intra_host": {"bandwidth": 4e9, "latency": 2e-6},
        "inter_host": {"bandwidth": 1e8, "latency": 5e-5},
    },
}

MESHES = {
    "one mesh": ShardParallel(mesh_shape=(2, 2)),
    "two stages": PipeshardParallel(submeshes=[(1, 2), (1, 2)]),
    "two unequal stages": PipeshardParallel(submeshes=[(1, 4), (1, 2)]),
    "four stages": PipeshardParallel(submeshes=[(1, 1)] * 4),
}


def relative_difference(found, expected, floor=1e-6) -> float:
    """The largest difference of any leaf, relative to the leaf's largest magnitude.

    Leaves below `floor` may hold rounding noise only, such as the gradients of attention keys'
    biases, which are zero but for rounding. Adam makes visible updates of such noise.
    """

    def of_leaf(a, b):
        if jax.dtypes.issubdtype(getattr(b, "dtype", np.int32), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        if not a.size:
            return 0.0
        return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), floor))

    return max(jax.tree.leaves(jax.tree.map(of_leaf, found, expected)), default=0.0)


@functools.cache
def gpt():
    return zoo.make_gpt(zoo.GPTConfig(layers=4, optimizer="sgd", learning_rate=0.1))


@functools.cache
def gpt_reference():
    model = gpt()
    return run(jax.jit(model.step), *model.init())


def run(step, state, batch):
    """Losses and parameters after a few steps on one batch."""
    losses = []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        losses.append(metrics["loss"])
    return losses, state.params if hasattr(state, "params") else state


def assert_steps_of_jit(compiled, step, params, batch, count=2):
    """Values and parameters of a compiled step are those of `jax.jit`, step by step."""
    found, expected = params, params
    for _ in range(count):
        found, value = compiled(found, batch)
        expected, expected_value = jax.jit(step)(expected, batch)
        assert relative_difference(value, expected_value) < 1e-5
        assert relative_difference(found, expected, 1e-6) < 1e-5


def with_count(method, count):
    import dataclasses

    return dataclasses.replace(method, num_micro_batches=count)


# Every mesh and every number of micro-batches; `make test-full` runs all pairs.
_FAST = {("one mesh", 1), ("one mesh", 4), ("two stages", 2), ("two unequal stages", 4)}
_FAST |= {("four stages", 1), ("four stages", 2)}


@pytest.mark.parametrize(
    ("mesh", "count"),
    [
        pytest.param(mesh, count, marks=[pytest.mark.slow] * ((mesh, count) not in _FAST))
        for mesh in MESHES
        for count in (1, 2, 4)
    ],
)
def test_gpt(mesh, count):
    model = gpt()
    state, batch = model.init()
    method = with_count(MESHES[mesh], count)
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    assert len(step.plan.stages) == len(getattr(method, "submeshes", [0]))
    assert step.plan.num_micro_batches == count
    losses, params = run(step, state, batch)
    expected_losses, expected_params = gpt_reference()
    assert relative_difference(losses, expected_losses) < 1e-4
    assert relative_difference(params, expected_params) < 1e-4


def test_gpt_with_adamw_and_clipping():
    """The global norm crosses all stages; Adam's scalars live on each of them."""
    model = zoo.make_gpt(zoo.GPTConfig(layers=2))
    state, batch = model.init()
    method = PipeshardParallel(submeshes=[(1, 2), (1, 1)], num_micro_batches=2)
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    before = found = expected = jax.device_get(state)
    reference = jax.jit(model.step)
    for _ in range(STEPS):
        found, metrics = step(found, batch)
        expected, wanted = reference(expected, batch)
        assert relative_difference(metrics["loss"], wanted["loss"]) < 1e-4
    check_state(before, found, expected, rtol=1e-4)


def test_gpt_automatic():
    model = gpt()
    state, batch = model.init()
    step = alpa_mlir.compile(
        model.step, state, batch, cluster=CLUSTER, method=AutoParallel(num_micro_batches=4)
    )
    losses, params = run(step, state, batch)
    expected_losses, expected_params = gpt_reference()
    assert relative_difference(losses, expected_losses) < 1e-4
    assert relative_difference(params, expected_params) < 1e-4


RACKS = {
    **CLUSTER,
    "hosts": {"count": 4, "devices": 2, "device_type": "small"},
    "racks": {"hosts": 2},
    "links": {**CLUSTER["links"], "inter_rack": {"bandwidth": 2e7, "latency": 2e-4}},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "method",
    [AutoParallel(num_micro_batches=4), ShardParallel(mesh_shape=(2, 4))],
    ids=["auto", "one mesh"],
)
def test_gpt_on_two_racks(method):
    """Racks of two hosts of two devices, on the eight devices of this process."""
    model = gpt()
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=RACKS, method=method)
    for mesh in step.plan.meshes:
        racks = {device // 4 for device in mesh.devices}
        assert len(racks) == 1 or len(mesh.devices) == 8
    losses, params = run(step, state, batch)
    expected_losses, expected_params = gpt_reference()
    assert relative_difference(losses, expected_losses) < 1e-4
    assert relative_difference(params, expected_params) < 1e-4


def test_gpt_on_unequal_hosts():
    """Stages on devices of two types, and on hosts of which neither count is a power of two."""
    types = CLUSTER["device_types"]
    slow = {**types["small"], "peak_flops": {"float32": 1e10}}
    cluster = {
        **CLUSTER,
        "device_types": {**types, "slow": slow},
        "hosts": [{"devices": 3, "device_type": "small"}, {"devices": 5, "device_type": "slow"}],
    }
    model = gpt()
    state, batch = model.init()
    method = AutoParallel(num_micro_batches=4)
    step = alpa_mlir.compile(model.step, state, batch, cluster=cluster, method=method)
    losses, params = run(step, state, batch)
    expected_losses, expected_params = gpt_reference()
    assert relative_difference(losses, expected_losses) < 1e-4
    assert relative_difference(params, expected_params) < 1e-4


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["mlp", "moe", "vit", "wide_resnet"])
def test_other_models_on_one_mesh(name):
    model = zoo.get(name)
    state, batch = jax.device_get(model.init())
    step = alpa_mlir.compile(
        model.step, state, batch, cluster=CLUSTER, method=ShardParallel(mesh_shape=(1, 2))
    )
    new_state, metrics = step(state, batch)
    expected_state, expected = jax.jit(model.step)(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-4
    check_state(state, new_state, expected_state, rtol=1e-4)


def test_state_stays_on_its_mesh_between_steps():
    model = gpt()
    state, batch = model.init()
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2)
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    state, _ = step(state, batch)
    again, _ = step(state, batch)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
        if before.ndim:
            assert before.sharding == after.sharding
            assert before.is_deleted()
            assert not after.is_deleted()
    with pytest.raises(alpa_mlir.ArgumentMismatchError, match="earlier step"):
        step(state, batch)


def test_a_saved_plan_gives_the_same_numbers(tmp_path):
    model = gpt()
    state, batch = model.init()
    step = alpa_mlir.compile(
        model.step, state, batch, cluster=CLUSTER, method=PipeshardParallel(submeshes=[(1, 2)])
    )
    loaded = load_plan(alpa_mlir.Plan.load(step.plan.save(tmp_path)))
    results = loaded(step.form.flatten_args(state, batch))
    expected = jax.tree.leaves(step(state, batch))
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_array_equal(a, b)


SMALL = {**CLUSTER, "device_types": {"small": {**CLUSTER["device_types"]["small"]}}}
SMALL["device_types"]["small"]["memory_bytes"] = "64KiB"


@pytest.mark.parametrize(
    ("kind", "message", "cluster", "method"),
    [
        (
            alpa_mlir.MicroBatchError,
            r"batch\['\w+'\].*8.*3",
            CLUSTER,
            AutoParallel(num_micro_batches=3),
        ),
        (alpa_mlir.InfeasiblePlanError, "no plan fits into memory", SMALL, ShardParallel()),
        (alpa_mlir.MethodError, "submesh", CLUSTER, PipeshardParallel(submeshes=[(9, 9)])),
        (
            alpa_mlir.ClusterFileError,
            "memory_bytes",
            {**CLUSTER, "device_types": {"small": {}}},
            None,
        ),
    ],
)
def test_bad_input_is_named(kind, message, cluster, method):
    model = gpt()
    state, batch = model.init()
    with pytest.raises(kind, match=message) as caught:
        alpa_mlir.compile(model.step, state, batch, cluster=cluster, method=method)
    # All errors of a cluster are said, a line each.
    assert kind is alpa_mlir.ClusterFileError or "\n" not in str(caught.value)


def test_malformed_module_is_named():
    from alpa_mlir.compiler import Module

    with pytest.raises(alpa_mlir.ModuleSyntaxError, match=r"bad\.mlir:1:"):
        Module("func.func @f( {", "bad.mlir")
