"""Models on workers of this process give the numbers of `jax.jit`: schedules, meshes, tied weights.

One model runs here in one schedule; `make test-full` runs all of them.
"""

from __future__ import annotations

import contextlib
import copy
import pickle

import alpa_mlir
import handmade_sums
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel
from alpa_runtime.arrays import DistributedArray, DistributedKeys, StackedArray
from alpa_runtime.checkpoint import restore_checkpoint, save_checkpoint
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.worker_group import Placement
from alpa_runtime.workers.driver import DistributedPlan
from test_equality import CLUSTER, relative_difference
from test_schedule_equality import (
    MODELS,
    SCHEDULES,
    check_steps,
    model,
    parallel,
    submeshes_of,
)


def placements(plan, count):
    """The plan's meshes on a number of workers, in turn."""
    own = [
        sorted(d for mesh in plan.meshes[rank::count] for d in mesh.devices)
        for rank in range(count)
    ]
    return Placement(tuple(map(tuple, (devices for devices in own if devices))))


def check(name, schedule, stages, workers):
    function = parallel(schedule, name, submeshes_of(schedule, stages))
    plan = function.plan(*model(name).init())
    hosts = ThreadWorkers(placements(plan.plan, workers))
    with contextlib.closing(plan.load(workers=hosts)) as step:
        check_steps(step, name)


def test_a_model():
    check("gpt", "1f1b", "two meshes", 2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all(schedule, name, workers):
    check(name, schedule, "three meshes", workers)


@pytest.mark.parametrize("workers", [2, 3])
def test_sums_over_meshes(workers):
    """Sums that all meshes take part in, zeros, reshards and stages that share a mesh."""
    plan = handmade_sums.as_plan(*handmade_sums.plan_fields(3, "all_gather"))
    placement, group = ThreadWorkers(placements(plan, workers)).start(plan)
    with contextlib.closing(DistributedPlan(plan, placement, group, True)) as step:
        handmade_sums.check_steps(step, 3)


def test_steps_without_gradients():
    """Weights that no step replaces are sent once; stacks of layers are pieces on two workers."""

    def evaluate(params, batch):
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), batch, params["layers"])
        scores = h @ params["head"]
        return {"best": scores.argmax(-1), "mean": scores.mean(), "scores": scores}

    rng = np.random.default_rng(0)
    params = {
        "layers": jnp.asarray(rng.standard_normal((4, 8, 8)), jnp.float32),
        "head": jnp.asarray(rng.standard_normal((8, 6)), jnp.float32),
    }
    batch = rng.standard_normal((8, 8)).astype(np.float32)
    method = PipeshardParallel(submeshes=[(1, 1)] * 4, num_micro_batches=2, layers=4)
    plan = alpa_mlir.parallelize(evaluate, cluster=CLUSTER, method=method).plan(params, batch)
    assert any(info.piece is not None for info in plan.plan.inputs)
    with contextlib.closing(plan.load(workers=ThreadWorkers(placements(plan.plan, 4)))) as step:
        expected = jax.jit(evaluate)(params, batch)
        for _ in range(2):
            found = step(params, batch)
            assert relative_difference(found, expected) < 1e-4
        assert isinstance(found["scores"], DistributedArray)
        step.loaded.synchronize()
        held = [step.loaded.group.ping(rank, 5)["arrays"] for rank in range(4)]
        step(params, batch)
        step.loaded.synchronize()
        more = [step.loaded.group.ping(rank, 5)["arrays"] for rank in range(4)]
        assert all(b <= a + 3 for a, b in zip(held, more, strict=True))  # Results only.


def test_random_keys_and_stacked_state(tmp_path):
    """Keys in the state travel as their data; a stack of layers has pieces on two workers."""

    def train(state, batch):
        used, key = jax.random.split(state["key"])

        def loss(w):
            h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), batch, w)
            return jnp.mean((h * jax.random.bernoulli(used, 0.5, h.shape)) ** 2)

        value, g = jax.value_and_grad(loss)(state["w"])
        return {"w": state["w"] - 0.1 * g, "key": key, "count": state["count"] + 1}, value

    rng = np.random.default_rng(0)
    state = {"w": rng.standard_normal((4, 8, 8)).astype(np.float32), "key": jax.random.key(0)}
    state["count"] = np.int32(7)
    batch = rng.standard_normal((8, 8)).astype(np.float32)
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2, layers=4)
    plan = alpa_mlir.parallelize(train, cluster=CLUSTER, method=method).plan(state, batch)
    results = []
    for workers in (None, ThreadWorkers(placements(plan.plan, 2))):
        with contextlib.closing(plan.load(workers=workers)) as step:
            new = state
            for _ in range(3):
                new, loss = step(new, batch)
            assert isinstance(new["w"], StackedArray)
            key = new["key"]
            if workers is not None:
                assert isinstance(key, DistributedKeys)
                save_checkpoint(tmp_path, new, step=3).wait()
                saved = restore_checkpoint(tmp_path)["key"]
                with pytest.raises(ValueError, match="not producing an array"):
                    np.asarray(key)
                draw = jax.jit(jax.random.uniform)
                assert draw(key) == draw(jax.device_get(new)["key"])
                assert draw(pickle.loads(pickle.dumps(key))) == draw(copy.deepcopy(key))
                assert not key.is_deleted()
                key = jax.block_until_ready(key).whole()
                assert jax.random.key_data(saved).tolist() == jax.random.key_data(key).tolist()
            results.append((np.asarray(new["w"]), jax.random.key_data(key), float(loss)))
            assert (new["count"].shape, int(new["count"])) == ((), 10)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
