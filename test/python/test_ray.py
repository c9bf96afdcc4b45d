"""Workers in Ray actors, on one node and on simulated ones."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import alpa_mlir
import pytest
import steps
from alpa_mlir import errors
from alpa_mlir.hosts.process_group import Limits
from alpa_mlir.hosts.ray_hosts import RayWorkers
from alpa_mlir.runtime import Placement
from test_hosts import SPANNING, TWO, check_equals_jit, gone

ray = pytest.importorskip("ray")
QUICK = Limits(start_seconds=120, frozen_seconds=2)


@pytest.fixture(scope="module")
def local_ray():
    """Whoever needs Ray first starts it; it ends with the module."""
    yield
    RayWorkers().close()
    assert not ray.is_initialized()


def load(placement):
    workers = RayWorkers(placement=placement, platform="cpu", limits=QUICK)
    return alpa_mlir.load(steps.two_stage_plan(2), workers=workers)


@pytest.mark.usefixtures("local_ray")
def test_two_actors_equal_one_device():
    step = load(TWO)
    check_equals_jit(step)
    group = step.loaded.group
    assert group.ping(1, 10)["rank"] == 1
    os.kill(group.pids[1], signal.SIGSTOP)  # Which Ray cannot end.
    with pytest.raises(errors.WorkerLostError, match="worker 1: no answer for 2 s"):
        group.call(1, "free", ()).result(60)
    step.close()
    assert gone(group.pids)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_mesh_over_two_actors():
    step = load(SPANNING)
    check_equals_jit(step)
    step.close()


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_killed_actor_is_noticed():
    step = load(TWO)
    group = step.loaded.group
    os.kill(group.pids[0], signal.SIGKILL)
    with pytest.raises(errors.WorkerLostError, match="worker 0: the actor's process died"):
        group.call(0, "free", ()).result(60)
    step.close()
    assert gone(group.pids)


@pytest.mark.slow
def test_nobody_answers():
    with pytest.raises(errors.WorkerError, match=r"Ray at 127.0.0.1:1: no Ray cluster answers"):
        RayWorkers("127.0.0.1:1").start(steps.two_stage_plan(2), TWO)


@pytest.mark.slow
def test_four_hosts_with_unequal_meshes(monkeypatch):
    """A mesh of 2x2 over two workers, one of 1x2 over two others, on four nodes of a cluster."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(alpa_mlir.__file__).parents[1]))
    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        plan = steps.two_stage_plan(2, first=(2, 2), second=(1, 2))
        placement = Placement(((0,), (1, 2, 3), (4,), (5,)))
        step = alpa_mlir.load(plan, workers=RayWorkers(cluster.address, placement=placement))
        check_equals_jit(step)
        nodes = {facts.pid for facts in step.loaded.group.facts}
        assert len(nodes) == 4
        step.close()
        five = Placement(((0,), (1,), (2, 3), (4,), (5,)))
        with pytest.raises(errors.DevicesError, match="needs 5 hosts, the Ray cluster has 4"):
            alpa_mlir.load(plan, workers=RayWorkers(placement=five))
    finally:
        ray.shutdown()
        cluster.shutdown()
