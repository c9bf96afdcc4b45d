"""Meshes that span processes: each is in one world of its workers, whatever else they hold."""

from __future__ import annotations

import contextlib

import alpa_mlir
import handmade
import handmade_sums
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.worker_group import Placement
from alpa_runtime.workers.driver import DistributedPlan
from test_equality import CLUSTER
from test_schedule_equality import check_steps, model, parallel
from test_workers import train

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def started(plan, workers, donate_state=True):
    hosts = ProcessWorkers(Placement(workers), platform="cpu")
    placement, group = hosts.start(plan, donate_state=donate_state)
    with contextlib.closing(DistributedPlan(plan, placement, group, donate_state)) as step:
        yield step


@pytest.mark.parametrize(
    ("first", "second", "workers", "worlds"),
    [
        # A worker of both meshes, which span two others.
        ((2, 1), (1, 2), ((0,), (1, 2), (3,)), ((0, 1, 2),)),
        # Both meshes on the same workers.
        ((2, 2), (2, 2), ((0, 1, 4, 5), (2, 3, 6, 7)), ((0, 1),)),
        # Two worlds.
        ((2, 1), (1, 2), ((0,), (1,), (2,), (3,)), ((0, 1), (2, 3))),
    ],
)
def test_equals_single_device(first, second, workers, worlds):
    plan = handmade.as_plan(*handmade.two_stages(3, "1f1b", first, second))
    assert Placement(workers).worlds(plan) == worlds
    with started(plan, workers) as step:
        handmade.check_steps(step, 3)


def test_sums_over_meshes():
    plan = handmade_sums.as_plan(*handmade_sums.plan_fields(2))
    devices = [list(mesh.devices) for mesh in plan.meshes]
    (wide,) = [own for own in devices if len(own) == max(map(len, devices))][:1]
    others = sorted(d for own in devices if own is not wide for d in own)
    half = len(wide) // 2
    with started(plan, (tuple(wide[:half]), tuple(sorted([*wide[half:], *others])))) as step:
        handmade_sums.check_steps(step, 2)


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_models(name):
    """Stages on two meshes, each over two workers of which one has devices of both."""
    plan = parallel("1f1b", name, [(1, 2), (1, 2)]).plan(*model(name).init())
    devices = [mesh.devices for mesh in plan.plan.meshes]
    middle = tuple(sorted((devices[0][1], devices[1][0])))
    hosts = ProcessWorkers(Placement(((devices[0][0],), middle, (devices[1][1],))), platform="cpu")
    with contextlib.closing(plan.load(workers=hosts)) as step:
        check_steps(step, name)


def test_arrays_of_a_spanning_mesh():
    """Made in place, given twice, read, kept and used up."""
    w = {name: np.full((8, 8), 0.1, np.float32) for name in ("a", "b")}
    x = np.ones((8, 8), np.float32)
    method = PipeshardParallel(submeshes=[(1, 2)], num_micro_batches=1)
    workers = ProcessWorkers(Placement(((0,), (1,))), platform="cpu")
    step = alpa_mlir.compile(train, w, x, cluster=CLUSTER, method=method, workers=workers)
    with contextlib.closing(step):
        start = step.init(lambda: {"a": jnp.full((8, 8), 0.1), "b": jnp.full((8, 8), 0.1)})
        assert start["a"].workers == (0, 1)
        first, _ = step(start, x)
        assert start["a"].is_deleted()
        expected = jax.jit(train)({"a": np.asarray(first["a"]), "b": np.asarray(first["a"])}, x)
        second, loss = step({"a": first["a"], "b": first["a"]}, x)
        assert jax.block_until_ready(loss) is loss
        np.testing.assert_allclose(loss, expected[1], rtol=1e-5)
        np.testing.assert_allclose(second["b"], expected[0]["b"], rtol=1e-5)
        assert first["a"].is_deleted()
