"""Ray clusters of several nodes, simulated on this machine."""

from __future__ import annotations

import logging
from pathlib import Path

import alpa_mlir
import handmade
import jax
import numpy as np
import pytest
import steps
from alpa_mlir import errors, training
from alpa_mlir.hosts.process_group import Limits
from alpa_mlir.hosts.ray_hosts import RayWorkers
from alpa_mlir.runtime import Placement
from test_hosts import TWO, check_equals_jit

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    # Nodes are programs of their own, so that it does no harm.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called"),
]


@pytest.fixture
def cluster(monkeypatch):
    """Four nodes; whoever used Ray before is done."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    monkeypatch.setenv("PYTHONPATH", str(Path(alpa_mlir.__file__).parents[1]))
    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_four_hosts_with_unequal_meshes(cluster):
    """A mesh of 2x2 over two workers, one of 1x2 over two others."""
    plan = steps.two_stage_plan(2, first=(2, 2), second=(1, 2))
    placement = Placement(((0,), (1, 2, 3), (4,), (5,)))
    step = alpa_mlir.load(plan, workers=RayWorkers(cluster.address, placement=placement))
    check_equals_jit(step)
    assert len({facts.pid for facts in step.loaded.group.facts}) == 4
    step.close()
    five = Placement(((0,), (1,), (2, 3), (4,), (5,)))
    with pytest.raises(errors.DevicesError, match="needs 5 hosts, the Ray cluster has 4"):
        alpa_mlir.load(plan, workers=RayWorkers(placement=five))


def test_a_run_goes_on_with_fewer_hosts(cluster, tmp_path, caplog):
    """A node is lost in the middle of a run, and no other takes its place."""
    nodes = [cluster.head_node, *cluster.worker_nodes]
    for node in nodes[2:]:
        cluster.remove_node(node)
    large = steps.two_stage_plan(2, first=(1, 1), second=(1, 1))
    two, one = Placement(((0,), (1,))), Placement(((0, 1),))
    quick = Limits(start_seconds=60, frozen_seconds=10)

    def load(placement):
        workers = RayWorkers(cluster.address, placement=placement, platform="cpu", limits=quick)
        return alpa_mlir.load(large, workers=workers)

    losses = {}

    def heard(number, result):
        losses[number] = float(result[0])
        if number == 4:
            cluster.remove_node(nodes[1], allow_graceful=False)

    state = training.run(
        lambda: load(two),
        handmade.arguments(2)[0],
        lambda _: handmade.arguments(2)[1],
        10,
        training.Resume(tmp_path, every=2),
        replan=lambda _: load(one),
        on_result=heard,
    )
    assert "a host cannot be replaced" in caplog.text
    expected, batch = handmade.arguments(2)
    for number in range(10):
        expected, loss, _ = jax.jit(handmade.reference_step)(expected, batch)
        np.testing.assert_allclose(losses[number], loss, rtol=1e-5)
    for name, x in expected.items():
        np.testing.assert_allclose(np.asarray(state[name]), x, rtol=1e-5, atol=1e-6)


def test_nobody_answers():
    ray.shutdown()
    with pytest.raises(errors.WorkerError, match=r"Ray at 127.0.0.1:1: no Ray cluster answers"):
        RayWorkers("127.0.0.1:1").start(steps.two_stage_plan(2), TWO)
