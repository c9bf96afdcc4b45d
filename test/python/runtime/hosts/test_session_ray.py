"""`init("ray")`: what is planned for is what Ray has, and steps run there until `shutdown`."""

from __future__ import annotations

from types import SimpleNamespace

import alpa_mlir
import pytest
from alpa_mlir.errors import DevicesError
from alpa_rows import check_same, example, expected, train_step
from alpa_runtime.hosts.ray_hosts import RayNodes, ray_nodes

GIB = 1 << 30


def fake_ray(*gpus):
    """A Ray cluster as `ray_nodes` sees it, with a node that is gone."""
    nodes = [{"Alive": True, "Resources": {"GPU": n, "memory": GIB}} for n in gpus]
    nodes.append({"Alive": False, "Resources": {"GPU": 64}})
    task = SimpleNamespace(remote=lambda: 80 * GIB)
    return SimpleNamespace(
        nodes=lambda: nodes,
        remote=lambda _task: SimpleNamespace(options=lambda **_: task),
        get=lambda reference, timeout: reference,
    )


@pytest.mark.parametrize(
    ("gpus", "devices", "nodes", "found"),
    [
        ((8, 4, 0), None, None, RayNodes("gpu", (8, 4), 80 * GIB)),
        ((8, 4, 0), 4, None, RayNodes("gpu", (4, 4), 80 * GIB)),
        ((8, 4, 0), 8, 1, RayNodes("gpu", (8,), 80 * GIB)),
        ((0, 0), 4, None, RayNodes("cpu", (4, 4), GIB // 4)),
        ((0, 0), 2, 1, RayNodes("cpu", (2,), GIB // 2)),
    ],
)
def test_nodes_that_are_taken(gpus, devices, nodes, found):
    assert ray_nodes(fake_ray(*gpus), devices, nodes) == found


@pytest.mark.parametrize(
    ("gpus", "devices", "nodes", "message"),
    [
        ((8, 4), 8, None, "devices_per_node=8; the Ray cluster has nodes of 8, 4 GPUs"),
        ((8, 4), None, 3, "num_nodes=3"),
        ((8, 4), 0, None, "devices_per_node=0"),
        ((0,), None, None, "the 1 nodes of the Ray cluster have no GPUs; fix: give devices_per"),
    ],
)
def test_nodes_that_are_not_there(gpus, devices, nodes, message):
    with pytest.raises(DevicesError, match=message):
        ray_nodes(fake_ray(*gpus), devices, nodes)


@pytest.mark.slow
def test_steps_run_on_ray():
    ray = pytest.importorskip("ray")
    alpa_mlir.init("ray", devices_per_node=2)
    try:
        assert alpa_mlir.get_global_num_devices() == 2
        step = alpa_mlir.parallelize(train_step, method=alpa_mlir.Zero2Parallel())
        check_same(step(*example()), expected())
        loaded = step.get_last_executable().loaded
        assert loaded.group.ping(0, 30)["rank"] == 0
    finally:
        alpa_mlir.shutdown()
    assert not ray.is_initialized()
    assert step.get_last_executable() is None
