"""Workers hold the devices of a plan, each once, as its hosts do."""

from __future__ import annotations

import dataclasses
import pickle

import handmade
import pytest
from alpa_mlir.errors import PlacementError
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.worker_group import Placement, part_of_plan


def plan_on(*meshes, hosts=None):
    plan = handmade.as_plan(*handmade.two_stages(1))
    infos = tuple(MeshInfo((len(devices),), ("x",), tuple(devices)) for devices in meshes)
    cluster = {"hosts": hosts} if hosts else {}
    return dataclasses.replace(plan, meshes=infos, cluster=cluster)


def test_by_hosts():
    assert Placement.by_hosts(plan_on([0, 1], [2, 3])).workers == ((0, 1, 2, 3),)
    two = {"count": 2, "devices": 4}
    assert Placement.by_hosts(plan_on([0, 1], [4, 5], hosts=two)).workers == ((0, 1), (4, 5))
    assert Placement.by_hosts(plan_on([4, 5], hosts=two)).workers == ((4, 5),)
    mixed = [{"devices": 1}, {"count": 2, "devices": 2}]
    placed = Placement.by_hosts(plan_on([0, 1], [4, 3], hosts=mixed))
    assert placed.workers == ((0,), (1,), (3, 4))
    with pytest.raises(PlacementError, match="mlp_step: the plan uses device 8, its cluster has 5"):
        Placement.by_hosts(plan_on([8], hosts=mixed))


def test_worlds():
    plan = plan_on([0, 1], [2, 3], [5, 4], [6])
    apart = Placement(((0, 1), (2, 3), (4, 5), (6,)))
    assert apart.worlds(plan) == ((0,), (1,), (2,), (3,))
    assert apart.meshes_of(plan, 2) == (2,)
    spread = Placement(((0, 4), (1, 6), (2, 3), (5,)))
    assert spread.worlds(plan) == ((0, 1, 3), (2,))
    assert spread.ranks_of(plan, 2) == (0, 3)
    assert spread.meshes_of(plan, 0) == (0, 2)
    assert spread.meshes_of(plan, 1) == (0, 3)


def test_wrong_placements():
    plan = plan_on([0, 1], [2, 3])
    Placement(((0, 3), (1, 2))).check(plan)
    with pytest.raises(PlacementError, match=r"no worker has device 3; fix: .*: 0, 1, 2, 3"):
        Placement(((0, 1), (2,))).check(plan)
    with pytest.raises(PlacementError, match="worker 1 has device 4, which no mesh"):
        Placement(((0, 1), (2, 3, 4))).check(plan)
    with pytest.raises(PlacementError, match="worker 1: device 1 belongs to worker 0 as well"):
        Placement(((0, 1), (1, 2)))
    with pytest.raises(PlacementError, match=r"worker 0: devices \[1, 0\], expected .* rising"):
        Placement(((1, 0),))
    with pytest.raises(PlacementError, match=r"worker 1: devices \[\], expected at least one"):
        Placement(((0,), ()))
    with pytest.raises(PlacementError, match="no workers"):
        Placement(())


def test_part_of_a_plan_travels():
    plan = handmade.as_plan(*handmade.two_stages(1))
    part = pickle.loads(pickle.dumps(part_of_plan(plan, [1])))
    assert set(part.modules) == {"stage_1.mlir"}
    assert part.to_json() == plan.to_json()
    whole = pickle.loads(pickle.dumps(plan))
    assert whole.to_json() == plan.to_json()
    assert whole.modules == plan.modules
