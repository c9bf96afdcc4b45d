"""Ray clusters of several nodes, simulated on this machine."""

from __future__ import annotations

import logging
from pathlib import Path

import alpa_mlir
import pytest
import steps
from alpa_mlir import errors
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


def test_nobody_answers():
    ray.shutdown()
    with pytest.raises(errors.WorkerError, match=r"Ray at 127.0.0.1:1: no Ray cluster answers"):
        RayWorkers("127.0.0.1:1").start(steps.two_stage_plan(2), TWO)
