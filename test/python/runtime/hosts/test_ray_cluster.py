"""Ray clusters of several nodes, simulated on this machine."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

import alpa_mlir
import alpa_runtime
import handmade
import jax
import numpy as np
import pytest
import steps
from alpa_mlir import errors, training
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.worker_group import Placement
from source_paths import PYTHONPATH
from test_hosts import TWO

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
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
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
    steps.check_equals_jit(step)
    assert len({facts.pid for facts in step.loaded.group.facts}) == 4
    step.close()
    five = Placement(((0,), (1,), (2, 3), (4,), (5,)))
    with pytest.raises(errors.DevicesError, match="needs 5 hosts, the Ray cluster has 4"):
        alpa_mlir.load(plan, workers=RayWorkers(placement=five))


def test_spare_actors_get_gpus_when_they_are_taken(cluster):
    """They have none before; of these GPUs there are only the numbers."""
    for _ in range(2):
        cluster.add_node(num_cpus=1, num_gpus=2)
    plan = steps.two_stage_plan(2)
    workers = RayWorkers(cluster.address, placement=TWO, platform="gpu", spares=6)
    ray = workers.connect()
    workers._spares.refill(ray, [])
    spares = list(workers._spares._spares)
    assert len({spare.node for spare in spares}) == 6
    platform, group, nodes = workers._group(ray, plan, TWO)
    assert platform == "gpu"
    assert len(set(nodes)) == 2
    taken = {s.node: s.actor for s in spares if s not in workers._spares._spares}
    assert list(group._actors) == [taken[node] for node in nodes]
    for rank in range(2):
        assert group.environment_of(rank, TWO) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert ray.available_resources().get("GPU", 0) == 0
    group.close()
    deadline = time.monotonic() + 20
    while ray.available_resources().get("GPU", 0) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    workers.close()


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


def two_host_step(hosts):
    """The same step planned for so many hosts of one device, a stage each."""
    cluster = alpa_mlir.Cluster.from_dict(
        {
            "name": f"{hosts}-hosts",
            "device_types": {
                "cpu": {
                    "memory_bytes": "4GiB",
                    "memory_bandwidth": 1e10,
                    "peak_flops": {"float32": 2e10},
                }
            },
            "hosts": {"count": hosts, "devices": 1, "device_type": "cpu"},
            "links": {
                "intra_host": {"bandwidth": 4e9, "latency": 2e-5},
                "inter_host": {"bandwidth": 1e9, "latency": 1e-4},
            },
        }
    )
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 1)] * hosts, num_micro_batches=2)
    step = alpa_mlir.parallelize(handmade.reference_step, cluster=cluster, method=method)
    return step.plan(*handmade.arguments(2))


def lines_of(caplog):
    """What was logged of a run, line by line."""
    names = {"alpa_mlir.training", "alpa_mlir.hosts"}
    lines = [record.getMessage() for record in caplog.records if record.name in names]
    assert not any("\n" in line for line in lines)
    return lines


class Losing:
    """A run of ten steps of two hosts, one of which goes away in the middle."""

    def __init__(self, cluster, folder, **options):
        self.cluster, self.folder = cluster, folder
        for node in list(cluster.worker_nodes)[1:]:
            cluster.remove_node(node)
        (self.node,) = cluster.worker_nodes
        limits = Limits(start_seconds=60, frozen_seconds=10)
        self.workers = RayWorkers(cluster.address, platform="cpu", limits=limits, **options)
        self.plan = two_host_step(2)
        self.sizes, self.losses = [], {}

    def load(self):
        return self.started(self.plan)

    def replan(self, _):
        return self.started(two_host_step(len(self.workers.nodes())))

    def started(self, planned):
        step = planned.load(workers=self.workers)
        self.sizes.append(step.loaded.group.size)
        return step

    def heard(self, number, result):
        self.losses[number] = float(result[0])
        if number == 4:
            self.lose()

    def lose(self):
        self.cluster.remove_node(self.node, allow_graceful=False)

    def check(self, replan=None):
        state, batch = handmade.arguments(2)
        state = training.run(
            self.load,
            state,
            lambda _: batch,
            10,
            training.Resume(self.folder, every=2),
            replan=replan,
            on_result=self.heard,
        )
        expected, _ = handmade.arguments(2)
        for number in range(10):
            expected, loss, _ = jax.jit(handmade.reference_step)(expected, batch)
            np.testing.assert_allclose(self.losses[number], loss, rtol=1e-5)
        for name, x in expected.items():
            np.testing.assert_allclose(np.asarray(state[name]), x, rtol=1e-5, atol=1e-6)


def test_a_lost_node_is_planned_without(cluster, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run = Losing(cluster, tmp_path)
    run.check(run.replan)
    assert run.sizes == [2, 1]
    lines = lines_of(caplog)
    (again,) = [line for line in lines if "planning again" in line]
    assert "the plan needs 2 hosts, the Ray cluster has 1" in again


def test_a_node_that_comes_is_used(cluster, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    asked = []

    class Coming(logging.Handler):
        """Starts a node once somebody waits for it."""

        def emit(self, record):
            if "waiting for nodes" in record.getMessage():
                # Which is what an autoscaler looks at.
                asked.extend(g["state"] for g in ray.util.placement_group_table().values())
                cluster.add_node(num_cpus=1)

    monkeypatch.setattr(logging.getLogger("alpa_mlir.hosts"), "handlers", [Coming()])
    run = Losing(cluster, tmp_path, nodes_seconds=120)
    run.check()
    assert run.sizes == [2, 2]
    lines = lines_of(caplog)
    assert "PENDING" in asked
    (waits,) = [line for line in lines if "waiting for nodes" in line]
    assert "up to 120 s" in waits
    assert "the plan needs 2 hosts, the Ray cluster has 1" in waits
    assert sum("the nodes are there after" in line for line in lines) == 1


def test_the_address_of_the_environment(cluster, monkeypatch):
    """And what does not fit there is refused before anything is started."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    workers = RayWorkers(placement=TWO)
    assert workers.nodes() == (0, 0, 0, 0)
    plan = steps.two_stage_plan(2)
    with pytest.raises(errors.DevicesError, match="hosts of 2, 2 GPUs, the Ray cluster has nodes"):
        alpa_mlir.load(plan, workers=RayWorkers(placement=TWO, platform="gpu"))
    assert not ray.util.placement_group_table()
    step = alpa_mlir.load(plan, workers=workers)
    assert ray.get_runtime_context().gcs_address == cluster.address
    steps.check_equals_jit(step)
    step.close()


def test_another_version_on_a_node(cluster, tmp_path):
    """A node whose package is another one is named, and nothing of it is used."""
    package = Path(alpa_runtime.__file__).parent
    shutil.copytree(package, tmp_path / "alpa_runtime")
    (tmp_path / "alpa_runtime" / "version.py").write_text('VERSION = "0.0.7"\n')
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node)
    cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path)})
    cluster.wait_for_nodes()
    with pytest.raises(
        errors.WorkerError, match=r"worker \d on .*: has alpa_mlir 0\.0\.7, the driver has"
    ):
        alpa_mlir.load(steps.two_stage_plan(2), workers=RayWorkers(cluster.address, placement=TWO))


def test_nobody_answers():
    ray.shutdown()
    with pytest.raises(errors.WorkerError, match=r"Ray at 127.0.0.1:1: no Ray cluster answers"):
        RayWorkers("127.0.0.1:1").start(steps.two_stage_plan(2), TWO)
